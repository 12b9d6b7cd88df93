"""Compiled reading: what it touches, what arguments it takes, and that it is there at once."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest
from observation_streams import Stack, Stream
from store_kit import Ring, make_store, never_give_up_stack, store_by, watch_codecs

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
    store = array._store
    store.core.rebuild(FrameLayout((size, 1), 1, 0, size))
    store.next_look = 0
    frames = np.repeat(rng.integers(0, 2, (rows, 1), dtype=np.uint8), size, 1)
    frames[rng.random(frames.shape) < 0.1] += 1
    for row in range(rows):
        array[row] = frames[row].reshape(1, size, 1)
    for count in range(1, rows):
        out = memory[page - count * size : page].reshape(count, size, 1)
        assert store.read(np.arange(count), None, array._index, out)
        np.testing.assert_array_equal(out[:, :, 0], frames[:count])
print("untouched")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="protects pages as POSIX does")
def test_nothing_after_the_output_is_touched() -> None:
    """Small frames, decoded where they go to: the output ends where the next byte may not be touched."""
    run = subprocess.run([sys.executable, "-c", AT_THE_EDGE], capture_output=True, text=True, timeout=300)
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
        for mine in one.read_beside(other, *way) if len(way) == 2 and isinstance(way[0], np.ndarray) else ():
            np.testing.assert_array_equal(mine, twin[way])
        value = 255 - twin[way]
        one[way] = twin[way] = value
        np.testing.assert_array_equal(np.asarray(one), twin)
        other[:] = twin


@pytest.mark.parametrize(
    "wrong",
    [
        {"rows": [0, 1]},
        {"rows": None},
        {"rows": np.arange(2, dtype=np.int32)},
        {"rows": np.arange(4)[::2]},
        {"rows": np.arange(2)[:, None]},
        {"columns": np.arange(3)},
        {"columns": [0, 1]},
        {"columns": np.zeros(2)},
        {"index": 2},
        {"index": -1},
        {"out": np.zeros((2, 9, 7), np.uint8)},
        {"out": np.zeros((3, 9, 8), np.uint8)},
        {"out": np.zeros((9, 8, 2), np.uint8).transpose(2, 0, 1)},
        {"out": np.broadcast_to(np.uint8(0), (2, 9, 8))},
        {"out": None},
        {"other": 2},
        {"other": 1, "other_out": None},
    ],
    ids=str,
)
def test_wrong_arguments_are_refused(wrong: dict[str, Any]) -> None:
    """Before anything is read: what the core takes for granted has been looked at."""
    stream = Stream(0, 2, (9, 8), np.uint8, "game")
    store, (one, _) = make_store(stream, "delta", rows=4)
    store.write_row(0, one, stream.step()[0])
    usual: dict[str, Any] = {
        "rows": np.zeros(2, np.int64),
        "columns": np.arange(2),
        "index": one,
        "out": np.zeros((2, 9, 8), "u1"),
    }
    assert store.core.read(**usual)
    with pytest.raises((ValueError, TypeError, IndexError)):
        store.core.read(**{**usual, **wrong})
    assert store.core.read(**usual), "and it goes on"


@pytest.mark.parametrize(
    ("row", "index", "obs", "others"),
    [
        (0, 0, None, ()),
        (0, 0, [[0]], ()),
        (0, 0, np.zeros((2, 9, 7), np.uint8), ()),
        (0, 0, np.zeros((1, 9, 8), np.uint8), ()),
        (0, 0, np.zeros((2, 9, 8), np.uint16), ()),
        (0, 0, np.zeros((2, 72), np.uint8), ()),
        (4, 0, np.zeros((2, 9, 8), np.uint8), ()),
        (-1, 0, np.zeros((2, 9, 8), np.uint8), ()),
        (1 << 62, 0, np.zeros((2, 9, 8), np.uint8), ()),
        (0, 2, np.zeros((2, 9, 8), np.uint8), ()),
        (0, 0, np.zeros((2, 9, 8), np.uint8), (1, None)),
        (0, 0, np.zeros((2, 9, 8), np.uint8), (2, np.zeros((2, 9, 8), np.uint8))),
        (0, 0, np.zeros((2, 9, 8), np.uint8), (1, np.zeros((2, 9, 7), np.uint8))),
    ],
)
def test_wrong_writes_are_refused(row: int, index: int, obs: Any, others: tuple[Any, ...]) -> None:
    stream = Stream(0, 2, (9, 8), np.uint8, "game")
    ring = Ring(stream, "delta", rows=4)
    ring.add(6)
    with pytest.raises((ValueError, TypeError, IndexError)):
        ring.store.core.write(row, index, obs, *others)
    with pytest.raises(TypeError, match="None"):
        ring.store.core.write(0, 0, None)
    for cells in (np.array([0, 2]), np.array([8]), np.array([-1]), np.array([[0, 1]]), None):
        with pytest.raises((ValueError, TypeError, IndexError)):
            ring.store.core.write_cells(0, cells, np.ones((1 if cells is None else len(cells), 9, 8), np.uint8))
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
    run = subprocess.run([sys.executable, "-c", AT_ONCE], capture_output=True, text=True, timeout=300)
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
    store, (one, other) = make_store(Stream(0, 1, (1, 24, 64), np.uint8, "game", Stack(depth, 0)), "delta", rows)
    orders = [rng.permutation(depth) if row % 3 == 2 else np.arange(depth) for row in range(rows + 1)]
    obs = [frames[row : row + depth][order] for row, order in enumerate(orders)]
    for row in range(40, rows, 6):  # zeros in the midst of a stack
        obs[row] = obs[row].copy()
        obs[row][rng.integers(depth)] = 0
    store_by(store, FrameLayout(obs[0].shape, 1, 0, 1))
    never_give_up_stack(store)
    for row in range(rows):
        store.write_row(row, one, obs[row][None], other, obs[row + 1][None])
    out, following = np.empty((2, rows, *obs[0].shape), np.uint8)
    assert store.read(np.arange(rows), None, one, out, other, following)
    np.testing.assert_array_equal(out, obs[:-1])
    np.testing.assert_array_equal(following, obs[1:])


@pytest.mark.parametrize("method", ["zstd-3", "delta-zstd", "delta"])
def test_codecs_run_in_the_thread_that_reads(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads that need the GIL for every frame would wait for each other most of the time."""
    pytest.importorskip("zstandard")
    threads: set[int] = set()
    watch_codecs(monkeypatch, lambda _: threads.add(threading.get_ident()))
    rows = 300
    store, (index, _) = make_store(Stream(0, 1, (64, 64), np.uint8, "noise"), method, rows)
    # Neither like the frame before nor like the row above: only a codec makes it smaller.
    obs = np.tile(np.random.default_rng(0).integers(0, 256, (rows, 1, 4, 64), dtype=np.uint8), (1, 1, 16, 1))
    for row in range(rows):
        store.write_row(row, index, obs[row])
    threads.clear()
    out = np.empty((4 * rows, 64, 64), np.uint8)
    assert store.read(np.tile(np.arange(rows), 4), None, index, out)
    np.testing.assert_array_equal(out, np.tile(obs[:, 0], (4, 1, 1)))
    assert threads == {threading.get_ident()}
