"""Which slots of a ring can be sampled, without looking at all of them each time."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

BLOCK = 4096


class ValidSlots:
    """
    The numbers of those slots that have a positive value, in order.

    They are listed block by block; only blocks that have changed are listed anew.
    """

    def __init__(self, values: npt.NDArray[Any]) -> None:
        self._rows, self._width = values.shape
        self._values = values.reshape(-1)
        n_blocks = -(-self._values.size // BLOCK)
        self._places = np.zeros((n_blocks, BLOCK), dtype=np.uint16)
        self._ends = np.zeros(n_blocks, dtype=np.int64)
        self._counts = np.zeros(n_blocks, dtype=np.int64)
        self._changed = np.ones(n_blocks, dtype=np.bool_)

    def mark_changed(self, start: int, end: int) -> None:
        """Say that values may have changed."""
        for first, stop in ((start, min(end, self._rows)), (0, end - self._rows)):
            if first < stop:
                self._changed[first * self._width // BLOCK : (stop * self._width - 1) // BLOCK + 1] = True

    def mark_unchanged(self) -> None:
        """Take back all marks since ``count`` was called last."""
        self._changed[:] = False

    def count(self) -> int:
        """Count the slots."""
        blocks = np.flatnonzero(self._changed)
        if len(blocks):
            for block in blocks:
                places = np.flatnonzero(self._values[block * BLOCK : (block + 1) * BLOCK] > 0)
                self._places[block, : len(places)] = places
                self._counts[block] = len(places)
            np.cumsum(self._counts, out=self._ends)
            self._changed[:] = False
        return int(self._ends[-1])

    def take(self, ranks: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Find slots by their rank; ``count`` must have been called since the last ``mark_changed``."""
        blocks = np.searchsorted(self._ends, ranks, side="right")
        places = self._places[blocks, ranks - (self._ends - self._counts)[blocks]]
        slots: npt.NDArray[np.int64] = blocks * BLOCK + places
        return slots
