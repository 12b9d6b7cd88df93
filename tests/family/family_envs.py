"""Small deterministic environments with images, and networks small enough to train in a second."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import VecEnv, VecFrameStack, VecTransposeImage

SIZE = 24
MOVES = np.array([[0, 1], [0, -1], [1, 0], [-1, 0]])


class ImageEnv(gym.Env[Any, Any]):
    """
    Walk to a spot in a picture; ends on the spot, or is cut off after 15 steps.

    :param continuous: Whether actions are a direction instead of one of four moves
    """

    def __init__(self, continuous: bool = False) -> None:
        self.observation_space: spaces.Space[Any] = spaces.Box(0, 255, (SIZE, SIZE, 1), np.uint8)
        self.action_space = spaces.Box(-1, 1, (2,), np.float32) if continuous else spaces.Discrete(4)
        self.continuous = continuous

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place = self.np_random.integers(0, SIZE - 4, 2)
        self.goal = self.np_random.integers(0, SIZE - 4, 2)
        self.steps = 0
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        move = np.round(3 * np.asarray(action)).astype(int) if self.continuous else 3 * MOVES[int(action)]
        self.place = np.clip(self.place + move, 0, SIZE - 4)
        self.steps += 1
        reward, info = self.outcome()
        return self.observe(), reward, bool(np.abs(self.place - self.goal).max() < 3), self.steps >= 15, info

    def outcome(self) -> tuple[float, dict[str, Any]]:
        return -float(np.abs(self.place - self.goal).sum()) / SIZE, {}

    def picture(self) -> np.ndarray:
        image = np.zeros((SIZE, SIZE, 1), np.uint8)
        image[self.goal[0] : self.goal[0] + 4, self.goal[1] : self.goal[1] + 4] = 120
        image[self.place[0] : self.place[0] + 4, self.place[1] : self.place[1] + 4] += 100
        return image

    def observe(self) -> Any:
        return self.picture()

    def action_masks(self) -> np.ndarray:
        after = self.place + 3 * MOVES
        return ((after >= 0) & (after <= SIZE - 4)).all(axis=1) | np.array([True, False, False, False])


class DictImageEnv(ImageEnv):
    """The same with a vector beside the picture."""

    def __init__(self, continuous: bool = False) -> None:
        super().__init__(continuous)
        image = self.observation_space
        self.observation_space = spaces.Dict({"image": image, "vector": spaces.Box(-np.inf, np.inf, (3,), np.float32)})

    def observe(self) -> Any:
        return {"image": self.picture(), "vector": np.array([*self.place, self.steps], np.float32) / SIZE}


class GoalImageEnv(ImageEnv):
    """The same as a goal environment; the reward can be computed for other goals, and needs the info dict for that."""

    def __init__(self, continuous: bool = True) -> None:
        super().__init__(continuous)
        goal = spaces.Box(0, SIZE, (2,), np.float32)
        image = self.observation_space
        self.observation_space = spaces.Dict({"observation": image, "achieved_goal": goal, "desired_goal": goal})

    def observe(self) -> Any:
        place, goal = self.place.astype(np.float32), self.goal.astype(np.float32)
        return {"observation": self.picture(), "achieved_goal": place, "desired_goal": goal}

    def outcome(self) -> tuple[float, dict[str, Any]]:
        info = {"weight": 1 + self.steps % 3}
        return float(self.compute_reward(self.place[None], self.goal[None], [info])[0]), info

    def compute_reward(self, achieved: Any, desired: Any, infos: Any) -> np.ndarray:
        weights = np.array([info.get("weight", 1) for info in infos])
        far = np.abs(np.asarray(achieved) - np.asarray(desired)).max(axis=1) >= 3
        return -(far * weights).astype(np.float32)


def image_envs(
    env_class: Callable[..., ImageEnv] = ImageEnv, n_envs: int = 2, seed: int = 0, stack: int = 3, **kwargs: Any
) -> VecEnv:
    """
    Make parallel environments.

    :param env_class: One of the above
    :param n_envs: How many
    :param seed: Seed
    :param stack: Frames to stack, in environments without Dict
    :param kwargs: Of the class
    :return: The environments, channels first
    """
    env = make_vec_env(lambda: env_class(**kwargs), n_envs=n_envs, seed=seed)
    if isinstance(env.observation_space, spaces.Box):
        env = VecFrameStack(env, stack)
    return VecTransposeImage(env)


class TinyCnn(BaseFeaturesExtractor):
    """One convolution; for images, and for a Dict of images and vectors."""

    def __init__(self, observation_space: spaces.Space[Any], features_dim: int = 16) -> None:
        super().__init__(observation_space, features_dim)
        parts = observation_space.spaces if isinstance(observation_space, spaces.Dict) else {"": observation_space}
        self.nets, width = th.nn.ModuleDict(), 0
        for key, space in parts.items():
            assert space.shape is not None
            if len(space.shape) == 3:
                net = th.nn.Sequential(th.nn.Conv2d(space.shape[0], 4, 8, 4), th.nn.ReLU(), th.nn.Flatten())
                width += 4 * ((SIZE - 8) // 4 + 1) ** 2
            else:
                net = th.nn.Sequential(th.nn.Flatten())
                width += int(np.prod(space.shape))
            self.nets["x" + key] = net
        self.last = th.nn.Sequential(th.nn.Linear(width, features_dim), th.nn.ReLU())

    def forward(self, observations: Any) -> th.Tensor:
        parts = observations if isinstance(observations, dict) else {"": observations}
        return self.last(th.cat([self.nets["x" + key](value) for key, value in parts.items()], dim=1))


def small_network(**kwargs: Any) -> dict[str, Any]:
    """
    Make ``policy_kwargs`` of a small network; new ones each time, because SB3 writes to them.

    :param kwargs: More of them
    :return: The dict
    """
    return {"features_extractor_class": TinyCnn, "net_arch": [16], **kwargs}


def parameters_of(model: Any) -> dict[str, np.ndarray]:
    """
    Take all parameters out of a model.

    :param model: The model
    :return: Copies of them
    """
    return {key: value.detach().cpu().numpy().copy() for key, value in model.policy.state_dict().items()}
