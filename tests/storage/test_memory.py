"""What a column costs: flat memory in a ring, a small index, no Python object a frame."""

from __future__ import annotations

import gc
import platform
import sys

import numpy as np
import pytest
from frames_kit import QUICK_METHODS, Ring, frames_of_array, held_bytes, run_program
from observation_streams import METHODS, Stack, Stream, assert_same_bits

from sb3_extra_buffers.storage import CompressedArray
from sb3_extra_buffers.storage.usage import MemoryUsage


@pytest.mark.parametrize("apart", [False, True], ids=["views together", "views apart"])
@pytest.mark.parametrize("content", ["game", "mixed", "noise"])
@pytest.mark.parametrize("method", QUICK_METHODS)
def test_a_ring_runs_at_flat_memory(method: str, content: str, apart: bool) -> None:
    """
    Chunks go when their last row is written over: after the second lap there is at most one more, and some noise.

    Other people's buffers write ``observations[pos]`` and then ``next_observations[pos]``: that must cost no more later on.
    """
    ring = Ring(Stream(0, 2, (1, 32, 32), np.uint8, content, Stack(4, 0)), method, rows=150)
    laps = []
    for _ in range(6):
        most = 0
        for _ in range(ring.rows):
            pair = ring.stream.step()[:2]
            if apart:
                for view, part in enumerate(pair):
                    ring.frames.write(ring.row, part, view)
            else:
                ring.write(pair)
            ring.went_on(pair)
            most = max(most, held_bytes(ring.frames))
        laps.append(most)
    ring.check()
    assert ring.frames.layout.depth == 4, "the stack was given up, though it is one"
    assert max(laps[2:]) <= 1.1 * laps[1]


NEVER_FILLED = """
import resource
import numpy as np
from sb3_extra_buffers.storage import CompressedArray

def peak():
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

CompressedArray((16, 1), np.uint8, (8, 8, 1))
before = peak()
array = CompressedArray((1 << 31, 1), np.uint8, (8, 8, 1))
array[0] = 1
del array
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts in kilobytes")
def test_a_huge_ring_that_was_hardly_filled_is_freed_in_little_memory() -> None:
    """Its table of chunks takes a gigabyte, of which hardly a page was ever touched, and none is touched at its end."""
    assert int(run_program(NEVER_FILLED)) < 100 << 20


HELD_ONCE = """
import ctypes
import gc
from pathlib import Path
import numpy as np
from frames_kit import held_bytes, make_column

def resident():
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))

frames = np.zeros((60, 3, 84, 84), np.uint8)
frames[np.arange(60), :, np.arange(60), np.arange(60) + 7] = 200

def fill():
    column = make_column((4, 84, 84), method="delta", rows=640, n_envs=3)
    for row in range(50):
        obs, following = (np.ascontiguousarray(frames[at : at + 4].swapaxes(0, 1)) for at in (row, row + 1))
        if row == 40:
            following = following[:, ::-1].copy()  # does not follow, so each of its frames is looked for
        column.write(row, obs, other=following)
    assert column.layout.depth == 4
    return column

