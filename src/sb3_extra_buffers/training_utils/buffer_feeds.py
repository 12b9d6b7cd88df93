"""Steps of environments, put into buffers the way SB3's training loops do it."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import BaseBuffer, ReplayBuffer, RolloutBuffer
from stable_baselines3.common.preprocessing import is_image_space, is_image_space_channels_first
from stable_baselines3.common.vec_env import VecEnv, VecNormalize, VecTransposeImage, unwrap_vec_normalize

from sb3_extra_buffers._spaces import same_form


@dataclass(frozen=True)
class Step:
    """
    One step of all environments.

    :param obs: What was observed before it
    :param action: What was done
    :param new_obs: What was observed after it; where an episode ended, the first observation of the next one
    :param reward: Rewards
    :param done: Whether an episode ended
    :param infos: Infos, with the last observation of an episode that ended
    :param episode_start: Whether ``obs`` was the first observation of its episode
    """

    obs: Any
    action: Any
    new_obs: Any
    reward: Any
    done: Any
    infos: list[dict[str, Any]]
    episode_start: Any


class Feed(Protocol):
    """Fills one buffer, and keeps the seconds that each of its ``add`` took."""

    seconds: list[float]

    def begin(self, obs: Any) -> None:
        """
        Take in what ``reset`` gave.

        :param obs: First observations
        """

    def put(self, step: Step) -> None:
        """
        Add a step to the buffer.

        :param step: The step
        """


class ReplayFeed:
    """
    Fills a replay buffer as ``OffPolicyAlgorithm`` does.

    :param buffer: The buffer
    :param env: Where the steps come from
    """

    def __init__(self, buffer: ReplayBuffer, env: VecEnv) -> None:
        self.seconds: list[float] = []
        self._buffer = buffer
        self._action_space = env.action_space
        self._normalized: VecNormalize | None = unwrap_vec_normalize(env)
        self._obs: Any = None

    def begin(self, obs: Any) -> None:
        """
        Take in what ``reset`` gave.

        :param obs: First observations
        """
        self._obs = obs if self._normalized is None else self._normalized.get_original_obs()

    def put(self, step: Step) -> None:
        """
        Add a step to the buffer.

        :param step: The step
        """
        new_obs, reward = step.new_obs, step.reward
        if self._normalized is not None:
            new_obs, reward = self._normalized.get_original_obs(), self._normalized.get_original_reward()
        next_obs = self._with_last_observations(new_obs, step)
        action = self._stored_action(step.action)
        start = perf_counter()
        self._buffer.add(self._obs, next_obs, action, reward, step.done, step.infos)
        self.seconds.append(perf_counter() - start)
        self._obs = new_obs

    def _with_last_observations(self, new_obs: Any, step: Step) -> Any:
        """What followed each observation: where an episode ended that is its last one, not the first of the next."""
        ended = [env for env in np.flatnonzero(step.done) if step.infos[env].get("terminal_observation") is not None]
        if not ended:
            return new_obs
        next_obs = deepcopy(new_obs)
        for env in ended:
            last = step.infos[env]["terminal_observation"]
            if self._normalized is not None:
                last = self._normalized.unnormalize_obs(last)
            if isinstance(next_obs, dict):
                for key in next_obs:
                    next_obs[key][env] = last[key]
            else:
                next_obs[env] = last
        return next_obs

    def _stored_action(self, action: Any) -> Any:
        """Replay buffers hold actions of a Box scaled to [-1, 1]."""
        space = self._action_space
        if not isinstance(space, spaces.Box):
            return action
        return 2.0 * ((action - space.low) / (space.high - space.low)) - 1.0


class RolloutFeed:
    """
    Fills a rollout buffer as ``OnPolicyAlgorithm`` does, until it is full.

    Values and log probabilities are those of an actor-critic policy; with any other they are zeros.

    :param buffer: The buffer
    :param model: Whose steps they are
    """

    def __init__(self, buffer: RolloutBuffer, model: Any) -> None:
        self.seconds: list[float] = []
        self._buffer = buffer
        policy = getattr(model, "policy", model)
        self._policy: Any = policy if hasattr(policy, "evaluate_actions") and hasattr(policy, "predict_values") else None

    def begin(self, obs: Any) -> None:
        """
        Take in what ``reset`` gave.

        :param obs: First observations
        """

    def put(self, step: Step) -> None:
        """
        Add a step to the buffer, unless it is full.

        :param step: The step
        """
        if self._buffer.full:
            return
        value, log_prob = self._judge(step)
        reward = self._with_time_outs(step)
        action = step.action
        if isinstance(self._buffer.action_space, spaces.Discrete):
            action = action.reshape(-1, 1)
        start = perf_counter()
        self._buffer.add(step.obs, action, reward, step.episode_start, value, log_prob)
        self.seconds.append(perf_counter() - start)
        if self._buffer.full:
            self._buffer.compute_returns_and_advantage(last_values=self._values(step.new_obs), dones=step.done)

    def _judge(self, step: Step) -> tuple[th.Tensor, th.Tensor]:
        if self._policy is None:
            return th.zeros(len(step.done), 1), th.zeros(len(step.done))
        with th.no_grad():
            action = th.as_tensor(step.action, device=self._policy.device)
            value, log_prob, _ = self._policy.evaluate_actions(self._policy.obs_to_tensor(step.obs)[0], action)
        return value, log_prob

    def _values(self, obs: Any) -> th.Tensor:
        if self._policy is None:
            return th.zeros(self._buffer.n_envs, 1)
        with th.no_grad():
            values: th.Tensor = self._policy.predict_values(self._policy.obs_to_tensor(obs)[0])
        return values

    def _with_time_outs(self, step: Step) -> Any:
        """Where an episode was cut off, the reward also holds what its last observation is worth."""
        cut = [
            env
            for env in np.flatnonzero(step.done)
            if step.infos[env].get("TimeLimit.truncated", False) and step.infos[env].get("terminal_observation") is not None
        ]
        if not cut or self._policy is None:
            return step.reward
        reward = step.reward.copy()
        for env in cut:
            last = self._policy.obs_to_tensor(step.infos[env]["terminal_observation"])[0]
            with th.no_grad():
                reward[env] += self._buffer.gamma * self._policy.predict_values(last)[0].cpu().numpy().item()
        return reward


def as_the_buffers_want(env: VecEnv, buffers: Sequence[BaseBuffer]) -> VecEnv:
    """
    Check that buffers can take what environments give, and put the channels of images first if the buffers want that.

    :param env: The environments
    :param buffers: The buffers
    :return: The environments, perhaps wrapped
    """
    for buffer in buffers:
        if not isinstance(buffer, ReplayBuffer | RolloutBuffer):
            raise TypeError(f"expected replay or rollout buffers of SB3 or of this package, not {type(buffer).__name__}")
        if hasattr(buffer, "hidden_state_shape"):
            raise TypeError(f"{type(buffer).__name__} needs the states of a recurrent policy, which are not available here")
        if buffer.n_envs != env.num_envs:
            raise ValueError(
                f"the {type(buffer).__name__} was made for n_envs={buffer.n_envs}, but there are {env.num_envs} "
                f"environments: make it with n_envs={env.num_envs}"
            )
        if isinstance(buffer, RolloutBuffer) and buffer.full:
            raise ValueError(f"the {type(buffer).__name__} is full already: call its reset() first")
    candidates = [env]
    # SB3's algorithms do the same to the environments that they are given, and make their buffers after it.
    if _has_images_with_channels_last(env.observation_space):
        candidates.append(VecTransposeImage(env))
    for candidate in candidates:
        if all(same_form(buffer.observation_space, candidate.observation_space) for buffer in buffers):
            return candidate
    for buffer in buffers:
        if not any(same_form(buffer.observation_space, candidate.observation_space) for candidate in candidates):
            raise ValueError(
                f"the {type(buffer).__name__} was made for {buffer.observation_space}, but the environments give "
                f"{env.observation_space}: make it with their observation_space"
            )
    raise ValueError("some of the buffers want the channels of images first, others last: give them the same space")


def _has_images_with_channels_last(space: spaces.Space[Any]) -> bool:
    parts = list(space.spaces.values()) if isinstance(space, spaces.Dict) else [space]
    images = [part for part in parts if is_image_space(part)]
    if not images:
        return False
    return not any(is_image_space_channels_first(image) for image in images)  # type: ignore[arg-type]


def make_feed(buffer: BaseBuffer, env: VecEnv, model: Any) -> Feed:
    """
    Choose how to fill a buffer.

    :param buffer: The buffer
    :param env: Where the steps come from
    :param model: Whose steps they are
    :return: What fills it
    """
    if isinstance(buffer, RolloutBuffer):
        return RolloutFeed(buffer, model)
    assert isinstance(buffer, ReplayBuffer)
    return ReplayFeed(buffer, env)
