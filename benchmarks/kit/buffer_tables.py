"""The tables that ``buffers.py`` fills: our buffer and SB3's, on all kinds of data."""

from __future__ import annotations

from collections.abc import Iterable

from kit.data import DATASETS, SELECTED
from kit.metrics import DEFAULT, DENSE, METRICS
from kit.show import Results, megabytes, milliseconds, percent, ratio, table


def _ratio_rows(results: Results, method: str, names: Iterable[str] | None = None) -> list[list[str]]:
    lines = []
    for name in names or DATASETS:
        dataset = DATASETS[name]
        for key in (f"{name}/{method}", f"{name}/{method}/optimized"):
            row = results["rows"].get(key)
            if row is None:  # not measured yet, or not wanted
                continue
            where = f"{dataset.title}, {dataset.n_envs} envs, {row['transitions']:,}"
            where += ", beside SB3's `optimize_memory_usage`" if key.endswith("optimized") else ""
            lines.append([where, *(ratio(row, metric) for metric in METRICS)])
    return lines


def ratios(results: Results) -> str:
    """Compare the default with SB3 on games, masks and vectors."""
    names = [name for name, dataset in DATASETS.items() if not dataset.picture]
    return table(["relative to SB3", *METRICS.values()], _ratio_rows(results, DEFAULT, names))


def cameras(results: Results) -> str:
    """Compare the default with SB3 on pictures in colour, and on those that change all over."""
    names = [name for name, dataset in DATASETS.items() if dataset.picture]
    return table(["relative to SB3", *METRICS.values()], _ratio_rows(results, DEFAULT, names))


def selection(results: Results) -> str:
    """Compare the default with SB3 on one row of each kind."""
    shown = {"memory": "memory", "add_full": "`add`", "sample_32": "`sample(32)`", "get_256": "rollout `get(256)`"}
    rows = [
        (DATASETS[name], results["rows"][f"{name}/{DEFAULT}"]) for name in SELECTED if f"{name}/{DEFAULT}" in results["rows"]
    ]
    cells = [[dataset.title, *(ratio(row, metric) for metric in shown)] for dataset, row in rows]
    return table(["relative to SB3's buffer", *shown.values()], cells)


def dense(results: Results) -> str:
    """Compare the denser method with SB3."""
    return table([f"`{DENSE}`, relative to SB3", *METRICS.values()], _ratio_rows(results, DENSE))


def codecs(results: Results) -> str:
    """List all methods on MsPacman."""
    times = ("add_full", "sample_32")
    rows = results["rows"].values()
    lines = []
    for row in sorted(rows, key=lambda row: row["ratios"]["memory"]):
        ours = row["ours"]
        cells = [megabytes(ours["memory"]), percent(row["ratios"]["memory"])]
        cells += [f"{milliseconds(ours[time]['p25'])} ({row['ratios'][time]:.2f}x)" for time in times]
        lines.append([f"`{row['method']}`", *cells])
    if rows:
        base = max(rows, key=lambda row: row["rounds"])["sb3"]
        lines.append(["SB3", megabytes(base["memory"]), "100 %", *(milliseconds(base[time]["p25"]) for time in times)])
    size = DATASETS["mspacman"].transitions
    return table([f"MsPacman, {size:,} transitions", "memory", "share", "add (4 envs)", "sample(32)"], lines)


def shows_pictures(row: Results) -> bool:
    """Tell whether a row belongs to the table of colours and cameras."""
    return bool(row["method"] == DEFAULT and DATASETS[row["dataset"]].picture)


def shows_games(row: Results) -> bool:
    """Tell whether a row belongs to the table of games, masks and vectors."""
    return bool(row["method"] == DEFAULT and not DATASETS[row["dataset"]].picture)


def is_selected(row: Results) -> bool:
    """Tell whether README has a row."""
    return bool(row["method"] == DEFAULT and row["dataset"] in SELECTED and row.get("baseline", "sb3") == "sb3")


def is_to_choose_from(row: Results) -> bool:
    """Tell whether a row belongs to the table of all methods."""
    game = DATASETS["mspacman"]
    return (row["dataset"], row["transitions"], row.get("baseline", "sb3")) == (game.name, game.transitions, "sb3")
