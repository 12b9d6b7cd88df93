"""The tables of the README and the docs, each made from a result file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from kit import buffer_tables, cluster_tables, fault_tables
from kit.data import DATASETS
from kit.metrics import DEFAULT, DENSE
from kit.results import read_results
from kit.show import Results, between, megabytes, milliseconds, percent, table


def first_fill(results: Results) -> str:
    """
    Show what the first fill consists of: adds that find their pages, and all of them, with huge pages and with small ones.
    """
    lines = []
    for row in results["rows"].values():
        dataset = DATASETS[row["dataset"]]
        cells = []
        for name in ("p25", "mean"):
            sb3, ours = milliseconds(row["sb3"][name]), milliseconds(row["ours"][name])
            cells += [sb3, ours, f"{row['ratios'][name]:.2f}x"]
        lines.append([f"{dataset.title}, {dataset.n_envs} envs", {"huge": "2 MB", "small": "4 KB"}[row["pages"]], *cells])
    head = ["`add` in the first fill", "pages", "SB3, quartile", "ours", "ratio", "SB3, mean", "ours", "ratio"]
    return table(head, lines)


def memory(results: Results) -> str:
    """Show the memory of a ring, and that it stays as it is."""
    lines = []
    for name, row in results["rows"].items():
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
    """Show a million transitions."""
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
    """Compare whole training runs."""
    lines = []
    for row in results["rows"].values():
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


def usage(results: Results) -> str:
    """Show what ``memory_usage()`` prints."""
    return "\n".join(["```text", *(row["usage"] for row in results["rows"].values()), "```"])


def doom(results: Results) -> str:
    """Compare pictures of Doom with masks."""
    # Published for another package of this kind; the size of its frames is not known.
    names = {
        "rgb, SB3's buffer": ("pictures, SB3's buffer", "about 11 GB"),
        "rgb, compressed, default": ("pictures, compressed (`delta`)", "\u2013"),
        "mask, SB3's buffer": ("masks, SB3's buffer", "about 3.6 GB"),
        "mask, compressed, rle-jit": ("masks, compressed (`rle-jit`)", "about 150 MB"),
        "mask, compressed, default": ("masks, compressed (`delta`)", "\u2013"),
    }
    lines = []
    for name, row in results["rows"].items():
        title, published = names[name]
        many = row["bytes"] / row.get("transitions", 10_000) * 100_000
        large = f"{many / 1e9:.1f} GB" if many >= 1e9 else f"{many / 1e6:.0f} MB"
        lines.append([title, megabytes(row["bytes"]), percent(row["percent"] / 100, 1), large, published])
    return table(["", "memory", "of the pictures", "for 100,000 transitions", "published elsewhere"], lines)


def her(results: Results) -> str:
    """Compare hindsight experience replay."""
    names = {"vectors": "20 numbers and two goals", "images": "64x64 images and two goals"}
    lines = []
    for kind, row in results["rows"].items():
        share = {name: f"{ratio:.2f}x" for name, ratio in row["ratios"].items()}
        memory = percent(row["ratios"]["memory"], 1)
        cells = [memory, share["add"], share["sample"]]
        identical = "identical" if row["identical"] else "different"
        lines.append([f"{names[kind]}, {row['transitions']:,}", *cells, identical])
    return table(["HER, relative to SB3", "memory", "add", "sample(256)", "samples"], lines)


def threads(results: Results) -> str:
    """Compare one thread with two."""
    row = next(iter(results["rows"].values()))
    names = {"sample": "sample(256) from one buffer", "copy": "copy as many bytes from a random place"}
    lines = [
        [title, f"{row['rates'][f'{name} 1']:,.0f}", f"{row['rates'][f'{name} 2']:,.0f}", f"{row['gains'][name]:.2f}x"]
        for name, title in names.items()
    ]
    return table(["times a second", "one thread", "two threads", "gain"], lines)


def startup(results: Results) -> str:
    """Show what starting costs."""
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
    """Compare saved replay buffers."""
    names = {"sb3": "SB3"}
    lines = []
    for name, row in results["rows"].items():
        times = [f"{row[what]:.2f} s" for what in ("save_seconds", "load_seconds")]
        same = "" if name == "sb3" else ("identical" if row["identical"] else "different")
        lines.append([names.get(name, f"`{name}`"), f"{row['transitions']:,}", megabytes(row["bytes"]), *times, same])
    return table(["MsPacman, stack 4", "transitions", "file", "save", "load", "samples after loading"], lines)


def files(results: Results) -> str:
    """Compare directories that ``save`` has written with the file of SB3's ``save_replay_buffer``."""
    rows = results["rows"]
    theirs = rows["sb3"]
    lines = []
    for name, row in rows.items():
        is_theirs = name == "sb3"
        cells = [megabytes(row["bytes"]) + ("" if is_theirs else f" ({percent(row['bytes'] / theirs['bytes'])})")]
        for what in ("save_seconds", "load_seconds"):
            cells.append(f"{row[what]:.3f} s" + ("" if is_theirs else f" ({theirs[what] / row[what]:.0f}x faster)"))
        share = 1.0 if is_theirs else row["again_bytes"] / row["bytes"]
        cells += [percent(share, 1), megabytes(row["save_memory"])]
        same = "" if is_theirs else ("identical" if row["identical"] else "different")
        title = "SB3, `save_replay_buffer`" if is_theirs else f"`{name.removesuffix('/files')}`, `save`"
        lines.append([title, f"{row['transitions']:,}", *cells, same])
    again = f"written again {theirs['steps_more']:,} steps later"
    head = ["MsPacman, stack 4", "transitions", "on disk", "save", "load", again, "memory to save", "samples after loading"]
    return table(head, lines)


