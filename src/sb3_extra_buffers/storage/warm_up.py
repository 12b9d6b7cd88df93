"""Compiling the reference coder ahead of time."""

from __future__ import annotations

import numpy as np

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
