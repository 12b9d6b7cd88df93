"""Hindsight experience replay over compressed observations."""

from __future__ import annotations

import copy
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import DictReplayBuffer
from stable_baselines3.common.type_aliases import DictReplayBufferSamples
from stable_baselines3.common.vec_env import VecNormalize
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from sb3_extra_buffers.compressed.mixin import CompressedReplay
from sb3_extra_buffers.compressed.parents import dict_add_is_known, write_rest
from sb3_extra_buffers.compressed.signatures import HerArguments
from sb3_extra_buffers.compressed.valid_slots import ValidSlots
from sb3_extra_buffers.compressed.whole_adds import spare_row

_ADD_IS_KNOWN = dict_add_is_known()


class _Slotless(DictReplayBuffer):
    """Stands behind ``HerReplayBuffer`` and says that there are no slots, for it would make a dict for each."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._n_slots = self.buffer_size
        self.buffer_size = 0

    @cached_property
    def _reshapes(self) -> bool:
        """Whether SB3 has to reshape observations before it stores them. Asked late: at first, the space is hollow."""
        return any(isinstance(space, spaces.Discrete) for space in self.observation_space.spaces.values())

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: Any) -> None:
        """Do what ``DictReplayBuffer.add`` does, but copy once: it copies all that it is about to copy into the buffer."""
        if self._reshapes or not _ADD_IS_KNOWN:
            super().add(obs, next_obs, action, reward, done, infos)
            return
        row = self.pos
        for key, array in self.observations.items():
            array[row] = obs[key]
        for key, array in self.next_observations.items():
            array[row] = next_obs[key]
        write_rest(self, row, action.reshape((self.n_envs, self.action_dim)), reward, done, infos)


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
        if any(lengths.tolist()):
            self._touch(self.pos, int((self.ep_start[self.pos] + lengths).max()))
        super().add(*args, **kwargs)

    def _compute_episode_length(self, env_idx: int) -> None:
        start = int(self._current_ep_start[env_idx])
        self._touch(start, self.pos if self.pos >= start else self.pos + self.buffer_size)
        super()._compute_episode_length(env_idx)

    def sample(self, batch_size: int, env: VecNormalize | None = None) -> DictReplayBufferSamples:  # type: ignore[override]
        n_valid = self._valid.count()
        if n_valid == 0 or not self._joins:
            return super().sample(batch_size, env)  # with none it says what is wrong
        # Draws as SB3 does from the list of all valid slots. Of what was drawn SB3 reads and converts the real transitions,
        # then the virtual ones, and joins the tensors; all of them are read at once here, in that order.
        slots = self._valid.take(np.random.choice(n_valid, size=batch_size, replace=True))
        n_virtual = int(self.her_ratio * batch_size)
        rows, envs = np.divmod(np.concatenate((slots[n_virtual:], slots[:n_virtual])), self.n_envs)
        obs = {key: array[rows, envs] for key, array in self.observations.items()}
        next_obs = {key: array[rows, envs] for key, array in self.next_observations.items()}
        rewards = self.rewards[rows, envs]
        virtual = slice(batch_size - n_virtual, batch_size)
        goals = self._sample_goals(rows[virtual], envs[virtual])
        obs["desired_goal"][virtual] = next_obs["desired_goal"][virtual] = goals
        rewards[virtual] = self._virtual_rewards(rows[virtual], envs[virtual], next_obs["achieved_goal"][virtual], goals)
        return DictReplayBufferSamples(
            observations=self._tensors(obs, env),
            actions=self.to_torch(self.actions[rows, envs]),
            next_observations=self._tensors(next_obs, env),
            dones=self.to_torch(self.dones[rows, envs] * (1 - self.timeouts[rows, envs])).reshape(-1, 1),
            rewards=self.to_torch(self._normalize_reward(rewards.reshape(-1, 1), env)),
        )

    @property
    def _joins(self) -> bool:
        """Whether real and virtual transitions can be read at once: nobody reads them otherwise, and goals are alike."""
        cls, goals = type(self), self.observation_space.spaces
        return (
            cls._get_real_samples is HerReplayBuffer._get_real_samples
            and cls._get_virtual_samples is HerReplayBuffer._get_virtual_samples
            and goals["achieved_goal"].dtype == goals["desired_goal"].dtype
            and goals["achieved_goal"].shape == goals["desired_goal"].shape
        )

    def _virtual_rewards(
        self, rows: npt.NDArray[Any], envs: npt.NDArray[Any], achieved: npt.NDArray[Any], goals: npt.NDArray[Any]
    ) -> npt.NDArray[np.float32]:
        """Ask the environment, as SB3 does."""
        assert self.env is not None, (
            "You must initialize HerReplayBuffer with a VecEnv so it can compute rewards for virtual transitions"
        )
        infos: Any = copy.deepcopy(self.infos[rows, envs]) if self.copy_info_dict else [{} for _ in range(len(rows))]
        (rewards,) = self.env.env_method("compute_reward", achieved, goals, infos, indices=[0])
        virtual: npt.NDArray[np.float32] = rewards.astype(np.float32).reshape(-1)
        return virtual

    def _tensors(self, arrays: dict[str, npt.NDArray[Any]], env: VecNormalize | None) -> dict[str, th.Tensor]:
        normalized: Any = self._normalize_obs(arrays, env)
        return {key: self.to_torch(array) for key, array in normalized.items()}


class CompressedHerReplayBuffer(HerArguments, CompressedReplay, _LeanHerReplayBuffer):
    """
    ``HerReplayBuffer`` with compressed observations; takes its arguments and samples the same transitions.

    Small keys (goals, vectors) are stored as they are. ``optimize_memory_usage`` is accepted and has no effect.
    """

    _changed_by_add: ClassVar[tuple[str, ...]] = ("_current_ep_start",)

    def _try_rest(self, action: Any, reward: Any, done: Any, infos: Any) -> None:
        super()._try_rest(action, reward, done, infos)
        if not (type(done) is np.ndarray and done.shape == (self.n_envs,)):
            for env in range(self.n_envs):
                bool(done[env])  # as is asked once the step is stored
        if self.copy_info_dict:
            spare_row(self.infos)[0][0] = infos

    def truncate_last_trajectory(self) -> None:
        """Take the last trajectory for finished, see the parent class."""
        with self._lock:
            super().truncate_last_trajectory()
