"""Which frames of a store are still in use, found out from its indexes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sb3_extra_buffers.storage.frame_index import NOTHING, FrameIndex
from sb3_extra_buffers.storage.patterns import ROUND, ZERO

if TYPE_CHECKING:
    from sb3_extra_buffers.storage.store import FrameStore


def oldest_frames(store: FrameStore) -> npt.NDArray[np.int64]:
    """
    Find out from where on frames are needed.

    :param store: The store
    :return: For each stream the oldest frame in use
    """
    oldest = store.coder.heads.copy()
    for stream, slots in enumerate(store.coder.state.slots.tolist()):
        oldest[stream] = min((number for number in slots if number != ZERO), default=oldest[stream])
    for index in store.indexes:
        for block in np.flatnonzero(index.written).tolist():
            _scan_block(store, index, block)
        index.written[:] = False
        np.minimum(oldest, index.oldest.min(axis=0, initial=NOTHING), out=oldest)
    return np.maximum(oldest, 0)


def _scan_block(store: FrameStore, index: FrameIndex, block: int) -> None:
    """Find the oldest frame of each stream in a block of rows."""
    cells = slice(block * index.block_cells, (block + 1) * index.block_cells)
    heads = store.coder.heads
    back = store.coder.patterns.reach[index.pattern[cells].reshape(-1, store.n_streams)]
    age = ((heads - index.newest[cells].reshape(-1, store.n_streams)) & ROUND) + back
    index.oldest[block] = np.where(back < 0, NOTHING, heads - age).min(axis=0)


def chronicle(store: FrameStore) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """
    List all written cells in the order of their frames.

    :param store: The store
    :return: Which index, the cell in it, and the number of its newest frame
    """
    which, cells, numbers = [], [], []
    for place, index in enumerate(store.indexes):
        written = np.flatnonzero(index.pattern)
        heads = store.coder.heads[written % store.n_streams]
        which.append(np.full(len(written), place, dtype=np.int64))
        cells.append(written)
        numbers.append(heads - ((heads - index.newest[written]) & ROUND))
    order = np.argsort(np.concatenate(numbers), kind="stable")
    return np.concatenate(which)[order], np.concatenate(cells)[order], np.concatenate(numbers)[order]


def count_live(store: FrameStore) -> int:
    """
    Count the frames in use, about: each observation counts for its newest one, and those are most of them.

    :param store: The store
    :return: How many distinct ones there are
    """
    heads = store.coder.heads
    has_frames = store.coder.patterns.reach >= 0
    oldest = store.coder.directory.oldest << store.coder.shift
    ends = np.cumsum(heads - oldest + 1)
    seen = np.zeros(ends[-1], dtype=np.bool_)
    for index in store.indexes:
        for start in range(0, len(index.pattern), index.block_cells):
            cells = start + np.flatnonzero(has_frames[index.pattern[start : start + index.block_cells]])
            streams = cells % store.n_streams
            age = (heads[streams] - index.newest[cells]) & ROUND
            seen[ends[streams] - 1 - age] = True
    return int(np.count_nonzero(seen))
