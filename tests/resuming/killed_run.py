"""A run in a process of its own, which is killed by others: ``python killed_run.py FOLDER ALGORITHM STEPS EVERY``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch as th
from resuming_kit import walks
from stable_baselines3 import DQN, PPO, SAC
from stable_baselines3.common.callbacks import BaseCallback

from sb3_extra_buffers import CompressedReplayBuffer, CompressedRolloutBuffer, ResumableCheckpoint, resume


def env(name: str) -> Any:
    """The environments of a run."""
    return walks(2, continuous=name == "SAC")


def make(name: str) -> Any:
    """A new model."""
    off: dict[str, Any] = {"buffer_size": 300, "learning_starts": 20, "batch_size": 8, "train_freq": 4}
    options: dict[str, Any] = {
        "DQN": {**off, "replay_buffer_class": CompressedReplayBuffer},
        "SAC": {**off, "replay_buffer_class": CompressedReplayBuffer},
        "PPO": {"n_steps": 16, "batch_size": 16, "n_epochs": 1, "rollout_buffer_class": CompressedRolloutBuffer},
    }[name]
    cls = {"DQN": DQN, "SAC": SAC, "PPO": PPO}[name]
    return cls("MlpPolicy", env(name), seed=1, device="cpu", policy_kwargs={"net_arch": [8]}, **options)


class Tell(BaseCallback):
    """Count steps where others can see it, and checkpoints that are complete."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.steps_taken = 0

    def _on_step(self) -> bool:
        self.steps_taken += self.model.n_envs
        return True


def go(path: Path, name: str, steps: int, every: int) -> Any:
    """Start a run, or go on with it, up to its end."""
    th.set_num_threads(1)
    try:
        model = resume(path, env=env(name))
    except FileNotFoundError:
        model = make(name)
    print(f"from {model.num_timesteps}", flush=True)
    tell = Tell(path)
    checkpoint = ResumableCheckpoint(path, every=every, keep=2)
    model.learn(steps - model.num_timesteps, callback=[checkpoint, tell], reset_num_timesteps=False)
    print(f"to {model.num_timesteps} {tell.steps_taken}", flush=True)
    return model


if __name__ == "__main__":
    folder, algorithm, total, often = sys.argv[1:]
    os.makedirs(Path(folder).parent, exist_ok=True)
    go(Path(folder), algorithm, int(total), int(often))
