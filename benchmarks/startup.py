"""
What starting costs: importing the package on top of stable_baselines3, and how soon the first buffer is ready.

"Ready" is the time from the end of all imports to the end of the first add and sample, in a fresh process. The default method
is compared with ``zstd-3``, which has nothing of its own to load. Memory is what the import and that first, small buffer add
to a process that has stable_baselines3 loaded: the code, nearly all of it.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from itertools import pairwise
from typing import Any

from kit.process import report, resident_bytes, run_worker
from kit.results import ResultFile, console, options

IMPORT_LIMIT, READY_LIMIT, CODE_LIMIT = 0.3, 0.05, 10e6
METHODS = ("delta", "zstd-3")


def time_imports() -> dict[str, Any]:
    """Import one after the other."""
    marks = [time.perf_counter()]
    import stable_baselines3  # noqa: F401

    marks.append(time.perf_counter())
    import sb3_extra_buffers

    marks.append(time.perf_counter())
    import sb3_extra_buffers.compressed  # noqa: F401

    marks.append(time.perf_counter())
    sb3, package, compressed = (later - earlier for earlier, later in pairwise(marks))
    return {"sb3": sb3, "package": package, "compressed": package + compressed, "numba": "numba" in sys.modules}


def time_ready(method: str) -> dict[str, Any]:
    """Make the first buffer of a process, add to it and sample from it."""
    import numpy as np
    import torch as th
    from gymnasium import spaces
    from stable_baselines3 import DQN  # noqa: F401
    from stable_baselines3.common.vec_env import VecTransposeImage

    space = spaces.Box(0, 255, (4, 84, 84), np.uint8)
    # Patches of one colour, as games have them; noise would be a case of its own.
    patches = np.random.default_rng(0).integers(0, 255, (4, 12, 12, 4), dtype=np.uint8)
    frames = patches.repeat(7, axis=1).repeat(7, axis=2)
    obs = VecTransposeImage.transpose_image(frames)
    th.zeros(2) + th.zeros(2)  # torch starts its threads
    np.random.seed(0)
    before = resident_bytes()
    from sb3_extra_buffers.compressed import CompressedReplayBuffer

    start = time.perf_counter()
    buffer = CompressedReplayBuffer(1_000, space, spaces.Discrete(4), "cpu", n_envs=4, compression_method=method)
    buffer.add(obs, obs, np.zeros(4, int), np.zeros(4), np.zeros(4), [{}] * 4)
    sample = buffer.sample(4).observations
    seconds = time.perf_counter() - start
    taken = resident_bytes() - before
    right = all(any(th.equal(one, th.tensor(obs[env])) for env in range(4)) for one in sample)
    return {"ready": seconds, "bytes": taken, "right": right, "numba": "numba" in sys.modules}


def ready_row(method: str, runs: int) -> dict[str, Any]:
    """Measure readiness in fresh processes."""
    done = [run_worker("startup", {"what": method}) for _ in range(runs)]
    error = next((run["error"] for run in done if "error" in run), None)
    if error:
        return {"error": error}
    seconds = [round(run["ready"], 4) for run in done]
    return {
        "seconds": round(statistics.median(seconds), 4),
        "all": seconds,
        "bytes": round(statistics.median(run["bytes"] for run in done)),
        "right": all(run["right"] for run in done),
        "numba_imported": any(run["numba"] for run in done),
    }


def show(results: ResultFile) -> None:
    """Print the results."""
    for name, row in results.rows.items():
        figures = {key: value for key, value in row.items() if key not in ("command", "all")}
        console.print(f"[bold]{name}[/bold] {figures}", soft_wrap=True)


def main() -> None:
    """Run what the command line says."""
    parser = options(__doc__, cache=False)
    parser.add_argument("--runs", type=int, default=7, help="processes for each figure")
    args = parser.parse_args()
    if args.worker:
        what = json.loads(args.worker)["what"]
        report(time_imports() if what == "imports" else time_ready(what))
        return
    results = ResultFile("startup", args.results)
    imports = [run_worker("startup", {"what": "imports"}) for _ in range(args.runs + 1)][1:]  # the first writes .pyc files
    error = next((run["error"] for run in imports if "error" in run), None)
    if error:
        raise SystemExit(f"importing failed: {error}")
    seconds = {name: round(statistics.median(run[name] for run in imports), 4) for name in ("sb3", "package", "compressed")}
    numba = any(run["numba"] for run in imports)
    reached = {"imports": seconds["compressed"] <= IMPORT_LIMIT, "numba_later": not numba}
    results.put("imports", {"runs": args.runs, **seconds, "numba_imported": numba, "reached": reached})
    rows = {method: ready_row(method, args.runs) for method in METHODS}
    if not any("error" in row for row in rows.values()):
        over = rows["delta"]["seconds"] - rows["zstd-3"]["seconds"]
        rows["delta"]["seconds_over_zstd"] = round(over, 4)
        rows["delta"]["reached"] = {"ready": over <= READY_LIMIT, "code": rows["delta"]["bytes"] <= CODE_LIMIT}
    for method, row in rows.items():
        results.put(method, {"runs": args.runs, **row})
    show(results)


if __name__ == "__main__":
    main()
