"""
Fill and read SB3's buffers and ours on the same recorded games, each in its own process.

All sides of a round are there at once and take turns, a hundred rows, an eighth of a timing or a rollout each, so that a
machine that is slow for a while is slow for all of them.

Memory is the growth of the process's anonymous resident memory (``RssAnon``: not the recording, which is a mapped file) from
just before the buffer is made to after it is filled: everything included, index, actions, rewards, key frames. Code that is
loaded once is given separately.

Times are lower quartiles. NumPy's huge pages make SB3 pay for a dozen adds of the first fill at once, which no quartile
sees; ``first_fill.py`` looks at that.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kit.data import DATASETS
from kit.process import report, run_in_turns
from kit.results import ResultFile, console, options
from kit.targets import DEFAULT, DENSE, DISTURBED, METRICS, reached
from play import ensure
from rich.table import Table

SB3 = "sb3"
CODECS = (
    "none",
    "rle",
    "rle-jit",
    "gzip1",
    "igzip1",
    "zstd-3",
    "zstd/1",
    "lz4-frame/1",
    "lz4-block/0",
    "lz4-block/1",
)
GAMES = ("mspacman", "pong", "breakout")
TIMES = [metric for metric in METRICS if metric != "memory"]
# Camera pictures take long, and only their memory is aimed at.
ROUNDS = {"doom-rgb": 2}
QUICK = {"vectors": 40_000, "doom-rgb": 2_000, "doom-labels": 2_000}
QUICK_TRANSITIONS = 4_000


@dataclass(frozen=True)
class Group:
    """
    Rows that are measured together, against the same runs of SB3.

    :param dataset: Name of the dataset
    :param methods: Methods of ours
    :param rounds: How often each side runs
    :param transitions: Size of the ring
    """

    dataset: str
    methods: tuple[str, ...]
    rounds: int
    transitions: int


def make_plan(args: argparse.Namespace) -> list[Group]:
    """
    Lay out the run.

    :param args: Command line
    :return: Groups in the order in which they are measured
    """
    plan: list[Group] = []
    for name in args.dataset or DATASETS:
        rounds = args.rounds or (1 if args.quick else ROUNDS.get(name, 3))
        size = args.transitions or (QUICK.get(name, QUICK_TRANSITIONS) if args.quick else DATASETS[name].transitions)
        codecs = CODECS if name == "mspacman" else ()
        if args.method:
            plan.append(Group(name, tuple(args.method), rounds, size))
        elif args.quick:
            plan.append(Group(name, (DEFAULT, *([DENSE] if codecs else []), *codecs), rounds, size))
        else:
            plan.append(Group(name, (DEFAULT, DENSE) if name in GAMES else (DEFAULT,), rounds, size))
            if codecs:
                # A table to choose from, not a race: one round will do, in half the ring.
                plan.append(Group(name, codecs, args.rounds or 1, args.transitions or size // 2))
    return plan


def combine(runs: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """
    Merge the runs of one side.

    :param runs: What ``kit.measure`` returned
    :return: Medians over the runs
    """
    runs = list(runs)
    merged: dict[str, Any] = {
        name: statistics.median(run[name] for run in runs) for name in ("memory", "code", "construct_ms")
    }
    for metric in [*TIMES, "rollout_add"]:
        figures = ("p10", "p25", "p50", "mean")
        merged[metric] = {name: round(statistics.median(run[metric][name] for run in runs), 2) for name in figures}
    return merged


def make_row(group: Group, method: str, runs: Mapping[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """
    Compare a method with SB3.

    :param group: Group that was measured
    :param method: The method
    :param runs: Runs by side
    :return: The row of the results
    """
    about = {"dataset": group.dataset, "method": method, "transitions": group.transitions, "rounds": group.rounds}
    for side in (SB3, method):
        errors = [run["error"] for run in runs[side] if "error" in run]
        if errors:
            return {**about, "error": f"{side}: {errors[0]}"}
    sb3, ours = combine(runs[SB3]), combine(runs[method])

    def ratio(metric: str, figure: str) -> float:
        # Of the two sides of a round, which took turns; a machine that was slow for a round was slow for both.
        pairs = zip(runs[method], runs[SB3], strict=True)
        return round(statistics.median(one[metric][figure] / other[metric][figure] for one, other in pairs), 3)

    ratios = {"memory": round(ours["memory"] / sb3["memory"], 5)} | {metric: ratio(metric, "p25") for metric in TIMES}
    medians = {metric: ratio(metric, "p50") for metric in TIMES}
    both = [*runs[SB3], *runs[method]]
    return {
        **about,
        "identical": len({tuple(run["digests"]) for run in both}) == 1,
        "ratios": ratios,
        "ratios_of_medians": medians,
        "elsewhere": max(run["elsewhere"] for run in both),
        "sb3": sb3,
        "ours": ours,
    }


def describe(run: Mapping[str, Any]) -> str:
    """
    Put a run into one line.

    :param run: What ``kit.measure`` returned
    :return: The line
    """
    if "error" in run:
        return f"[red]{run['error']}[/red]"
    times = "  ".join(f"{METRICS[metric]} {run[metric]['p25']:,.0f} µs" for metric in TIMES)
    return f"{run['memory'] / 1e6:,.1f} MB  {times}"


def measure_group(group: Group, args: argparse.Namespace, results: ResultFile) -> None:
    """
    Measure a group and keep its rows.

    :param group: What to measure
    :param args: Command line
    :param results: File of the results
    """
    key = f"{group.dataset}/{{}}".format
    settings = {"transitions": group.transitions, "rounds": group.rounds}
    if args.resume and all(results.has(key(method), **settings) for method in group.methods):
        return
    ensure(group.dataset, group.transitions * 5 // 4, args.cache)
    runs: dict[str, list[dict[str, Any]]] = {side: [] for side in (SB3, *group.methods)}
    job = {
        "dataset": group.dataset,
        "transitions": group.transitions,
        "seconds": 0.2 if args.quick else 0.8,
        "cache": str(args.cache),
        "turns": True,
    }
    for number in range(group.rounds):
        for side, run in run_in_turns("buffers", {side: {**job, "method": side} for side in runs}).items():
            runs[side].append(run)
            place = f"[dim]{group.dataset:>12} {number + 1}/{group.rounds}[/dim]"
            console.print(f"{place} {side:<11} {describe(run)}", soft_wrap=True)
    for method in group.methods:
        results.put(key(method), make_row(group, method, runs))


def cell(row: Mapping[str, Any], metric: str, judge: bool = True) -> str:
    """
    Show a ratio, and whether it is what was aimed at.

    :param row: Row of the results
    :param metric: One of ``METRICS``
    :param judge: Whether to judge it
    :return: Text with rich's markup
    """
    ratio = row["ratios"][metric]
    text = f"{ratio:.2%}" if metric == "memory" else f"{ratio:.2f}x"
    verdict = reached(row, metric) if judge else None
    if verdict is None:
        return text
    return f"[green]{text} ✓[/green]" if verdict else f"[red]{text} ✗[/red]"


def show(results: ResultFile, judge: bool) -> None:
    """
    Print the table.

    :param results: Results
    :param judge: Whether to compare with the targets
    """
    title = "Ours to SB3's own buffer: memory and time (lower quartiles)"
    table = Table(
        title=title, caption="✓ reached  ✗ not reached  ~ other programs were busy: times are not judged" if judge else None
    )
    for column in ("data", "method", "transitions", *METRICS.values(), "samples"):
        table.add_column(column, justify="left" if column in ("data", "method", "samples") else "right", no_wrap=True)
    rank = {name: number for number, name in enumerate(DATASETS)}
    for row in sorted(results.rows.values(), key=lambda row: rank[row["dataset"]]):
        name = DATASETS[row["dataset"]].title
        if "error" in row:
            table.add_row(name, row["method"], f"{row['transitions']:,}", row["error"][:40])
            continue
        cells = [cell(row, metric, judge) for metric in METRICS]
        busy = " ~" if row["elsewhere"] > DISTURBED else ""
        same = "[green]identical[/green]" if row["identical"] else "[bold red]DIFFERENT[/bold red]"
        table.add_row(name + busy, row["method"], f"{row['transitions']:,}", *cells, same)
    console.print(table)


def main() -> None:
    """Run what the command line says."""
    parser = options(__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--dataset", nargs="+", choices=list(DATASETS), help="data; all by default")
    parser.add_argument("--method", nargs="+", help="methods; by default the default everywhere, all on MsPacman")
    parser.add_argument("--rounds", type=int, help="runs of each side; 3 by default, 1 for the table of codecs")
    parser.add_argument("--transitions", type=int, help="size of the ring; 40,000 for Atari by default")
    parser.add_argument("--quick", action="store_true", help="small and noisy, in under three minutes")
    parser.add_argument("--show", action="store_true", help="measure nothing, show what is there")
    args = parser.parse_args()
    if args.worker:
        from kit.measure import measure

        report(measure(json.loads(args.worker)))
        return
    name = "buffers-quick" if args.quick else "buffers"
    results = ResultFile(name, args.results)
    if not args.show:
        for group in make_plan(args):
            measure_group(group, args, results)
    show(results, judge=not args.quick)
    from kit.plots import plot_buffers

    picture = Path(args.results) / f"{name}.png"
    plot_buffers(list(results.rows.values()), picture)
    console.print(f"results: {results.path.name}, {picture.name}")
    if not all(row.get("identical", True) for row in results.rows.values()):
        raise SystemExit("samples differ from SB3's: that is a bug")


if __name__ == "__main__":
    main()
