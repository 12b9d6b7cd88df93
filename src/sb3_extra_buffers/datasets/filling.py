"""Fill a replay buffer from a data set."""

from __future__ import annotations

from typing import Any

import numpy as np
from stable_baselines3.common.buffers import ReplayBuffer

from sb3_extra_buffers.compressed.files import Path
from sb3_extra_buffers.datasets.checks import check_spaces
from sb3_extra_buffers.datasets.dataset import OfflineDataset, open_dataset
from sb3_extra_buffers.recording.optional import with_progress

_ROWS_AT_ONCE = 64


def prefill(buffer: ReplayBuffer, dataset: OfflineDataset | Path, *, limit: int | None = None, progress: bool = False) -> int:
    """
    Add the transitions of a data set to a replay buffer, SB3's or ours, before training or in between.

    If there are more than fit, the newest ones are taken. The buffer may have another number of environments than the data
    set: each of its environments gets a run of transitions that follow each other, and up to ``n_envs - 1`` are left out.
    Where such a run ends in the middle of an episode, it ends as if by a time-out, so that returns over several steps stop
    there; what is sampled is not changed by that.

    :param buffer: The buffer
    :param dataset: The data set, or its directory
    :param limit: How many transitions to add at most
    :param progress: Whether to show a progress bar (on a terminal)
    :return: How many transitions were added
    """
    if not isinstance(buffer, ReplayBuffer):
        raise TypeError(f"expected a replay buffer of SB3 or of this package, not {type(buffer).__name__}")
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, (int, np.integer)) or limit < 0):
        raise ValueError(f"limit is {limit!r}; it must be a number of transitions, or None")
    if not isinstance(dataset, OfflineDataset):
        dataset = open_dataset(dataset)
    check_spaces(dataset, buffer)
    table, lanes = dataset._table, buffer.n_envs
    rows = min(table.used * table.n_envs // lanes, buffer.buffer_size)
    if limit is not None:
        rows = min(rows, int(limit) // lanes)
    # The newest steps of all environments, one environment after the other, cut into a run for each lane.
    steps = -(-rows * lanes // table.n_envs)
    first = steps * table.n_envs - rows * lanes
    starts = first + rows * np.arange(lanes, dtype=np.int64)
    blocks = range(0, rows, _ROWS_AT_ONCE)
    for row in with_progress(blocks, len(blocks), "filling the buffer", "block", progress):
        some = np.arange(row, min(row + _ROWS_AT_ONCE, rows), dtype=np.int64)
        numbers = (starts[None] + some[:, None]).reshape(-1)
        envs, ages = numbers // max(steps, 1), numbers % max(steps, 1)
        places = table.in_order(ages + table.used - steps), envs
        obs, next_obs = (_by_row(part, len(some), lanes) for part in table.read_observations(*places))
        actions, rewards, dones, timeouts = (
            _by_row(table.read_plain(name, *places), len(some), lanes) for name in ("actions", "rewards", "dones", "timeouts")
        )
        if buffer.handle_timeout_termination:
            is_last = (ages == steps - 1).reshape(len(some), lanes) | (some == rows - 1)[:, None]
            is_cut = is_last & (dones == 0)
            dones, timeouts = np.where(is_cut, 1, dones), np.where(is_cut, 1, timeouts)
        for place in range(len(some)):
            infos = [{"TimeLimit.truncated": bool(timeout)} for timeout in timeouts[place]]
            step = _at(obs, place), _at(next_obs, place), actions[place], rewards[place], dones[place] > 0
            buffer.add(*step, infos)
    return rows * lanes


def _by_row(part: Any, rows: int, lanes: int) -> Any:
    if isinstance(part, dict):
        return {key: _by_row(array, rows, lanes) for key, array in part.items()}
    return part.reshape(rows, lanes, *part.shape[1:])


def _at(part: Any, place: int) -> Any:
    return {key: array[place] for key, array in part.items()} if isinstance(part, dict) else part[place]
