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
    from kit import facts, show, tables
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
    sentence = "Took <!-- fact: freed-memory -->some<!-- / --> times as long.\n"
    page.path.write_text("<!-- table: startup -->\nold\n<!-- end -->\n\n" + sentence)
    old = page.path.read_text()
    assert report.main(page.command) == 0
    assert page.path.read_text() == old
    said = capsys.readouterr().out
    assert "page.md: table startup: startup.json" in said
    assert "page.md: fact freed-memory" in said
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
        line = f"| {dataset.title}, {dataset.n_envs} envs, 100 |"
        assert (line in made["cameras"]) == dataset.picture and (line in made["ratios"]) != dataset.picture, name
        assert (f"| {dataset.title} | 50.00 % | 0.50x |" in made["selection"]) == (name in SELECTED), name
    assert "optimize_memory_usage" in made["ratios"] and "optimize_memory_usage" not in made["selection"]
    # Before any of them is measured there is nothing to show, and the page stays as it is.
    write(tmp_path, "buffers", {"pong/delta": row("pong")})
    assert tables.make_table("cameras", tmp_path) is None


# -- facts in sentences ----------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    row = {"ratios": {"memory": 0.0047, "sample_32": 1.84}, "ours": {"memory": 6.2e6}, "sb3": {"memory": 2.259e9}}
    write(tmp_path, "buffers", {"mspacman/delta": row, "doom-rgb/delta": row})
    return tmp_path


def test_facts_are_of_one_row(folder: Path) -> None:
    made = {name: facts.make_fact(name, folder) for name in ("atari-smaller", "atari-memory", "doom-sampling")}
    assert made == {"atari-smaller": "200 times smaller", "atari-memory": "6.2 MB", "doom-sampling": "1.8"}
    assert facts.make_fact("masks-smaller", folder) is None and facts.make_fact("soak", folder) is None
    with pytest.raises(ValueError, match="no fact 'nonsense'; there are atari-smaller"):
        facts.make_fact("nonsense", folder)


def test_every_fact_was_measured_and_is_quoted() -> None:
    pages = [report.ROOT / "README.md", *(report.ROOT / "docs").glob("*.md")]
    quoted = {found[2] for page in pages for found in facts.MARKED.finditer(page.read_text(encoding="utf-8"))}
    assert quoted == set(facts.FACTS)
    assert all(facts.make_fact(name, report.RESULTS) for name in facts.FACTS)


@pytest.mark.parametrize(
    ("parts", "text"), [(3.9, "4"), (11.0, "11"), (69.8, "70"), (81.0, "80"), (217.0, "200"), (1080.0, "1,100"), (1.4, "1")]
)
def test_times_smaller_is_rough(parts: float, text: str) -> None:
    assert facts.times_smaller(1 / parts) == f"{text} times smaller"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\n<!-- fact: atari-memory -->1<!-- / --> b", "begins a line"),
        ("- <!-- fact: atari-memory -->1<!-- / --> b", "begins a line"),
        ("a <!-- fact: atari-memory -->1", "a fact is written"),
        ("a 1<!-- / --> b", "a fact is written"),
    ],
)
def test_markers_that_are_wrong(text: str, message: str, folder: Path) -> None:
    with pytest.raises(ValueError, match=message):
        facts.update_facts(text, folder, [])


def test_sentences_follow_the_results(folder: Path) -> None:
    path = folder / "page.md"
    marked = "Takes <!-- fact:\natari-memory -->{}<!-- / --> of it, <!-- fact: masks-smaller -->9<!-- / -->"
    path.write_text(marked.format("much"))
    command = [str(path), "--results", str(folder)]
    assert report.main([*command, "--check"]) == 1 and "much" in path.read_text()
    assert report.main(command) == 0
    assert path.read_text() == marked.format("6.2 MB")
    # A line that ends within a fact, as after refilling a paragraph, is no reason to renew it.
    path.write_text(marked.format("6.2\nMB"))
    assert report.main(command) == 0
    assert path.read_text() == marked.format("6.2\nMB")


# -- tables -------------------------------------------------------------------------------------------------------------------


def test_a_cell_has_one_number() -> None:
    row = {"ratios": {"memory": 0.00464, "add_full": 0.254}, "by_round": {"add_full": [0.31, 0.25]}}
    assert [show.ratio(row, metric) for metric in ("memory", "add_full", "sample_32")] == ["0.46 %", "0.25x", ""]
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
    assert facts.make_fact("million-observations", tmp_path) is None


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
