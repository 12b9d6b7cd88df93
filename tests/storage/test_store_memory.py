"""What the store costs: bounded memory whatever the order of writing, a small index, no Python object a frame."""

from __future__ import annotations

import gc
import re
from typing import Any

import numpy as np
import pytest
from observation_streams import METHODS, Stack, Stream, assert_same_bits
from store_kit import Ring, held_bytes, image_of, limits, make_store

from sb3_extra_buffers.storage import CompressedArray
from sb3_extra_buffers.storage._core import refuse_allocation
from sb3_extra_buffers.storage.usage import MemoryUsage

QUICK_METHODS = [method for method in METHODS if method in ("delta", "delta-zstd", "zstd-3", "none")]


@pytest.mark.parametrize("content", ["game", "mixed", "noise"])
@pytest.mark.parametrize("method", QUICK_METHODS)
def test_a_ring_runs_at_flat_memory(method: str, content: str) -> None:
    """Segments are recycled: after the second round the log never grows again."""
    ring = Ring(Stream(0, 2, (1, 32, 32), np.uint8, content, Stack(4, 0)), method, rows=150)
    ring.add(2 * ring.rows)
    held = ring.held_bytes
    for _ in range(5):
        ring.add(ring.rows)
        assert ring.held_bytes <= held + ring.store.core.segment_bytes
    ring.check()


def test_a_ring_with_a_dark_first_environment() -> None:
    """All-zero observations take no frames; those of the other environments must still be recycled."""
    busy = Stream(0, 1, (1, 32, 32), np.uint8, "noise", Stack(4, 0))
    array = CompressedArray((60, 2, 4, 32, 32), np.uint8, (4, 32, 32))
    held = 0
    for step in range(1200):
        row = np.zeros(array.shape[1:], np.uint8)
        row[1] = busy.step()[0][0]
        array[step % 60] = row
        if step == 200:
            held = held_bytes(array._store)
    assert held_bytes(array._store) <= held + 2 * array._store.core.segment_bytes


@pytest.mark.parametrize("method", QUICK_METHODS)
def test_one_cell_overwritten_many_times(method: str) -> None:
    array = CompressedArray((8, 1), np.uint8, (64, 64), compression_method=method)
    rng = np.random.default_rng(0)
    kept = rng.integers(0, 256, (64, 64), dtype=np.uint8)
    array[5, 0] = kept
    frame = kept
    for number in range(3000):
        frame = rng.integers(0, 256, (64, 64), dtype=np.uint8) if number % 3 == 0 else frame ^ np.uint8(1)
        array[2, 0] = frame
    assert_same_bits(array[5, 0], kept)
    assert_same_bits(array[2, 0], frame)
    # A thousand frames may wait before anybody looks whether they are still in use.
    assert held_bytes(array._store) < 2.5 * 1024 * (64 * 64 + 100)


@pytest.mark.parametrize("method", QUICK_METHODS)
def test_one_old_cell_does_not_keep_everything(method: str) -> None:
    """Cell 0 is written once, the others round and round: what lies behind cell 0 must go all the same."""
    array = CompressedArray((50, 1), np.uint8, (32, 32), compression_method=method)
    rng = np.random.default_rng(0)
    twin = np.zeros(array.shape, np.uint8)
    held = []
    array[0] = twin[0] = rng.integers(0, 256, (1, 32, 32), dtype=np.uint8)
    for number in range(7000):
        row = 1 + number % 49
        array[row] = twin[row] = rng.integers(0, 256, (1, 32, 32), dtype=np.uint8)
        held.append(held_bytes(array._store))
    assert_same_bits(np.asarray(array), twin)
    assert max(held[4000:]) <= max(held[:4000])
    assert max(held) < 2.5 * 1024 * (32 * 32 + 100) + 2 * array._store.core.segment_bytes


