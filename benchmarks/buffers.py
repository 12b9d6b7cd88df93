"""
Fill and read SB3's buffers and ours on the same recorded games, each in its own process.

All sides of a round are there at once and take turns, a hundred rows, an eighth of a timing or a rollout each, so that a
machine that is slow for a while is slow for all of them.

Memory is the growth of the process's anonymous resident memory (``RssAnon``: not the recording, which is a mapped file) from
just before the buffer is made to after it is filled: everything included, index, actions, rewards, key frames. Code that is
loaded once is given separately.

Times are lower quartiles, and a ratio is the median of what the rounds gave. NumPy's huge pages make SB3 pay for a dozen adds
of the first fill at once, which no quartile sees; ``first_fill.py`` looks at that. On both sides, the C library keeps the
memory of a batch that is freed. Otherwise the next batch has to wait for the same pages again, but only now and then, and
SB3's ``sample(256)`` takes anything from two to seven milliseconds.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kit.data import DATASETS, is_played
from kit.metrics import DEFAULT, DENSE, DISTURBED, METRICS
from kit.players import missing_for
from kit.process import KEEP, report, run_in_turns
from kit.results import ResultFile, console, options
from play import ensure
from rich.table import Table

SB3 = "sb3"
SB3_OPTIMIZED = "sb3-optimized"
# As many levels as other packages publish figures of.
CODECS = (
    ("none", "rle", "rle-jit", "gzip0", "gzip1", "gzip3", "igzip0", "igzip1", "igzip3"),
    ("zstd-100", "zstd-50", "zstd-20", "zstd-5", "zstd-3", "zstd-1", "zstd1", "zstd3", "zstd5", "zstd10"),
    ("lz4-frame/1", "lz4-frame/5", "lz4-frame/9", "lz4-block/1", "lz4-block/5", "lz4-block/9"),
    ("lz4-frame/12", "zstd15", "zstd22"),
)
QUICK_CODECS = ("none", "rle", "rle-jit", "gzip1", "igzip1", "zstd-3", "zstd1", "lz4-frame/1", "lz4-block/1")
GAMES = ("mspacman", "pong", "breakout")
TIMES = [metric for metric in METRICS if metric != "memory"]
ROUNDS, PICTURE_ROUNDS = 5, 3  # large pictures take long
QUICK = {"vectors": 40_000, "doom-labels": 2_000}
QUICK_TRANSITIONS, QUICK_PICTURES = 4_000, 1_000
QUICK_PICTURE = "doom-rgb"  # in a quick run of all data, this one stands for them all


@dataclass(frozen=True)
class Group:
    """
    Rows that are measured together, against the same runs of SB3.

    :param dataset: Name of the dataset
    :param methods: Methods of ours
    :param rounds: How often each side runs
    :param transitions: Size of the ring
    :param baseline: Side of SB3's
    :param brief: ``add`` and ``sample(32)`` alone
    """

    dataset: str
    methods: tuple[str, ...]
    rounds: int
    transitions: int
    baseline: str = SB3
    brief: bool = False

    def key(self, method: str) -> str:
        """Name a row."""
        return f"{self.dataset}/{method}" + ("" if self.baseline == SB3 else "/optimized")


def everything(quick: bool) -> list[str]:
    """List what a run measures that names no data."""
    return [name for name, data in DATASETS.items() if not (quick and data.picture and name != QUICK_PICTURE)]


def make_plan(args: argparse.Namespace) -> list[Group]:
    """Lay out the run."""
    plan: list[Group] = []
    for name in args.dataset or everything(args.quick):
        picture = DATASETS[name].picture
        rounds = args.rounds or (1 if args.quick else PICTURE_ROUNDS if picture else ROUNDS)
        quick_size = QUICK.get(name, QUICK_PICTURES if picture else QUICK_TRANSITIONS)
        size = args.transitions or (quick_size if args.quick else DATASETS[name].transitions)
        methods = tuple(args.method or ((DEFAULT, DENSE) if name in GAMES else (DEFAULT,)))
        if args.codecs or (args.quick and not args.method and name == "mspacman"):
            # A table to choose from, not a race: one round will do.
            batches = (QUICK_CODECS,) if args.quick else CODECS
            plan += [Group(name, codecs, args.rounds or 1, size, brief=True) for codecs in batches]
        if not args.codecs:
            plan.append(Group(name, methods, rounds, size))
            if name == "mspacman" and not (args.method or args.quick):
                plan.append(Group(name, (DEFAULT,), rounds, size, baseline=SB3_OPTIMIZED))
    return plan


def combine(runs: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge the runs of one side."""
    runs = list(runs)
    merged: dict[str, Any] = {
        name: statistics.median(run[name] for run in runs) for name in ("memory", "code", "construct_ms")
    }
    for metric in [name for name in (*TIMES, "rollout_add") if name in runs[0]]:
        figures = [name for name in ("p10", "p25", "p50", "mean", "faults") if name in runs[0][metric]]
        merged[metric] = {name: round(statistics.median(run[metric][name] for run in runs), 2) for name in figures}
    return merged


