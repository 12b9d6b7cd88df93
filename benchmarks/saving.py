"""
Save a full replay buffer of MsPacman (stack 4, 4 envs) and load it again: size of the file, and how long it takes.

Each side works in a process of its own, through ``save_to_pkl`` and ``load_from_pkl``, which ``save_replay_buffer`` and
``load_replay_buffer`` call. After loading, both sides sample with the same seed.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from kit.data import DATASETS
from kit.metrics import DEFAULT, DENSE
from kit.process import digest, report, run_worker, settle
from kit.results import ResultFile, console, options
from play import ensure


def fill_and_save(job: Mapping[str, Any]) -> dict[str, Any]:
    """
    Fill a buffer, save it, load it, sample from it.

    :param job: ``method``, ``dataset``, ``transitions``, ``cache``, ``folder`` to save into
    :return: Bytes of the file, seconds to save and to load, digest of a sample
    """
    import numpy as np
    from kit.data import load
    from kit.measure import fill, make_replay
    from stable_baselines3.common.save_util import load_from_pkl, save_to_pkl

    dataset = DATASETS[job["dataset"]]
    recording = load(dataset, Path(job["cache"]))
    buffer = make_replay(
        job["method"],
        job["transitions"],
        recording.space(dataset.stack),
        dataset.action_space,
        dataset.n_envs,
    )
    fill(buffer, recording.transitions(dataset.stack), job["transitions"] // dataset.n_envs)
    settle()
    path = Path(job["folder"]) / f"{job['method'].replace('/', '_')}.pkl"
    start = time.perf_counter()
    save_to_pkl(path, buffer)
    saved = time.perf_counter() - start
    del buffer
    settle()
    start = time.perf_counter()
    buffer = load_from_pkl(path)
    loaded = time.perf_counter() - start
    np.random.seed(0)
    samples = buffer.sample(256)
    size = path.stat().st_size
    path.unlink()
    return {
        "bytes": size,
        "save_seconds": round(saved, 3),
        "load_seconds": round(loaded, 3),
        "samples": digest(tensor for tensor in samples if tensor is not None),
    }


def main() -> None:
    """Run what the command line says."""
    parser = options(__doc__)
    parser.add_argument("--dataset", choices=list(DATASETS), default="mspacman", help="what to fill the buffer with")
    parser.add_argument("--method", nargs="+", default=[DEFAULT, DENSE], help="methods of ours")
    parser.add_argument("--transitions", type=int, default=40_000, help="size of the buffer")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each side; times are medians")
    args = parser.parse_args()
    if args.worker:
        report(fill_and_save(json.loads(args.worker)))
        return
    results = ResultFile("saving", args.results)
    ensure(args.dataset, args.transitions, args.cache)
    about = {"dataset": args.dataset, "transitions": args.transitions, "rounds": args.rounds}
    sides = ("sb3", *args.method)
    runs: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
    with tempfile.TemporaryDirectory(dir=args.cache) as folder:
        job = {**about, "cache": str(args.cache), "folder": folder}
        for _ in range(args.rounds):
            for side in sides:
                runs[side].append(run_worker("saving", {**job, "method": side}))
    for side, rows in runs.items():
        errors = [row["error"] for row in rows if "error" in row]
        if errors:
            results.put(side, {**about, "error": errors[0]})
            console.print(f"[red]{side}: {errors[0]}[/red]")
            continue
        medians = {what: median(row[what] for row in rows) for what in ("save_seconds", "load_seconds")}
        samples = {row["samples"] for row in (*rows, *runs["sb3"]) if "samples" in row}
        row = {**about, "bytes": rows[0]["bytes"], **medians, "identical": len(samples) == 1}
        results.put(side, row)
        console.print(f"{side}: {row}")


if __name__ == "__main__":
    main()
