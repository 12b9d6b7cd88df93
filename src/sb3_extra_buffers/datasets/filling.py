"""Put transitions into replay buffers: a few rows, all of a source, or the newest of a data set."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer

from sb3_extra_buffers._spaces import same_form
from sb3_extra_buffers._support import with_progress
from sb3_extra_buffers.compressed.files import Path
from sb3_extra_buffers.compressed.replay import CompressedDictReplayBuffer, CompressedReplayBuffer
from sb3_extra_buffers.datasets.dataset import OfflineDataset, open_dataset
from sb3_extra_buffers.recording.rows import COLUMNS, BufferRows, Rows, by_row, map_parts

_ROWS_AT_ONCE = 64


def rows_of(source: ReplayBuffer | OfflineDataset | Path) -> Rows:
    """Find the transitions of a replay buffer of SB3 or of this package, a data set, or its directory."""
    if isinstance(source, ReplayBuffer):
        return BufferRows(source)
    return (source if isinstance(source, OfflineDataset) else open_dataset(source))._table


def new_buffer(
    observation_space: spaces.Space[Any], action_space: spaces.Space[Any], rows: int, n_envs: int, options: Any
) -> Any:
    """Make a compressed replay buffer, on the CPU, with room for so many rows."""
    is_dict = isinstance(observation_space, spaces.Dict)
    cls: Any = CompressedDictReplayBuffer if is_dict else CompressedReplayBuffer
    return cls(max(rows, 1) * n_envs, observation_space, action_space, "cpu", n_envs, **options)


def add_block(buffer: ReplayBuffer, block: dict[str, Any]) -> None:
    """Add some rows to a buffer: of each column an array of rows x environments, or a dict of these."""
    for row in range(len(block["rewards"])):
        obs, next_obs, action, reward, done, timeouts = (
            map_parts(lambda array, row=row: array[row], block[name])  # type: ignore[misc]
            for name in COLUMNS
        )
        infos = [{"TimeLimit.truncated": bool(timeout)} for timeout in timeouts]
        buffer.add(obs, next_obs, action, reward, np.asarray(done) > 0, infos)


def copy_of(source: ReplayBuffer | OfflineDataset | Path, **options: Any) -> Any:
    """Put all transitions of a source into a new compressed replay buffer with these options."""
    rows = rows_of(source)
    buffer = new_buffer(rows.observation_space, rows.action_space, rows.used, rows.n_envs, options)
    for block in rows.blocks():
        add_block(buffer, block)
    return buffer


def check_spaces(dataset: OfflineDataset, buffer: Any) -> None:
    """Refuse a data set whose transitions a buffer does not take."""
    if not same_form(dataset.observation_space, buffer.observation_space):
        raise ValueError(
            f"{dataset.path} holds observations of {dataset.observation_space}, but this {type(buffer).__name__} takes "
            f"{buffer.observation_space}: they must have the same keys, shapes and types. SB3 puts the channels of "
            "images first; convert() does so, too"
        )
    if dataset.action_space != buffer.action_space:
        raise ValueError(
            f"{dataset.path} holds actions of {dataset.action_space}, but this {type(buffer).__name__} takes "
            f"{buffer.action_space}; replay buffers hold actions scaled by the bounds of their space, so it has to be the same"
        )


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
    table, n_envs = dataset._table, buffer.n_envs
    rows = min(table.used * table.n_envs // n_envs, buffer.buffer_size)
    if limit is not None:
        rows = min(rows, int(limit) // n_envs)
    # The newest steps of all environments, one environment after the other, cut into a run for each environment of the buffer.
    steps = -(-rows * n_envs // table.n_envs)
    first = steps * table.n_envs - rows * n_envs
    starts = first + rows * np.arange(n_envs, dtype=np.int64)
    blocks = range(0, rows, _ROWS_AT_ONCE)
    for start in with_progress(blocks, len(blocks), "filling the buffer", "block", progress):
        some = np.arange(start, min(start + _ROWS_AT_ONCE, rows), dtype=np.int64)
        numbers = (starts[None] + some[:, None]).reshape(-1)
        envs, ages = numbers // max(steps, 1), numbers % max(steps, 1)
        found = table.read(COLUMNS, table.in_order(ages + table.used - steps), envs)
        block = {name: by_row(part, len(some), n_envs) for name, part in found.items()}
        if buffer.handle_timeout_termination:
            is_last = (ages == steps - 1).reshape(len(some), n_envs) | (some == rows - 1)[:, None]
            is_cut = is_last & (block["dones"] == 0)
            block |= {name: np.where(is_cut, 1, block[name]) for name in ("dones", "timeouts")}
        add_block(buffer, block)
    return rows * n_envs
