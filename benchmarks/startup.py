"""
What starting costs: importing the package on top of stable_baselines3, and how soon the first buffer is ready.

"Ready" is the time from the end of all imports to the end of the first add and sample with the default method, numba's own
import included. Cold: nothing compiled yet. Warm: a second process. Read-only: no place for compiled code on disk at all.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from kit.process import report, resident_bytes, run_worker
from kit.results import ResultFile, console, options

IMPORT_LIMIT, READY_LIMIT = 0.3, 1.0


def time_imports() -> dict[str, Any]:
    """
    Import one after the other.

    :return: Seconds of each import, and which heavy modules came along
    """
    marks = [time.perf_counter()]
    import stable_baselines3  # noqa: F401

    marks.append(time.perf_counter())
    import sb3_extra_buffers

    marks.append(time.perf_counter())
    import sb3_extra_buffers.compressed  # noqa: F401

    marks.append(time.perf_counter())
    sb3, package, compressed = (later - earlier for earlier, later in pairwise(marks))
    return {"sb3": sb3, "package": package, "compressed": package + compressed, "numba": "numba" in sys.modules}


def time_ready() -> dict[str, Any]:
    """
    Make the first buffer of a process, add to it and sample from it.

    :return: Seconds, memory that it took, and whether the sample was right
    """
    import numpy as np
    import torch as th
    from gymnasium import spaces
    from stable_baselines3.common.vec_env import VecTransposeImage

    import sb3_extra_buffers
    from sb3_extra_buffers.compressed import CompressedReplayBuffer

    space = spaces.Box(0, 255, (4, 84, 84), np.uint8)
    # Patches of one colour, as games have them; noise would be a case of its own.
    patches = np.random.default_rng(0).integers(0, 255, (4, 12, 12, 4), dtype=np.uint8)
    frames = patches.repeat(7, axis=1).repeat(7, axis=2)
    obs = VecTransposeImage.transpose_image(frames)
    np.random.seed(0)
    before, start = resident_bytes(), time.perf_counter()
    buffer = CompressedReplayBuffer(10_000, space, spaces.Discrete(4), "cpu", n_envs=4)
    buffer.add(obs, obs, np.zeros(4, int), np.zeros(4), np.zeros(4), [{}] * 4)
    sample = buffer.sample(32).observations
    seconds = time.perf_counter() - start
    right = all(any(th.equal(one, th.tensor(obs[env])) for env in range(4)) for one in sample)
    where = Path(sb3_extra_buffers.__file__).parent
    return {"ready": seconds, "bytes": resident_bytes() - before, "right": right, "copied": (where / "COPIED").exists()}


def ready_row(env: Mapping[str, str], runs: int) -> dict[str, Any]:
    """
    Measure readiness in fresh processes.

    :param env: Environment variables that say where compiled code goes
    :param runs: How many processes
    :return: Median, or the error
    """
    done = [run_worker("startup", {"what": "ready"}, env=env) for _ in range(runs)]
    error = next((run["error"] for run in done if "error" in run), None)
    if error:
        return {"error": error}
    seconds = [round(run["ready"], 3) for run in done]
    return {
        "seconds": round(statistics.median(seconds), 3),
        "all": seconds,
        "bytes": round(statistics.median(run["bytes"] for run in done)),
        "right": all(run["right"] for run in done),
        "copied": all(run["copied"] for run in done),
    }


def read_only_install(folder: Path) -> dict[str, str]:
    """
    Copy the package to where nothing can be written, even by root: files stand where numba would make its folders.

    :param folder: An empty folder
    :return: Environment variables for a process that uses the copy
    """
    import sb3_extra_buffers

    package = folder / "site" / "sb3_extra_buffers"
    shutil.copytree(Path(sb3_extra_buffers.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "COPIED").touch()
    for inner in [package, *(path for path in package.rglob("*") if path.is_dir())]:
        (inner / "__pycache__").touch()
    (folder / "file").touch()
    nowhere = str(folder / "file" / "cache")
    path = os.pathsep.join([str(package.parent), os.environ.get("PYTHONPATH", "")])
    return {"PYTHONPATH": path, "NUMBA_CACHE_DIR": nowhere, "XDG_CACHE_HOME": nowhere, "HOME": nowhere}


def show(results: ResultFile) -> None:
    """
    Print the results.

    :param results: Results
    """
    for name, row in results.rows.items():
        figures = {key: value for key, value in row.items() if key not in ("command", "all")}
        console.print(f"[bold]{name}[/bold] {figures}", soft_wrap=True)


def main() -> None:
    """Run what the command line says."""
    parser = options(__doc__, cache=False)
    parser.add_argument("--runs", type=int, default=7, help="processes for each figure")
    args = parser.parse_args()
    if args.worker:
        report(time_imports() if json.loads(args.worker)["what"] == "imports" else time_ready())
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
    with tempfile.TemporaryDirectory() as name:
        cache = {"NUMBA_CACHE_DIR": str(Path(name) / "compiled")}
        for key, runs in (("cold", 1), ("warm", args.runs)):
            row = ready_row(cache, runs)
            if key == "warm" and "error" not in row:
                row["reached"] = {"ready": row["seconds"] <= READY_LIMIT}
            results.put(key, {"runs": runs, **row})
        row = ready_row(read_only_install(Path(name)), 1)
        results.put(
            "read_only", {"runs": 1, **row, "reached": {"works": "error" not in row and row["right"] and row["copied"]}}
        )
    show(results)


if __name__ == "__main__":
    main()
