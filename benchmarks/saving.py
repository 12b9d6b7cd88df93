"""
Save a full replay buffer of MsPacman (stack 4, 4 envs) and load it again: bytes on disk, how long it takes, and memory.

Each side works in a process of its own. SB3's buffer and ours go through ``save_to_pkl`` and ``load_from_pkl``, which
``save_replay_buffer`` and ``load_replay_buffer`` call; ours goes through ``save`` and ``load``, too, which write a directory
without pickle, and wait until the disk has it. After loading, all sides sample with the same seed. Then some more steps are
added to the buffer of that directory, and it is saved again.
"""

from __future__ import annotations

import itertools
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from kit.data import DATASETS
from kit.metrics import DEFAULT, DENSE
from kit.process import digest, forget_peak, peak_bytes, report, resident_bytes, run_worker, settle
from kit.results import ResultFile, console, options
from play import ensure

FILES = "/files"
"""Ends the names of rows with ``save`` and ``load``."""


def save_and_load(save: Callable[[], Any], load: Callable[[], Any]) -> dict[str, Any]:
    """Save a buffer, load it, sample from it."""
    import numpy as np

    settle()
    forget_peak()
    before = resident_bytes()
    start = time.perf_counter()
    save()
    saved = time.perf_counter() - start
    grown = max(peak_bytes() - before, 0)
    settle()
    start = time.perf_counter()
    buffer = load()
    loaded = time.perf_counter() - start
    np.random.seed(0)
    return {
        "save_seconds": round(saved, 4),
        "load_seconds": round(loaded, 4),
        "save_memory": grown,
        "samples": digest(tensor for tensor in buffer.sample(256) if tensor is not None),
    }


def fill_and_save(job: Mapping[str, Any]) -> dict[str, Any]:
    """Fill a buffer, save it, load it, sample from it."""
    from kit.data import load
    from kit.measure import fill, make_replay
    from stable_baselines3.common.save_util import load_from_pkl, save_to_pkl

    dataset, cache = DATASETS[job["dataset"]], Path(job["cache"])
    space = load(dataset, cache).space(dataset.stack)
    held: list[Any] = [make_replay(job["method"], job["transitions"], space, dataset.action_space, dataset.n_envs)]
    played = itertools.chain.from_iterable(load(dataset, cache).transitions(dataset.stack) for _ in itertools.count())
    fill(held[0], played, job["transitions"] // dataset.n_envs)
    path = Path(job["folder"]) / f"{job['method'].replace('/', '_')}.{'sb3x' if job['files'] else 'pkl'}"
    if not job["files"]:
        result = save_and_load(lambda: save_to_pkl(path, held.pop()), lambda: load_from_pkl(path))
        size = path.stat().st_size
        path.unlink()
        return {"bytes": size, **result}
    (buffer,) = held
    result = save_and_load(lambda: buffer.save(path), lambda: type(buffer).load(path, device="cpu"))
    size = sum(file.stat().st_size for file in path.iterdir())
    fill(buffer, played, job["steps_more"] // dataset.n_envs)
    again = buffer.save(path)
    shutil.rmtree(path)
    return {"bytes": size, **result, "again_bytes": again}


def main() -> None:
    """Run what the command line says."""
    parser = options(__doc__)
    parser.add_argument("--dataset", choices=list(DATASETS), default="mspacman", help="what to fill the buffer with")
    parser.add_argument("--method", nargs="+", default=[DEFAULT, DENSE], help="methods of ours")
    parser.add_argument("--transitions", type=int, default=40_000, help="size of the buffer")
    parser.add_argument("--steps-more", type=int, default=1_000, help="transitions after which it is saved again")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each side; times are medians")
    args = parser.parse_args()
    if args.worker:
        report(fill_and_save(json.loads(args.worker)))
        return
    results = ResultFile("saving", args.results)
    ensure(args.dataset, args.transitions, args.cache)
    about = {
        "dataset": args.dataset,
        "transitions": args.transitions,
        "steps_more": args.steps_more,
        "rounds": args.rounds,
    }
    sides = {"sb3": ("sb3", False)}
    for method in args.method:
        sides |= {method: (method, False), f"{method}{FILES}": (method, True)}
    runs: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
    with tempfile.TemporaryDirectory(dir=args.cache) as folder:
        job = {**about, "cache": str(args.cache), "folder": folder}
        for _ in range(args.rounds):
            for side, (method, files) in sides.items():
                runs[side].append(run_worker("saving", {**job, "method": method, "files": files}))
    for side, rows in runs.items():
        errors = [row["error"] for row in rows if "error" in row]
        if errors:
            results.put(side, {**about, "error": errors[0]})
            console.print(f"[red]{side}: {errors[0]}[/red]")
            continue
        same = {name: rows[0][name] for name in ("bytes", "again_bytes") if name in rows[0]}
        medians = {name: median(row[name] for row in rows) for name in ("save_seconds", "load_seconds")}
        most = {"save_memory": max(row["save_memory"] for row in rows)}
        samples = {row["samples"] for row in (*rows, *runs["sb3"]) if "samples" in row}
        method, files = sides[side]
        row = {**about, "method": method, "files": files, **same, **medians, **most, "identical": len(samples) == 1}
        results.put(side, row)
        console.print(f"{side}: {row}")


if __name__ == "__main__":
    main()