def rings(results: Results) -> str:
    """Compare rings on disk with one in memory."""
    names = {
        "memory": "in memory",
        "fits": "on disk, fits into `max_memory`",
        "larger": "on disk, ten times `max_memory`, all of it in the page cache",
        "from_disk": "on disk, ten times `max_memory`, a tenth of it in the page cache",
    }
    rows = results["rows"]
    lines = []
    for name, title in names.items():
        row = rows[name]
        cells = [f"{milliseconds(row[what])} ({row['ratios'][what]:.2f}x)" for what in ("add", "sample")]
        lines.append([title, f"{row['transitions']:,}", megabytes(row["bytes"]), *cells])
    disk = rows["disk"]
    said = (
        f"A batch of the last row has {rows['from_disk']['disk_bytes'] / 1e6:.2f} MB read from the disk, which reads "
        f"{disk['reads_1']:,.0f} pages of 4 KB a second one after the other, and {disk['reads_16']:,.0f} if 16 threads do."
    )
    if "sample" in disk:
        rounds = rows["memory"]["rounds"]
        said += f" 32 reads of that size, all at once, take it {milliseconds(disk['sample'])}."
        said += f" Times are medians of {rounds} rounds."
    return table(["MsPacman, stack 4", "transitions", "chunks", "`add`, mean", "`sample(32)`"], lines) + f"\n\n{said}"


def datasets(results: Results) -> str:
    """Tell what it takes to open a data set, beside loading a buffer."""
    names = {"dataset": "`open_dataset`", "buffer": "`load_buffer`"}
    lines = []
    for name, row in results["rows"].items():
        opened = [f"{row['open_seconds'] * 1e3:.0f} ms", megabytes(row["open_bytes"]), f"{row['first_batch_seconds']:.2f} s"]
        lines.append([names[name], f"{row['transitions']:,}", megabytes(row["bytes"]), *opened, milliseconds(row["batch_us"])])
    titles = ["MsPacman, stack 4", "transitions", "on disk", "to open", "memory for that", "first batch of 256", "later ones"]
    return table(titles, lines)


def recording(results: Results) -> str:
    """Sizes of recordings."""
    sizes = ("raw_bytes", "memory_bytes", "file_bytes", "page_bytes")
    lines = [[row["game"], f"{row['steps']:,}", *[megabytes(row[size]) for size in sizes]] for row in results["rows"].values()]
    return table(["game", "steps", "pictures", "in memory", "as a file", "as a page"], lines)


