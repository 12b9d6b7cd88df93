"""Transitions of which everything follows from one number, so that one which mixes two of them is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv

from sb3_extra_buffers.compressed import (
    CompressedDictReplayBuffer,
    CompressedHerReplayBuffer,
    CompressedNStepReplayBuffer,
    CompressedPrioritizedReplayBuffer,
    CompressedReplayBuffer,
)
from sb3_extra_buffers.gpu_buffers import GpuReplayBuffer

ENVS, ROWS, SIDE, DEPTH = 2, 40, 16, 2
ACTIONS = spaces.Box(-np.inf, np.inf, (1,), np.float64)
IMAGE = spaces.Box(0, 255, (DEPTH, SIDE, SIDE), np.uint8)
GOAL = spaces.Box(-np.inf, np.inf, (2,), np.float64)
EPISODE = 7
GAMMA = 0.5

# Everything about a transition follows from one number: its step, and the environment that it is of.
PICTURE = np.random.default_rng(0).integers(0, 256, (ENVS, SIDE, SIDE), dtype=np.uint8)


def frame(step: int, env: int) -> np.ndarray:
    """A picture with a number on it and a bar that moves; some are altogether another."""
    picture = PICTURE[env].copy() if step % 5 else np.full((SIDE, SIDE), step % 251, np.uint8)
    picture[:, step % SIDE] = step % 249
    picture[0, :4] = np.frombuffer(np.uint32(step + 1).tobytes(), np.uint8)
    return picture


def image(step: int, env: int) -> np.ndarray:
    return np.stack([frame(step + place, env) for place in range(DEPTH)])


def step_of(picture: np.ndarray) -> int:
    return int(picture[0, 0, :4].copy().view(np.uint32)[0]) - 1


def images(step: int) -> np.ndarray:
    return np.stack([image(step, env) for env in range(ENVS)])


def vectors(step: int) -> np.ndarray:
    return np.stack([[step, env] for env in range(ENVS)]).astype(np.float64)


class Goals(gym.Env[Any, Any]):
    """What HER asks an environment for."""

    observation_space = spaces.Dict({"observation": IMAGE, "achieved_goal": GOAL, "desired_goal": GOAL})
    action_space = ACTIONS

    def compute_reward(self, achieved: Any, desired: Any, _: Any) -> Any:
        return achieved[:, 0] * 1000 + desired[:, 0]


class Feed:
    """Adds transitions one after the other, until it is told to stop."""

    def __init__(self, buffer: Any, observe: Callable[[int], Any]) -> None:
        self.buffer, self.observe, self.step = buffer, observe, 0

    def add(self) -> None:
        step = self.step
        values = step * ENVS + np.arange(ENVS, dtype=np.float64)
        done = np.full(ENVS, step % EPISODE == EPISODE - 1)
        self.buffer.add(self.observe(step), self.observe(step + 1), values[:, None], values, done, [{}] * ENVS)
        self.step += 1


def check_transition(sample: Any, which: int, obs: np.ndarray, next_obs: np.ndarray, ahead: tuple[int, ...] = (1,)) -> int:
    """
    Check that image, action and next image belong together.

    :param sample: Samples
    :param which: Which of them
    :param obs: Its image
    :param next_obs: What followed
    :param ahead: How many steps later that may be
    :return: How many steps later it is
    """
    step, env = divmod(int(sample.actions[which]), ENVS)
    assert step_of(obs) == step and np.array_equal(obs, image(step, env)), "observation and action"
    later = step_of(next_obs) - step
    assert later in ahead and np.array_equal(next_obs, image(step + later, env)), "observation and next observation"
    return later


def check_plain(sample: Any) -> None:
    for which in range(len(sample.actions)):
        check_transition(sample, which, sample.observations[which].numpy(), sample.next_observations[which].numpy())
        step = int(sample.actions[which]) // ENVS
        assert float(sample.rewards[which]) == float(sample.actions[which].float()), "reward"
        assert bool(sample.dones[which]) == (step % EPISODE == EPISODE - 1), "done"


def check_dict(sample: Any) -> None:
    for which in range(len(sample.actions)):
        both = sample.observations, sample.next_observations
        check_transition(sample, which, *(obs["image"][which].numpy() for obs in both))
        step, env = divmod(int(sample.actions[which]), ENVS)
        assert [obs["vector"][which].tolist() for obs in both] == [[step, env], [step + 1, env]], "small key"
        assert float(sample.rewards[which]) == float(sample.actions[which].float()), "reward"


def check_n_step(sample: Any) -> None:
    for which in range(len(sample.actions)):
        obs, following = sample.observations[which].numpy(), sample.next_observations[which].numpy()
        later = check_transition(sample, which, obs, following, (1, 2, 3))
        rewards = [np.float32(int(sample.actions[which]) + ENVS * place) * GAMMA**place for place in range(later)]
        assert float(sample.rewards[which]) == pytest.approx(float(np.sum(rewards)), rel=1e-5), "return"
        assert float(sample.discounts[which]) == GAMMA**later, "discount"


def check_goals(sample: Any) -> None:
    for which in range(len(sample.actions)):
        both = sample.observations, sample.next_observations
        check_transition(sample, which, *(obs["observation"][which].numpy() for obs in both))
        step, env = divmod(int(sample.actions[which]), ENVS)
        assert [obs["achieved_goal"][which].tolist() for obs in both] == [[step, env], [step + 1, env]]
        goals = [obs["desired_goal"][which].tolist() for obs in both]
        assert goals[0] == goals[1]
        if goals[0] == [-1, -1]:  # a real one
            assert float(sample.rewards[which]) == float(sample.actions[which].float()), "reward"
            continue
        goal = int(goals[0][0])
        assert step < goal and (goal - 1) // EPISODE == step // EPISODE and goals[0][1] == env, "goal of another episode"
        assert float(sample.rewards[which]) == float(np.float32((step + 1) * 1000 + goal)), "reward of another goal"


def her_buffer(**kwargs: Any) -> Any:
    env = DummyVecEnv([Goals] * ENVS)
    return CompressedHerReplayBuffer(ENVS * ROWS, env.observation_space, ACTIONS, env, "cpu", ENVS, **kwargs)


def observe_goals(step: int) -> dict[str, np.ndarray]:
    return {"observation": images(step), "achieved_goal": vectors(step), "desired_goal": np.full((ENVS, 2), -1.0)}


def observe_dict(step: int) -> dict[str, np.ndarray]:
    return {"image": images(step), "vector": vectors(step)}


def replay(cls: type[Any], space: spaces.Space[Any] = IMAGE, **fixed: Any) -> Callable[..., Any]:
    return lambda **kwargs: cls(ENVS * ROWS, space, ACTIONS, "cpu", ENVS, **fixed, **kwargs)


DICT_SPACE = spaces.Dict({"image": IMAGE, "vector": GOAL})
N_STEP: dict[str, Any] = {"n_steps": 3, "gamma": GAMMA}
KINDS: dict[str, tuple[Callable[..., Any], Callable[[int], Any], Callable[[Any], None]]] = {
    "plain": (replay(CompressedReplayBuffer), images, check_plain),
    "dict": (replay(CompressedDictReplayBuffer, DICT_SPACE), observe_dict, check_dict),
    "n-step": (replay(CompressedNStepReplayBuffer, **N_STEP), images, check_n_step),
    "prioritized": (replay(CompressedPrioritizedReplayBuffer), images, check_plain),
    "prioritized n-step": (replay(CompressedPrioritizedReplayBuffer, **N_STEP), images, check_n_step),
    "her": (her_buffer, observe_goals, check_goals),
    "on a device": (replay(GpuReplayBuffer), images, check_plain),
}
