"""What the cells of an array hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sb3_extra_buffers.storage.patterns import UNWRITTEN

_BLOCK_ROWS = 256
NOTHING = np.iinfo(np.int64).max

# What the words of a book are.
NEWEST = 0
PATTERN = 1
PATTERN_BYTES = 2
WRITTEN = 3
BLOCK_CELLS = 4
OVERWRITTEN = 5
BOOK_WORDS = 6


class FrameIndex:
    """
    The cells of one array: six bytes a cell.

    Cell ``c`` belongs to stream ``c % n_streams``; ``n_streams`` cells are a row.

    :param cells: How many
    :param n_streams: Number of streams
    """

    def __init__(self, cells: int, n_streams: int) -> None:
        self.block_cells = _BLOCK_ROWS * n_streams
        blocks = -(-cells // self.block_cells)
        # Low 32 bits of the number of the newest frame.
        self.newest: npt.NDArray[np.uint32] = np.zeros(cells, dtype=np.uint32)
        # Which frames make the observation, see ``PatternTable``; 16 bits, which real data never exceeds.
        self.pattern: npt.NDArray[np.uint16] | npt.NDArray[np.uint32] = np.zeros(cells, dtype=np.uint16)
        # The oldest frame of each stream, by blocks of rows, and which blocks were written since that was found out.
        self.oldest: npt.NDArray[np.int64] = np.full((blocks, n_streams), NOTHING, dtype=np.int64)
        self.written: npt.NDArray[np.bool_] = np.zeros(blocks, dtype=np.bool_)
        # The same for compiled code, which also counts there how many written cells were written again.
        self.book: npt.NDArray[np.int64] = np.zeros(BOOK_WORDS, dtype=np.int64)
        self._keep_book()

    def _keep_book(self) -> None:
        self.book_address = int(self.book.ctypes.data)
        self.book[NEWEST] = self.newest.ctypes.data
        self.book[PATTERN] = self.pattern.ctypes.data
        self.book[PATTERN_BYTES] = self.pattern.itemsize
        self.book[WRITTEN] = self.written.ctypes.data
        self.book[BLOCK_CELLS] = self.block_cells

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._keep_book()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"book": self.book.copy()}

    def enter(self, cells: npt.NDArray[np.int64], newest: npt.NDArray[np.uint32], pattern: npt.NDArray[np.uint32]) -> None:
        """
        Say what cells hold.

        :param cells: ``(m,)``
        :param newest: ``(m,)``
        :param pattern: ``(m,)``
        """
        # In this order: who is interrupted here leaves cells that hold nothing, not half of something.
        self.written[cells // self.block_cells] = True
        self.book[OVERWRITTEN] += np.count_nonzero(self.pattern[cells])
        self.pattern[cells] = UNWRITTEN
        self.newest[cells] = newest
        self.pattern[cells] = pattern

    def take_overwritten(self) -> int:
        """
        Tell how many written cells were written again since this was last asked.

        :return: The number
        """
        count = int(self.book[OVERWRITTEN])
        self.book[OVERWRITTEN] = 0
        return count

    def clear(self) -> None:
        """Make all cells unwritten."""
        self.pattern[:] = UNWRITTEN  # first: a cell without a pattern holds nothing, whatever else is there
        self.newest[:] = 0
        self.oldest[:] = NOTHING
        self.written[:] = False
        self.book[OVERWRITTEN] = 0

    def widen(self) -> None:
        """Make room for any number of patterns."""
        self.pattern = self.pattern.astype(np.uint32)
        self._keep_book()

    def narrow(self) -> None:
        """Undo ``widen``."""
        self.pattern = self.pattern.astype(np.uint16)
        self._keep_book()

    def become(self, other: FrameIndex) -> None:
        """
        Take over the cells of another index.

        :param other: The index, which is not used any more
        """
        self.__dict__.update(other.__dict__)

    @property
    def bytes_a_cell(self) -> int:
        """What a cell takes."""
        return self.newest.itemsize + self.pattern.itemsize
