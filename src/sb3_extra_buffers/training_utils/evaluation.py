"""How good a model is, and how long buffers take to store what it plays."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from copy import deepcopy
from time import perf_counter
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import BaseBuffer, ReplayBuffer, RolloutBuffer
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.preprocessing import is_image_space, is_image_space_channels_first
from stable_baselines3.common.type_aliases import PolicyPredictor
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    VecEnv,
    VecMonitor,
    VecNormalize,
    VecTransposeImage,
    is_vecenv_wrapped,
    unwrap_vec_normalize,
)

from sb3_extra_buffers._spaces import same_form

__all__ = ["Evaluation", "eval_model"]


class Evaluation(NamedTuple):
    """
    The result of an evaluation. It unpacks as ``rewards, latencies = eval_model(...)``.

    :param rewards: The reward of each episode, in the order in which they ended
    :param latencies: Seconds that each ``add`` took; a list of lists if there were several buffers
    """

    rewards: list[float]
    latencies: list[float] | list[list[float]]

    @property
    def summary(self) -> str:
        """
        The rewards in two lines. The relative interquartile range is ``(Q3 - Q1) / |Q2|``. There are as many decimals as it
        takes to tell the smallest reward from the largest, and a spread above 0 never reads 0.00.
        """
        least, most = min(self.rewards), max(self.rewards)
        lower, middle, upper = (float(value) for value in np.percentile(self.rewards, (25, 50, 75)))
        # Two, unless all rewards are within a tenth.
        decimals = 2 if most - least >= 0.1 or most == least else 1 - math.floor(math.log10(most - least))
        relative = (upper - lower) / abs(middle) if middle else (math.inf if upper > lower else 0.0)
        mean = f"{np.mean(self.rewards):.{decimals - 1}f} +/- {_spread(float(np.std(self.rewards)))}"
        q1, q2, q3, low, high = (_short(value, decimals) for value in (lower, middle, upper, least, most))
        return (
            f"Evaluated {len(self.rewards)} episodes, mean reward: {mean}\n"
            f"Q1: {q1} | Q2: {q2} | Q3: {q3} | Relative IQR: {_spread(relative)} | Min: {low} | Max: {high}"
        )


def _spread(value: float) -> str:
    """Two decimals, or one digit that is not 0 where they would be 0.00 for what is more than that."""
    return f"{value:.1g}" if 0 < value < 0.005 else f"{value:.2f}"


def _short(value: float, decimals: int) -> str:
    """At most so many decimals, and no more than it needs."""
    text = f"{value:.{decimals}f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


class _Step(NamedTuple):
    """One step of all environments."""

    obs: Any
    action: Any
    new_obs: Any
    """Where an episode ended, the first observation of the next one."""
    reward: Any
    done: Any
    infos: list[dict[str, Any]]
    episode_start: Any
    """Whether ``obs`` was the first observation of its episode."""


# -- buffers that are filled as SB3's training loops fill them -----------------------------------------------------------


class _ReplayFeed:
    """Fills a replay buffer as ``OffPolicyAlgorithm`` does, and keeps the seconds that each ``add`` took."""

    def __init__(self, buffer: ReplayBuffer, env: VecEnv) -> None:
        self.seconds: list[float] = []
        self._buffer = buffer
        self._action_space = env.action_space
        self._normalized: VecNormalize | None = unwrap_vec_normalize(env)
        self._obs: Any = None

    def begin(self, obs: Any) -> None:
        self._obs = obs if self._normalized is None else self._normalized.get_original_obs()

    def put(self, step: _Step) -> None:
        new_obs, reward, action = step.new_obs, step.reward, step.action
        if self._normalized is not None:
            new_obs, reward = self._normalized.get_original_obs(), self._normalized.get_original_reward()
        next_obs = self._with_last_observations(new_obs, step)
        space = self._action_space
        if isinstance(space, spaces.Box):  # as the policy scales them
            action = 2.0 * ((action - space.low) / (space.high - space.low)) - 1.0
        start = perf_counter()
        self._buffer.add(self._obs, next_obs, action, reward, step.done, step.infos)
        self.seconds.append(perf_counter() - start)
        self._obs = new_obs

    def _with_last_observations(self, new_obs: Any, step: _Step) -> Any:
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


class _RolloutFeed:
    """
    Fills a rollout buffer as ``OnPolicyAlgorithm`` does, until it is full.

    Values and log probabilities are those of an actor-critic policy; with any other they are zeros.
    """

    def __init__(self, buffer: RolloutBuffer, model: Any) -> None:
        self.seconds: list[float] = []
        self._buffer = buffer
        policy = getattr(model, "policy", model)
        self._policy: Any = policy if hasattr(policy, "evaluate_actions") and hasattr(policy, "predict_values") else None

    def begin(self, obs: Any) -> None:
        pass

    def put(self, step: _Step) -> None:
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

    def _judge(self, step: _Step) -> tuple[th.Tensor, th.Tensor]:
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

    def _with_time_outs(self, step: _Step) -> Any:
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
            reward[env] += self._buffer.gamma * self._values(step.infos[env]["terminal_observation"])[0].cpu().numpy().item()
        return reward


_Feed = _ReplayFeed | _RolloutFeed


def _with_channels_as_in(buffers: Sequence[BaseBuffer], env: VecEnv) -> VecEnv:
    """Check that buffers can take what environments give, and put the channels of images first if the buffers want that."""
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
    space = env.observation_space
    images = [part for part in (space.spaces.values() if isinstance(space, spaces.Dict) else [space]) if is_image_space(part)]
    candidates = [env]
    # SB3's algorithms do the same to the environments that they are given, and make their buffers after it.
    if images and not any(is_image_space_channels_first(image) for image in images):  # type: ignore[arg-type]
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


# -- playing -------------------------------------------------------------------------------------------------------------


class _Count:
    """
    Counts whole episodes of each environment, as SB3's ``evaluate_policy`` does.

    How many each environment plays is settled beforehand. To take those that end first would favour short ones.
    """

    def __init__(self, n_eps: int, env: VecEnv) -> None:
        self.rewards: list[float] = []
        self._left = np.array([(n_eps + i) // env.num_envs for i in range(env.num_envs)])
        self._played = np.zeros(env.num_envs)
        self._monitored = is_vecenv_wrapped(env, VecMonitor) or all(env.env_is_wrapped(Monitor))
        if not self._monitored:
            warnings.warn(
                "The environments have no Monitor, so rewards and ends of episodes are those that their wrappers show: "
                "clipped rewards and lost lives count. Wrap them with stable_baselines3.common.monitor.Monitor first.",
                stacklevel=4,
            )

    @property
    def complete(self) -> bool:
        return not self._left.any()

    def take(self, step: _Step) -> int:
        """Count a step; tells how many episodes ended with it."""
        before = len(self.rewards)
        self._played += step.reward
        for env in np.flatnonzero(step.done):
            # A wrapper that ends an episode when a life is lost says "done", but only Monitor knows the whole game.
            if self._monitored and "episode" not in step.infos[env]:
                continue
            if self._left[env]:
                self._left[env] -= 1
                self.rewards.append(float(step.infos[env]["episode"]["r"] if self._monitored else self._played[env]))
            self._played[env] = 0
        return len(self.rewards) - before


def _bar(n_eps: int, wanted: bool) -> Any:
    """A progress bar on a terminal, where tqdm is installed."""
    if wanted:
        try:
            from tqdm import tqdm
        except ImportError:
            pass
        else:
            return tqdm(total=n_eps, unit="episode", desc="Evaluating", disable=None)
    return nullcontext()


def _play(
    n_eps: int,
    env: VecEnv,
    model: PolicyPredictor,
    feeds: Sequence[_Feed],
    deterministic: bool,
    progress_bar: bool,
) -> list[float]:
    count = _Count(n_eps, env)
    obs: Any = env.reset()
    for feed in feeds:
        feed.begin(obs)
    states: Any = None
    starts = np.ones(env.num_envs, dtype=bool)
    with _bar(n_eps, progress_bar) as bar:
        while not count.complete:
            action, states = model.predict(obs, state=states, episode_start=starts, deterministic=deterministic)
            new_obs, reward, done, infos = env.step(action)
            step = _Step(obs, action, new_obs, reward, done, infos, starts)
            for feed in feeds:
                feed.put(step)
            ended = count.take(step)
            if ended and bar is not None:
                bar.set_postfix_str(f"mean reward {np.mean(count.rewards):.1f}", refresh=False)
                bar.update(ended)
            obs, starts = new_obs, done
    return count.rewards


def eval_model(
    n_eps: int,
    eval_env: VecEnv | gym.Env[Any, Any],
    model: PolicyPredictor,
    close_env: bool = True,
    buffer: BaseBuffer | Sequence[BaseBuffer] | None = None,
    *,
    deterministic: bool = True,
    progress_bar: bool = True,
) -> Evaluation:
    """
    Let a model play whole episodes, and report its rewards::

        evaluation = eval_model(100, eval_env, model)
        print(evaluation.summary)

    The rewards are those of SB3's ``evaluate_policy``: an episode ends when ``Monitor`` says so, not when a life is lost,
    and each environment plays its share of the episodes, so that short ones are not favoured.

    Buffers are filled meanwhile, as training would fill them, with the last observation of an episode as its ``next_obs``
    and time-outs in the infos. A rollout buffer is filled once, and is then ready for ``get()``; its values are those of
    the model's policy if it has any, and zeros otherwise.

    :param n_eps: Number of episodes
    :param eval_env: The environments; images may have their channels first or last
    :param model: A model or a policy
    :param close_env: Whether to close the environments afterwards, even after an error
    :param buffer: One buffer to fill, or several
    :param deterministic: Whether the model always takes the action it considers best
    :param progress_bar: Whether to show a progress bar; it needs a terminal, and tqdm
    :return: Rewards, and the seconds that each ``add`` took
    """
    env = eval_env if isinstance(eval_env, VecEnv) else DummyVecEnv([lambda: eval_env])
    try:
        if n_eps < 1:
            raise ValueError(f"n_eps must be at least 1, got {n_eps}")
        one = isinstance(buffer, BaseBuffer)
        buffers: list[BaseBuffer] = [] if buffer is None else [buffer] if isinstance(buffer, BaseBuffer) else list(buffer)
        env = _with_channels_as_in(buffers, env)
        feeds = [
            _RolloutFeed(each, model) if isinstance(each, RolloutBuffer) else _ReplayFeed(each, env)  # type: ignore[arg-type]
            for each in buffers
        ]
        rewards = _play(n_eps, env, model, feeds, deterministic, progress_bar)
    finally:
        if close_env:
            env.close()
    latencies = [feed.seconds for feed in feeds]
    return Evaluation(rewards, latencies[0] if one else latencies)