@pytest.mark.parametrize("method", QUICK_METHODS)
def test_a_lonely_cell_is_kept(method: str) -> None:
    """
    One cell far from all others, written whenever old frames may just be being looked for.

    What is found out about parts of the index must hold for a cell that is written in that very moment, too.
    """
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (64, 1, 64, 64), dtype=np.uint8)
    for before in range(8, 72):
        array = CompressedArray((512, 1), np.uint8, (64, 64), compression_method=method)
        for number in range(before):
            array[number % 8] = noise[number % 63]
        array[300] = noise[63]
        for number in range(150):
            array[number % 8] = noise[number % 63]
        assert_same_bits(array[300], noise[63], f"written after {before} others")


@pytest.mark.parametrize("method", QUICK_METHODS)
def test_an_idle_environment_keeps_what_it_has_begun(method: str) -> None:
    """One environment stands still in the middle of a group of frames, while others fill segment after segment."""
    rng = np.random.default_rng(0)
    array = CompressedArray((300, 2), np.uint8, (48, 48), compression_method=method)
    noise = rng.integers(0, 256, (40, 48, 48), dtype=np.uint8)
    still = noise[0].copy()
    for number in range(5):
        still[number] ^= 255
        array[0, 1] = still
    for number in range(1500):
        array[number % 4, 0] = noise[number % 40]
        if number % 100 == 0:
            assert_same_bits(array[0, 1], still)
    still[9] ^= 255
    array[1, 1] = still  # goes on as if it had never stood still
    assert_same_bits(array[1, 1], still)


@pytest.mark.parametrize("method", QUICK_METHODS)
def test_random_order_of_writing(method: str) -> None:
    array = CompressedArray((3000, 3), np.uint8, (32, 32), compression_method=method)
    twin = np.zeros(array.shape, np.uint8)
    rng = np.random.default_rng(0)
    held = []
    rows = rng.choice(3000, 40, replace=False)  # here and there, so that cells have no neighbours
    for number in range(6000):
        cell = (rng.choice(rows), rng.integers(3))
        frame = rng.integers(0, 256, (32, 32), dtype=np.uint8)
        array[cell] = twin[cell] = frame
        held.append(held_bytes(array._store))
        if number % 500 == 0:
            assert_same_bits(array[rows], twin[rows])
    assert_same_bits(array[rows], twin[rows])
    assert max(held[3500:]) <= max(held[:3500]) + 2 * array._store.core.segment_bytes


@pytest.mark.parametrize("method", METHODS)
def test_index_of_a_transition(method: str | None) -> None:
    """At most 24 bytes for obs and next_obs together, also in a ring that has gone round."""
    rows, n_envs = 800, 2
    stream = Stream(0, n_envs, (1, 10, 10), np.uint8, "game", Stack(4, 0), done_rate=0.01)
    ring = Ring(stream, method, rows)
    for _ in range(2):
        ring.add(rows)
        usage = MemoryUsage.of_store(ring.store, stream.dtype)
        assert usage.index_bytes / (rows * n_envs) <= 24
        assert usage.raw_bytes == 2 * rows * n_envs * 400
    ring.check()


@pytest.mark.parametrize("method", METHODS)
def test_index_of_unrelated_frames(method: str | None) -> None:
    """Where every frame is a record of its own, the index costs most."""
    rows = 1500
    ring = Ring(Stream(0, 1, (1, 8, 8), np.uint8, "noise", Stack(4, 0), done_rate=0.01), method, rows)
    ring.add(rows)
    assert MemoryUsage.of_store(ring.store, ring.stream.dtype).index_bytes / rows <= 24


@pytest.mark.parametrize("method", [None, "gzip1"])
def test_no_object_a_frame(method: str | None) -> None:
    ring = Ring(Stream(0, 2, (1, 16, 16), np.uint8, "mixed", Stack(4, 0), done_rate=0.02), method, rows=2000)
    ring.add(300)
    gc.collect()
    before = len(gc.get_objects())
    blocks = _allocated_blocks()
    ring.add(1500)
    gc.collect()
    # A few new segments and patterns are fine; 3000 new observations are not.
    assert len(gc.get_objects()) - before < 300
    assert _allocated_blocks() - blocks < 1500


