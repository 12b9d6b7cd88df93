"""Compiling the reference coder ahead of time."""

from __future__ import annotations

from typing import Any

import numpy as np

from sb3_extra_buffers.storage.coder import FrameCoder
from sb3_extra_buffers.storage.methods import DELTA, make_spec
from sb3_extra_buffers.storage.store import FrameStore


def compile_kernels() -> None:
    """
    Compile the reference coder, or load it from the cache on disk.

    Do it in the main process: workers that are forked afterwards inherit it, others find it on disk.
    """
    store = FrameStore((4, 8, 8), np.uint8, 1, make_spec(DELTA, np.uint8, np.uint16))
    index = store.new_index(2)
    stack = np.zeros((1, 4, 8, 8), dtype=np.uint8)
    out = np.empty_like(stack)
    for row in range(2):
        stack = np.concatenate([stack[:, 1:], np.full((1, 1, 8, 8), row + 1, dtype=np.uint8)], axis=1)
        store.write_row(row, [(index, stack)])
        store.read(np.array([row]), [(index, out)])
    _compile_rest(store.coder)


def _compile_rest(coder: FrameCoder) -> None:
    """What only frames need that a codec has coded."""
    from sb3_extra_buffers.storage.kernels import planes, read

    transpose: Any = planes.transpose
    transpose(np.zeros(8, dtype=np.uint8), np.empty(8, dtype=np.uint8), 2, 4, 1)
    groups_of: Any = read.groups_of
    streams, wanted = np.zeros(1, dtype=np.int64), np.full((1, 4), -1, dtype=np.int64)
    groups_of(coder.directory.locations, coder.shift, streams, wanted, np.empty(4, dtype=np.uint64))
