"""How good a model is, and how long buffers take to store what it plays."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from stable_baselines3.common.buffers import BaseBuffer
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.type_aliases import PolicyPredictor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecMonitor, is_vecenv_wrapped

from sb3_extra_buffers.training_utils.buffer_feeds import Feed, Step, as_the_buffers_want, make_feed

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

    def take(self, step: Step) -> int:
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
    n_eps: int, env: VecEnv, model: PolicyPredictor, feeds: Sequence[Feed], deterministic: bool, progress_bar: bool
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
            step = Step(obs, action, new_obs, reward, done, infos, starts)
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
        env = as_the_buffers_want(env, buffers)
        feeds = [make_feed(each, env, model) for each in buffers]
        rewards = _play(n_eps, env, model, feeds, deterministic, progress_bar)
    finally:
        if close_env:
            env.close()
    latencies = [feed.seconds for feed in feeds]
    return Evaluation(rewards, latencies[0] if one else latencies)
