"""
The measured figures that README and docs quote in sentences, each under one name: ``<!-- fact: NAME -->…<!-- / -->``.

All other figures are in generated tables and pictures. A marker must not begin a line: Markdown would take that line for HTML.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kit.results import read_results
from kit.show import megabytes, percent

MARKED = re.compile(r"(<!-- fact:\s*([\w-]+)\s*-->)(.*?)(<!-- / -->)", re.DOTALL)
_BEGINS_A_LINE = re.compile(r"^[ \t>*+-]*(?:\d+[.)] +)?<!-- (?:fact: [^<>]*|/ )-->", re.MULTILINE)

Row = dict[str, Any]


def times_smaller(share: float) -> str:
    """Put a share into words, roughly: ``350 times smaller``."""
    parts = 1 / share
    step = 1 if parts < 20 else 5 if parts < 100 else 50
    return f"{max(1, round(parts / step)) * step:,} times smaller"


def _soak(row: Row) -> str:
    low, high = min(row["own_by_tenths"]), max(row["own_by_tenths"])
    return (
        f"{row['added'] / 1e6:.1f} million transitions in {row['minutes']:.0f} minutes, {row['laps']:.0f} times round the "
        f"ring; {row['compared'] / 1e6:.1f} million samples were compared, all equal. The process had {low / 1e6:.0f} to "
        f"{high / 1e6:.0f} MB of memory of its own and {max(row['handles'])} open files"
    )


def _median(values: list[float]) -> str:
    return f"{statistics.median(values):,.0f}"


def _mean(path: Callable[[Row], float]) -> Callable[[list[Row]], str]:
    return lambda rows: f"{statistics.fmean(path(row) for row in rows):.1f}"


# Name: result file, row (`*` for all rows, `.` for the whole file), and how its text is made.
FACTS: dict[str, tuple[str, str, Callable[[Any], str | None]]] = {
    "atari-smaller": ("buffers", "mspacman/delta", lambda row: times_smaller(row["ratios"]["memory"])),
    "atari-memory": ("buffers", "mspacman/delta", lambda row: megabytes(row["ours"]["memory"])),
    "atari-memory-sb3": ("buffers", "mspacman/delta", lambda row: megabytes(row["sb3"]["memory"])),
    "masks-smaller": ("buffers", "doom-labels/delta", lambda row: times_smaller(row["ratios"]["memory"])),
    "doom-smaller": ("buffers", "doom-rgb/delta", lambda row: times_smaller(row["ratios"]["memory"])),
    "doom-sampling": ("buffers", "doom-rgb/delta", lambda row: f"{row['ratios']['sample_32']:.1f}"),
    "gray-share": ("buffers", "doom-gray/delta", lambda row: percent(row["ratios"]["memory"], 0)),
    "walker-share": ("buffers", "walker/delta", lambda row: percent(row["ratios"]["memory"], 0)),
    "crafter-share": ("buffers", "crafter/delta", lambda row: percent(row["ratios"]["memory"], 0)),
    "million-observations": (
        "million",
        "million",
        lambda row: megabytes(row["series"][-1]["stored"]) if "series" in row else None,
    ),
    "million-process": ("million", "million", lambda row: megabytes(row["peak_rss"])),
    "ppo-training": ("training", "ppo", lambda row: f"{row['ratio']:.2f}"),
    "dqn-training": ("training", "dqn", lambda row: f"{row['ratio']:.2f}"),
    "freed-memory": ("training", "ppo-kept", lambda row: f"{statistics.median(row['kept_to_not']):.2f}"),
    "stats-cost": ("buffer_stats", "DQN", lambda row: percent(row["share"])),
    "catch-random": ("learning", "*", _mean(lambda row: statistics.fmean(row["random"]))),
    "catch-trained": ("learning", "*", _mean(lambda row: statistics.fmean(row["runs"]["ours"]["rewards"][-1]))),
    "cluster-alone": ("cluster_learning", "*", _mean(lambda row: statistics.fmean(row["last"]["alone"]))),
    "cluster-fleet": ("cluster_learning", "*", _mean(lambda row: statistics.fmean(row["last"]["fleet"]))),
    "cliff-uniform": ("cliffwalk", ".", lambda file: _median(file["updates"]["tabular_uniform"]["13"])),
    "cliff-prioritized": ("cliffwalk", ".", lambda file: _median(file["updates"]["tabular_prioritized"]["13"])),
    "soak": ("faults", "soak", _soak),
}


def make_fact(name: str, folder: Path) -> str | None:
    """Make the text of a fact; None if it was not measured yet."""
    if name not in FACTS:
        raise ValueError(f"no fact {name!r}; there are {', '.join(FACTS)}")
    file, key, text = FACTS[name]
    results = read_results(file, folder)
    if results is None:
        return None
    row: Any = results if key == "." else list(results["rows"].values()) if key == "*" else results["rows"].get(key)
    return text(row) if row else None


def update_facts(text: str, folder: Path, missing: list[str]) -> str:
    """Renew all facts in a text. One that was not measured stays as it is, and its name is added to ``missing``."""
    if found := _BEGINS_A_LINE.search(text):
        raise ValueError(f"{found[0].strip()!r} begins a line, so Markdown takes it for HTML: move a word before it")

    def renew(found: re.Match[str]) -> str:
        opening, name, before, closing = found.groups()
        fact = make_fact(name, folder)
        if fact is None:
            missing.append(f"fact {name}")
            return found[0]
        # A line may end within it.
        return found[0] if before.split() == fact.split() else opening + fact + closing

    text = MARKED.sub(renew, text)
    if left := re.search(r"<!-- (?:fact\b[^\n]*|/ -->)", MARKED.sub("", text)):
        raise ValueError(f"{left[0]!r}: a fact is written <!-- fact: NAME -->…<!-- / -->")
    return text
