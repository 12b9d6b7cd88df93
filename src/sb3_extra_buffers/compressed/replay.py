"""Replay buffers: rows are added to a ring, and drawn from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer
from stable_baselines3.common.type_aliases import DictReplayBufferSamples, ReplayBufferSamples
from stable_baselines3.common.vec_env import VecNormalize

from sb3_extra_buffers.compressed.arguments import check_size, explain_size, explain_step
from sb3_extra_buffers.compressed.base import TableBuffer, from_the_end
from sb3_extra_buffers.compressed.files import WHERE
from sb3_extra_buffers.compressed.options import REPLAY_DEFAULTS, REPLAY_DESCRIPTIONS
from sb3_extra_buffers.compressed.rings import RingOnDisk, tell_of_copy
from sb3_extra_buffers.storage._core import PlainColumn

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from sb3_extra_buffers.compressed.options import ReplayOptions

Integers = npt.NDArray[np.int64]


class TableReplay(TableBuffer):
    """Mixin for replay buffers."""

    _option_defaults: ClassVar[Mapping[str, Any]] = REPLAY_DEFAULTS
    _option_descriptions: ClassVar[str] = REPLAY_DESCRIPTIONS
    _views: ClassVar[int] = 2
    _wraps: ClassVar[bool] = True
    _makes_more: ClassVar[bool] = False
    """Whether the constructor of a subclass of ours goes on after this one's, and calls ``_open_ring`` at last."""
    _ring: RingOnDisk | None = None

    actions: npt.NDArray[Any]
    rewards: npt.NDArray[np.float32]
    dones: npt.NDArray[np.float32]
    timeouts: npt.NDArray[np.float32]

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: th.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        **options: Unpack[ReplayOptions],
    ) -> None:
        rows = max(check_size(buffer_size) // n_envs, 1)
        self._set_up(rows, observation_space, action_space, device, n_envs, options)
        # Frames are shared anyway, terminal observations included; SB3's trick would lose those.
        self.optimize_memory_usage = False
        self.handle_timeout_termination = handle_timeout_termination
        shape = rows, n_envs
        try:
            self.actions = np.zeros((*shape, self.action_dim), dtype=ReplayBuffer._maybe_cast_dtype(action_space.dtype))
            self.rewards, self.dones, self.timeouts = (np.zeros(shape, np.float32) for _ in range(3))
            self._build_table()
        except (MemoryError, ValueError, OverflowError) as error:
            explain_size(error, buffer_size)
            raise
        if not self._makes_more:
            self._open_ring()

    def _open_ring(self) -> None:
        """Keep a ring on disk from now on, if there is to be one."""
        where, max_memory, durability = map(self._options.get, WHERE)  # buffers on a device have none of these
        self._ring = None if where is None else RingOnDisk(self, where, max_memory, str(durability))

    def flush(self) -> None:
        """Bring the ring on disk up to date, and wait for that; does nothing without ``storage_dir``."""
        if self._ring is not None:
            self._ring.flush()

    def close(self) -> None:
        """Bring the ring on disk up to date, and leave it to others; the buffer can be read, but nothing more is added."""
        if self._ring is not None:
            self._ring.close()

    def __del__(self) -> None:
        ring = self.__dict__.get("_ring")
        if ring is not None:
            ring.close_at_last(self)

    def _note_read(self) -> None:
        """Called whenever a batch is read."""
        if self._ring is not None:
            self._ring.note_read()

    def _state_to_save(self) -> dict[str, Any]:
        state = super()._state_to_save()
        state.pop("_ring", None)  # a copy is no second writer
        return state

    def _take_saved_state(self, state: dict[str, Any]) -> None:
        super()._take_saved_state(state)
        if self._options.get("storage_dir") is not None:
            tell_of_copy(self._options["storage_dir"])

    def _plain_columns(self) -> dict[str, PlainColumn]:
        names = ("rewards", "dones", "timeouts")
        return {"actions": PlainColumn(self.actions, True)} | {name: PlainColumn(getattr(self, name)) for name in names}

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: Any) -> None:
        """Add transitions; what cannot be stored is refused and leaves the buffer as it was."""
        if self._ring is not None:
            self._ring.wait_for_room(self._lock)
        with self._lock:
            if self._ring is not None:
                self._ring.check_open()
            table, row, values = self._table, self.pos, None
            before, given = table.appended, (action, reward, done, infos)
            observed = self._observation_values(obs, next_obs)
            try:
                values = self._values(*given)
                table.append((*observed, *values), self.__dict__)
                self._note_added(row, *given)
                if self._ring is not None:
                    self._ring.note_row(self, row)
            except BaseException as error:
                if table.appended != before:  # it has happened, and is made whole
                    self._note_added(row, *given)
                elif isinstance(error, Exception) and (values is None or table.failed >= self._n_observed):
                    explain_step(error, self.n_envs, dict(zip(("action", "reward", "done", "infos"), given, strict=True)))
                raise

    def _values(self, action: Any, reward: Any, done: Any, infos: Any) -> tuple[Any, ...]:
        """All of a transition but its observations, in the order of the table's values."""
        if not self.handle_timeout_termination:
            return action, reward, done, [False] * self.n_envs
        return action, reward, done, [info.get("TimeLimit.truncated", False) for info in infos]

    def _note_added(self, row: int, action: Any, reward: Any, done: Any, infos: Any) -> None:
        """Do what has to be done once a row is stored; where that is interrupted, it is done again."""

    def reset(self) -> None:
        """Forget all transitions."""
        with self._lock:
            super().reset()
            if self._ring is not None:
                self._ring.note_reset()

    def sample(self, batch_size: int, env: VecNormalize | None = None) -> Any:
        """Sample transitions."""
        with self._lock:
            if not (self.pos or self.full):
                raise ValueError("cannot sample from an empty buffer: add transitions first")
            rows = np.random.randint(0, self.buffer_size if self.full else self.pos, size=batch_size)
        return self._convert_samples(self._get_samples(rows, env=env))

    def _get_samples(self, batch_inds: Any, env: VecNormalize | None = None) -> Any:
        batch_inds = from_the_end(batch_inds, self.buffer_size)
        return self._begin_samples(batch_inds, np.random.randint(0, high=self.n_envs, size=(len(batch_inds),)), env)()

    def _begin_samples(self, rows: Integers, envs: Integers, env: VecNormalize | None) -> Callable[[], Any]:
        """Find the transitions at these places; what is returned reads them, and needs no lock."""
        self._note_read()
        reading = self._table.begin_read(rows, envs, None, self.__dict__)
        return lambda: self._samples(reading.finish(), env)

    def _samples(self, arrays: tuple[Any, ...], env: VecNormalize | None) -> Any:
        """Make samples of all values of rows."""
        actions, rewards, dones, timeouts = arrays[self._n_observed :]
        obs, next_obs = self._both_observations(arrays)
        # Only dones that are not due to time-outs.
        final = (dones * (1 - timeouts)).reshape(-1, 1)
        return self._as_samples(env, obs, actions, next_obs, final, self._normalize_reward(rewards.reshape(-1, 1), env))

    def _as_samples(self, env: VecNormalize | None, obs: Any, actions: Any, next_obs: Any, *rest: Any) -> Any:
        """Make tensors of arrays that nobody else has."""
        data = self._normalize_obs(obs, env), actions, self._normalize_obs(next_obs, env), *rest
        kind = ReplayBufferSamples if self._fields[0].key is None else DictReplayBufferSamples
        return kind(*map(self._tensor, data))

    def _both_observations(self, arrays: tuple[Any, ...]) -> tuple[Any, Any]:
        """Observations and what followed, of all values of rows."""
        return self._arrays_by_key(arrays[: self._n_observed : 2]), self._arrays_by_key(arrays[1 : self._n_observed : 2])

    def _leave_out(self, lost: npt.NDArray[np.bool_], empty: Any) -> tuple[Any, int]:
        """Move what is left to an empty buffer. Where rows are missing, an episode ends as if by a time-out."""
        used = np.arange(self.pos, self.pos + self.buffer_size) % self.buffer_size if self.full else np.arange(self.pos)
        left = used[~lost[used]]
        envs = np.arange(self.n_envs)
        for row in left:
            reading = self._table.begin_read(np.full(self.n_envs, row), envs, None, self.__dict__)
            empty._table.append(reading.finish(), empty.__dict__)
        more, moved = self._more_to_save(), empty._more_to_fill()
        for name, array in more.items():
            moved[name][: len(left)] = array[left]
        empty._take_values({**self._values_to_save(), "pos": empty.pos, "full": empty.full})
        empty._take_more(moved)
        # What follows the newest row is added later.
        empty._end_episodes(np.flatnonzero(np.diff(left, append=self.pos) % self.buffer_size != 1))
        return empty, len(used) - len(left)

    def _end_episodes(self, rows: Any = None) -> None:
        """End the episodes that go on at some rows, by default at the newest one, as if by a time-out."""
        if self.size():
            rows = (self.pos - 1) % self.buffer_size if rows is None else rows
            goes_on = self.dones[rows] == 0
            self.dones[rows] = 1
            self.timeouts[rows] += goes_on


class CompressedReplayBuffer(TableReplay, ReplayBuffer):
    """
    ``ReplayBuffer`` with compressed observations; takes its arguments and samples the same transitions.

    ``optimize_memory_usage`` is accepted in every combination and has no effect: frames are shared anyway, and
    ``next_obs`` is always the true next observation, also at the end of an episode.
    """


class CompressedDictReplayBuffer(TableReplay, DictReplayBuffer):
    """
    ``DictReplayBuffer`` with compressed observations; small keys are stored as they are.

    ``optimize_memory_usage`` is accepted and has no effect.
    """
