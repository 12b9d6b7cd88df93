"""
A ring on disk for an hour: rows are added and sampled all the while, every sample is compared with what was added.

Frames are noise, each made of its own number, so that any of them can be made again and the ring gets large; the memory that
the process may have beside its files is limited (``RLIMIT_DATA``). What is written down: transitions added, samples
compared, memory in each tenth of the time, handles, and whether another buffer goes on with all rows.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kit.process import report, run_worker
from kit.results import ResultFile, command, console, options

SIDE, ENVS = 84, 4
BATCH, ROWS_BETWEEN = 32, 16
MB = 1 << 20


def noise(numbers: Any) -> Any:
    """Make frames that no coder makes smaller."""
    import numpy as np

    words = np.arange(SIDE * SIDE // 8, dtype=np.uint64) + (np.asarray(numbers, np.uint64)[:, None] << np.uint64(20))
    with np.errstate(over="ignore"):
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
            words = (words ^ (words >> np.uint64(shift))) * np.uint64(factor)
    return words.view(np.uint8).reshape(-1, 1, SIDE, SIDE)


def count_memory() -> dict[str, int]:
    """Look at this process."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    own, files = (int(status[name].split()[0]) << 10 for name in ("RssAnon", "RssFile"))
    return {"own": own, "files": files, "handles": len(os.listdir("/proc/self/fd"))}


def soak(job: Mapping[str, Any]) -> dict[str, Any]:
    """Write to a ring and sample from it."""
    import numpy as np
    from gymnasium import spaces

    from sb3_extra_buffers.compressed import CompressedReplayBuffer

    resource.setrlimit(resource.RLIMIT_DATA, (job["limit_bytes"], job["limit_bytes"]))
    rows = job["ring_bytes"] // (SIDE * SIDE * ENVS)
    space, actions = spaces.Box(0, 255, (1, SIDE, SIDE), np.uint8), spaces.Discrete(1 << 30)
    arguments: dict[str, Any] = {"storage_dir": job["folder"], "max_memory": job["max_memory"]}
    buffer = CompressedReplayBuffer(rows * ENVS, space, actions, "cpu", ENVS, **arguments)
    infos: list[dict[str, Any]] = [{} for _ in range(ENVS)]
    added = compared = 0
    looks: list[dict[str, int]] = []
    start = time.monotonic()
    obs = noise(np.arange(ENVS))
    while time.monotonic() - start < job["seconds"]:
        for _ in range(ROWS_BETWEEN):
            numbers = np.arange(ENVS) + ENVS * added
            next_obs = noise(numbers + ENVS)
            buffer.add(obs, next_obs, numbers, np.zeros(ENVS), np.zeros(ENVS, np.bool_), infos)
            obs, added = next_obs, added + 1
        batch = buffer.sample(BATCH)
        drawn = batch.actions.numpy().reshape(-1)
        if not (
            np.array_equal(batch.observations.numpy(), noise(drawn))
            and np.array_equal(batch.next_observations.numpy(), noise(drawn + ENVS))
        ):
            raise AssertionError(f"wrong samples after {added} rows")
        compared += BATCH
        if added // ROWS_BETWEEN % 500 == 0:
            looks.append(count_memory())
    buffer.close()
    del buffer
    again = CompressedReplayBuffer(rows * ENVS, space, actions, "cpu", ENVS, **arguments)
    goes_on = again.size() == min(added, rows) and int(again.actions.max()) == ENVS * added - 1
    again.close()
    looks = looks or [count_memory()]
    tenths = [looks[len(looks) * part // 10 : len(looks) * (part + 1) // 10] or looks[-1:] for part in range(10)]
    return {
        "laps": round(added / rows, 2),
        "added": added * ENVS,
        "compared": compared,
        "wrong": 0,  # or there would be an error
        "own_bytes": max(look["own"] for look in looks),
        "own_by_tenths": [round(statistics.median(look["own"] for look in tenth)) for tenth in tenths],
        "file_bytes": max(look["files"] for look in looks),
        "handles": [looks[len(looks) // 10]["handles"], looks[-1]["handles"]],
        "goes_on": goes_on,
    }


def main() -> None:
    """Run what the command line says."""
    parser = options(__doc__)
    parser.add_argument("--minutes", type=float, default=60, help="how long")
    parser.add_argument("--ring", type=int, default=5000, help="MB of observations in the ring")
    parser.add_argument("--limit", type=int, default=1000, help="MB of memory that the process may have beside its files")
    parser.add_argument("--max-memory", default="200MB", help="of the buffer")
    args = parser.parse_args()
    if args.worker:
        report(soak(json.loads(args.worker)))
        return
    folder = tempfile.mkdtemp(dir=args.cache)
    about: dict[str, Any] = {
        "seconds": round(60 * args.minutes),
        "ring_bytes": args.ring * MB,
        "limit_bytes": args.limit * MB,
        "max_memory": args.max_memory,
    }
    try:
        measured = run_worker("soak", {**about, "folder": os.path.join(folder, "ring")}, timeout=about["seconds"] + 900)
    finally:
        shutil.rmtree(folder)
    gigabytes = f"{args.ring / 1000:g} GB in {args.limit / 1000:g} GB"
    row = {
        "what": f"transitions compared that were sampled from a ring of {gigabytes} of memory",
        "runs": command(),
        "times": measured.get("compared"),
        "minutes": args.minutes,
    }
    ResultFile("faults", args.results).put("soak", {**row, **about, **measured})
    console.print(f"{measured}")


if __name__ == "__main__":
    main()
