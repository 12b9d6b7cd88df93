"""
Buffers on a device, here on the device ``cpu``, beside SB3's own and those of the CPU.

All sides run at once, each in its own process, but only one works at a time, in many short turns: a machine that is busy
for a minute is busy for all of them. Times are lower quartiles of the processor time of one thread.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kit.data import DATASETS, load
from kit.process import anonymous_bytes, report, run_in_turns, settle, summary, take_turn
from kit.recordings import Recording, Transition
from kit.results import ResultFile, console, options
from play import ensure
from rich.table import Table

RATIOS = {
    "memory": ("gpu:delta", "sb3", 0.03),
    "add_first": ("gpu:delta", "sb3", 3.0),
    "add_full": ("gpu:delta", "sb3", 3.0),
    "sample_32": ("gpu:delta", "sb3", None),
    "sample_256": ("gpu:delta", "sb3", 1.5),
    "rle_sample_256": ("gpu:rle", "rle-jit", 3.0),
}
"""What is compared: a method, the one that it is divided by, and the goal for the ratio."""
FLAT = {"add_full": 1.25, "sample_256": 1.25}
"""Goals for the largest buffer, in terms of the smallest."""
ROWS_IN_A_TURN = 50
SAMPLES_IN_A_TURN = 6


def endless(recording: Recording, stack: int) -> Iterator[Transition]:
    """Play a recording again and again."""
    while True:
        yield from recording.transitions(stack)


def measure(job: Mapping[str, Any]) -> dict[str, Any]:
    """Fill the buffer of one side, then add and sample in turns with the others: memory, times, a digest of samples."""
    from kit.measure import fill, make_replay, sample_digest, touch, warm_up

    dataset = DATASETS[job["dataset"]]
    recording = load(dataset, Path(job["cache"]))
    space, action_space = recording.space(dataset.stack), dataset.action_space
    touch(dataset, recording)
    warm_up(job["method"], dataset, recording)
    stream = endless(recording, dataset.stack)
    take_turn()
    before = anonymous_bytes()
    buffer = make_replay(job["method"], job["transitions"], space, action_space, dataset.n_envs)
    rows = job["transitions"] // dataset.n_envs
    times: dict[str, list[int]] = {"add_first": list(fill(buffer, stream, rows, time.thread_time_ns))}
    settle()
    result: dict[str, Any] = {"memory": anonymous_bytes() - before}
    for _ in range(job["turns"]):
        take_turn()
        times.setdefault("add_full", []).extend(fill(buffer, stream, ROWS_IN_A_TURN, time.thread_time_ns))
        for size in (32, 256):
            buffer.sample(size)
            for _ in range(SAMPLES_IN_A_TURN):
                start = time.thread_time_ns()
                buffer.sample(size)
                times.setdefault(f"sample_{size}", []).append(time.thread_time_ns() - start)
    result["digest"] = sample_digest(buffer)
    usage = getattr(buffer, "memory_usage", None)
    if usage is not None:
        result["usage"] = usage().total_bytes
    return {**result, **{name: summary(values) for name, values in times.items()}}


def compare(sides: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Compare the sides, by method: ratios, and which of them reach their goal."""
    ratios, reached = {}, {}
    for name, (ours, theirs, most) in RATIOS.items():
        metric = name.removeprefix("rle_")
        ratios[name] = round(figure(sides[ours], metric) / figure(sides[theirs], metric), 4)
        if most is not None:
            reached[name] = ratios[name] <= most
    return {"ratios": ratios, "reached": reached, "identical": len({side["digest"] for side in sides.values()}) == 1}


def compare_sizes(sizes: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Compare the largest buffer with the smallest, which comes first: ratios, and which of them reach their goal."""
    smallest, *_, largest = sizes.values()
    ratios = {name: round(figure(largest, name) / figure(smallest, name), 3) for name in FLAT}
    return {"ratios": ratios, "reached": {name: ratios[name] <= most for name, most in FLAT.items()}}


def figure(side: Mapping[str, Any], metric: str) -> float:
    """Bytes, or the lower quartile of the times."""
    return float(side[metric] if metric == "memory" else side[metric]["p25"])


def run(jobs: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Run all sides in turns; what each reported."""
    done = run_in_turns("gpu_buffers", jobs, {"OMP_NUM_THREADS": "1"})
    for side, result in done.items():
        if "error" in result:
            raise SystemExit(f"{side}: {result['error']}")
    return done


def show(results: ResultFile) -> None:
    """Print the ratios."""
    table = Table(title="on a device, lower quartiles")
    for column in ("row", "ratio", "value", "reached"):
        table.add_column(column)
    for key, row in results.rows.items():
        for name, value in row["ratios"].items():
            table.add_row(key, name, f"{value:.3f}", {True: "yes", False: "no", None: ""}[row["reached"].get(name)])
    console.print(table)


def main() -> None:
    """Run the program."""
    parser = options(__doc__)
    parser.add_argument("--dataset", choices=list(DATASETS), default="mspacman", help="data")
    parser.add_argument("--transitions", type=int, default=20_000, help="size of the buffers")
    parser.add_argument("--flat", type=int, nargs="+", default=[10_000, 50_000, 200_000], help="sizes to compare")
    parser.add_argument("--turns", type=int, default=25, help="how often each side works")
    args = parser.parse_args()
    if args.worker:
        report(measure(json.loads(args.worker)))
        return
    results = ResultFile("gpu_buffers", args.results)
    ensure(args.dataset, args.transitions * 5 // 4, args.cache)
    about = {"dataset": args.dataset, "turns": args.turns}
    job = {**about, "cache": str(args.cache)}
    methods = dict.fromkeys(side for ours, theirs, _ in RATIOS.values() for side in (theirs, ours))
    if not (args.resume and results.has(args.dataset, **about, transitions=args.transitions)):
        sides = run({method: {**job, "method": method, "transitions": args.transitions} for method in methods})
        elsewhere = max(side.pop("elsewhere") for side in sides.values())
        row = {**about, "transitions": args.transitions, **compare(sides), "sides": sides, "elsewhere": elsewhere}
        results.put(args.dataset, row)
    if not (args.resume and results.has(f"{args.dataset}/flat", **about, sizes=args.flat)):
        sizes = run({f"{size:,}": {**job, "method": "gpu:delta", "transitions": size} for size in args.flat})
        elsewhere = max(side.pop("elsewhere") for side in sizes.values())
        results.put(
            f"{args.dataset}/flat",
            {**about, "sizes": args.flat, **compare_sizes(sizes), "sides": sizes, "elsewhere": elsewhere},
        )
    show(results)


if __name__ == "__main__":
    main()
