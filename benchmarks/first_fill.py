"""
The first fill of a replay buffer: what an ``add`` takes while SB3's arrays are touched for the first time.

NumPy asks Linux for huge pages: one ``add`` in a dozen waits until 2 MB are cleared, and no low quantile sees that. With pages
of 4 KB (``NUMPY_MADVISE_HUGEPAGE=0``) each ``add`` waits for its own few, so that every quantile has its share. Both are
measured, SB3's buffer and ours in turns, each in a process of its own. Linux must give huge pages only to those who ask
(``madvise`` in ``/sys/kernel/mm/transparent_hugepage/enabled``), else the two are the same.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from kit.data import DATASETS, load
from kit.metrics import DEFAULT
from kit.process import report, run_worker, summary
from kit.results import ResultFile, console, options
from play import ensure
from rich.table import Table

SIDES = ("sb3", DEFAULT)
PAGES: dict[str, dict[str, str]] = {"huge": {}, "small": {"NUMPY_MADVISE_HUGEPAGE": "0"}}
CHOSEN = ("mspacman", "pong-single", "doom-labels")


def measure(job: Mapping[str, Any]) -> dict[str, float]:
    """Fill the buffer of one side."""
    from kit.measure import fill, make_replay, touch, warm_up

    dataset = DATASETS[job["dataset"]]
    recording = load(dataset, Path(job["cache"]))
    space, action_space = recording.space(dataset.stack), dataset.action_space
    touch(dataset, recording)
    warm_up(job["side"], dataset, recording)
    buffer = make_replay(job["side"], job["transitions"], space, action_space, dataset.n_envs)
    return summary(fill(buffer, recording.transitions(dataset.stack), job["transitions"] // dataset.n_envs))


def make_row(runs: Mapping[str, Iterable[Mapping[str, Any]]]) -> dict[str, Any]:
    """Compare the sides."""
    row: dict[str, Any] = {}
    for side, several in runs.items():
        rounds = list(several)
        row["sb3" if side == "sb3" else "ours"] = {
            "p10": statistics.median(run["p10"] for run in rounds),
            "p25": statistics.median(run["p25"] for run in rounds),
            "p50": statistics.median(run["p50"] for run in rounds),
            "mean": min(run["mean"] for run in rounds),
        }
    row["ratios"] = {name: round(row["ours"][name] / row["sb3"][name], 3) for name in row["sb3"]}
    return row


def show(results: ResultFile) -> None:
    """Print the table."""
    table = Table(title="add in the first fill, µs")
    for column in ("data", "pages", "SB3, quartile", "ours", "ratio", "SB3, mean", "ours", "ratio"):
        table.add_column(column, justify="left" if column in ("data", "pages") else "right")
    for row in results.rows.values():
        cells = []
        for name in ("p25", "mean"):
            cells += [f"{row['sb3'][name]:.0f}", f"{row['ours'][name]:.0f}", f"{row['ratios'][name]:.2f}x"]
        table.add_row(DATASETS[row["dataset"]].title, row["pages"], *cells)
    console.print(table)


def run_sides(about: Mapping[str, Any], pages: str, cache: Path) -> dict[str, Any]:
    """Run both sides in turns."""
    runs: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
    for _ in range(about["rounds"]):
        for side in SIDES:
            run = run_worker("first_fill", {**about, "side": side, "cache": str(cache)}, env=PAGES[pages])
            if "error" in run:
                raise SystemExit(f"{about['dataset']}, {side}: {run['error']}")
            runs[side].append(run)
            times = f"{run['p25']:.0f} µs, mean {run['mean']:.0f} µs"
            console.print(f"[dim]{about['dataset']:>12} {pages:>5} pages[/dim] {side:<6} {times}")
    elsewhere = max(run["elsewhere"] for several in runs.values() for run in several)
    return {**about, "pages": pages, **make_row(runs), "elsewhere": elsewhere}


def main() -> None:
    """Run what the command line says."""
    parser = options(__doc__)
    parser.add_argument("--dataset", nargs="+", choices=list(DATASETS), default=list(CHOSEN), help="data")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each side")
    parser.add_argument("--transitions", type=int, help="size of the buffers")
    args = parser.parse_args()
    if args.worker:
        report(measure(json.loads(args.worker)))
        return
    results = ResultFile("first_fill", args.results)
    for name in args.dataset:
        about = {"dataset": name, "transitions": args.transitions or DATASETS[name].transitions, "rounds": args.rounds}
        ensure(name, about["transitions"], args.cache)
        for pages in PAGES:
            key = f"{name}/{pages}"
            if not (args.resume and results.has(key, **about)):
                results.put(key, run_sides(about, pages, args.cache))
    show(results)


if __name__ == "__main__":
    main()