def _allocated_blocks() -> int:
    import sys

    return sys.getallocatedblocks()


@pytest.mark.parametrize("method", ["none", "delta"])
def test_growth_copies_no_frames(method: str) -> None:
    """A segment stays where it is: nothing that an ``add`` asks for has room for what is stored."""
    ring = Ring(Stream(0, 2, (1, 40, 40), np.uint8, "noise", Stack(4, 0)), method, rows=600)
    ring.add(60)
    asked: list[int] = []
    for _ in range(500):
        refused = 0
        while True:  # each allocation in turn, until the add gets all that it asks for
            pair = ring.stream.step()[:2]
            refuse_allocation(refused)
            try:
                ring.write(pair)
            except MemoryError as error:
                asked.append(int(re.findall(r"([0-9,]+) bytes", str(error))[0].replace(",", "")))
                refused += 1
                continue
            if refuse_allocation(-1) == -1:  # refused, but the add could do without
                refused += 1
                ring.went_on(pair)
                continue
            ring.went_on(pair)
            break
    assert len(asked) > 5
    assert ring.held_bytes > 8 * ring.store.core.segment_bytes
    # A segment, and beside its bytes a number for each environment.
    assert max(asked) <= ring.store.core.segment_bytes + 64
    ring.check()


def test_frames_are_shared() -> None:
    """Of obs and next_obs of a stack of four, one frame in eight is stored."""
    ring = Ring(Stream(0, 2, (1, 12, 12), np.uint8, "game", Stack(4, 0), done_rate=0.0), None, rows=400)
    ring.add(400)
    usage = MemoryUsage.of_store(ring.store, ring.stream.dtype)
    assert usage.frames_stored + usage.frames_shared == 2 * 2 * 400 * 4
    assert usage.frames_stored <= 2 * (400 + 8)


@pytest.mark.parametrize("padding", ["zeros", "repeat"])
def test_episodes_cost_their_own_frames_only(padding: str) -> None:
    """At an episode's end there is one frame more (the terminal one), at its beginning one; padding costs nothing."""
    stream = Stream(0, 1, (1, 12, 12), np.uint8, "noise", Stack(4, 0, padding), done_rate=0.2)
    ring = Ring(stream, None, rows=500)
    episodes = 1
    for _ in range(500):
        before = stream.obs
        ring.add()
        after = stream.obs
        episodes += not np.array_equal(after[0, :3], before[0, 1:])
    assert ring.store.core.usage()[1] <= 500 + episodes + 16
    ring.check()


def test_memory_that_is_not_touched_is_not_taken() -> None:
    """Making a store costs no more for a thousand million cells than their index, and that only once it is written."""
    array = CompressedArray((10**7, 4), np.uint8, (4, 84, 84))
    assert array.nbytes == 10**7 * 4 * 28224
    assert held_bytes(array._store) == 0
    assert array.compressed_nbytes < 100_000


@pytest.mark.parametrize("method", QUICK_METHODS)
def test_reset_reuses_memory(method: str) -> None:
    """A rollout buffer is cleared again and again."""
    array = CompressedArray((100, 2, 4, 32, 32), np.uint8, (4, 32, 32), compression_method=method)
    stream = Stream(0, 2, (1, 32, 32), np.uint8, "noise", Stack(4, 0))
    held: list[Any] = []
    for _ in range(6):
        array.clear()
        twin = np.zeros(array.shape, np.uint8)
        for row in range(100):
            array[row] = twin[row] = stream.step()[0]
        assert_same_bits(np.asarray(array), twin)
        held.append(held_bytes(array._store))
    assert len(set(held[1:])) == 1, held


