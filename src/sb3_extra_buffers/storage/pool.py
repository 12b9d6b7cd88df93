"""
Memory for decoded batches, used again once the caller has let go of it.

Fresh memory costs a page fault every four kilobytes, which can take longer than decoding into it, and batches are just
large enough for the C library to hand their memory back to the system each time.
"""

from __future__ import annotations

import math
import os
import sys
import threading
from typing import Any

import numpy as np
import numpy.typing as npt

MIN_BYTES = 1 << 17
"""Smaller arrays are cheap to allocate."""
MAX_BYTES = 1 << 26
"""What is kept at most, all sizes together."""


def _references(slabs: list[npt.NDArray[np.uint8]], place: int) -> int:
    return sys.getrefcount(slabs[place])


# How many references an array has when only the list holds it. Versions of Python count differently, so it is measured.
_IDLE = _references([np.empty(1, dtype=np.uint8)], 0)


class OutputPool:
    """Arrays that are handed out as long as nobody else refers to them."""

    def __init__(self) -> None:
        self._slabs: list[npt.NDArray[np.uint8]] = []
        self._lock = threading.Lock()

    def take(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """
        Give out an array with arbitrary contents.

        :param shape: Its shape
        :param dtype: Its type
        :return: A C-contiguous array that nobody else has; its memory comes back when the last view of it is gone
        """
        size = math.prod(shape) * dtype.itemsize
        if not MIN_BYTES <= size <= MAX_BYTES:
            return np.empty(shape, dtype=dtype)
        with self._lock:
            for place in range(len(self._slabs)):
                if self._slabs[place].size == size and _references(self._slabs, place) <= _IDLE:
                    return self._slabs[place].view(dtype).reshape(shape)
            slab = np.empty(size, dtype=np.uint8)
            self._make_room(size)
            if self.nbytes + size <= MAX_BYTES:
                self._slabs.append(slab)
            return slab.view(dtype).reshape(shape)

    def _make_room(self, size: int) -> None:
        """Drop idle arrays, oldest first, until another one may be kept."""
        place = 0
        while place < len(self._slabs) and self.nbytes + size > MAX_BYTES:
            if _references(self._slabs, place) <= _IDLE:
                del self._slabs[place]
            else:
                place += 1

    @property
    def nbytes(self) -> int:
        """Bytes that are kept."""
        return sum(slab.size for slab in self._slabs)


output_pool = OutputPool()


def _renew_lock() -> None:
    output_pool._lock = threading.Lock()


if hasattr(os, "register_at_fork"):  # another thread may have held the lock when the process was forked
    os.register_at_fork(after_in_child=_renew_lock)
