"""The episodes that lie in a replay buffer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer

from sb3_extra_buffers.recording.spaces import unscale_actions

_ROWS_AT_ONCE = 256


@dataclass(frozen=True)
class Trajectory:
    """
    Transitions of one environment that follow each other.

    :param buffer: The replay buffer
    :param rows: Where they are in it, in order
    :param env_index: Of which environment
    :param end: How it ends
    """

    buffer: ReplayBuffer
    rows: npt.NDArray[np.int64]
    env_index: int
    end: Literal["terminated", "truncated", "unfinished"]

    def observations(self) -> Any:
        """
        Read what was seen, before every action and after the last one.

        :return: An array with one row more than there are actions, or a dict of such arrays
        """
        before, last = self._read("observations", self.rows), self._read("next_observations", self.rows[-1:])
        if isinstance(before, dict):
            return {key: np.concatenate([before[key], last[key]]) for key in before}
        return np.concatenate([before, last])

    def actions(self) -> npt.NDArray[Any]:
        """
        Read the actions.

        :return: The actions, as the environment took them
        """
        space, stored = self.buffer.action_space, self.buffer.actions[self.rows, self.env_index]
        return np.asarray(unscale_actions(space, stored.reshape(len(self.rows), *(space.shape or ()))))

    def rewards(self) -> npt.NDArray[Any]:
        """
        Read the rewards.

        :return: The rewards
        """
        return np.asarray(self.buffer.rewards[self.rows, self.env_index])

    def _read(self, name: str, rows: npt.NDArray[np.int64]) -> Any:
        return read_rows(self.buffer, name, rows, self.env_index)


def read_rows(buffer: ReplayBuffer, name: str, rows: npt.NDArray[np.int64], env_index: int) -> Any:
    """
    Read observations of one environment.

    :param buffer: The replay buffer
    :param name: ``"observations"`` or ``"next_observations"``
    :param rows: Which rows
    :param env_index: Which environment
    :return: An array, or a dict of arrays
    """
    stored = getattr(buffer, name)
    envs = np.full(len(rows), env_index, dtype=np.int64)
    if isinstance(stored, dict):
        return {key: np.asarray(array[rows, envs]) for key, array in stored.items()}
    shape = () if isinstance(buffer.observation_space, spaces.Discrete) else buffer.observation_space.shape or ()
    return np.asarray(stored[rows, envs]).reshape(len(rows), *shape)


def trajectories(buffer: ReplayBuffer) -> list[Trajectory]:
    """
    Find the trajectories in a replay buffer, oldest first, one environment after the other.

    A trajectory ends with its episode, and where the next transition begins with another observation than this one ended
    with. The oldest may lack its beginning, which the ring has overwritten.

    :param buffer: The replay buffer
    :return: The trajectories
    """
    if getattr(buffer, "optimize_memory_usage", False):
        raise ValueError(
            "a buffer of SB3 with optimize_memory_usage has lost what was seen at the end of each episode; "
            "CompressedReplayBuffer has not, and takes less memory"
        )
    if buffer.size() == 0:
        return []
    rows = np.arange(buffer.pos, dtype=np.int64)
    if buffer.full:
        rows = np.concatenate([np.arange(buffer.pos, buffer.buffer_size, dtype=np.int64), rows])
    found = []
    for env_index in range(buffer.n_envs):
        dones = buffer.dones[rows, env_index] > 0
        timeouts = buffer.timeouts[rows, env_index] > 0
        ends = np.flatnonzero(dones | _breaks(buffer, rows, env_index)) + 1
        if len(ends) == 0 or ends[-1] != len(rows):
            ends = np.append(ends, len(rows))
        for start, stop in zip([0, *ends[:-1]], ends, strict=True):
            end: Literal["terminated", "truncated", "unfinished"] = "unfinished"
            if dones[stop - 1]:
                end = "truncated" if timeouts[stop - 1] else "terminated"
            found.append(Trajectory(buffer, rows[start:stop], env_index, end))
    return found


def _breaks(buffer: ReplayBuffer, rows: npt.NDArray[np.int64], env_index: int) -> npt.NDArray[np.bool_]:
    """After which transitions the next one begins elsewhere."""
    breaks = np.zeros(len(rows), np.bool_)
    for start in range(0, len(rows) - 1, _ROWS_AT_ONCE):
        some = rows[start : start + _ROWS_AT_ONCE + 1]
        seen = read_rows(buffer, "next_observations", some[:-1], env_index)
        begun = read_rows(buffer, "observations", some[1:], env_index)
        pairs = [(seen[key], begun[key]) for key in seen] if isinstance(seen, dict) else [(seen, begun)]
        for after, before in pairs:
            # By their bytes: NaN follows NaN, too.
            differs = _as_bytes(after) != _as_bytes(before)
            breaks[start : start + len(differs)] |= differs.any(axis=1)
    return breaks


def _as_bytes(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    return np.ascontiguousarray(array).reshape(len(array), -1).view(np.uint8)
