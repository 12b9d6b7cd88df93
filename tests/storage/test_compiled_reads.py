"""Compiled reading: what it touches, what arguments it takes, and that it is there at once."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest
from frames_kit import Ring, make_column, split_by, watch_codecs
from observation_streams import Stack, Stream

from sb3_extra_buffers.storage import CompressedArray
from sb3_extra_buffers.storage.layout import FrameLayout

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
    column = array._frames
    column.set_layout(FrameLayout((size, 1), 1, 0, size))
    column.next_look = 0
    frames = np.repeat(rng.integers(0, 2, (rows, 1), dtype=np.uint8), size, 1)
    frames[rng.random(frames.shape) < 0.1] += 1
    for row in range(rows):
        array[row] = frames[row].reshape(1, size, 1)
    for count in range(1, rows):
        out = memory[page - count * size : page].reshape(count, size, 1)
        column.read(np.arange(count), np.zeros(count, np.int64), out)
        np.testing.assert_array_equal(out[:, :, 0], frames[:count])
print("untouched")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="protects pages as POSIX does")
def test_nothing_after_the_output_is_touched() -> None:
    """Small frames, decoded where they go to: the output ends where the next byte may not be touched."""
    run = subprocess.run([sys.executable, "-c", AT_THE_EDGE], capture_output=True, text=True, timeout=600)
    assert run.stdout.strip() == "untouched", run.stderr


@pytest.mark.parametrize("depth", [1, 4])
def test_every_way_to_index(depth: int) -> None:
    """Arrays with steps, read-only ones, small integers: C takes one kind only, so all others have to be brought to it."""
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
    stepped = np.array([[3, 0], [1, 1], [8, 1]]).T  # as np.unravel_index gives them
    frozen = rows.copy()
    frozen.flags.writeable = False
    ways: list[Any] = [(slice(None), 1), (0, slice(None, None, 2)), (stepped[0], stepped[1]), (frozen, columns), (frozen,)]
    ways += [rows[::-1], np.array([True, False] * 4 + [True]), (rows.astype(np.int32), columns.astype(np.uint8))]
    for way in ways:
        np.testing.assert_array_equal(one[way], twin[way])
        np.testing.assert_array_equal(other[way], twin[way])
        value = 255 - twin[way]
        one[way] = twin[way] = value
        np.testing.assert_array_equal(np.asarray(one), twin)
        other[:] = twin


WRONG_READS: list[dict[str, Any]] = [
    {"rows": None},
    {"rows": np.arange(3)},
    {"rows": np.arange(2)[:, None]},
    {"rows": np.array([0, 4])},
    {"rows": np.array([0, -1])},
    {"rows": [0, 2**63]},
    {"envs": np.arange(3)},
    {"envs": np.array([0, 2])},
    {"envs": np.array([0, -(2**62)])},
    {"envs": [0, "a"]},
    {"view": 2},
    {"view": -1},
    {"view": 2**70},
    {"out": np.zeros((2, 9, 7), np.uint8)},
    {"out": np.zeros((3, 9, 8), np.uint8)},
    {"out": np.zeros((9, 8, 2), np.uint8).transpose(2, 0, 1)},
    {"out": np.broadcast_to(np.uint8(0), (2, 9, 8))},
    {"out": None},
    {"out": bytearray(144)},
    {"other_out": np.zeros((1, 9, 8), np.uint8)},
]


@pytest.mark.parametrize("wrong", WRONG_READS, ids=str)
def test_wrong_reads_are_refused(wrong: dict[str, Any]) -> None:
    """Before anything is read: what the core takes for granted has been looked at."""
    stream = Stream(0, 2, (9, 8), np.uint8, "game")
    ring = Ring(stream, "delta", rows=4)
    ring.add(3)
    usual: dict[str, Any] = {"rows": np.zeros(2, np.int64), "envs": np.arange(2), "out": np.zeros((2, 9, 8), "u1")}
    ring.frames.read(**usual)
    with pytest.raises((ValueError, TypeError, IndexError, OverflowError)):
        ring.frames.read(**{**usual, **wrong})
    ring.frames.read(**usual)
    np.testing.assert_array_equal(usual["out"], ring.twins[0, 0])
    ring.check()


def test_one_view_has_no_other() -> None:
    column = make_column((9, 8), rows=4, views=1)
    out = np.zeros((1, 9, 8), np.uint8)
    for call in (lambda: column.read([0], [0], out, 1), lambda: column.read([0], [0], out, 0, out.copy())):
        with pytest.raises(IndexError):
            call()
    for write in (lambda: column.write(0, out, 1), lambda: column.write(0, out, 0, out)):
        with pytest.raises(IndexError):
            write()
    column.read([0, 3], [0, 0], np.empty((2, 9, 8), np.uint8))  # lists and other integers are taken, too
    column.read(np.zeros(1, np.uint8), np.zeros(4, np.int16)[::4], out)


GOOD = np.ones((2, 9, 8), np.uint8)
WRONG_WRITES: list[dict[str, Any]] = [
    {"obs": None},
    {"obs": [[0]]},
    {"obs": np.zeros((2, 9, 7), np.uint8)},
    {"obs": np.zeros((1, 9, 8), np.uint8)},
    {"obs": np.zeros((2, 9, 8), np.uint16)},
    {"obs": np.zeros((2, 72), np.uint8)},
    {"row": 4},
    {"row": -1},
    {"row": 1 << 62},
    {"row": 1 << 70},
    {"view": 2},
    {"view": -1},
    {"other": np.zeros((2, 9, 7), np.uint8)},
    {"envs": [0]},
    {"envs": [0, 0]},
    {"envs": [0, 2]},
    {"envs": [-1, 0]},
    {"envs": [0.0, 1.0]},
    {"envs": [[0, 1]]},
    {"envs": np.array([0, 2**63], np.uint64)},
]


@pytest.mark.parametrize("wrong", WRONG_WRITES, ids=str)
def test_wrong_writes_are_refused(wrong: dict[str, Any]) -> None:
    ring = Ring(Stream(0, 2, (9, 8), np.uint8, "game"), "delta", rows=4)
    ring.add(6)
    with pytest.raises((ValueError, TypeError, IndexError, OverflowError)):
        ring.frames.write(**{"row": 0, "obs": GOOD, **wrong})
    ring.check()
    ring.add(3)
    ring.check()


AT_ONCE = """
import sys
import numpy as np
from sb3_extra_buffers.storage import CompressedArray
rng = np.random.default_rng(0)
for method in (None, "delta", "delta-gzip"):
    array = CompressedArray((20, 2), np.uint8, (3, 30, 30), compression_method=method)
    for step in range(60):
        array[step % 20] = rng.integers(0, 16 if step % 3 else 2, (2, 3, 30, 30), dtype=np.uint8)
        array[np.arange(3), np.array([0, 1, 1])]