def make_row(group: Group, method: str, runs: Mapping[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Compare a method with SB3."""
    about = {"dataset": group.dataset, "method": method, "transitions": group.transitions, "rounds": group.rounds}
    about["baseline"] = group.baseline
    for side in (group.baseline, method):
        errors = [run["error"] for run in runs[side] if "error" in run]
        if errors:
            return {**about, "error": f"{side}: {errors[0]}"}
    # Of the two sides of a round, which took turns; a machine that was slow for a round was slow for both.
    pairs = list(zip(runs[method], runs[group.baseline], strict=True))
    measured = [metric for metric in TIMES if metric in runs[method][0]]

    def by_round(figure: str) -> dict[str, list[float]]:
        return {name: [round(one[name][figure] / other[name][figure], 3) for one, other in pairs] for name in measured}

    def medians(ratios: Mapping[str, list[float]], digits: int) -> dict[str, float]:
        return {name: round(statistics.median(values), digits) for name, values in ratios.items()}

    sizes = {"memory": [round(one["memory"] / other["memory"], 5) for one, other in pairs]}
    both = [*runs[group.baseline], *runs[method]]
    # SB3 gives other samples itself with ``optimize_memory_usage``: last observations of episodes are lost.
    comparable = group.baseline == SB3
    return {
        **about,
        "identical": len({tuple(run["digests"]) for run in both}) == 1 if comparable else None,
        "ratios": medians(sizes, 5) | medians(by_round("p25"), 3),
        "by_round": sizes | by_round("p25"),
        "ratios_of_medians": medians(by_round("p50"), 3),
        "elsewhere": max(run["elsewhere"] for run in both),
        "sb3": combine(runs[group.baseline]),
        "ours": combine(runs[method]),
    }


def describe(run: Mapping[str, Any]) -> str:
    """Put a run into one line."""
    if "error" in run:
        return f"[red]{run['error']}[/red]"
    times = "  ".join(f"{METRICS[metric]} {run[metric]['p25']:,.0f} µs" for metric in TIMES if metric in run)
    return f"{run['memory'] / 1e6:,.1f} MB  {times}"


def measure_group(group: Group, args: argparse.Namespace, results: ResultFile) -> None:
    """Measure a group and keep its rows."""
    settings = {"transitions": group.transitions, "rounds": group.rounds}
    needed = group.transitions * 5 // 4
    played = is_played(DATASETS[group.dataset], needed, args.cache)
    missing = None if played or args.dataset else missing_for(DATASETS[group.dataset])
    if missing is not None:  # nobody asked for it in particular
        console.print(f"left out: {missing}", soft_wrap=True, markup=False)
        return
    if args.resume and all(results.has(group.key(method), **settings) for method in group.methods):
        return
    ensure(group.dataset, needed, args.cache)
    runs: dict[str, list[dict[str, Any]]] = {side: [] for side in (group.baseline, *group.methods)}
    job = {
        "dataset": group.dataset,
        "transitions": group.transitions,
        "seconds": 0.2 if args.quick else 0.8,
        "cache": str(args.cache),
        "turns": True,
        "brief": group.brief,
    }
    for number in range(group.rounds):
        for side, run in run_in_turns("buffers", {side: {**job, "method": side} for side in runs}, KEEP).items():
            runs[side].append(run)
            place = f"[dim]{group.dataset:>12} {number + 1}/{group.rounds}[/dim]"
            console.print(f"{place} {side:<11} {describe(run)}", soft_wrap=True)
    for method in group.methods:
        results.put(group.key(method), make_row(group, method, runs))


def cell(row: Mapping[str, Any], metric: str) -> str:
    """Show a ratio."""
    ratio = row["ratios"].get(metric)
    if ratio is None:
        return ""
    return f"{ratio:.2%}" if metric == "memory" else f"{ratio:.2f}x"


def show(results: ResultFile) -> None:
    """Print the table."""
    table = Table(title="Ours to SB3's own buffer: memory and time (lower quartiles)", caption="~ other programs were busy")
    for column in ("data", "method", "transitions", *METRICS.values(), "samples"):
        table.add_column(column, justify="left" if column in ("data", "method", "samples") else "right", no_wrap=True)
    rank = {name: number for number, name in enumerate(DATASETS)}
    for row in sorted(results.rows.values(), key=lambda row: rank[row["dataset"]]):
        name = DATASETS[row["dataset"]].title
        if "error" in row:
            table.add_row(name, row["method"], f"{row['transitions']:,}", row["error"][:40])
            continue
        cells = [cell(row, metric) for metric in METRICS]
        busy = " ~" if row["elsewhere"] > DISTURBED else ""
        verdicts = {True: "[green]identical[/green]", False: "[bold red]DIFFERENT[/bold red]", None: "optimize_memory_usage"}
        table.add_row(name + busy, row["method"], f"{row['transitions']:,}", *cells, verdicts[row["identical"]])
    console.print(table)


def main() -> None:
    """Run what the command line says."""
    parser = options(__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--dataset", nargs="+", choices=list(DATASETS), help="data; all by default")
    parser.add_argument("--method", nargs="+", help="methods; by default the default everywhere, and the denser one on games")
    parser.add_argument("--codecs", action="store_true", help="all codecs and levels instead, add and sample(32) alone")
    parser.add_argument("--rounds", type=int, help="runs of each side; 5 by default, 1 for the table of codecs")
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
    show(results)
    from kit.plots import plot_buffers

    picture = Path(args.results) / f"{name}.png"
    plot_buffers(list(results.rows.values()), picture)
    console.print(f"results: {results.path.name}, {picture.name}")
    if any(row.get("identical") is False for row in results.rows.values()):
        raise SystemExit("samples differ from SB3's: that is a bug")


if __name__ == "__main__":
    main()
