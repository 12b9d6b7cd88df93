"""Which slots of a ring can be sampled, without looking at all of them each time."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

BLOCK = 4096


class ValidSlots:
    """
    The numbers of those slots that have a positive value, in order.

    They are listed block by block; only blocks that were touched are listed anew.

    :param values: The values of all slots; kept, not copied
    """

    def __init__(self, values: npt.NDArray[Any]) -> None:
        self._values = values.reshape(-1)
        n_blocks = -(-self._values.size // BLOCK)
        self._places = np.zeros((n_blocks, BLOCK), dtype=np.uint16)
        self._ends = np.zeros(n_blocks, dtype=np.int64)
        self._counts = np.zeros(n_blocks, dtype=np.int64)
        self._touched = np.ones(n_blocks, dtype=np.bool_)

    def mark_changed(self, first: int, last: int) -> None:
        """
        Say that values may have changed.

        :param first: First slot
        :param last: Last slot, included
        """
        self._touched[first // BLOCK : last // BLOCK + 1] = True

    def count(self) -> int:
        """
        Count the slots.

        :return: How many have a positive value
        """
        blocks = np.flatnonzero(self._touched)
        if len(blocks):
            for block in blocks:
                places = np.flatnonzero(self._values[block * BLOCK : (block + 1) * BLOCK] > 0)
                self._places[block, : len(places)] = places
                self._counts[block] = len(places)
            np.cumsum(self._counts, out=self._ends)
            self._touched[:] = False
        return int(self._ends[-1])

    def take(self, ranks: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """
        Find slots by their rank; ``count`` must have been called since the last ``touch``.

        :param ranks: Integers below ``count()``
        :return: What ``np.flatnonzero(values > 0)[ranks]`` would be
        """
        blocks = np.searchsorted(self._ends, ranks, side="right")
        places = self._places[blocks, ranks - (self._ends - self._counts)[blocks]]
        slots: npt.NDArray[np.int64] = blocks * BLOCK + places
        return slots
