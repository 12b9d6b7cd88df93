"""A run that processes of their own begin and go on with, until they are killed."""

from __future__ import annotations

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


class Count(BaseCallback):
    """Counts steps, and goes on counting where the process before was killed."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0

    def _on_step(self) -> bool:
        self.steps += self.model.n_envs
        return True


def go(path: Path, name: str, steps: int, every: int) -> Any:
    """Start a run, or go on with it, up to its end."""
    th.set_num_threads(1)
    try:
        model = resume(path, env=env(name))
    except FileNotFoundError:
        model = make(name)
    count = Count()
    checkpoint = ResumableCheckpoint(path, every=every, keep=2)
    begins_at = model.num_timesteps
    model.learn(steps - begins_at, callback=[checkpoint, count], reset_num_timesteps=False)
    assert count.steps == model.num_timesteps or begins_at == model.num_timesteps, "steps were lost, or counted twice"
    return model
