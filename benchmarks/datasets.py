"""
A data set of MsPacman transitions: how long it takes to open it, what that takes of memory, and how fast batches come from it.

A buffer is filled with a recording, played as often as it takes, and saved. A process of its own then opens the directory with
``open_dataset`` and goes through some batches; another one loads it with ``load_buffer`` and samples. Both draw from all of
it, so that the first batches also check and map what they need.
"""

from __future__ import annotations

import itertools
import json
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from kit.data import DATASETS
from kit.process import report, resident_bytes, run_worker, settle, time_calls
from kit.results import ResultFile, console, options
from play import ensure

BATCH = 256


def save(job: Mapping[str, Any]) -> dict[str, Any]:
    """Fill a buffer and save it."""
    from kit.data import load
    from kit.measure import fill, make_replay
    from kit.metrics import DEFAULT

    dataset, cache = DATASETS[job["dataset"]], Path(job["cache"])
    space = load(dataset, cache).space(dataset.stack)
    buffer: Any = make_replay(DEFAULT, job["transitions"], space, dataset.action_space, dataset.n_envs)
    played = itertools.chain.from_iterable(load(dataset, cache).transitions(dataset.stack) for _ in itertools.count())
    fill(buffer, played, job["transitions"] // dataset.n_envs)
    return {"bytes": buffer.save(job["folder"])}


def read(job: Mapping[str, Any]) -> dict[str, Any]:
    """Open what was saved, and read batches."""
    from sb3_extra_buffers import load_buffer, open_dataset

    settle()
    before, start = resident_bytes(), time.perf_counter()
    opened = open_dataset(job["folder"]) if job["side"] == "dataset" else load_buffer(job["folder"], device="cpu")
    seconds, grown = time.perf_counter() - start, resident_bytes() - before
    start = time.perf_counter()
    opened.sample(BATCH)
    first = time.perf_counter() - start
    batches = opened.batches(BATCH, seed=0, epochs=None) if job["side"] == "dataset" else None
    times = time_calls(lambda: opened.sample(BATCH) if batches is None else next(batches), seconds=3.0)
    return {
        "open_seconds": round(seconds, 4),
        "open_bytes": grown,
        "first_batch_seconds": round(first, 4),
        "batch_us": times["p50"],
        "bytes_after": resident_bytes() - before,
    }


def main() -> None:
    """Run what the command line says."""
    parser = options(__doc__)
    parser.add_argument("--dataset", choices=list(DATASETS), default="mspacman", help="what to fill the buffer with")
    parser.add_argument("--transitions", type=int, default=1_000_000, help="size of the data set")
    parser.add_argument("--recorded", type=int, default=40_000, help="transitions that are recorded, and played again")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each side; figures are medians")
    args = parser.parse_args()
    if args.worker:
        job = json.loads(args.worker)
        report(read(job) if "side" in job else save(job))
        return
    results = ResultFile("datasets", args.results)
    ensure(args.dataset, min(args.recorded, args.transitions), args.cache)
    about = {"dataset": args.dataset, "transitions": args.transitions, "rounds": args.rounds}
    runs: dict[str, list[dict[str, Any]]] = {"dataset": [], "buffer": []}
    with tempfile.TemporaryDirectory(dir=args.cache) as folder:
        job = {**about, "cache": str(args.cache), "folder": f"{folder}/buffer.sb3x"}
        saved = run_worker("datasets", job)
        for _ in range(0 if "error" in saved else args.rounds):
            for side, rows in runs.items():
                rows.append(run_worker("datasets", {**job, "side": side}))
    for side, rows in runs.items():
        errors = [row["error"] for row in (saved, *rows) if "error" in row]
        measured = {"error": errors[0]} if errors else {name: median(row[name] for row in rows) for name in rows[0]}
        results.put(side, {**about, **saved, **measured})
        console.print(f"{side}: {measured}")


if __name__ == "__main__":
    main()
