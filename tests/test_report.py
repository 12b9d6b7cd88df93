"""Figures come from the result files: tables, and numbers in sentences."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"

pytest.importorskip("rich")
pytest.importorskip("zstandard")
sys.path.insert(0, str(BENCHMARKS))
try:
    import faults
    import gpu_buffers  # noqa: F401 (the tables ask for it when the path is gone again)
    import report
    from kit import figures, show, tables
    from kit.data import DATASETS, SELECTED
finally:
    sys.path.remove(str(BENCHMARKS))

ABOUT = {
    "machine": {"cpu": "CPU", "cores": 2, "memory_gib": 8, "system": "Linux"},
    "versions": {"stable-baselines3": "2.9.2"},
}


def write(folder: Path, name: str, rows: dict[str, Any]) -> None:
    (folder / f"{name}.json").write_text(json.dumps({**ABOUT, "rows": rows}))


@pytest.fixture
def page(tmp_path: Path) -> SimpleNamespace:
    """A Markdown file with markers, and results for it."""
    row = {"algorithm": "dqn", "steps": 20, "seconds": {"sb3": [2.0], "ours": [1.0]}, "ratio": 0.5, "identical": True}
    row |= {"kept": False, "ratio_of_rounds": [0.4, 0.5, 0.6], "measured": "2026-11-18"}
    row |= {"reached": {"time": True, "weights": True}, "peak": {"sb3": 2e9, "ours": 5e7}}
    row |= {"inside": {"sb3": [0.5], "ours": [0.25]}, "faults": {"sb3": [3_000_000], "ours": [1_500_000]}}
    write(tmp_path, "training", {"dqn": row, "ppo": {"error": "killed"}})
    path = tmp_path / "page.md"
    path.write_text("# Title\n\n<!-- table: training -->\n<!-- end -->\n\nText.\n")
    return SimpleNamespace(path=path, command=[str(path), "--results", str(tmp_path)])


def test_report_renews_once(page: SimpleNamespace) -> None:
    old = page.path.read_text()
    assert report.main([*page.command, "--check"]) == 1
    assert page.path.read_text() == old
    assert report.main(page.command) == 0
    new = page.path.read_text()
    whole = "2.0 s | 1.0 s | 0.500x | 0.400x to 0.600x | identical"
    parts = "0.5 / 0.2 s | 3.0 / 1.5 million | 2,000 MB / 50.0 MB"
    assert f"| DQN, 20 steps | {whole} | {parts} |" in new and "PPO" not in new
    assert (
        "Measured on 2026-11-18 with `python benchmarks/training.py` on 2 cores of CPU, Linux, stable-baselines3 2.9.2." in new
    )
    assert report.main([*page.command, "--check"]) == 0
    assert report.main(page.command) == 0
    assert page.path.read_text() == new


def test_what_was_not_measured_is_listed_and_left_alone(page: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    sentence = "Took <!-- figure: training ppo-kept ratio number -->some<!-- / --> times as long.\n"
    page.path.write_text("<!-- table: startup -->\nold\n<!-- end -->\n\n" + sentence)
    old = page.path.read_text()
    assert report.main(page.command) == 0
    assert page.path.read_text() == old
    said = capsys.readouterr().out
    assert "page.md: table startup: startup.json" in said
    assert "page.md: training.json has no row 'ppo-kept'; it has dqn, ppo" in said
    assert report.main([*page.command, "--check"]) == 1


def test_report_knows_its_tables(page: SimpleNamespace) -> None:
    page.path.write_text("<!-- table: nonsense -->\n<!-- end -->\n")
    with pytest.raises(ValueError, match=r"page\.md: no table 'nonsense'"):
        report.main(page.command)


def test_docs_are_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    report.main(["--check"])
    assert "out of date" not in capsys.readouterr().out, "run `python benchmarks/report.py`"


def test_everything_that_pages_show_was_measured() -> None:
    assert report.main(["--check"]) == 0


def test_rows_go_to_their_tables(tmp_path: Path) -> None:
    """All rows are in one of two tables of docs/results.md; README has a selection, and no more than one row of each."""

    def row(dataset: str, baseline: str = "sb3") -> dict[str, Any]:
        metrics = dict.fromkeys(("memory", "add_first", "add_full", "sample_32", "sample_256", "get_256"), 0.5)
        about = {"dataset": dataset, "method": "delta", "transitions": 100, "rounds": 1, "baseline": baseline}
        return {**about, "ratios": metrics, "by_round": {name: [0.5] for name in metrics}, "elsewhere": 0.0}

    rows = {f"{name}/delta": row(name) for name in DATASETS}
    write(tmp_path, "buffers", {**rows, "mspacman/delta/optimized": row("mspacman", "sb3-optimized")})
    made = {name: tables.make_table(name, tmp_path) or "" for name in ("ratios", "cameras", "selection")}
    for name, dataset in DATASETS.items():
        line = f"| {dataset.title}, {dataset.n_envs} envs, 100, one round |"
        assert (line in made["cameras"]) == dataset.picture and (line in made["ratios"]) != dataset.picture, name
        assert (line in made["selection"]) == (name in SELECTED), name
    assert "optimize_memory_usage" in made["ratios"] and "optimize_memory_usage" not in made["selection"]
    # Before any of them is measured there is nothing to show, and the page stays as it is.
    write(tmp_path, "buffers", {"pong/delta": row("pong")})
    assert tables.make_table("cameras", tmp_path) is None


# -- numbers in sentences -----------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = {
        "pong/delta": {"share": 0.00242, "sizes": {"ours": 5.5e6}, "times": [950.0, 2100.0], "rounds": [0.9, 1.1, 1.0]},
        "game/delta": {"share": 0.00464, "sizes": {"ours": 10.46e6}, "times": [186.0, 830.0], "rounds": [2.0]},
        "doom/delta": {"share": 0.108, "sizes": {"ours": 2.5e8}, "times": [1.0], "rounds": [20]},
        "game/delta-zstd": {"share": 0.99, "sizes": {"ours": 7.3e6}, "times": [1.0], "rounds": [1], "right": True},
        "game/rle": {"error": "no memory"},
    }
    write(tmp_path, "x", rows)
    (tmp_path / "plain.json").write_text(json.dumps({"seconds": 1086, "updates": {"few": [1000, 3000, 9000, 2000]}}))
    return tmp_path


@pytest.mark.parametrize(
    ("marker", "text"),
    [
        ("x pong/delta share percent", "0.24 %"),
        ("x doom/delta share percent:0", "11 %"),
        ("x pong/delta,game/delta share percent", "0.24 to 0.46 %"),
        ("x */delta,!doom/* share percent", "0.24 to 0.46 %"),
        ("x game/delta sizes.ours MB", "10.5 MB"),
        ("x */delta sizes.ours MB", "5.5 to 250 MB"),
        ("x doom/delta sizes.ours GB:2", "0.25 GB"),
        ("x pong/delta times time", "950 µs to 2.10 ms"),
        ("x game/delta times time", "186 to 830 µs"),
        ("x pong/delta times.-1 time", "2.10 ms"),
        ("x */delta rounds number:1", "0.9 to 20.0"),
        ("x pong/delta rounds number median", "1.00"),
        ("x pong/delta rounds number max", "1.10"),
        ("x doom/delta share fraction", "a ninth"),
        ("x game/delta share fraction", "a 200th"),
        ("x game/delta-zstd share fraction", "99 %"),
        ("x */delta share fraction", "a 400th to a ninth"),
        ("x pong/delta,game/delta rounds,share number:0", "0 to 2"),
        ("plain . seconds seconds", "1086 s"),
        ("plain . updates.few number:0 median", "2,500"),
    ],
)
def test_figures(marker: str, text: str, folder: Path) -> None:
    assert figures.make_figure(marker, folder) == text


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        (2.0, "half"),
        (3.9, "a quarter"),
        (8.0, "an eighth"),
        (11.0, "an 11th"),
        (18.0, "an 18th"),
        (69.8, "a 70th"),
        (81.0, "an 80th"),
    ],
)
def test_fractions(parts: float, text: str) -> None:
    assert figures.fraction(1 / parts) == text


@pytest.mark.parametrize(("parts", "text"), [(217.0, "a 200th"), (535.0, "a 550th"), (810.0, "an 800th"), (1.4, "71 %")])
def test_fractions_are_rough(parts: float, text: str) -> None:
    assert figures.fraction(1 / parts) == text


@pytest.mark.parametrize(
    ("marker", "says"),
    [
        ("y pong/delta share percent", "there is no y.json; there are plain, x"),
        ("x pang/delta share percent", "x.json has no row 'pang/delta'; it has pong/delta, game/delta"),
        ("x pong/delta,pang/* share percent", "no row 'pang/*'"),
        ("x pong/delta,!pong/* share percent", "no row for 'pong/delta,!pong/*'"),
        ("x pong/delta sizes.theirs MB", "x.json, pong/delta: no 'theirs' of sizes.theirs; it has ours"),
        ("x pong/delta times.5 time", "no '5' of times.5; it has list there"),
        ("x pong/delta sizes MB", "sizes is not a number"),
        ("x game/delta-zstd right number", "right is not a number"),
        ("x game/rle share percent", "x.json, game/rle: no 'share' of share; it has error"),
    ],
)
def test_figures_that_are_not_there(marker: str, says: str, folder: Path) -> None:
    with pytest.raises(figures.NotMeasured) as raised:
        figures.make_figure(marker, folder)
    assert says in str(raised.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a <!-- figure: x pong/delta share --> 1 <!-- / -->", "give a file, rows, paths, a format"),
        ("a <!-- figure: x pong/delta share bananas -->1<!-- / -->", "no format 'bananas'; there are number, percent"),
        ("a <!-- figure: x pong/delta share percent:two -->1<!-- / -->", "no format 'percent:two'"),
        ("a <!-- figure: x pong/delta share percent best -->1<!-- / -->", "no 'best'; there are mean"),
        ("a\n<!-- figure: x pong/delta share percent -->1<!-- / --> b", "begins a line"),
        ("- <!-- figure: x pong/delta share percent -->1<!-- / --> b", "begins a line"),
        ("a <!-- figure: x pong/delta share percent -->1\n<!-- / --> b", "begins a line"),
        ("a <!-- figure: x pong/delta share percent -->1", "a figure is written <!-- figure: FILE"),
        ("a 1<!-- / --> b", "a figure is written <!-- figure: FILE"),
        ("a <!-- figure x pong/delta share percent -->1<!-- / -->", "a figure is written <!-- figure: FILE"),
    ],
)
def test_markers_that_are_wrong(text: str, says: str, folder: Path) -> None:
    with pytest.raises(ValueError, match=r".") as raised:
        figures.update_figures(text, folder, [])
    assert says in str(raised.value)


def test_sentences_follow_the_results(folder: Path) -> None:
    path = folder / "page.md"
    marked = "Takes <!-- figure: x */delta share\npercent -->{}<!-- / --> of it,\n"
    marked += "| in <!-- figure: x pong/delta rounds number -->{}<!-- / --> |"
    path.write_text(marked.format("much", "2"))
    command = [str(path), "--results", str(folder)]
    assert report.main([*command, "--check"]) == 1 and "much" in path.read_text()
    assert report.main(command) == 0
    assert path.read_text() == marked.format("0.24 to 10.80 %", "0.90 to 1.10")
    # A line that ends within a figure, as after refilling a paragraph, is no reason to renew it.
    path.write_text(marked.format("0.24 to\n10.80 %", "0.90 to 1.10"))
    assert report.main([*command, "--check"]) == 0


# -- tables -------------------------------------------------------------------------------------------------------------------


def test_the_range_of_rounds_is_shown_where_there_is_one() -> None:
    row = {
        "ratios": {"memory": 0.00464, "add_full": 0.254},
        "by_round": {"memory": [0.00464, 0.00464], "add_full": [0.31, 0.25]},
    }
    assert show.spread(row, "memory") == "0.46 %", "rounds that look the same are no range"
    assert show.spread(row, "add_full") == "0.25x (0.25 to 0.31)"
    assert show.spread(row, "sample_32") == "", "a brief row has none"
    assert show.spread({"ratios": {"add_full": 12.5}, "by_round": {"add_full": [9.5, 12.5, 100.0]}}, "add_full").endswith(
        "(9.50 to 100.00)"
    )
    assert show.spread({"ratios": {"add_full": 0.254}}, "add_full") == "0.25x"
    assert show.between([0.97, 0.93, 0.95]) == "0.930x to 0.970x"
    assert show.between([0.98]) == "one round"


def codec_row(method: str, memory: float, **changed: Any) -> dict[str, Any]:
    sides = {
        name: {"memory": size, "add_full": {"p25": 90.0}, "sample_32": {"p25": 1500.0}}
        for name, size in (("sb3", 2_259_000_000), ("ours", memory))
    }
    ratios = {"memory": memory / 2_259_000_000, "add_full": 1.0, "sample_32": 5.25}
    about = {"dataset": "mspacman", "method": method, "transitions": 40_000, "rounds": 1, "baseline": "sb3"}
    return {**about, "ratios": ratios, **sides, "measured": "2026-11-18", **changed}


def test_all_codecs_of_one_size_are_in_one_table(tmp_path: Path) -> None:
    rows = {
        "mspacman/zstd-3": codec_row("zstd-3", 65e6),
        "mspacman/delta": codec_row("delta", 10.5e6, rounds=5, measured="2026-11-17"),
        "mspacman/delta/optimized": codec_row("delta", 10.5e6, baseline="sb3-optimized"),
        "mspacman/gzip1": codec_row("gzip1", 30e6, transitions=20_000),
        "mspacman/rle": {"dataset": "mspacman", "method": "rle", "error": "killed"},
        "pong/delta": codec_row("delta", 5e6, dataset="pong"),
    }
    write(tmp_path, "buffers", rows)
    made = tables.make_table("codecs", tmp_path)
    assert made is not None
    lines = [line for line in made.splitlines() if line.startswith("|")]
    assert lines == [
        "| MsPacman, 40,000 transitions | memory | share | add (4 envs) | sample(32) |",
        "| --- | ---: | ---: | ---: | ---: |",
        "| `delta` | 10.5 MB | 0.46 % | 90 µs (1.00x) | 1.50 ms (5.25x) |",
        "| `zstd-3` | 65.0 MB | 2.88 % | 90 µs (1.00x) | 1.50 ms (5.25x) |",
        "| SB3 | 2,259 MB | 100 % | 90 µs | 1.50 ms |",
    ]
    assert "Measured from 2026-11-17 to 2026-11-18 with `python benchmarks/buffers.py`" in made


@pytest.mark.parametrize(
    ("days", "text"),
    [
        ([], ""),
        ([None], ""),
        (["2026-11-18", "2026-11-18"], " on 2026-11-18"),
        (["2026-11-18", "2026-09-30"], " from 2026-09-30 to 2026-11-18"),
        (["2026-11-18", None], " until 2026-11-18"),
    ],
)
def test_tables_tell_their_days(days: list[str | None], text: str) -> None:
    assert tables.when([{"measured": day} if day else {} for day in days]) == text


def test_examples_write_results_too(tmp_path: Path) -> None:
    row = {"method": "mask, compressed, default", "bytes": 4_900_000, "percent": 0.43, "measured": "2026-11-18"}
    (tmp_path / "vizdoom_memory.json").write_text(json.dumps([{**row, "transitions": 5_000}]))
    made = tables.make_table("doom", tmp_path)
    assert made is not None and "| masks, compressed (`delta`) | 4.9 MB | 0.4 % | 98 MB | \u2013 |" in made
    assert "Measured on 2026-11-18 with `python examples/example_vizdoom_memory.py`." in made


def test_a_million_that_is_still_played_is_not_shown(tmp_path: Path) -> None:
    write(tmp_path, "million", {"million": {"transitions": 5, "peak_rss": 7}})
    assert tables.make_table("million", tmp_path) is None
    with pytest.raises(figures.NotMeasured):
        figures.make_figure("million million peak_rss MB", tmp_path)


REPORT = """<testsuites><testsuite>
<testcase name="a" time="1.5"><properties>
<property name="times" value="30" /><property name="acknowledged" value="7" /></properties></testcase>
<testcase name="b" time="2.2"><properties><property name="times" value="1000" /></properties></testcase>
<testcase name="c" time="0.1"><failure message="lost">rows</failure></testcase>
</testsuite></testsuites>"""


def test_faults_are_counted_and_shown(tmp_path: Path) -> None:
    counted = faults.add_up(ElementTree.fromstring(REPORT).iter("testcase"))
    assert counted == {"times": 1030, "wrong": 1, "seconds": 4}
    write(tmp_path, "faults", {"kills": {"what": "`kill -9`", "runs": "python -m pytest x", **counted}})
    assert "| `kill -9` | 1,030 | 1 | `python -m pytest x` |" in (tables.make_table("faults", tmp_path) or "")


def test_what_a_checkpoint_costs(tmp_path: Path) -> None:
    row = {"transitions": 1_000_000, "steps_between": 1000, "stopped_seconds": 0.031, "longest_stop_seconds": 0.06}
    row |= {"first_bytes": 17e7, "first_seconds": 1.0, "next_bytes": 28e6, "next_seconds": 0.1}
    write(tmp_path, "checkpoints", {"checkpoints": row})
    shown = tables.make_table("checkpoints", tmp_path) or ""
    assert "| training stands still, median | 31 ms |" in shown and "1,000,000 transitions" in shown
