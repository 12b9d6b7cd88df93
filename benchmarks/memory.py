"""
Resident memory of a replay buffer of MsPacman (stack 4, 4 envs), compared with SB3's; does it grow when the ring wraps?

The ring is filled with the same transitions in every wrap, so whatever grows is lost memory; ``--fresh`` plays on instead.
Memory is the growth of ``RssAnon`` of a process that does nothing else, everything of the buffer included.
In a small rollout, what any buffer takes at the least counts for more, so one is filled, too. For a ring it is given as the
rest, beside frames, index and the other columns; a larger ring has hardly more of it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from kit.data import DATASETS
from kit.metrics import DEFAULT
from kit.process import anonymous_bytes, report, resident_bytes, run_worker, settle
from kit.results import ResultFile, console, options
from play import ensure

DATASET = "mspacman"
SHARE, DRIFT = 0.035, 0.02
ROLLOUT_ROWS, ROLLOUT_SHARE = 2048, {DEFAULT: 0.011}
CONSTRUCT = {"transitions": 1_000_000, "seconds": 1.0, "bytes": 64_000_000}


def fill_and_wrap(job: Mapping[str, Any]) -> dict[str, Any]:
    """Fill a ring, then fill it again."""
    from kit.data import load
    from kit.measure import begin, fill, make_replay, split_memory

    dataset = DATASETS[DATASET]
    recording = load(dataset, Path(job["cache"]))
    rows = job["transitions"] // dataset.n_envs
    what = (recording.space(dataset.stack), dataset.action_space, dataset.n_envs)
    small = make_replay(job["method"], 128, *what)
    fill(small, recording.transitions(dataset.stack), 100)
    small.sample(32)
    del small
    settle()
    stream = begin(recording.transitions(dataset.stack)) if job["fresh"] else None
    before = anonymous_bytes()
    buffer = make_replay(job["method"], job["transitions"], *what)
    memory, resident = [], []
    for _ in range(1 + job["wraps"]):
        fill(buffer, stream or recording.transitions(dataset.stack), rows)
        buffer.sample(32)
        settle()
        memory.append(anonymous_bytes() - before)
        resident.append(resident_bytes())
    if job["method"] == "sb3":
        return {"memory": memory, "resident": resident}
    parts = split_memory(buffer, memory[-1])
    return {"memory": memory, "resident": resident, "usage": str(buffer.memory_usage()), "parts": parts}


def fill_rollout(job: Mapping[str, Any]) -> dict[str, Any]:
    """Collect one rollout."""
    from kit.data import load
    from kit.measure import collect, make_rollout

    dataset = DATASETS[DATASET]
    recording = load(dataset, Path(job["cache"]))
    what = (recording.space(dataset.stack), dataset.action_space, dataset.n_envs)
    small = make_rollout(job["method"], 32, *what)
    collect(small, recording.transitions(dataset.stack), 32)
    for _ in small.get(32):
        pass
    del small
    settle()
    before = anonymous_bytes()
    buffer = make_rollout(job["method"], ROLLOUT_ROWS, *what)
    collect(buffer, recording.transitions(dataset.stack), ROLLOUT_ROWS)
    settle()
    return {"bytes": anonymous_bytes() - before, "rows": buffer.buffer_size}


def construct(job: Mapping[str, Any]) -> dict[str, Any]:
    """Make a very large buffer in a process that has only imported the package."""
    import numpy as np
    from gymnasium import spaces

    from sb3_extra_buffers.compressed import CompressedReplayBuffer

    space = spaces.Box(0, 255, (4, 84, 84), np.uint8)
    settle()
    before, start = resident_bytes(), time.perf_counter()
    buffer = CompressedReplayBuffer(
        job["transitions"], space, spaces.Discrete(9), "cpu", n_envs=4, compression_method=job["method"]
    )
    seconds = time.perf_counter() - start
    return {"seconds": round(seconds, 3), "bytes": resident_bytes() - before, "rows": buffer.buffer_size}


def main() -> None:
    """Run what the command line says."""
    parser = options(__doc__)
    parser.add_argument("--method", nargs="+", default=["zstd-3", DEFAULT], help="methods of ours")
    parser.add_argument("--transitions", type=int, default=DATASETS[DATASET].transitions, help="size of the ring")
    parser.add_argument("--wraps", type=int, default=3, help="how often to fill it again")
    parser.add_argument("--fresh", action="store_true", help="play on in every wrap")
    args = parser.parse_args()
    if args.worker:
        job = json.loads(args.worker)
        report(construct(job) if "construct" in job else fill_rollout(job) if "rollout" in job else fill_and_wrap(job))
        return
    results = ResultFile("memory", args.results)
    ensure(DATASET, args.transitions * (1 + args.wraps if args.fresh else 1), args.cache)
    about = {"transitions": args.transitions, "wraps": args.wraps, "fresh": args.fresh}
    job = {**about, "cache": str(args.cache)}
    sb3 = sb3_rollout = None
    rollout_job = {"rollout": True, "cache": str(args.cache)}
    for method in args.method:
        if args.resume and results.has(method, **about):
            continue
        sb3 = sb3 or run_worker("memory", {**job, "method": "sb3", "wraps": 0})
        sb3_rollout = sb3_rollout or run_worker("memory", {**rollout_job, "method": "sb3"})
        ours = run_worker("memory", {**job, "method": method})
        rollout = run_worker("memory", {**rollout_job, "method": method})
        made = run_worker("memory", {"construct": True, "method": method, "transitions": CONSTRUCT["transitions"]})
        errors = [run["error"] for run in (sb3, ours, made, sb3_rollout, rollout) if "error" in run]
        if errors:
            results.put(method, {**about, "method": method, "error": errors[0]})
            console.print(f"[red]{method}: {errors[0]}[/red]")
            continue
        share = ours["memory"][0] / sb3["memory"][0]
        drift = max(abs(later / ours["memory"][0] - 1) for later in ours["memory"])
        rollout_share = rollout["bytes"] / sb3_rollout["bytes"]
        reached = {
            "share": share <= SHARE,
            "drift": drift <= DRIFT,
            "construct": made["seconds"] < CONSTRUCT["seconds"] and made["bytes"] < CONSTRUCT["bytes"],
        }
        if method in ROLLOUT_SHARE:
            reached["rollout"] = rollout_share <= ROLLOUT_SHARE[method]
        row = {
            **about,
            "method": method,
            "sb3_bytes": sb3["memory"][0],
            "bytes": ours["memory"],
            "resident": ours["resident"],
            "share": round(share, 5),
            "drift": round(drift, 5),
            "usage": ours["usage"],
            "parts": ours["parts"],
            "construct": {**CONSTRUCT, "seconds": made["seconds"], "bytes": made["bytes"]},
            "rollout": {
                "rows": ROLLOUT_ROWS,
                "sb3_bytes": sb3_rollout["bytes"],
                "bytes": rollout["bytes"],
                "share": round(rollout_share, 5),
            },
            "reached": reached,
        }
        results.put(method, row)
        parts = ", ".join(f"{name} {size / args.transitions:.1f}" for name, size in ours["parts"].items())
        sizes = ", ".join(f"{size / 1e6:.2f}" for size in chain(ours["memory"]))
        console.print(
            f"{method}: {sizes} MB (SB3 {sb3['memory'][0] / 1e6:,.1f} MB) = {share:.2%}, drift {drift:.2%}; "
            f"bytes a transition: {parts}; "
            f"a million made in {made['seconds']:.3f} s and {made['bytes'] / 1e6:.1f} MB; "
            f"rollout {rollout_share:.2%}; reached: {reached}"
        )


if __name__ == "__main__":
    main()
