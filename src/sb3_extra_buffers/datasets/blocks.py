"""All transitions of a replay buffer or a data set, some rows at a time, oldest first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer

from sb3_extra_buffers.compressed.files import Path
from sb3_extra_buffers.compressed.replay import CompressedDictReplayBuffer, CompressedReplayBuffer
from sb3_extra_buffers.datasets.dataset import OfflineDataset, open_dataset
from sb3_extra_buffers.datasets.saved_table import PLAIN

OBSERVED = ("observations", "next_observations")
COLUMNS = (*OBSERVED, *PLAIN)

_ROWS_AT_ONCE = 64


class Blocks:
    """
    What a replay buffer or a data set holds.

    :param source: A replay buffer of SB3 or of this package, a data set, or its directory
    """

    def __init__(self, source: ReplayBuffer | OfflineDataset | Path) -> None:
        if not isinstance(source, (ReplayBuffer, OfflineDataset)):
            source = open_dataset(source)
        self._source = source
        self.observation_space: spaces.Space[Any] = source.observation_space
        self.action_space: spaces.Space[Any] = source.action_space
        self.n_envs: int = source.n_envs
        if isinstance(source, OfflineDataset):
            self._table = source._table
            self._order = self._table.in_order(np.arange(self._table.used, dtype=np.int64))
        else:
            self._order = np.arange(source.pos, dtype=np.int64)
            if source.full:
                # With optimize_memory_usage, the observation of the oldest row is that of the newest one's successor.
                first = source.pos + bool(source.optimize_memory_usage)
                self._order = np.concatenate([np.arange(first, source.buffer_size, dtype=np.int64), self._order])
        self.rows: int = len(self._order)

    def read(self, names: Sequence[str] = COLUMNS) -> Iterator[dict[str, Any]]:
        """
        Go through the rows.

        :param names: Which columns
        :return: Some rows at a time, of all environments: an array for each column, or a dict of arrays
        """
        for first in range(0, self.rows, _ROWS_AT_ONCE):
            rows = self._order[first : first + _ROWS_AT_ONCE]
            if isinstance(self._source, OfflineDataset):
                yield self._read_table(names, rows)
            else:
                yield {name: self._read_buffer(self._source, name, rows) for name in names}

    def _read_table(self, names: Sequence[str], rows: npt.NDArray[np.int64]) -> dict[str, Any]:
        places = np.repeat(rows, self.n_envs), np.tile(np.arange(self.n_envs, dtype=np.int64), len(rows))

        def by_row(part: Any) -> Any:
            if isinstance(part, dict):
                return {key: by_row(array) for key, array in part.items()}
            return part.reshape(len(rows), self.n_envs, *part.shape[1:])

        found = {name: by_row(self._table.read_plain(name, *places)) for name in names if name in PLAIN}
        views = [view for view, name in enumerate(OBSERVED) if name in names]
        if views:
            for view, part in zip(views, self._table.read_observations(*places, views), strict=True):
                found[OBSERVED[view]] = by_row(part)
        return found

    @staticmethod
    def _read_buffer(buffer: ReplayBuffer, name: str, rows: npt.NDArray[np.int64]) -> Any:
        if name == "next_observations" and buffer.optimize_memory_usage:
            name, rows = "observations", (rows + 1) % buffer.buffer_size
        stored = getattr(buffer, name)
        if isinstance(stored, dict):
            return {key: np.asarray(array[rows]) for key, array in stored.items()}
        return np.asarray(stored[rows])


def new_buffer(
    observation_space: spaces.Space[Any], action_space: spaces.Space[Any], rows: int, n_envs: int, options: Any
) -> Any:
    """
    Make a compressed replay buffer for transitions from elsewhere.

    :param observation_space: What was seen
    :param action_space: What was done
    :param rows: How many rows there are going to be
    :param n_envs: Number of environments
    :param options: Options of the buffer
    :return: The buffer, on the CPU
    """
    is_dict = isinstance(observation_space, spaces.Dict)
    cls: Any = CompressedDictReplayBuffer if is_dict else CompressedReplayBuffer
    return cls(max(rows, 1) * n_envs, observation_space, action_space, "cpu", n_envs, **options)


def add_block(buffer: ReplayBuffer, block: dict[str, Any]) -> None:
    """
    Add some rows to a buffer.

    :param buffer: The buffer
    :param block: All columns of the rows
    """

    def at(part: Any, row: int) -> Any:
        return {key: array[row] for key, array in part.items()} if isinstance(part, dict) else part[row]

    for row in range(len(block["rewards"])):
        obs, next_obs, action, reward, done, timeouts = (at(block[name], row) for name in COLUMNS)
        infos = [{"TimeLimit.truncated": bool(timeout)} for timeout in timeouts]
        buffer.add(obs, next_obs, action, reward, np.asarray(done) > 0, infos)


def copy_of(source: ReplayBuffer | OfflineDataset | Path, **options: Any) -> Any:
    """
    Put all transitions of a replay buffer or a data set into a compressed replay buffer.

    :param source: A replay buffer of SB3 or of this package, a data set, or its directory
    :param options: Options of the new buffer
    :return: The buffer
    """
    blocks = Blocks(source)
    buffer = new_buffer(blocks.observation_space, blocks.action_space, blocks.rows, blocks.n_envs, options)
    for block in blocks.read():
        add_block(buffer, block)
    return buffer
