"""
Put the figures of ``benchmarks/results`` into the README and the docs.

A table goes between ``<!-- table: name -->`` and ``<!-- end -->``; ``--list`` shows the names. ``--check`` changes nothing and
exits with 1 if a file is out of date.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
MARKED = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)

Results = dict[str, Any]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """
    Make a Markdown table, numbers to the right.

    :param head: Titles of the columns; the first one is text
    :param rows: Cells
    :return: The table
    """
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def percent(share: float, digits: int = 2) -> str:
    """
    Show a share.

    :param share: 1 for all of it
    :param digits: Digits after the point
    :return: In percent
    """
    return f"{share * 100:.{digits}f} %"


def spread(row: Results, metric: str) -> str:
    """
    Show a ratio, and the smallest and largest that a round gave where they differ.

    :param row: Row of ``buffers.json``
    :param metric: What was measured
    :return: Median and range
    """
    ratio, rounds = row["ratios"].get(metric), row.get("by_round", {}).get(metric, [])
    if ratio is None:
        return ""
    texts = [f"{value * 100:.2f}" if metric == "memory" else f"{value:.2f}" for value in (ratio, *rounds)]
    unit = " %" if metric == "memory" else "x"
    low, high = min(texts[1:], default=texts[0], key=float), max(texts[1:], default=texts[0], key=float)
    return texts[0] + unit + (f" ({low} to {high})" if low != high else "")


def between(ratios: Sequence[float]) -> str:
    """
    Show how far rounds differ.

    :param ratios: What each of them gave
    :return: The smallest and the largest; of a single round nothing
    """
    return f"{min(ratios):.3f}x to {max(ratios):.3f}x" if len(ratios) > 1 else "one round"


def megabytes(size: float) -> str:
    """
    Show a size.

    :param size: Bytes
    :return: In MB
    """
    return f"{size / 1e6:,.1f} MB" if size < 1e8 else f"{size / 1e6:,.0f} MB"


def milliseconds(microseconds: float) -> str:
    """
    Show a short time.

    :param microseconds: The time
    :return: In µs or ms
    """
    return f"{microseconds:.0f} µs" if microseconds < 1000 else f"{microseconds / 1000:.2f} ms"


def _data() -> dict[str, Any]:
    from kit.data import DATASETS

    return DATASETS


def _ratio_rows(results: Results, method: str) -> list[list[str]]:
    from kit.metrics import DISTURBED, METRICS

    lines = []
    for name, dataset in _data().items():
        for key in (f"{name}/{method}", f"{name}/{method}/optimized"):
            row = results["rows"].get(key)
            if row is None or "error" in row:
                continue
            where = f"{dataset.title}, {dataset.n_envs} envs, {row['transitions']:,}"
            where += ", beside SB3's `optimize_memory_usage`" if key.endswith("optimized") else ""
            busy = " (disturbed)" if row["elsewhere"] > DISTURBED else ""
            lines.append([where + busy, *(spread(row, metric) for metric in METRICS)])
    return lines


def ratios(results: Results) -> str:
    """
    Compare the default with SB3 on all data.

    :param results: ``buffers.json``
    :return: Markdown
    """
    from kit.metrics import DEFAULT, METRICS

    return table(["relative to SB3", *METRICS.values()], _ratio_rows(results, DEFAULT))


def first_fill(results: Results) -> str:
    """
    Show what the first fill consists of: adds that find their pages, and all of them, with huge pages and with small ones.

    :param results: ``first_fill.json``
    :return: Markdown
    """
    lines = []
    for row in results["rows"].values():
        dataset = _data()[row["dataset"]]
        cells = []
        for name in ("p25", "mean"):
            sb3, ours = milliseconds(row["sb3"][name]), milliseconds(row["ours"][name])
            cells += [sb3, ours, f"{row['ratios'][name]:.2f}x"]
        lines.append([f"{dataset.title}, {dataset.n_envs} envs", {"huge": "2 MB", "small": "4 KB"}[row["pages"]], *cells])
    head = ["`add` in the first fill", "pages", "SB3, quartile", "ours", "ratio", "SB3, mean", "ours", "ratio"]
    return table(head, lines)


def dense(results: Results) -> str:
    """
    Compare the denser method with SB3.

    :param results: ``buffers.json``
    :return: Markdown
    """
    from kit.metrics import DENSE, METRICS

    return table([f"`{DENSE}`, relative to SB3", *METRICS.values()], _ratio_rows(results, DENSE))


def codecs(results: Results) -> str:
    """
    List all methods on MsPacman.

    :param results: ``buffers.json``
    :return: Markdown
    """
    times = ("add_full", "sample_32")
    good = [row for row in results["rows"].values() if "error" not in row and row.get("baseline", "sb3") == "sb3"]
    rows = [row for row in good if row["dataset"] == "mspacman"]
    lines = []
    for row in sorted(rows, key=lambda row: row["ratios"]["memory"]):
        ours = row["ours"]
        cells = [megabytes(ours["memory"]), percent(row["ratios"]["memory"])]
        cells += [f"{milliseconds(ours[time]['p25'])} ({row['ratios'][time]:.2f}x)" for time in times]
        lines.append([f"`{row['method']}`", *cells])
    if rows:
        base = max(rows, key=lambda row: row["rounds"])["sb3"]
        lines.append(["SB3", megabytes(base["memory"]), "100 %", *(milliseconds(base[time]["p25"]) for time in times)])
    size = rows[0]["transitions"] if rows else 0
    return table([f"MsPacman, {size:,} transitions", "memory", "share", "add (4 envs)", "sample(32)"], lines)


def memory(results: Results) -> str:
    """
    Show the memory of a ring, and that it stays as it is.

    :param results: ``memory.json``
    :return: Markdown
    """
    lines = []
    for name, row in results["rows"].items():
        if "error" in row:
            continue
        made = row["construct"]
        lines.append(
            [
                f"`{name}`",
                megabytes(row["bytes"][0]),
                megabytes(row["sb3_bytes"]),
                percent(row["share"]),
                percent(row["drift"]),
                percent(row["rollout"]["share"]),
                f"{made['seconds']:.2f} s, {megabytes(made['bytes'])}",
            ]
        )
    head = ["method", "memory", "SB3", "share", "change over three laps", "share, rollout of 2,048 steps"]
    head += ["creating a buffer for a million"]
    return table(head, lines)


def million(results: Results) -> str:
    """
    Show a million transitions.

    :param results: ``million.json``
    :return: Markdown
    """
    row = results["rows"]["million"]
    lines = [
        ["transitions played", f"{row['transitions']:,}"],
        ["peak memory of the whole process", megabytes(row["peak_rss"])],
        [f"sample(32) with {row['few']:,} in the buffer", milliseconds(row["sample"]["few"])],
        ["sample(32) with all of them", milliseconds(row["sample"]["all"])],
        ["ratio", f"{row['sample_ratio']:.2f}x"],
    ]
    return table(["DQN on MsPacman", ""], lines)


def training(results: Results) -> str:
    """
    Compare whole training runs.

    :param results: ``training.json``
    :return: Markdown
    """
    lines = []
    for row in results["rows"].values():
        if "error" in row:
            continue
        whole, inside, faults = (
            {side: sum(values) / len(values) for side, values in row[what].items()} for what in ("seconds", "inside", "faults")
        )
        lines.append(
            [
                f"{row['algorithm'].upper()}, {row['steps']:,} steps" + (", both keep freed memory" if row["kept"] else ""),
                f"{whole['sb3']:.1f} s",
                f"{whole['ours']:.1f} s",
                f"{row['ratio']:.3f}x",
                between(row["ratio_of_rounds"]),
                "identical" if row["identical"] else "different",
                f"{inside['sb3']:.1f} / {inside['ours']:.1f} s",
                f"{faults['sb3'] / 1e6:.1f} / {faults['ours'] / 1e6:.1f} million",
                f"{megabytes(row['peak']['sb3'])} / {megabytes(row['peak']['ours'])}",
            ]
        )
    titles = ["time in the buffer, SB3's / ours", "page faults", "peak memory of the process"]
    return table(["Pong", "SB3's buffer", "ours", "ratio", "range over rounds", "weights", *titles], lines)


def her(results: Results) -> str:
    """
    Compare hindsight experience replay.

    :param results: ``her.json``
    :return: Markdown
    """
    names = {"vectors": "20 numbers and two goals", "images": "64x64 images and two goals"}
    lines = []
    for kind, row in results["rows"].items():
        if "error" in row:
            continue
        share = {name: f"{ratio:.2f}x" for name, ratio in row["ratios"].items()}
        memory = percent(row["ratios"]["memory"], 1)
        cells = [memory, share["add"], share["sample"]]
        identical = "identical" if row["identical"] else "different"
        lines.append([f"{names[kind]}, {row['transitions']:,}", *cells, identical])
    return table(["HER, relative to SB3", "memory", "add", "sample(256)", "samples"], lines)


def startup(results: Results) -> str:
    """
    Show what starting costs.

    :param results: ``startup.json``
    :return: Markdown
    """
    rows = results["rows"]
    imports = rows["imports"]
    lines = [
        ["import stable_baselines3", f"{imports['sb3']:.2f} s"],
        ["plus import sb3_extra_buffers", f"{imports['package']:.3f} s"],
        ["plus import sb3_extra_buffers.compressed", f"{imports['compressed']:.3f} s"],
    ]
    delta, plain = rows["delta"], rows["zstd-3"]
    lines.append(["first buffer with `zstd-3`", f"{plain['seconds']:.3f} s"])
    lines.append(["first buffer with `delta`, the default", f"{delta['seconds']:.3f} s"])
    lines.append(["memory of the code, with a small buffer", megabytes(delta["bytes"])])
    return table(["step", "cost"], lines)


def saving(results: Results) -> str:
    """
    Compare saved replay buffers.

    :param results: ``saving.json``
    :return: Markdown
    """
    names = {"sb3": "SB3"}
    lines = []
    for name, row in results["rows"].items():
        if "error" in row:
            continue
        times = [f"{row[what]:.2f} s" for what in ("save_seconds", "load_seconds")]
        same = "" if name == "sb3" else ("identical" if row["identical"] else "different")
        lines.append([names.get(name, f"`{name}`"), f"{row['transitions']:,}", megabytes(row["bytes"]), *times, same])
    return table(["MsPacman, stack 4", "transitions", "file", "save", "load", "samples after loading"], lines)


def recording(results: Results) -> str:
    """
    Tell how large recordings are.

    :param results: ``recording.json``
    :return: Markdown
    """
    sizes = ("raw_bytes", "memory_bytes", "file_bytes", "page_bytes")
    lines = [[row["game"], f"{row['steps']:,}", *[megabytes(row[size]) for size in sizes]] for row in results["rows"].values()]
    return table(["game", "steps", "pictures", "in memory", "as a file", "as a page"], lines)


def gpu(results: Results) -> str:
    """
    Compare buffers on the device ``cpu`` with SB3's and with those of the CPU side.

    :param results: ``gpu_buffers.json``
    :return: Markdown
    """
    from gpu_buffers import FLAT, RATIOS, figure

    titles = {"memory": "memory", "add_first": "`add`, first fill", "add_full": "`add`, ring full"}
    titles |= {"sample_32": "`sample(32)`", "sample_256": "`sample(256)`", "rle_sample_256": "`sample(256)`"}
    names = {"sb3": "SB3's", "rle-jit": "`rle-jit` of the CPU side", "gpu:delta": "`delta`", "gpu:rle": "`rle`"}
    lines = []
    for row in results["rows"].values():
        data = _data()[row["dataset"]]
        if "sizes" in row:
            smallest, largest = min(row["sizes"]), max(row["sizes"])
            for name in FLAT:
                cells = [milliseconds(figure(row["sides"][f"{size:,}"], name)) for size in (smallest, largest)]
                what = f"`delta`, {titles[name]}: {largest:,} transitions beside {smallest:,}"
                lines.append([what, *cells, f"{row['ratios'][name]:.2f}x"])
            continue
        for name, (ours, theirs, _) in RATIOS.items():
            metric = name.removeprefix("rle_")
            show = megabytes if metric == "memory" else milliseconds
            cells = [show(figure(row["sides"][side], metric)) for side in (theirs, ours)]
            ratio = row["ratios"][name]
            text = percent(ratio, 1) if metric == "memory" else f"{ratio:.2f}x"
            what = f"{names[ours]}, {titles[name]}, beside {names[theirs]} ({data.title}, {data.n_envs} envs)"
            lines.append([what, *cells, text])
    return table(["on the device `cpu`", "theirs, or smaller", "ours, or larger", "ratio"], lines)


# Name of the table: the result file, and who makes it.
TABLES: dict[str, tuple[str, Callable[[Results], str]]] = {
    "ratios": ("buffers", ratios),
    "first-fill": ("first_fill", first_fill),
    "dense": ("buffers", dense),
    "codecs": ("buffers", codecs),
    "memory": ("memory", memory),
    "million": ("million", million),
    "training": ("training", training),
    "startup": ("startup", startup),
    "her": ("her", her),
    "saving": ("saving", saving),
    "gpu": ("gpu_buffers", gpu),
    "recording": ("recording", recording),
}


def make_table(name: str, folder: Path) -> str | None:
    """
    Make what goes between two markers.

    :param name: Name of the table
    :param folder: Folder of the results
    :return: Markdown with the command that makes it, None if that was not run yet
    """
    if name not in TABLES:
        raise ValueError(f"no table {name!r}; there are: {', '.join(TABLES)}")
    file, make = TABLES[name]
    path = folder / f"{file}.json"
    if not path.exists():
        return None
    results = json.loads(path.read_text(encoding="utf-8"))
    if any("reached" not in row for key, row in results["rows"].items() if key == "million"):
        return None  # still playing
    about, versions = results["machine"], results["versions"]
    source = f"Measured with `python benchmarks/{file}.py`"
    where = f"{about['cores']} cores of {about['cpu']}, {about['system']}, stable-baselines3 {versions['stable-baselines3']}"
    return f"\n{make(results)}\n\n{source} on {where}.\n\n"


def update(text: str, folder: Path) -> str:
    """
    Renew all tables in a text.

    :param text: Markdown with markers
    :param folder: Folder of the results
    :return: The same with tables
    """

    def renew(found: re.Match[str]) -> str:
        made = make_table(found[2], folder)
        return found[0] if made is None else found[1] + made + found[3]

    return MARKED.sub(renew, text)


def main(arguments: Sequence[str] | None = None) -> int:
    """
    Run what the command line says.

    :param arguments: Command line
    :return: Exit status
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, help="Markdown files; README.md and docs/*.md by default")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the results")
    parser.add_argument("--check", action="store_true", help="change nothing, fail if something is out of date")
    parser.add_argument("--list", action="store_true", help="list the tables")
    args = parser.parse_args(arguments)
    if args.list:
        for name, (file, make) in TABLES.items():
            print(f"{name:<10} {file}.json: {(make.__doc__ or '').strip().splitlines()[0]}")
        return 0
    stale = []
    for path in args.files or [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        before = path.read_text(encoding="utf-8")
        after = update(before, args.results)
        if after == before:
            continue
        stale.append(path.name)
        if not args.check:
            path.write_text(after, encoding="utf-8")
    if stale:
        print(("out of date: " if args.check else "renewed: ") + ", ".join(stale))
    return 1 if args.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
