"""
Rings on disk beside one in memory: ``add`` with ``storage_dir`` and without it, ``sample(32)`` of a ring that fits into
``max_memory``, and of one ten times as large.

Over ``max_memory``, pages no longer count for the process, but the system keeps them for as long as it has room. So there are
two figures for the larger ring: with a page cache that has room for all of it, and with one that has room for what
``max_memory`` leaves, and throws out what was used the longest ago (``kit/page_cache.py``). The last row is the disk itself:
one read for each transition, together of as many bytes as such a batch reads, all asked for at once.

How many bytes the ring in memory takes decides what ``max_memory`` is. Frames of Atari games take so few bytes that a ring of
300,000 transitions has about 40 MB, and the allowed memory is 4 MB then; the ratios are much the same for a million.
"""

from __future__ import annotations

import itertools
import json
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from kit.data import DATASETS
from kit.page_cache import PAGE, SmallCache
from kit.process import report, run_worker, settle, summary, time_calls
from kit.results import ResultFile, console, options
from play import ensure

BATCH, TIMES = 32, 10
THREADS = 16
SECONDS = 2.0
BEFORE = 150  # batches until the cache holds what it goes on to hold


def bytes_read() -> int:
    """Count what this process has had read from disks."""
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("read_bytes:")), 0)


def time_from_disk(call: Callable[[], Any], shrink: Callable[[], None]) -> dict[str, float]:
    """Time a call that has to read from disk."""
    times: list[int] = []
    read = 0
    for _ in range(BEFORE):
        shrink()
        call()
    while len(times) < 10 or (len(times) < 1000 and sum(times) < SECONDS * 1e9):
        shrink()
        before, start = bytes_read(), time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - start)
        read += bytes_read() - before
    return {**summary(times), "disk_bytes": round(read / len(times))}


def measure(job: Mapping[str, Any]) -> dict[str, Any]:
    """Fill a buffer and sample from it."""
    from kit.data import load

    from sb3_extra_buffers.compressed import CompressedReplayBuffer

    dataset, cache = DATASETS[job["dataset"]], Path(job["cache"])
    space = load(dataset, cache).space(dataset.stack)
    ring: dict[str, Any] = {}
    if "max_memory" in job:
        ring = {"storage_dir": job["folder"], "max_memory": job["max_memory"]}
    buffer = CompressedReplayBuffer(job["transitions"], space, dataset.action_space, "cpu", dataset.n_envs, **ring)
    played = itertools.chain.from_iterable(load(dataset, cache).transitions(dataset.stack) for _ in itertools.count())
    adds = [0] * (job["transitions"] // dataset.n_envs)
    for row, transition in enumerate(itertools.islice(played, len(adds))):
        start = time.perf_counter_ns()
        buffer.add(*transition)
        adds[row] = time.perf_counter_ns() - start
    if ring:
        buffer._ring.flush()
    settle()
    sample = partial(buffer.sample, BATCH)
    usage = buffer.memory_usage()
    result: dict[str, Any] = {"add": summary(adds), "sample": time_calls(sample, SECONDS)}
    result["bytes"] = usage.stored_bytes + usage.index_bytes
    if job.get("is_larger"):
        memory = buffer._ring._memory
        small = SmallCache(list(memory._mappings), Path(job["folder"]), memory.most - memory.own)
        result["from_disk"] = time_from_disk(sample, small.shrink)
        pages = max(round(result["from_disk"]["disk_bytes"] / PAGE / BATCH), 1)  # of a row
        result["disk_time"] = small.time_reads(BATCH, pages * PAGE)
        result["disk_reads"] = {str(threads): small.reads_a_second(threads) for threads in (1, THREADS)}
        small.close()
    if ring:
        buffer.close()
    return result


def make_rows(runs: Mapping[str, list[dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Put the rounds of all sides together."""

    def middle(side: str, *path: str) -> float:
        found: list[Any] = list(runs[side])
        for name in path:
            found = [run[name] for run in found]
        return round(float(median(found)), 2)

    rows: dict[str, dict[str, Any]] = {}
    for side in runs:
        rows[side] = {
            "bytes": runs[side][0]["bytes"],
            "add": middle(side, "add", "mean"),
            "add_p50": middle(side, "add", "p50"),
        }
        rows[side]["sample"] = middle(side, "sample", "p50")
    rows["from_disk"] = {**rows["larger"], "sample": middle("larger", "from_disk", "p50")}
    rows["from_disk"]["disk_bytes"] = middle("larger", "from_disk", "disk_bytes")
    for row in rows.values():
        row["ratios"] = {name: round(row[name] / rows["memory"][name], 3) for name in ("add", "add_p50", "sample")}
    rows["disk"] = {f"reads_{threads}": middle("larger", "disk_reads", str(threads)) for threads in (1, THREADS)}
    rows["disk"]["sample"] = middle("larger", "disk_time")
    rows["disk"]["ratios"] = {"sample": round(rows["disk"]["sample"] / rows["memory"]["sample"], 3)}
    return rows


def main() -> None:
    """Run what the command line says."""
    parser = options(__doc__)
    parser.add_argument("--dataset", choices=list(DATASETS), default="mspacman", help="what to fill the buffers with")
    parser.add_argument("--transitions", type=int, default=300_000, help="size of the buffers")
    parser.add_argument("--recorded", type=int, default=40_000, help="transitions that are recorded, and played again")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each side; times are medians")
    args = parser.parse_args()
    if args.worker:
        report(measure(json.loads(args.worker)))
        return
    results = ResultFile("rings", args.results)
    ensure(args.dataset, min(args.recorded, args.transitions), args.cache)
    about = {"dataset": args.dataset, "transitions": args.transitions, "rounds": args.rounds}
    runs: dict[str, list[dict[str, Any]]] = {"memory": [], "fits": [], "larger": []}
    for _ in range(args.rounds):
        for side, rows in runs.items():
            job: dict[str, Any] = {**about, "cache": str(args.cache)}
            with tempfile.TemporaryDirectory(dir=args.cache) as folder:
                if side != "memory":
                    room = runs["memory"][0]["bytes"]
                    job |= {"folder": f"{folder}/ring", "is_larger": side == "larger"}
                    job["max_memory"] = room // TIMES if side == "larger" else 2 * room
                rows.append(run_worker("rings", job))
            if "error" in rows[-1]:
                raise SystemExit(f"{side}: {rows[-1]['error']}")
    for name, row in make_rows(runs).items():
        results.put(name, {**about, **row})
        console.print(f"{name}: {row}")


if __name__ == "__main__":
    main()
