"""Transitions in a ring of rows x environments, and the episodes that lie in it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer

Array = npt.NDArray[Any]
Integers = npt.NDArray[np.int64]

OBSERVED = ("observations", "next_observations")
PLAIN = ("actions", "rewards", "dones", "timeouts")
COLUMNS = (*OBSERVED, *PLAIN)

_ROWS_AT_ONCE = 64


def map_parts(function: Callable[[Any], Any], part: Any) -> Any:
    """Apply a function to an array, or to each array of a dict."""
    return {key: function(array) for key, array in part.items()} if isinstance(part, dict) else function(part)


class Rows(ABC):
    """Transitions that somebody holds: their spaces, how many rows there are, and a way to read them."""

    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]
    n_envs: int
    used: int
    """Rows that hold transitions."""
    full: bool
    """Whether it is a ring that has begun to overwrite its oldest rows."""

    @abstractmethod
    def in_order(self, steps: Integers) -> Integers:
        """Find the rows of steps, which are counted from 0 for the oldest one."""

    @abstractmethod
    def read(self, names: Sequence[str], rows: Integers, envs: Integers) -> dict[str, Any]:
        """Read cells of columns: of each an array, or a dict of arrays."""

    @property
    def parts(self) -> dict[Any, spaces.Space[Any]]:
        """The spaces of Dict observations by their keys; of others under None."""
        space = self.observation_space
        return dict(space.spaces) if isinstance(space, spaces.Dict) else {None: space}

    def blocks(self, names: Sequence[str] = COLUMNS) -> Iterator[dict[str, Any]]:
        """Go through all rows, oldest first, some at a time: arrays of rows x environments."""
        for first in range(0, self.used, _ROWS_AT_ONCE):
            rows = self.in_order(np.arange(first, min(first + _ROWS_AT_ONCE, self.used), dtype=np.int64))
            cells = np.repeat(rows, self.n_envs), np.tile(np.arange(self.n_envs, dtype=np.int64), len(rows))
            found = self.read(names, *cells)
            yield {name: by_row(part, len(rows), self.n_envs) for name, part in found.items()}


def by_row(part: Any, rows: int, n_envs: int) -> Any:
    """Give cells axes for rows and environments."""
    return map_parts(lambda array: array.reshape(rows, n_envs, *array.shape[1:]), part)


class BufferRows(Rows):
    """The transitions of a replay buffer, SB3's or ours."""

    def __init__(self, buffer: ReplayBuffer) -> None:
        self.observation_space, self.action_space = buffer.observation_space, buffer.action_space
        self.n_envs, self.full = buffer.n_envs, buffer.full
        # With SB3's optimize_memory_usage, the next observation is in the next row: that of the oldest row is overwritten.
        self._optimized = bool(buffer.optimize_memory_usage)
        self._first = buffer.pos + self._optimized if buffer.full else 0
        self.used = buffer.buffer_size - self._optimized if buffer.full else buffer.pos
        self._buffer = buffer

    def in_order(self, steps: Integers) -> Integers:
        """Find the rows of steps, which are counted from 0 for the oldest one."""
        return (steps + self._first) % self._buffer.buffer_size

    def read(self, names: Sequence[str], rows: Integers, envs: Integers) -> dict[str, Any]:
        """Read cells of columns: of each an array, or a dict of arrays."""
        found = {}
        for name in names:
            column, at = name, rows
            if self._optimized and name == "next_observations":
                column, at = "observations", (rows + 1) % self._buffer.buffer_size
            found[name] = map_parts(lambda array, at=at: np.asarray(array[at, envs]), getattr(self._buffer, column))  # type: ignore[misc]
        return found


class OfflineEpisode:
    """
    Transitions of one environment that follow each other. Nothing is read until you ask for it.

    :param table: Where they are
    :param env: Of which environment
    :param start: The step that it begins with, counted from the oldest one that is there
    :param stop: The step after its last one
    """

    def __init__(self, table: Rows, env: int, start: int, stop: int) -> None:
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
        before = self._column("observations")
        last = self._table.read(("next_observations",), self._rows[-1:], self._envs[-1:])["next_observations"]
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
        actions: Array = self._column("actions").reshape(len(self), *(self._table.action_space.shape or ()))
        return actions

    @property
    def rewards(self) -> Array:
        """The rewards."""
        rewards: Array = self._column("rewards")
        return rewards

    @property
    def dones(self) -> Array:
        """1 where the episode ended, for whatever reason."""
        dones: Array = self._column("dones")
        return dones

    @property
    def timeouts(self) -> Array:
        """1 where a time limit ended it."""
        timeouts: Array = self._column("timeouts")
        return timeouts

    @property
    def terminated(self) -> bool:
        """Whether it came to its end."""
        return self._ends(False)

    @property
    def truncated(self) -> bool:
        """Whether a time limit ended it. An episode that is neither was not over when the last transition was added."""
        return self._ends(True)

    def _ends(self, by_time: bool) -> bool:
        found = self._table.read(("dones", "timeouts"), self._rows[-1:], self._envs[-1:])
        return bool(found["dones"][0] > 0) and bool(found["timeouts"][0] > 0) == by_time

    def _column(self, name: str) -> Any:
        return self._table.read((name,), self._rows, self._envs)[name]


def find_episodes(table: Rows, env: int) -> Iterator[OfflineEpisode]:
    """
    Find the episodes of one environment, oldest first.

    One ends where it is done, and where the next transition begins with another observation than this one ended with.
    """
    start = 0
    for first in range(0, table.used, _ROWS_AT_ONCE):
        rows = table.in_order(np.arange(first, min(first + _ROWS_AT_ONCE + 1, table.used), dtype=np.int64))
        found = table.read((*OBSERVED, "dones"), rows, np.full(len(rows), env, np.int64))
        ends = found["dones"] > 0
        for key in table.parts if len(rows) > 1 else ():
            begun, seen = (found[name] if key is None else found[name][key] for name in OBSERVED)
            # By their bytes: NaN follows NaN, too.
            ends[:-1] |= (_as_bytes(seen[:-1]) != _as_bytes(begun[1:])).any(axis=1)
        for stop in (np.flatnonzero(ends[:_ROWS_AT_ONCE]) + first + 1).tolist():
            yield OfflineEpisode(table, env, start, stop)
            start = stop
    if start < table.used:
        yield OfflineEpisode(table, env, start, table.used)


def _as_bytes(array: Array) -> npt.NDArray[np.uint8]:
    return np.ascontiguousarray(array).reshape(len(array), -1).view(np.uint8)
