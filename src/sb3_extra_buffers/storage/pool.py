"""
Memory for decoded batches, used again once the caller has let go of it.

Fresh memory costs a page fault every four kilobytes, which can take longer than decoding into it, and batches are just
large enough for the C library to hand their memory back to the system each time.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

MIN_BYTES = 1 << 17
"""Smaller arrays are cheap to allocate."""
MAX_BYTES = 1 << 26
"""What is kept at most, all sizes together."""


def _references(slab: npt.NDArray[np.uint8]) -> int:
    return sys.getrefcount(slab)


def _references_of_idle() -> int:
    slab = np.empty(1, dtype=np.uint8)
    return _references(slab)


# How many references an array has that only one variable holds. Versions of Python count differently, so it is measured.
_IDLE = _references_of_idle()


class OutputPool:
    """
    Arrays that are handed out as long as nobody else refers to them.

    There is no lock, for a signal handler that reads would wait for itself. A thread that looks at an array takes it out of
    the list, in one step, and puts it back: what is out belongs to one thread, and to one call of it.
    """

    def __init__(self) -> None:
        self._slabs: list[npt.NDArray[np.uint8]] = []  # in the order in which they were last handed out

    def take(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Give out an array with arbitrary contents."""
        size = math.prod(shape) * dtype.itemsize
        if not MIN_BYTES <= size <= MAX_BYTES:
            return np.empty(shape, dtype=dtype)
        for place in reversed(range(len(self._slabs))):  # the last one that was used may still be in a cache
            slab = self._take_out(place)
            if slab is None:
                continue
            if slab.size == size and _references(slab) <= _IDLE:
                array: npt.NDArray[Any] = slab.view(dtype).reshape(shape)
                self._slabs.append(slab)  # only now that it has one reference more
                return array
            self._slabs.insert(place, slab)
        slab = np.empty(size, dtype=np.uint8)
        array = slab.view(dtype).reshape(shape)
        self._make_room(size)
        if self.nbytes + size <= MAX_BYTES:
            self._slabs.append(slab)
        return array

    def _take_out(self, place: int) -> npt.NDArray[np.uint8] | None:
        try:
            return self._slabs.pop(place)
        except IndexError:  # another thread has them
            return None

    def _make_room(self, size: int) -> None:
        """Drop idle arrays, oldest first, until another one may be kept."""
        for _ in range(len(self._slabs)):
            if self.nbytes + size <= MAX_BYTES:
                return
            slab = self._take_out(0)
            if slab is not None and _references(slab) > _IDLE:
                self._slabs.append(slab)

    @property
    def nbytes(self) -> int:
        """Bytes that are kept."""
        return sum(slab.size for slab in self._slabs.copy())


output_pool = OutputPool()
