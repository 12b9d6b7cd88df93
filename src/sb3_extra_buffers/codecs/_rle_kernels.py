"""Compiled run-length coding. Import this only at first use: it imports numba.

Indices are unsigned throughout: numba's wrap-around of negative ones stops LLVM from vectorising.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sb3_extra_buffers.codecs._jit import jit_kernel

BLOCK = np.uint64(64)
ONE = np.uint64(1)


@jit_kernel
def _put_run(value: Any, length: Any, max_run: Any, values: Any, lengths: Any, count: Any) -> Any:
    while length > max_run:
        values[count] = value
        lengths[count] = max_run
        count += ONE
        length -= max_run
    values[count] = value
    lengths[count] = length
    return count + ONE


@jit_kernel
def find_runs(elements: Any, max_run: Any, values: Any, lengths: Any) -> Any:
    """Find the runs of equal elements."""
    size = np.uint64(elements.size)
    count = np.uint64(0)
    start = np.uint64(0)
    position = ONE
    while position < size:
        stop = min(position + BLOCK, size)
        if stop - position == BLOCK:  # a flat block is the usual case and this test of it vectorises
            flat = True
            for index in range(position, stop):
                flat &= elements[index] == elements[index - ONE]
            if flat:
                position = stop
                continue
        while position < stop:
            if elements[position] != elements[position - ONE]:
                count = _put_run(elements[start], position - start, max_run, values, lengths, count)
                start = position
            position += ONE
    return _put_run(elements[start], size - start, max_run, values, lengths, count)


@jit_kernel
def fill_runs(values: Any, lengths: Any, out: Any) -> bool:
    """Write the runs if they fill ``out`` exactly."""
    n_runs = np.uint64(lengths.size)
    room = np.uint64(out.size)
    for run in range(n_runs):
        length = np.uint64(lengths[run])
        if length == 0 or length > room:
            return False
        room -= length
    if room != 0 or values.size != lengths.size:
        return False
    start = np.uint64(0)
    for run in range(n_runs):
        stop = start + np.uint64(lengths[run])
        value = values[run]
        for index in range(start, stop):
            out[index] = value
        start = stop
    return True
