"""N-step returns over compressed observations."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer
from stable_baselines3.common.vec_env import VecNormalize

from sb3_extra_buffers.compressed.replay import Integers, TableReplay
from sb3_extra_buffers.storage.errors import refuse_earlier

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from sb3_extra_buffers.compressed.options import ReplayOptions

__getattr__ = refuse_earlier("_Columns")


class TableNStep(TableReplay):
    """Mixin for replay buffers with n-step returns."""

    n_steps: int
    gamma: float

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: th.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        *,
        n_steps: int = 3,
        gamma: float = 0.99,
        **options: Unpack[ReplayOptions],
    ) -> None:
        self.n_steps, self.gamma = n_steps, gamma
        what = buffer_size, observation_space, action_space, device, n_envs, optimize_memory_usage
        super().__init__(*what, handle_timeout_termination, **options)

    def _begin_samples(self, rows: Integers, envs: Integers, env: VecNormalize | None) -> Callable[[], Any]:
        """Find the transitions at these places, with what n steps from there on have given, as ``NStepReplayBuffer`` does."""
        n, observed = self._n_observed, range(self._n_observed)
        self._note_read()
        with self._lock:
            steps = np.arange(self.n_steps).reshape(1, -1)
            places = (rows[:, None] + steps) % self.buffer_size, envs[:, None]
            rewards, dones, truncated = self.rewards[places], self.dones[places], self.timeouts[places]
            # What follows the newest row in the ring is older: there, a sequence ends as if by a time-out.
            newest = places[0] == (self.pos - 1) % self.buffer_size
            truncated = np.where(newest, np.logical_or(truncated, np.logical_not(dones)), truncated).astype(np.float32)
            ends = np.logical_or(dones, truncated)
            last = np.where(ends.any(axis=1), ends.argmax(axis=1), self.n_steps - 1)
            begun = self._table.begin_read(rows, envs, (*observed[::2], n), self.__dict__)
            end = self._table.begin_read((rows + last) % self.buffer_size, envs, tuple(observed[1::2]), self.__dict__)
        mask = steps <= last[:, None]
        discounts = self.gamma ** np.arange(self.n_steps, dtype=np.float32).reshape(1, -1)
        returns = (self._normalize_reward(rewards, env) * discounts * mask).sum(axis=1, keepdims=True)
        each = np.arange(len(rows)), last
        final_dones = dones[each][:, None].astype(np.float32) * (1.0 - truncated[each][:, None].astype(np.float32))
        gamma = self.gamma ** mask.sum(axis=1, keepdims=True).astype(np.float32)

        def read() -> Any:
            *obs, actions = begun.finish()
            next_obs = self._arrays_by_key(end.finish())
            return self._as_samples(env, self._arrays_by_key(obs), actions, next_obs, final_dones, returns, gamma)

        return read


class CompressedNStepReplayBuffer(TableNStep, NStepReplayBuffer):
    """
    ``NStepReplayBuffer`` with compressed observations; takes its arguments and samples the same transitions.

    SB3 ignores the ``n_steps`` and ``gamma`` of the algorithm when it is given a buffer class, so both go into
    ``replay_buffer_kwargs``.
    """


class CompressedDictNStepReplayBuffer(TableNStep, NStepReplayBuffer, DictReplayBuffer):
    """
    N-step returns for Dict observations, which SB3 does not have: returns, dones and discounts are those of
    ``NStepReplayBuffer``, observations come as in ``DictReplayBuffer``; small keys are stored as they are.

    ``n_steps`` and ``gamma`` go into ``replay_buffer_kwargs``.
    """