kept = [fill(), fill()]
ctypes.CDLL(None).malloc_trim(0)  # so that all that is taken from now on is seen, and not taken from what was freed before
before = resident()
kept += [fill() for _ in range(20)]
gc.collect()
print((resident() - before - sum(map(held_bytes, kept[2:]))) // 20)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other systems do not tell")
def test_what_a_column_takes_beside_its_chunks() -> None:
    """The last observation of each of three environments, its last frame, what is used of records, and some scratch."""
    observation = 4 * 84 * 84
    assert 3 * observation < int(run_program(HELD_ONCE)) < 9 * observation


@pytest.mark.parametrize("method", QUICK_METHODS)
def test_one_cell_overwritten_many_times(method: str) -> None:
    array = CompressedArray((8, 1), np.uint8, (64, 64), compression_method=method)
    rng = np.random.default_rng(0)
    kept = rng.integers(0, 256, (64, 64), dtype=np.uint8)
    array[5, 0] = frame = kept
    held = []
    for number in range(1500):
        frame = rng.integers(0, 256, (64, 64), dtype=np.uint8) if number % 3 == 0 else frame ^ np.uint8(1)
        array[2, 0] = frame
        held.append(held_bytes(frames_of_array(array)))
    assert_same_bits(array[5, 0], kept)
    assert_same_bits(array[2, 0], frame)
    assert max(held[700:]) <= 1.1 * max(held[:700])


@pytest.mark.parametrize("method", QUICK_METHODS)
def test_random_order_of_writing(method: str) -> None:
    array = CompressedArray((600, 3), np.uint8, (16, 16), compression_method=method)
    twin = np.zeros(array.shape, np.uint8)
    rng = np.random.default_rng(0)
    rows = rng.choice(600, 20, replace=False)
    held = []
    for _ in range(1000):
        cell = (rng.choice(rows), rng.integers(3))
        array[cell] = twin[cell] = rng.integers(0, 256, (16, 16), dtype=np.uint8)
        held.append(held_bytes(frames_of_array(array)))
    assert_same_bits(np.asarray(array), twin)
    assert max(held[700:]) <= 1.2 * max(held[:700])


@pytest.mark.parametrize("method", METHODS)
def test_index_of_a_transition(method: str | None) -> None:
    """For obs and next_obs together, also in a ring that has gone round."""
    rows, n_envs = 2048, 2
    stream = Stream(0, n_envs, (1, 10, 10), np.uint8, "game", Stack(4, 0), done_rate=0.01)
    ring = Ring(stream, method, rows, chunk_rows=512)
    for _ in range(2):
        for _ in range(rows):
            pair = stream.step()[:2]
            ring.write(pair)
            ring.went_on(pair)
        usage = MemoryUsage.of_frames(ring.frames, stream.dtype)
        assert usage.index_bytes / (rows * n_envs) <= (3 if str(method or "delta").startswith("delta") else 8)
        assert usage.raw_bytes == 2 * rows * n_envs * 400


@pytest.mark.parametrize("method", [None, "gzip1"])
def test_no_object_a_frame(method: str | None) -> None:
    ring = Ring(Stream(0, 2, (1, 16, 16), np.uint8, "mixed", Stack(4, 0), done_rate=0.02), method, rows=2000, chunk_rows=512)
    ring.add(300)
    gc.collect()
    objects, blocks = len(gc.get_objects()), sys.getallocatedblocks()
    ring.add(1500)
    gc.collect()
    assert len(gc.get_objects()) - objects < 300
    assert sys.getallocatedblocks() - blocks < 1500


def test_frames_are_shared() -> None:
    """Of obs and next_obs of a stack of four, one frame in eight is stored, and a stack at the beginning of each chunk."""
    ring = Ring(Stream(0, 2, (1, 12, 12), np.uint8, "game", Stack(4, 0), done_rate=0.0), None, rows=400, chunk_rows=400)
    ring.add(400)
    usage = MemoryUsage.of_frames(ring.frames, ring.stream.dtype)
    assert usage.frames_stored + usage.frames_shared == 2 * 2 * 400 * 4
    assert usage.frames_stored <= 2 * (400 + 8)


@pytest.mark.parametrize("method", QUICK_METHODS)
def test_clearing_gives_memory_back(method: str) -> None:
    """A rollout buffer is cleared again and again."""
    array = CompressedArray((100, 2, 4, 32, 32), np.uint8, (4, 32, 32), compression_method=method)
    stream = Stream(0, 2, (1, 32, 32), np.uint8, "noise", Stack(4, 0))
    held: list[int] = []
    for _ in range(6):
        array.clear()
        twin = np.zeros(array.shape, np.uint8)
        for row in range(100):
            array[row] = twin[row] = stream.step()[0]
        assert_same_bits(np.asarray(array), twin)
        held.append(held_bytes(frames_of_array(array)))
    assert max(held[2:]) <= 1.1 * held[1], held


def test_memory_that_is_not_touched_is_not_taken() -> None:
    array = CompressedArray((10**7, 4), np.uint8, (4, 84, 84))
    assert array.nbytes == 10**7 * 4 * 28224
    assert held_bytes(frames_of_array(array)) < 1 << 20
