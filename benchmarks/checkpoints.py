"""
Checkpoints of a DQN whose replay buffer is full of MsPacman: how long training stands still for each, and what is written.

The buffer is filled with a recording, played as often as it takes. One checkpoint follows the other after some more steps; the
first one writes all of the buffer, the others what is new.
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
from kit.process import report, run_worker, settle
from kit.results import ResultFile, console, options
from play import ensure

CHECKPOINTS, STEPS_BETWEEN = 9, 1_000


def make_checkpoints(job: Mapping[str, Any]) -> dict[str, Any]:
    """Fill the buffer of a model, and make some checkpoints."""
    import gymnasium as gym
    import numpy as np
    from gymnasium import spaces
    from kit.data import load
    from kit.measure import fill
    from stable_baselines3 import DQN
    from stable_baselines3.common.callbacks import CallbackList
    from stable_baselines3.common.env_util import make_vec_env

    from sb3_extra_buffers import CompressedReplayBuffer, ResumableCheckpoint
    from sb3_extra_buffers.training_utils.resuming.folder import CheckpointFolder
    from sb3_extra_buffers.training_utils.resuming.snapshot import AT_ROLLOUT, RUNS, Run, take_snapshot

    dataset = DATASETS[job["dataset"]]
    recording = load(dataset, Path(job["cache"]))
    space = recording.space(dataset.stack)

    class Still(gym.Env[Any, Any]):
        """A game in which nothing happens."""

        observation_space, action_space = space, spaces.Discrete(dataset.actions)

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
            super().reset(seed=seed)
            return np.zeros(space.shape, space.dtype), {}

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            return np.zeros(space.shape, space.dtype), 0.0, False, False, {}

    venv = make_vec_env(Still, n_envs=dataset.n_envs)
    total = job["transitions"]
    model = DQN(
        "CnnPolicy", venv, buffer_size=total, learning_starts=8, replay_buffer_class=CompressedReplayBuffer, device="cpu"
    )
    model.learn(16 * dataset.n_envs)  # the optimizer has its state
    played = itertools.chain.from_iterable(
        load(dataset, Path(job["cache"])).transitions(dataset.stack) for _ in itertools.count()
    )
    assert isinstance(model.replay_buffer, CompressedReplayBuffer)
    fill(model.replay_buffer, played, total // dataset.n_envs)
    settle()
    RUNS[model] = Run("measured")
    folder = CheckpointFolder(job["folder"], keep=3)
    folder.open()
    callback = ResumableCheckpoint(job["folder"])
    stopped, wrote, sizes = [], [], []
    for _ in range(CHECKPOINTS):
        start = time.perf_counter()
        snapshot = take_snapshot(model, CallbackList([callback]), callback, AT_ROLLOUT)
        stopped.append(time.perf_counter() - start)
        sizes.append(snapshot.write(folder))
        wrote.append(time.perf_counter() - start - stopped[-1])
        fill(model.replay_buffer, played, STEPS_BETWEEN // dataset.n_envs)
    folder.close()
    return {
        "stopped_seconds": round(median(stopped), 4),
        "longest_stop_seconds": round(max(stopped), 4),
        "first_bytes": sizes[0],
        "next_bytes": round(median(sizes[1:])),
        "first_seconds": round(wrote[0], 3),
        "next_seconds": round(median(wrote[1:]), 3),
    }


def main() -> None:
    """Run what the command line says."""
    parser = options(__doc__)
    parser.add_argument("--dataset", choices=list(DATASETS), default="mspacman", help="what to fill the buffer with")
    parser.add_argument("--transitions", type=int, default=1_000_000, help="size of the buffer")
    parser.add_argument("--recorded", type=int, default=40_000, help="transitions that are recorded, and played again")
    parser.add_argument("--rounds", type=int, default=3, help="runs; times are medians")
    args = parser.parse_args()
    if args.worker:
        report(make_checkpoints(json.loads(args.worker)))
        return
    results = ResultFile("checkpoints", args.results)
    ensure(args.dataset, min(args.recorded, args.transitions), args.cache)
    about = {"dataset": args.dataset, "transitions": args.transitions, "steps_between": STEPS_BETWEEN, "rounds": args.rounds}
    rows = []
    for _ in range(args.rounds):
        with tempfile.TemporaryDirectory(dir=args.cache) as folder:
            rows.append(run_worker("checkpoints", {**about, "cache": str(args.cache), "folder": folder}))
    errors = [row["error"] for row in rows if "error" in row]
    measured = {"error": errors[0]} if errors else {name: median(row[name] for row in rows) for name in rows[0]}
    results.put("checkpoints", {**about, **measured})
    console.print(f"{measured}")


if __name__ == "__main__":
    main()
