"""Rows of one kind, appended one by one: a ring of fixed size, or chunks that grow without copying."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from sb3_extra_buffers.storage import CompressedArray, MemoryUsage

Rows = npt.NDArray[Any] | CompressedArray
MakeRows = Callable[[int], Rows]

_CHUNK_BYTES = 4 << 20


def chunk_rows(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    """
    Choose how many rows a dense chunk has.

    :param shape: Shape of a row
    :param dtype: Its type
    :return: About four megabytes' worth
    """
    return min(max(_CHUNK_BYTES // max(math.prod(shape) * dtype.itemsize, 1), 16), 1 << 16)


class Column:
    """
    Rows by their number, counted from the first that was ever appended.

    :param capacity: Number of rows that are kept; None keeps all of them
    :param rows_a_chunk: Rows to make at once, where all are kept
    :param make: Makes room for a number of rows
    """

    def __init__(self, capacity: int | None, rows_a_chunk: int, make: MakeRows) -> None:
        self._capacity = capacity
        self._rows_a_chunk = rows_a_chunk if capacity is None else capacity
        self._make = make
        self.chunks: list[Rows] = [] if capacity is None else [make(capacity)]

    def write(self, number: int, value: Any) -> None:
        """
        Write a row: the next one, or the newest again.

        :param number: Its number
        :param value: What it holds
        """
        chunk, row = divmod(number, self._rows_a_chunk) if self._capacity is None else (0, number % self._rows_a_chunk)
        if chunk == len(self.chunks):
            self.chunks.append(self._make(self._rows_a_chunk))
        rows = self.chunks[chunk]
        # A compressed array has an axis of parallel environments, of which there is one here.
        rows[row] = value[None] if isinstance(rows, CompressedArray) else value

    def read(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """
        Read rows.

        :param numbers: Their numbers, in one dimension; they must be there
        :return: The rows, a copy
        """
        if self._capacity is not None:
            return _take(self.chunks[0], numbers % self._rows_a_chunk)
        chunks, rows = np.divmod(numbers, self._rows_a_chunk)
        used = np.unique(chunks)
        if len(used) == 1:
            return _take(self.chunks[used[0]], rows)
        out: npt.NDArray[Any] | None = None
        for chunk in used:
            here = chunks == chunk
            part = _take(self.chunks[chunk], rows[here])
            if out is None:
                out = np.empty((len(numbers), *part.shape[1:]), part.dtype)
            out[here] = part
        if out is None:
            out = _take(self._make(0), rows)
        return out

    def memory_usage(self, rows: int) -> MemoryUsage:
        """
        Tell what the rows take.

        :param rows: How many of them are in use
        :return: The figures
        """
        usage = MemoryUsage(0, 0, 0, 0, 0)
        for chunk in self.chunks:
            if isinstance(chunk, CompressedArray):
                usage += chunk.memory_usage()
            else:
                usage += MemoryUsage.of_arrays([chunk[:rows]])
                rows -= min(rows, len(chunk))
        return usage


def _take(rows: Rows, places: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    taken = rows[places]
    return taken[:, 0] if isinstance(rows, CompressedArray) else np.asarray(taken)
