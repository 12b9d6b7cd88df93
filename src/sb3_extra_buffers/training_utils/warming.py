"""Replay buffers that a model has filled before training starts."""

from __future__ import annotations

import math

from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.type_aliases import PolicyPredictor
from stable_baselines3.common.vec_env import VecEnv

from sb3_extra_buffers.training_utils.evaluation import Evaluation, eval_model

__all__ = ["warm_up", "warmup"]


def warm_up(
    buffer: ReplayBuffer,
    n_envs: int,
    warmup_env: VecEnv,
    warmup_model: PolicyPredictor,
    warmup_episodes: int | None = None,
    mean_ep_len: float | None = None,
    *,
    deterministic: bool = False,
    progress_bar: bool = True,
) -> Evaluation:
    """
    Let a model fill a replay buffer, so that training starts with its experience::

        warm_up(model.replay_buffer, 4, env, expert, warmup_episodes=20)

    Give either the number of episodes to play, or their mean length to play as many as it takes to fill the buffer. The
    environments stay open.

    :param buffer: The buffer of an off-policy algorithm
    :param n_envs: Number of environments
    :param warmup_env: The environments
    :param warmup_model: A model or a policy
    :param warmup_episodes: Number of episodes
    :param mean_ep_len: Mean length of an episode in steps, used if ``warmup_episodes`` is not given
    :param deterministic: Whether the model always takes the action it considers best
    :param progress_bar: Whether to show a progress bar; it needs a terminal, and tqdm
    :return: Rewards of the episodes, and the seconds that each ``add`` took
    """
    if not isinstance(buffer, ReplayBuffer):
        raise TypeError(f"only the replay buffer of an off-policy algorithm can be warmed up, not a {type(buffer).__name__}")
    if not isinstance(warmup_env, VecEnv):
        raise TypeError(f"warmup_env must be a VecEnv, not {type(warmup_env).__name__}; DummyVecEnv makes one")
    if not n_envs == warmup_env.num_envs == buffer.n_envs:
        raise ValueError(
            f"n_envs is {n_envs}, but warmup_env has {warmup_env.num_envs} environments and the buffer was made for "
            f"n_envs={buffer.n_envs}: all three must be the same"
        )
    return eval_model(
        _episodes(buffer, warmup_episodes, mean_ep_len),
        warmup_env,
        warmup_model,
        close_env=False,
        buffer=buffer,
        deterministic=deterministic,
        progress_bar=progress_bar,
    )


def _episodes(buffer: ReplayBuffer, warmup_episodes: int | None, mean_ep_len: float | None) -> int:
    if warmup_episodes is not None:
        if warmup_episodes < 1:
            raise ValueError(f"warmup_episodes must be at least 1, got {warmup_episodes}")
        return warmup_episodes
    if mean_ep_len is None:
        raise ValueError("give warmup_episodes, or mean_ep_len to play as many episodes as it takes to fill the buffer")
    if not mean_ep_len > 0:
        raise ValueError(f"mean_ep_len must be above 0, got {mean_ep_len}")
    return math.ceil(buffer.buffer_size * buffer.n_envs / mean_ep_len)


warmup = warm_up
