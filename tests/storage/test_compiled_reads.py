"""Compiled reading: what it touches, and for which arguments it is compiled."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from observation_streams import Stack, Stream, needs_numba

from sb3_extra_buffers.storage import CompressedArray

pytestmark = needs_numba

AT_THE_EDGE = """
import ctypes, mmap, sys
import numpy as np
from sb3_extra_buffers.storage import CompressedArray
from sb3_extra_buffers.storage.layout import FrameLayout

libc = ctypes.CDLL(None, use_errno=True)
libc.mprotect.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
page = mmap.PAGESIZE
pages = mmap.mmap(-1, 2 * page)
memory = np.frombuffer(pages, np.uint8)
assert libc.mprotect(memory.ctypes.data + page, page, 0) == 0, "cannot forbid the second page"
rng = np.random.default_rng(0)
for size in (1, 3, 8, 31, 32, 33, 64, 100):
    rows = 40
    array = CompressedArray((rows, 1), np.uint8, (size, 1), compression_method="delta")
    store = array._store
    store._begin(FrameLayout((size, 1), 1, 0, size))
    frames = np.repeat(rng.integers(0, 2, (rows, 1), dtype=np.uint8), size, 1)
    frames[rng.random(frames.shape) < 0.1] += 1
    for row in range(rows):
        array[row] = frames[row].reshape(1, size, 1)
    for count in range(1, rows):
        out = memory[page - count * size : page].reshape(count, size, 1)
        store.read(np.arange(count), [(array._index, out)])
        np.testing.assert_array_equal(out[:, :, 0], frames[:count])
print("untouched")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="protects pages as POSIX does")
def test_nothing_after_the_output_is_touched() -> None:
    """Small frames, decoded where they go to: the output ends where the next byte may not be touched."""
    run = subprocess.run([sys.executable, "-c", AT_THE_EDGE], capture_output=True, text=True, timeout=300)
    assert run.stdout.strip() == "untouched", run.stderr


def compiled_for() -> list[int]:
    from sb3_extra_buffers.storage.kernels import put, read

    return [len(read.read_rows.signatures), len(put.put.signatures)]


@pytest.mark.parametrize("depth", [1, 4])
def test_one_form_is_compiled_for_every_way_to_index(depth: int) -> None:
    """To compile anew for an array with steps, or a read-only one, would take a user seconds in the midst of a run."""
    stream = Stream(0, 2, (1, 9, 8), np.uint8, "game", Stack(depth, 0) if depth > 1 else None)
    shape = (9, 2, *stream.obs_shape)
    one = CompressedArray(shape, np.uint8, stream.obs_shape, compression_method="delta")
    other = CompressedArray(shape, np.uint8, stream.obs_shape, share_with=one)
    twin = np.zeros(shape, np.uint8)
    for row in range(9):
        one[row] = twin[row] = stream.step()[0]
        other[row] = twin[row]
    rows, columns = np.array([3, 1, 8]), np.array([0, 1, 1])
    assert np.array_equal(one[rows, columns], twin[rows, columns])
    before = compiled_for()
    stepped = np.array([[3, 0], [1, 1], [8, 1]]).T  # as np.unravel_index gives them
    frozen = rows.copy()
    frozen.flags.writeable = False
    ways: list[Any] = [(slice(None), 1), (0, slice(None, None, 2)), (stepped[0], stepped[1]), (frozen, columns), (frozen,)]
    ways += [rows[::-1], np.array([True, False] * 4 + [True]), (rows.astype(np.int32), columns.astype(np.uint8))]
    for way in ways:
        np.testing.assert_array_equal(one[way], twin[way])
        for mine in one.read_beside(other, *way) if len(way) == 2 and isinstance(way[0], np.ndarray) else ():
            np.testing.assert_array_equal(mine, twin[way])
        value = 255 - twin[way]
        one[way] = twin[way] = value
        np.testing.assert_array_equal(np.asarray(one), twin)
        other[:] = twin
    assert compiled_for() == before == [1, 1]


AHEAD = """
import numpy as np
from sb3_extra_buffers.storage import CompressedArray
from sb3_extra_buffers.storage.kernels import groups, planes, put, read
from sb3_extra_buffers.storage.reference import ReferenceCoder
from sb3_extra_buffers.storage.warm_up import compile_kernels

compile_kernels()
kernels = (put.put, read.read_rows, read.groups_of, planes.transpose, groups.close_group, groups.open_group, groups.code_patch)
before = [len(kernel.signatures) for kernel in kernels]
rng = np.random.default_rng(0)
coded = []
expand = ReferenceCoder._expand_record
ReferenceCoder._expand_record = lambda self, kind, body, row: coded.append(kind) or expand(self, kind, body, row)
for method in ("delta", "delta-gzip"):
    array = CompressedArray((20, 2), np.uint8, (3, 30, 30), compression_method=method)
    for step in range(60):
        array[step % 20] = rng.integers(0, 16 if step % 3 else 2, (2, 3, 30, 30), dtype=np.uint8)
        array[np.arange(3), np.array([0, 1, 1])]
    assert coded or method != "delta"
print([kernel.__name__ for kernel, n in zip(kernels, before) if n != 1 or len(kernel.signatures) != 1])
"""


def test_all_of_it_can_be_compiled_ahead() -> None:
    """Compiled in the main process: nothing is left for the midst of a run, or for each of many workers."""
    run = subprocess.run([sys.executable, "-c", AHEAD], capture_output=True, text=True, timeout=300)
    assert run.stdout.strip() == "[]", run.stdout + run.stderr
