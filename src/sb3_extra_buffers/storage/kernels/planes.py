"""Compiled: from planes to pixels and back."""

from __future__ import annotations

from numba import uint64

from sb3_extra_buffers.codecs._jit import jit_kernel


@jit_kernel
def transpose(source, target, rows, columns, item):
    """
    Turn rows into columns.

    :param source: Bytes of ``rows`` times ``columns`` values
    :param target: As many bytes, filled
    :param rows: Number of rows
    :param columns: Number of columns
    :param item: Bytes a value
    """
    height = uint64(rows)
    width = uint64(columns)
    size = uint64(item)
    if size == uint64(1):  # what is written to comes in order
        for c in range(width):
            for r in range(height):
                target[c * height + r] = source[r * width + c]
        return
    for r in range(height):
        for c in range(width):
            for t in range(size):
                target[(c * height + r) * size + t] = source[(r * width + c) * size + t]