print([name for name in sys.modules if name.partition(".")[0] in ("numba", "llvmlite")])
"""


def test_nothing_is_compiled_in_a_run() -> None:
    """Nor loaded that could: a process keeps no compiler in memory, and no run waits for one."""
    run = subprocess.run([sys.executable, "-c", AT_ONCE], capture_output=True, text=True, timeout=600)
    assert run.stdout.strip() == "[]", run.stdout + run.stderr


def _masks(rng: np.random.Generator, count: int) -> np.ndarray:
    """A flat area whose edge is elsewhere in each frame, but nearly the same in all rows: best told from the row above."""
    edges = rng.integers(8, 56, (count, 1, 1)) + rng.integers(-2, 3, (count, 24, 1))
    return np.where(np.arange(64) < edges, np.uint8(1), np.uint8(200))


def test_frames_of_a_stack_in_any_order() -> None:
    """Frames are decoded where they go to, and more is written than a frame: that must not be where another one is already."""
    rng = np.random.default_rng(0)
    rows, depth = 120, 4
    frames = _masks(rng, rows + depth + 1)
    column = make_column((depth, 24, 64), method="delta", rows=rows)
    orders = [rng.permutation(depth) if row % 3 == 2 else np.arange(depth) for row in range(rows + 1)]
    obs = [frames[row : row + depth][order] for row, order in enumerate(orders)]
    for row in range(40, rows, 6):  # zeros in the midst of a stack
        obs[row] = obs[row].copy()
        obs[row][rng.integers(depth)] = 0
    split_by(column, FrameLayout(obs[0].shape, 1, 0, 1))
    for row in range(rows):
        column.write(row, obs[row][None], 0, obs[row + 1][None])
    out, following = np.empty((2, rows, *obs[0].shape), np.uint8)
    column.read(np.arange(rows), np.zeros(rows, np.int64), out, 0, following)
    np.testing.assert_array_equal(out, obs[:-1])
    np.testing.assert_array_equal(following, obs[1:])


@pytest.mark.parametrize("method", ["zstd-3", "delta-zstd", "delta"])
def test_codecs_run_in_the_thread_that_reads(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads that need the GIL for every frame would wait for each other most of the time."""
    pytest.importorskip("zstandard")
    threads: set[int] = set()
    watch_codecs(monkeypatch, lambda _: threads.add(threading.get_ident()))
    rows = 300
    column = make_column((64, 64), method=method, rows=rows, views=1)
    # Neither like the frame before nor like the row above: only a codec makes it smaller.
    obs = np.tile(np.random.default_rng(0).integers(0, 256, (rows, 1, 4, 64), dtype=np.uint8), (1, 1, 16, 1))
    for row in range(rows):
        column.write(row, obs[row])
    threads.clear()
    out = np.empty((4 * rows, 64, 64), np.uint8)
    column.read(np.tile(np.arange(rows), 4), np.zeros(4 * rows, np.int64), out)
    np.testing.assert_array_equal(out, np.tile(obs[:, 0], (4, 1, 1)))
    assert threads == {threading.get_ident()}