def gpu(results: Results) -> str:
    """Compare buffers on the device ``cpu`` with SB3's and with those of the CPU side."""
    from gpu_buffers import FLAT, RATIOS, figure

    titles = {"memory": "memory", "add_first": "`add`, first fill", "add_full": "`add`, ring full"}
    titles |= {"sample_32": "`sample(32)`", "sample_256": "`sample(256)`", "rle_sample_256": "`sample(256)`"}
    names = {"sb3": "SB3's", "rle-jit": "`rle-jit` of the CPU side", "gpu:delta": "`delta`", "gpu:rle": "`rle`"}
    lines = []
    for row in results["rows"].values():
        data = DATASETS[row["dataset"]]
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


def _is_beside_files(row: Results) -> bool:
    return "save_memory" in row and bool(row["files"] or row["method"] == "sb3")


def _of(method: str) -> Callable[[Results], bool]:
    return lambda row: bool(row["method"] == method)


class Source(NamedTuple):
    """
    Where a table comes from.

    :param file: Result file, without its ending
    :param make: Makes the table of its rows
    :param wanted: Picks rows; those that end in an error are left out anyway
    :param program: What writes the file; of the same name by default
    """

    file: str
    make: Callable[[Results], str]
    wanted: Callable[[Results], bool] = lambda row: True
    program: str | None = None


TABLES: dict[str, Source] = {
    "selection": Source("buffers", buffer_tables.selection, buffer_tables.is_selected),
    "ratios": Source("buffers", buffer_tables.ratios, buffer_tables.shows_games),
    "cameras": Source("buffers", buffer_tables.cameras, buffer_tables.shows_pictures),
    "first-fill": Source("first_fill", first_fill),
    "dense": Source("buffers", buffer_tables.dense, _of(DENSE)),
    "codecs": Source("buffers", buffer_tables.codecs, buffer_tables.is_to_choose_from),
    "memory": Source("memory", memory),
    "usage": Source("memory", usage, _of(DEFAULT)),
    "million": Source("million", million),
    "training": Source("training", training),
    "startup": Source("startup", startup),
    "her": Source("her", her),
    "saving": Source("saving", saving, lambda row: not row.get("files")),
    "files": Source("saving", files, _is_beside_files),
    "rings": Source("rings", rings),
    "datasets": Source("datasets", datasets),
    "threads": Source("threads", threads),
    "cluster": Source("cluster", cluster_tables.blocks, cluster_tables.is_of_blocks),
    "cluster-rates": Source("cluster", cluster_tables.rates, lambda row: not cluster_tables.is_of_blocks(row)),
    "cluster-thousand": Source("cluster_thousand", cluster_tables.thousand),
    "cluster-large": Source("cluster", cluster_tables.arithmetic, cluster_tables.is_of_blocks),
    "faults": Source("faults", fault_tables.faults),
    "checkpoints": Source("checkpoints", fault_tables.checkpoints),
    "gpu": Source("gpu_buffers", gpu),
    "recording": Source("recording", recording),
    "doom": Source("vizdoom_memory", doom, program="examples/example_vizdoom_memory.py"),
}


def when(rows: Iterable[Mapping[str, Any]]) -> str:
    """Tell on which days rows were measured."""
    days = [row.get("measured") for row in rows]
    known = sorted({day for day in days if day})
    if not known:
        return ""
    if None in days:
        return f" until {known[-1]}"
    return f" on {known[0]}" if len(known) == 1 else f" from {known[0]} to {known[-1]}"


def make_table(name: str, folder: Path) -> str | None:
    """Make what goes between two markers."""
    if name not in TABLES:
        raise ValueError(f"no table {name!r}; there are: {', '.join(TABLES)}")
    source = TABLES[name]
    results = read_results(source.file, folder)
    if results is None:
        return None
    rows = {key: row for key, row in results["rows"].items() if "error" not in row and source.wanted(row)}
    if not rows:
        return None
    made = source.make({**results, "rows": rows})
    program = source.program or f"benchmarks/{source.file}.py"
    about, versions = results.get("machine"), results.get("versions", {})
    where = f" on {about['cores']} cores of {about['cpu']}, {about['system']}" if about else ""
    where += f", stable-baselines3 {versions['stable-baselines3']}" if "stable-baselines3" in versions else ""
    return f"\n{made}\n\nMeasured{when(rows.values())} with `python {program}`{where}.\n\n"
