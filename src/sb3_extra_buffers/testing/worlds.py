"""Pretended environments: steps as a buffer gets them, for any observation space."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

DEFAULT_SPACE = spaces.Box(0, 255, (4, 12, 10), np.uint8)
"""A stack of four small frames."""

DEFAULT_DICT_SPACE = spaces.Dict(
    {
        "image": DEFAULT_SPACE,
        "vector": spaces.Box(-np.inf, np.inf, (5,), np.float32),
        "choice": spaces.Discrete(4),
    }
)


class World:
    """
    Parallel environments with episodes of some steps that end by themselves or by a time-out.

    An image moves as a frame stack does: its shortest axis shifts by one. All else changes in some elements only.

    :param space: Observation space
    :param action_space: Action space
    :param n_envs: Number of environments
    :param seed: Seed
    """

    def __init__(self, space: spaces.Space[Any], action_space: spaces.Space[Any], n_envs: int, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.space, self.action_space, self.n_envs = space, action_space, n_envs
        space.seed(seed)
        action_space.seed(seed)
        self.obs = self._begin(space)

    def step(self) -> tuple[Any, Any, npt.NDArray[np.bool_], list[dict[str, Any]]]:
        """
        Go on by one step.

        :return: Observations, what followed (where an episode ended its last observation), dones, infos
        """
        obs, next_obs = self.obs, self._follow(self.space, self.obs)
        dones = self.rng.random(self.n_envs) < 0.15
        infos = [{"TimeLimit.truncated": bool(done and self.rng.random() < 0.5)} for done in dones]
        self.obs = _choose(dones, self._begin(self.space), next_obs)
        return obs, next_obs, dones, infos

    def actions(self) -> npt.NDArray[Any]:
        """
        Draw actions.

        :return: One per environment
        """
        return np.stack([self.action_space.sample() for _ in range(self.n_envs)])

    def _begin(self, space: spaces.Space[Any]) -> Any:
        if isinstance(space, spaces.Dict):
            return {key: self._begin(part) for key, part in space.spaces.items()}
        return np.stack([np.asarray(space.sample()) for _ in range(self.n_envs)])

    def _follow(self, space: spaces.Space[Any], obs: Any) -> Any:
        if isinstance(space, spaces.Dict):
            return {key: self._follow(part, obs[key]) for key, part in space.spaces.items()}
        fresh = self._begin(space)
        if obs.ndim == 4:
            axis = 1 + int(np.argmin(obs.shape[1:]))
            first = [slice(None)] * axis
            return np.concatenate([obs[(*first, slice(1, None))], fresh[(*first, slice(-1, None))]], axis=axis)
        return np.where(self.rng.random(obs.shape) < 0.1, fresh, obs).astype(obs.dtype)


def _choose(where: npt.NDArray[np.bool_], one: Any, other: Any) -> Any:
    if isinstance(one, dict):
        return {key: _choose(where, one[key], other[key]) for key in one}
    return np.where(where.reshape(-1, *[1] * (one.ndim - 1)), one, other).astype(one.dtype)


def copied(obs: Any) -> Any:
    """
    Copy observations, arrays of three axes and more to the memory order that ``VecTransposeImage`` leaves them in.

    :param obs: Array, or dict of arrays
    :return: The same values
    """
    if isinstance(obs, dict):
        return {key: copied(value) for key, value in obs.items()}
    if obs.ndim < 4:
        return obs.copy()
    return np.moveaxis(np.moveaxis(obs, 1, -1).copy(), -1, 1)


class _Still(gym.Env[Any, Any]):
    """An environment in which nothing happens; its spaces are all that matters."""

    def __init__(self, world: World) -> None:
        self.observation_space = copy.deepcopy(world.space)  # VecNormalize changes a Dict space in place
        self.action_space = world.action_space

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        return self.observation_space.sample(), {}


def normalizer(world: World) -> VecNormalize:
    """
    Make what algorithms hand to ``sample`` when their environment is a ``VecNormalize``.

    :param world: The environments
    :return: One that has seen some observations and rewards
    """
    space, keys = world.space, None
    if isinstance(space, spaces.Dict):
        keys = [key for key, part in space.spaces.items() if isinstance(part, spaces.Box)]
    env = VecNormalize(
        DummyVecEnv([lambda: _Still(world)]), norm_obs=bool(keys) or isinstance(space, spaces.Box), norm_obs_keys=keys
    )
    env._update_reward(np.array([3.0]))
    if env.norm_obs:
        seen = world._begin(space)
        statistics: Any = env.obs_rms
        if keys is None:
            statistics.update(seen)
        for key in keys or ():
            statistics[key].update(seen[key])
    return env
