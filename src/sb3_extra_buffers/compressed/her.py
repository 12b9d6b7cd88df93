"""Hindsight experience replay over compressed observations."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch as th
from stable_baselines3.common.buffers import DictReplayBuffer
from stable_baselines3.common.type_aliases import DictReplayBufferSamples
from stable_baselines3.common.vec_env import VecNormalize
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from sb3_extra_buffers.compressed.mixin import CompressedReplay
from sb3_extra_buffers.compressed.valid_slots import ValidSlots
from sb3_extra_buffers.storage.session import current_session, read_in_session


class _Slotless(DictReplayBuffer):
    """Stands behind ``HerReplayBuffer`` and says that there are no slots, for it would make a dict for each."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._n_slots = self.buffer_size
        self.buffer_size = 0


class _LeanHerReplayBuffer(HerReplayBuffer, _Slotless):
    """``HerReplayBuffer`` without a dict for every slot, and without looking at every slot for every sample."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.buffer_size = self._n_slots
        self.ep_start = np.zeros((self.buffer_size, self.n_envs), dtype=np.int64)
        self.ep_length = np.zeros((self.buffer_size, self.n_envs), dtype=np.int64)
        self._prepare()

    def _prepare(self) -> None:
        self._valid = ValidSlots(self.ep_length)
        if not self.copy_info_dict:
            # Nobody writes to it; it reads as one dict per slot, and is a single one.
            self.infos = np.broadcast_to(np.array({}, dtype=object), self.ep_length.shape)
        elif self.infos.shape != self.ep_length.shape:
            self.infos = np.full(self.ep_length.shape, {}, dtype=object)

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        del state["_valid"]
        if not self.copy_info_dict:
            del state["infos"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._prepare()

    def _touch(self, start: int, end: int) -> None:
        """Say that the lengths in these rows change; ``end`` may lie past the end of the ring."""
        last = min(end, self.buffer_size) * self.n_envs - 1
        self._valid.touch(start * self.n_envs, last)
        if end > self.buffer_size:
            self._valid.touch(0, (end - self.buffer_size) * self.n_envs - 1)

    def add(self, *args: Any, **kwargs: Any) -> None:
        lengths = self.ep_length[self.pos]
        if lengths.any():
            self._touch(self.pos, int((self.ep_start[self.pos] + lengths).max()))
        super().add(*args, **kwargs)

    def _compute_episode_length(self, env_idx: int) -> None:
        start = int(self._current_ep_start[env_idx])
        self._touch(start, self.pos if self.pos >= start else self.pos + self.buffer_size)
        super()._compute_episode_length(env_idx)

    def sample(self, batch_size: int, env: VecNormalize | None = None) -> DictReplayBufferSamples:  # type: ignore[override]
        n_valid = self._valid.count()
        if n_valid == 0:
            return super().sample(batch_size, env)  # says what is wrong
        # Draws as SB3 does from the list of all valid slots, and makes the same of what was drawn.
        slots = self._valid.take(np.random.choice(n_valid, size=batch_size, replace=True))
        rows, envs = np.unravel_index(slots, self.ep_length.shape)
        n_virtual = int(self.her_ratio * batch_size)
        real = self._get_real_samples(rows[n_virtual:], envs[n_virtual:], env)
        virtual = self._get_virtual_samples(rows[:n_virtual], envs[:n_virtual], env)
        return DictReplayBufferSamples(*map(_join, real[:5], virtual[:5]))


def _join(one: Any, other: Any) -> Any:
    if isinstance(one, dict):
        return {key: th.cat((one[key], other[key])) for key in other}
    return th.cat((one, other))


class CompressedHerReplayBuffer(CompressedReplay, _LeanHerReplayBuffer):
    """
    ``HerReplayBuffer`` with compressed observations; takes its arguments and samples the same transitions.

    Small keys (goals, vectors) are stored as they are. ``optimize_memory_usage`` is accepted and has no effect.
    """

    def to_torch(self, array: Any, copy: bool = True) -> th.Tensor:
        """
        Convert to a tensor.

        :param array: Array
        :param copy: Whether to copy; inside of ``sample`` nothing is, because all tensors are joined to new ones there
        :return: The tensor
        """
        return super().to_torch(array, copy and current_session() is None)

    def _sample_goals(self, batch_indices: npt.NDArray[Any], env_indices: npt.NDArray[Any]) -> npt.NDArray[Any]:
        # A goal is taken from another place than the sample is, so what lies beside it is not wanted.
        goals: npt.NDArray[Any] = read_in_session(False, super()._sample_goals, batch_indices, env_indices)
        return goals