def test_a_large_ring_holds_little_more_than_its_frames() -> None:
    frames = np.random.default_rng(0).integers(0, 256, (64, 1, 100, 100), dtype=np.uint8)
    array = CompressedArray((6000, 1), np.uint8, (100, 100), compression_method="none")
    for number in range(12000):
        array[number % 6000] = frames[number % 64] ^ np.uint8(number // 64 % 2)
    assert array._store.core.segments > 400, "a log of many segments"
    assert held_bytes(array._store) < 1.03 * 6000 * (100 * 100 + 64)


def test_looking_for_what_can_be_recycled_costs_the_same_in_a_large_log() -> None:
    """Not each new segment may mean a look at all of them, or a buffer that is ten times as large has slower adds."""
    rows = 60_000
    with limits(min_segment=1 << 9):
        stream = Stream(0, 1, (64,), np.uint8, "noise")
        store, (index, _) = make_store(stream, "none", rows)
        noise = np.random.default_rng(0).integers(0, 256, (1024, 1, 64), dtype=np.uint8)
        for number in range(rows):
            store.write_row(number, index, noise[number % 1024])
        full = store.core.segments
        for number in range(rows):
            store.write_row(number, index, noise[number % 1023])
        _, looks, looked_at = store.core.work
    assert full > 3000, "a log of many segments"
    assert looks > 50 and looked_at < 1100 * full < full * full / 2


def test_the_directory_does_not_ask_again_and_again() -> None:
    """Where the directory is full, and each group that goes makes room for one that comes, it gets some slack."""
    ring = Ring(Stream(0, 4, (1, 32, 32), np.uint8, "game"), "delta", rows=3000)
    ring.add(2 * ring.rows)
    core = ring.store.core
    before = core.work[1]
    ring.add(ring.rows)
    ring.check()
    assert core.work[1] - before < 2 * core.segments + 16


@pytest.mark.parametrize("method", QUICK_METHODS)
@pytest.mark.parametrize(("rows", "n_envs"), [(400, 1), (1000, 1), (400, 4)])
def test_a_small_ring_is_not_compacted(rows: int, n_envs: int, method: str) -> None:
    """A few segments hold several rounds of it, and storing it again would make them no fewer."""
    ring = Ring(Stream(0, n_envs, (1, 16, 16), np.uint8, "game", Stack(4, 0), done_rate=0.01), method, rows)
    ring.add(rows)
    rebuilt = ring.store.core.work[0]
    for _ in range(4):
        ring.add(rows)
    assert ring.store.core.work[0] == rebuilt
    ring.check()
    assert ring.held_bytes < 2 * rows * n_envs * (16 * 16 + 64) + 3 * ring.store.core.segment_bytes


@pytest.mark.parametrize("method", QUICK_METHODS)
@pytest.mark.parametrize("depth", [1, 4])
def test_frames_in_use_are_counted(method: str, depth: int) -> None:
    """
    By a mark for each number; the long way is to list all cells.

    Each time that they are counted, twice as many may be stored before they are counted again.
    """
    stream = Stream(5, 3, (1, 8, 8), np.uint8, "mixed", Stack(depth, 0) if depth > 1 else None, done_rate=0.1)
    rng = np.random.default_rng(0)
    counted = 0
    with limits(min_segment=1 << 9, first_check=1, first_room=2):
        ring = Ring(stream, method, rows=90)
        ring.add(100)
        for _ in range(500 * depth):
            before, (rebuilds, reclaims, _) = image_of(ring.store), ring.store.core.work
            pair = stream.step()[:2]
            ring.row = int(rng.integers(0, 90) if rng.random() < 0.1 else rng.integers(0, 20))  # leaves old ones behind
            ring.write(pair)
            ring.went_on(pair)
            after, work = image_of(ring.store), ring.store.core.work
            changed = after.head["frames_before_check"] != before.head["frames_before_check"]
            if work[0] != rebuilds or work[1] == reclaims or not changed:
                continue
            live = set()
            for which, index in enumerate(before.indexes):
                for cell in range(index["cells"]):
                    numbers = before.frame_numbers(which, cell)
                    if max(numbers) >= 0:  # not only zeros
                        live.add((cell % 3, max(numbers)))
            assert after.head["frames_before_check"] == 2 * len(live)
            counted += 1
        ring.check()
    assert counted > 2
