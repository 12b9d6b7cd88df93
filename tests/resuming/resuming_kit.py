"""Runs that are small enough to be stopped and resumed many times, and what all runs are compared by."""

from __future__ import annotations

import concurrent.futures
import gc
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv

from sb3_extra_buffers.training_utils import ResumableCheckpoint, resume


class Walk(gym.Env[Any, Any]):
    """
    A walk over a ring of places, with a gust of wind now and then.

    :param continuous: Whether actions are numbers
    :param goals: Whether there is a place to get to, as HER needs it
    """

    def __init__(self, continuous: bool = False, goals: bool = False) -> None:
        place = spaces.Box(-3, 3, (4,), np.float32)
        self.observation_space: spaces.Space[Any] = place
        if goals:
            goal = spaces.Box(-3, 3, (1,), np.float32)
            self.observation_space = spaces.Dict({"observation": place, "achieved_goal": goal, "desired_goal": goal})
        self.action_space: spaces.Space[Any] = spaces.Box(-1, 1, (2,), np.float32) if continuous else spaces.Discrete(3)
        self.goals = goals

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.at, self.steps, self.goal = self.np_random.normal(size=4), 0, float(self.np_random.normal())
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        push = float(np.sum(action)) - 1
        self.at = np.roll(self.at, 1) * 0.9
        self.at[0] += 0.3 * push + self.np_random.normal() * 0.2
        reached = abs(self.at[0] - self.goal) < 0.1
        return self.observe(), self.reward(), bool(reached), self.steps >= 17, {}

    def reward(self) -> float:
        return -abs(float(self.at[0]) - self.goal)

    def compute_reward(self, achieved: Any, desired: Any, infos: Any) -> Any:
        return -np.abs(achieved - desired)[..., 0]

    def action_masks(self) -> Any:
        return np.array([True, self.steps % 3 > 0, True])

    def observe(self) -> Any:
        place = np.clip(self.at, -3, 3).astype(np.float32)
        if not self.goals:
            return place
        return {"observation": place, "achieved_goal": place[:1], "desired_goal": np.float32([np.clip(self.goal, -3, 3)])}


class Stopped(Exception):
    """Stands for whatever has stopped a run."""


class StopAt(BaseCallback):
    """
    Stop a run in the middle of a step.

    :param step: After how many steps
    """

    def __init__(self, step: int) -> None:
        super().__init__()
        self.step = step

    def _on_step(self) -> bool:
        if self.num_timesteps >= self.step:
            raise Stopped
        return True


class PatientCheckpoint(ResumableCheckpoint):
    """Waits for the disk, so that checkpoints are made at the same steps each time."""

    def _on_rollout_start(self) -> None:
        concurrent.futures.wait([self._writing] if self._writing else [])
        super()._on_rollout_start()


def walks(n_envs: int = 2, wrap: Callable[[VecEnv], VecEnv] = lambda venv: venv, **options: Any) -> VecEnv:
    """Some environments, which nobody has seeded."""
    return wrap(make_vec_env(Walk, n_envs=n_envs, env_kwargs=options))


def everything(model: Any) -> dict[str, Any]:
    """All that has to be equal in the end: weights, optimizers, counters, random states, transitions."""
    found: dict[str, Any] = {
        f"{name} {key}": value for name, part in model.get_parameters().items() for key, value in flat(part)
    }
    names = [
        "num_timesteps",
        "_n_updates",
        "_episode_num",
        "_n_calls",
        "exploration_rate",
        "_last_obs",
        "_last_episode_starts",
    ]
    found.update({name: getattr(model, name, None) for name in names})
    found["episodes"] = [(info["r"], info["l"]) for info in model.ep_info_buffer]
    found["numpy"], found["torch"] = np.random.get_state()[1], th.get_rng_state()
    buffer = getattr(model, "replay_buffer", None)
    if buffer is not None:
        found.update({name: getattr(buffer, name).copy() for name in ("actions", "rewards", "dones", "timeouts")})
        found["pos"] = buffer.pos
        batch = buffer.sample(16, env=model.get_vec_normalize_env())
        found["observations"], found["next"] = batch.observations, batch.next_observations
    normalizer = model.get_vec_normalize_env()
    if normalizer is not None:
        found["mean"], found["var"] = normalizer.obs_rms.mean.copy(), normalizer.ret_rms.var.copy()
    return found


def flat(value: Any, path: str = "") -> list[tuple[str, Any]]:
    """Nested values by their path."""
    if isinstance(value, dict):
        return [pair for key, part in value.items() for pair in flat(part, f"{path}/{key}")]
    if isinstance(value, (list, tuple)):
        return [pair for index, part in enumerate(value) for pair in flat(part, f"{path}/{index}")]
    return [(path, value)]


def assert_same(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Bit for bit."""
    ours, theirs = dict(flat(ours)), dict(flat(theirs))
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert np.array_equal(np.asarray(value), np.asarray(theirs[name])), name


def stop_and_resume(
    path: Path, make: Callable[[], BaseAlgorithm], env: Callable[[], VecEnv], steps: int, stop: int, **kwargs: Any
) -> Any:
    """Start a run, stop it, forget it, resume it, and let it reach its end."""
    every = kwargs.pop("every", 40)
    callbacks = kwargs.pop("callbacks", list)
    first = PatientCheckpoint(path, every=every)
    try:
        make().learn(steps, callback=[first, *callbacks(), StopAt(stop)])
    except Stopped:
        first._finish()
        first._close()
    else:
        raise AssertionError("it was to be stopped")
    del first  # with the model, whose buffer may have a ring on disk
    gc.collect()
    np.random.rand(13), th.rand(13)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = resume(path, env=env(), **kwargs)
    assert 0 < model.num_timesteps <= stop
    again = callbacks()
    model.learn(
        steps - model.num_timesteps, callback=[ResumableCheckpoint(path, every=every), *again], reset_num_timesteps=False
    )
    model.callbacks_of_the_test = again
    return model
