"""Environments that are played in milliseconds, with pictures, time-outs and ends of different kinds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecFrameStack

SIZE = 36


class Pictures(gym.Env[Any, Any]):
    """
    A spot moves through a picture; an episode ends by chance, or is cut off after ``length`` steps.

    :param seed: Of the first episode; the later ones follow
    :param length: When an episode is cut off
    :param chance: That a step ends the episode
    """

    def __init__(self, seed: int = 0, length: int = 9, chance: float = 0.1) -> None:
        self.observation_space: spaces.Space[Any] = spaces.Box(0, 255, (SIZE, SIZE, 1), np.uint8)
        self.action_space = spaces.Discrete(3)
        self.length, self.chance = length, chance
        self.rng = np.random.default_rng(seed)
        self.closed = False

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps, self.place = 0, int(self.rng.integers(SIZE))
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        self.place = (self.place + int(action) - 1) % SIZE
        ended = bool(self.rng.random() < self.chance)
        return self.observe(), 1.0, ended, not ended and self.steps >= self.length, {}

    def observe(self) -> Any:
        picture = np.zeros((SIZE, SIZE, 1), np.uint8)
        picture[self.place] = 200
        picture[:, (self.place * 7 + self.steps) % SIZE] += 50
        return picture

    def close(self) -> None:
        self.closed = True


class PicturesAndPlaces(Pictures):
    """The same, with the place beside the picture."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        place = spaces.Box(0, SIZE, (1,), np.float32)
        self.observation_space = spaces.Dict({"camera": self.observation_space, "place": place})

    def observe(self) -> Any:
        return {"camera": super().observe(), "place": np.array([self.place], np.float32)}


def several(kind: type[Pictures] = Pictures, n_envs: int = 3, stack: int = 1, monitor: bool = True, **options: Any) -> VecEnv:
    """Several of them, alike on every call."""

    def make(seed: int) -> Callable[[], gym.Env[Any, Any]]:
        return lambda: Monitor(kind(seed=seed, **options)) if monitor else kind(seed=seed, **options)

    venv = DummyVecEnv([make(seed) for seed in range(n_envs)])
    return venv if stack == 1 else VecFrameStack(venv, stack)
