"""
Two threads that sample at once from one replay buffer of MsPacman (stack 4, 4 envs): how much more do they sample than one?

What two threads can gain at all depends on the machine, whose cores may share caches, memory or even a core. So beside it, one
thread and two copy as many bytes from a random place of a large array, in one call without the GIL. The helper that decodes
part of a large batch is off, or one thread would have both cores already. Each figure is a rate over a fixed time; rounds
alternate, and medians are compared.
"""

from __future__ import annotations

import json
import os
import statistics
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from kit.data import DATASETS
from kit.metrics import DEFAULT
from kit.process import report, run_worker, settle
from kit.results import ResultFile, console, options
from play import ensure

DATASET, BATCH = "mspacman", 256


def rate(work: Callable[[], Any], threads: int, seconds: float) -> float:
    """Measure how often threads get something done."""
    counts, start = [0] * threads, threading.Barrier(threads + 1)
    until = [0.0]

    def run(number: int) -> None:
        start.wait()
        while time.perf_counter() < until[0]:
            work()
            counts[number] += 1

    workers = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    until[0] = time.perf_counter() + seconds
    start.wait()
    for worker in workers:
        worker.join()
    return sum(counts) / seconds


def measure(job: Mapping[str, Any]) -> dict[str, Any]:
    """Measure rates of one thread and of two, for samples and for copies, in turns."""
    from kit.data import load
    from kit.measure import fill, make_replay

    dataset = DATASETS[DATASET]
    recording = load(dataset, Path(job["cache"]))
    space = recording.space(dataset.stack)
    buffer = make_replay(DEFAULT, job["transitions"], space, dataset.action_space, dataset.n_envs)
    fill(buffer, recording.transitions(dataset.stack), job["transitions"] // dataset.n_envs)
    observation = int(np.prod(space.shape))
    dense = np.zeros((8192, observation), np.uint8)
    dense[:] = np.arange(len(dense))[:, None] % 251
    local = threading.local()

    def copy() -> None:
        if not hasattr(local, "out"):
            local.out = np.empty((2 * BATCH, observation), np.uint8)
        first = np.random.randint(0, len(dense) - 2 * BATCH)
        np.copyto(local.out, dense[first : first + 2 * BATCH])

    os.sched_getaffinity = lambda pid: {0}  # what the core asks before it calls the helper
    settle()
    work = {"sample": lambda: buffer.sample(BATCH), "copy": copy}
    rates: dict[str, list[float]] = {}
    for _ in range(job["rounds"]):
        for name, function in work.items():
            for threads in (1, 2):
                rates.setdefault(f"{name} {threads}", []).append(rate(function, threads, job["seconds"]))
    middle = {name: round(statistics.median(values), 1) for name, values in rates.items()}
    gains = {name: round(middle[f"{name} 2"] / middle[f"{name} 1"], 3) for name in work}
    return {"rates": middle, "gains": gains, "share": round(gains["sample"] / gains["copy"], 3)}


def main() -> None:
    """Run what the command line says."""
    parser = options(__doc__)
    parser.add_argument("--transitions", type=int, default=40_000, help="size of the buffer")
    parser.add_argument("--rounds", type=int, default=5, help="how often each is measured")
    parser.add_argument("--seconds", type=float, default=2.0, help="how long each is measured")
    args = parser.parse_args()
    if args.worker:
        report(measure(json.loads(args.worker)))
        return
    results = ResultFile("threads", args.results)
    ensure(DATASET, args.transitions, args.cache)
    job = {"transitions": args.transitions, "rounds": args.rounds, "seconds": args.seconds}
    results.put(DATASET, {**job, **run_worker("threads", {**job, "cache": str(args.cache)})})
    console.print(results.rows[DATASET], soft_wrap=True)


if __name__ == "__main__":
    main()
