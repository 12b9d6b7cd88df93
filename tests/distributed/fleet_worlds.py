"""Environments whose observations say who has played them, and when."""

from __future__ import annotations

import os
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

SIDE, DEPTH = 36, 2
EPISODE = 11
_GROUND = np.random.default_rng(3).integers(0, 256, (SIDE, SIDE), dtype=np.uint8)


def frame(who: int, step: int) -> np.ndarray:
    picture = _GROUND.copy()
    picture[:, step % SIDE] = step % 253
    picture[0, :8] = np.frombuffer(np.uint64(who).tobytes(), np.uint8)
    picture[0, 8:12] = np.frombuffer(np.uint32(step).tobytes(), np.uint8)
    return picture


def image(who: int, step: int) -> np.ndarray:
    return np.stack([frame(who, max(step - back, 0)) for back in reversed(range(DEPTH))])


class Numbered(gym.Env[Any, Any]):
    """Steps are counted from 0 in each episode; the reward is the number of the step, and every other episode is cut short."""

    observation_space = spaces.Box(0, 255, (DEPTH, SIDE, SIDE), np.uint8)
    action_space: spaces.Space[Any] = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.who, self.step_number = int.from_bytes(os.urandom(7), "little"), 0
        return image(self.who, 0), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward, self.step_number = float(self.step_number), self.step_number + 1
        over = self.step_number == EPISODE
        odd = bool(self.who % 2)
        return image(self.who, self.step_number), reward, over and odd, over and not odd, {}


class Continuous(Numbered):
    """The same, steered by two numbers."""

    action_space = spaces.Box(-2.0, 2.0, (2,), np.float32)


class Broken(Numbered):
    """The same, but it fails in its third step."""

    def step(self, action: Any) -> Any:
        if self.step_number == 2:
            raise RuntimeError("the simulator has crashed")
        return super().step(action)


class Goals(Numbered):
    """The same, with goals, as HER wants it."""

    observation_space = spaces.Dict(  # type: ignore[assignment]
        {name: spaces.Box(-1, 1, (2,), np.float32) for name in ("observation", "achieved_goal", "desired_goal")}
    )

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return self.observation_space.sample(), {}

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
        return np.zeros(len(achieved))


def check_samples(samples: Any, n_steps: int = 1, gamma: float = 0.99) -> set[tuple[int, int]]:
    """Every transition was played, with its own next observation; returns who and when."""
    found = set()
    for place in range(len(samples.actions)):
        obs, following = samples.observations[place].numpy(), samples.next_observations[place].numpy()
        head = obs[-1, 0, :12].copy()
        who, step = int(head[:8].view("<u8")[0]), int(head[8:].copy().view("<u4")[0])
        last = int(following[-1, 0, 8:12].copy().view("<u4")[0])
        assert np.array_equal(obs, image(who, step)), "observation"
        assert step < last <= min(step + n_steps, EPISODE) and np.array_equal(following, image(who, last)), "next observation"
        rewards = [(step + ahead) * gamma**ahead for ahead in range(last - step)]
        assert np.isclose(float(samples.rewards[place]), sum(rewards), rtol=1e-5), "reward"
        assert bool(samples.dones[place]) == (last == EPISODE and bool(who % 2)), "done"
        found.add((who, step))
    return found
