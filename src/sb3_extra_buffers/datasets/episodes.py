"""The episodes that lie in a data set."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from sb3_extra_buffers.datasets.saved_table import SavedTable

Array = npt.NDArray[Any]
Integers = npt.NDArray[np.int64]

_ROWS_AT_ONCE = 256


class OfflineEpisode:
    """
    Transitions of one environment that follow each other. Nothing is read until you ask for it.

    :param table: Where they are
    :param env: Of which environment
    :param start: The step that it begins with, counted from the oldest one that is there
    :param stop: The step after its last one
    """

    def __init__(self, table: SavedTable, env: int, start: int, stop: int) -> None:
        self.env = env
        """The environment that it was played in."""
        self.is_cut = table.full and start == 0
        """Whether its beginning may be gone: it is the oldest one in a ring that is full."""
        self._table = table
        self._rows = table.in_order(np.arange(start, stop, dtype=np.int64))
        self._envs = np.full(stop - start, env, np.int64)

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        end = "terminated" if self.terminated else "truncated" if self.truncated else "unfinished"
        return f"OfflineEpisode(env={self.env}, steps={len(self)}, {end}{', cut' if self.is_cut else ''})"

    @property
    def observations(self) -> Any:
        """What was seen before every action and after the last one: an array with one row more, or a dict of such arrays."""
        (before,) = self._table.read_observations(self._rows, self._envs, (0,))
        (last,) = self._table.read_observations(self._rows[-1:], self._envs[-1:], (1,))
        parts = {
            key: np.concatenate([before[key], last[key]] if key is not None else [before, last]).reshape(
                len(self) + 1, *(space.shape or ())
            )
            for key, space in self._table.parts.items()
        }
        return parts.get(None, parts)

    @property
    def actions(self) -> Array:
        """The actions, as SB3 stores them: those of a Box are scaled to -1 … 1."""
        shape = self._table.action_space.shape or ()
        return self._plain("actions").reshape(len(self), *shape)

    @property
    def rewards(self) -> Array:
        """The rewards."""
        return self._plain("rewards")

    @property
    def dones(self) -> Array:
        """1 where the episode ended, for whatever reason."""
        return self._plain("dones")

    @property
    def timeouts(self) -> Array:
        """1 where a time limit ended it."""
        return self._plain("timeouts")

    @property
    def terminated(self) -> bool:
        """Whether it came to its end."""
        return self._ends(False)

    @property
    def truncated(self) -> bool:
        """Whether a time limit ended it. An episode that is neither was not over when the last transition was added."""
        return self._ends(True)

    def _ends(self, by_time: bool) -> bool:
        done, timeout = (
            self._table.read_plain(name, self._rows[-1:], self._envs[-1:])[0] > 0 for name in ("dones", "timeouts")
        )
        return bool(done) and bool(timeout) == by_time

    def _plain(self, name: str) -> Array:
        return self._table.read_plain(name, self._rows, self._envs)


def find_episodes(table: SavedTable, env: int) -> Iterator[OfflineEpisode]:
    """
    Find the episodes of one environment, oldest first.

    One ends where it is done, and where the next transition begins with another observation than this one ended with.

    :param table: Where they are
    :param env: The environment
    :return: The episodes
    """
    start = 0
    for first in range(0, table.used, _ROWS_AT_ONCE):
        rows = table.in_order(np.arange(first, min(first + _ROWS_AT_ONCE + 1, table.used), dtype=np.int64))
        envs = np.full(len(rows), env, np.int64)
        ends = table.read_plain("dones", rows, envs) > 0
        obs, next_obs = table.read_observations(rows, envs)
        for key in table.parts if len(rows) > 1 else ():
            seen, begun = (next_obs, obs) if key is None else (next_obs[key], obs[key])
            # By their bytes: NaN follows NaN, too.
            ends[:-1] |= (_as_bytes(seen[:-1]) != _as_bytes(begun[1:])).any(axis=1)
        for stop in (np.flatnonzero(ends[:_ROWS_AT_ONCE]) + first + 1).tolist():
            yield OfflineEpisode(table, env, start, stop)
            start = stop
    if start < table.used:
        yield OfflineEpisode(table, env, start, table.used)


def _as_bytes(array: Array) -> npt.NDArray[np.uint8]:
    return np.ascontiguousarray(array).reshape(len(array), -1).view(np.uint8)
