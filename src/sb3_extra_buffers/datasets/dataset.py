"""Transitions on disk, read-only: batches, episodes, and a data set of torch."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import BaseBuffer
from stable_baselines3.common.type_aliases import DictReplayBufferSamples, ReplayBufferSamples
from stable_baselines3.common.utils import get_device
from stable_baselines3.common.vec_env import VecNormalize

from sb3_extra_buffers.compressed.files import Path
from sb3_extra_buffers.datasets.saved_table import SavedTable, open_table
from sb3_extra_buffers.recording.rows import COLUMNS, Integers, OfflineEpisode, find_episodes, map_parts
from sb3_extra_buffers.storage.disk import DISK, Disk
from sb3_extra_buffers.storage.errors import StorageError


class Transition(NamedTuple):
    """
    One transition of a data set, or several after torch's ``default_collate``: the fields of SB3's samples.

    :param observations: What was seen, a tensor or a dict of tensors
    :param actions: What was done
    :param next_observations: What was seen after that
    :param dones: 1 where the episode ended, unless by a time limit
    :param rewards: The reward
    """

    observations: Any
    actions: th.Tensor
    next_observations: Any
    dones: th.Tensor
    rewards: th.Tensor


def open_dataset(path: Path, *, device: th.device | str = "cpu") -> OfflineDataset:
    """
    Open a directory to which a replay buffer was saved, or the ``storage_dir`` of one, to be read.

    Files are mapped, so a data set may be larger than memory, and processes share it. What is read is checked first.

    :param path: The directory
    :param device: Where samples go
    :return: The data set, as it is now: what others add to the directory is seen after ``refresh``
    """
    return OfflineDataset(path, device)


class OfflineDataset(th.utils.data.Dataset[Transition]):
    """
    Transitions in a directory, read-only; ``open_dataset`` makes one.

    Its items are the transitions of all environments, oldest first. A ``DataLoader`` takes it as it is; its worker
    processes open the directory themselves.

    :param path: The directory
    :param device: Where samples go
    :param disk: The disk that it is on
    """

    def __init__(self, path: Path, device: th.device | str = "cpu", disk: Disk = DISK) -> None:
        self.path: str = os.path.abspath(path) if disk is DISK else os.fspath(path)
        """The directory."""
        self.device: th.device = get_device(device)
        """Where samples go."""
        self._disk = disk
        self._table = open_table(self.path, disk)

    @property
    def observation_space(self) -> spaces.Space[Any]:
        """What was seen."""
        return self._table.observation_space

    @property
    def action_space(self) -> spaces.Space[Any]:
        """What was done."""
        return self._table.action_space

    @property
    def n_envs(self) -> int:
        """Number of environments."""
        return self._table.n_envs

    def __len__(self) -> int:
        return self._table.used * self._table.n_envs

    def __repr__(self) -> str:
        return (
            f"OfflineDataset({self.path!r}, {len(self):,} transitions of {self.n_envs} environments, "
            f"{self.observation_space}, {self.action_space})"
        )

    def refresh(self) -> bool:
        """
        See what was saved since this was opened. Iterators that are under way go on with what they began with.

        :return: Whether there was something new
        """
        if not self._table.saved.has_changed():
            return False
        self._table = open_table(self.path, self._disk)
        return True

    def verify(self) -> None:
        """Check every byte, which otherwise happens when it is first needed; ``StorageError`` if something is damaged."""
        self._table.check_all()

    # -- transitions ----------------------------------------------------------------------------------------------------

    def __getitem__(self, index: Any) -> Any:
        """
        Read a transition, or several.

        :param index: A number, or several: a list, an array or a slice
        :return: A ``Transition``, on the CPU; of several, the samples that SB3's buffers give
        """
        table, total = self._table, len(self)
        if isinstance(index, slice):
            numbers = np.arange(*index.indices(total), dtype=np.int64)
        else:
            if isinstance(index, th.Tensor):
                index = index.cpu().numpy()
            numbers = np.atleast_1d(np.asarray(index))
            if (numbers.dtype.kind not in "iu" or numbers.ndim != 1) and numbers.size:
                raise TypeError(f"a data set is indexed by numbers, lists of numbers and slices, not by {index!r}")
            numbers = _checked(numbers, total)
        rows, envs = _places(table, numbers)
        if not isinstance(index, slice) and np.ndim(index) == 0:
            return _split(read_samples(table, rows, envs))[0]
        return read_samples(table, rows, envs, None, self.device)

    def __getitems__(self, indices: Sequence[int]) -> list[Transition]:
        # What a DataLoader asks for: one read for the whole batch.
        rows, envs = _places(self._table, _checked(np.asarray(indices), len(self)))
        return _split(read_samples(self._table, rows, envs))

    def sample(self, batch_size: int, env: VecNormalize | None = None) -> Any:
        """
        Sample transitions, with the random numbers that SB3's ``ReplayBuffer`` draws: same seed, same samples.

        :param batch_size: Number of transitions
        :param env: To normalize with
        :return: The samples
        """
        table = self._table
        if not table.used:
            raise ValueError(f"cannot sample from {self.path}: it holds no transitions")
        rows = np.random.randint(0, table.used, size=batch_size)
        envs = np.random.randint(0, high=table.n_envs, size=(batch_size,))
        return read_samples(table, rows, envs, env, self.device)

    def batches(
        self,
        batch_size: int,
        *,
        seed: int | None = None,
        shuffle: bool = True,
        epochs: int | None = 1,
        drop_last: bool = False,
    ) -> Iterator[Any]:
        """
        Go through all transitions, in random order, each once an epoch.

        :param batch_size: Transitions of a batch; the last one of an epoch may have fewer
        :param seed: The same seed gives the same order
        :param shuffle: Whether the order is random; else it is that of their age
        :param epochs: How often; None for ever
        :param drop_last: Whether to leave out a last batch that is smaller
        :return: Batches, as SB3's replay buffers give them
        """
        for name, number in (("batch_size", batch_size), ("epochs", 1 if epochs is None else epochs)):
            if isinstance(number, bool) or not isinstance(number, (int, np.integer)) or number < 1:
                raise ValueError(f"{name} is {number!r}; it must be a whole number, and at least 1")
        return self._batches(self._table, int(batch_size), np.random.default_rng(seed), shuffle, epochs, drop_last)

    def _batches(
        self, table: SavedTable, size: int, generator: Any, shuffle: bool, epochs: int | None, drop_last: bool
    ) -> Iterator[Any]:
        total = table.used * table.n_envs
        stop = total - total % size if drop_last else total
        epoch = 0
        while total and stop and (epochs is None or epoch < epochs):
            epoch += 1
            order = None
            if shuffle:
                order = np.arange(total, dtype=np.uint32 if total <= 1 << 32 else np.int64)
                generator.shuffle(order)
            for first in range(0, stop, size):
                last = min(first + size, stop)
                numbers = np.arange(first, last) if order is None else order[first:last].astype(np.int64)
                yield read_samples(table, *_places(table, numbers), None, self.device)

    def episodes(self, env: int | None = None) -> Iterator[OfflineEpisode]:
        """
        Go through all episodes: one environment after the other, oldest first.

        The oldest one of an environment may lack its beginning, which the ring has written over, and the newest one its end.

        :param env: Which environment; all of them by default
        :return: The episodes; their observations are read when you ask for them
        """
        if env is not None and (isinstance(env, bool) or not 0 <= env < self.n_envs):
            raise IndexError(f"there is no environment {env!r}; there are {self.n_envs}")
        table = self._table
        envs = range(table.n_envs) if env is None else (int(env),)
        return (episode for place in envs for episode in find_episodes(table, place))

    # -- other processes ------------------------------------------------------------------------------------------------

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self.path, str(self.device), self._table.saved.fingerprint())


def _reopen(path: str, device: str, fingerprint: str) -> OfflineDataset:
    dataset = OfflineDataset(path, device)
    if dataset._table.saved.fingerprint() != fingerprint:
        raise StorageError(
            f"{path} has changed since the data set was opened in another process, so the same number would be another "
            "transition; call refresh() there, and start the workers while no process writes to it"
        )
    return dataset


def _checked(numbers: npt.NDArray[Any], total: int) -> Integers:
    """Numbers of transitions, from the end where they are negative; an error where there is none."""
    numbers = numbers.astype(np.int64)
    outside = (numbers < -total) | (numbers >= total)
    if outside.any():
        raise IndexError(f"there is no transition {numbers[outside][0]}; there are {total:,}")
    return numbers % max(total, 1)


def _places(table: SavedTable, numbers: Integers) -> tuple[Integers, Integers]:
    return table.in_order(numbers // table.n_envs), numbers % table.n_envs


def read_samples(
    table: SavedTable,
    rows: Integers,
    envs: Integers,
    env: VecNormalize | None = None,
    device: th.device | None = None,
) -> Any:
    """Read transitions as SB3's replay buffers give them, normalized by ``env``; on the CPU by default."""
    found = table.read(COLUMNS, rows, envs)
    # Only dones that are not due to time-outs.
    final = (found["dones"] * (1 - found["timeouts"])).reshape(-1, 1)
    reward = BaseBuffer._normalize_reward(found["rewards"].reshape(-1, 1), env)
    obs, next_obs = (BaseBuffer._normalize_obs(found[name], env) for name in ("observations", "next_observations"))
    kind = ReplayBufferSamples if None in table.parts else DictReplayBufferSamples

    def tensor(array: Any) -> th.Tensor:
        return th.from_numpy(array) if device is None else th.from_numpy(array).to(device)

    return kind(*[map_parts(tensor, part) for part in (obs, found["actions"], next_obs, final, reward)])


def _split(samples: Any) -> list[Transition]:
    """Samples one by one."""
    parts = samples[: len(Transition._fields)]
    return [
        Transition(*[map_parts(lambda array, place=place: array[place], part) for part in parts])  # type: ignore[misc]
        for place in range(len(samples.rewards))
    ]
