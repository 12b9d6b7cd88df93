"""Numbers that grow: frames past 2**32, patterns past 2**16, groups past the directory's size."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from observation_streams import CONTENTS, METHODS, Stack, Stream, needs_numba
from store_kit import Ring, make_store, never_give_up_stacks

from sb3_extra_buffers.storage import CompressedArray, FrameStore, StorageError
from sb3_extra_buffers.storage import directory as directory_module
from sb3_extra_buffers.storage.directory import GroupDirectory
from sb3_extra_buffers.storage.layout import FrameLayout

REFERENCE = [method for method in METHODS if str(method).startswith("delta")]


def begin_at(ring: Ring, number: int) -> None:
    """Let the frames of an empty store be numbered from somewhere else."""
    coder = ring.store.coder
    assert coder.stored_frames == 0
    group = number >> coder.shift
    coder.heads[:] = (group << coder.shift) - 1
    coder.directory.oldest[:] = group
    if hasattr(coder, "groups"):
        coder.groups[:] = group - 1


@pytest.mark.parametrize("content", ["game", "mixed"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("before", [10, 100, 600])
def test_frame_numbers_cross_32_bits(method: str | None, content: str, before: int) -> None:
    """The index holds the low 32 bits of frame numbers only."""
    stream = Stream(1, 2, (1, 8, 8), np.uint8, content, Stack(4, 0))
    ring = Ring(stream, method, rows=40)
    # The layout must be known from the start, since a store that is built anew counts from zero.
    ring.store._begin(FrameLayout(stream.obs_shape, 1, 0, 1))
    begin_at(ring, 2**32 - before)
    for _ in range(5):
        ring.add(25)
        ring.check()
    if before == 10:
        assert (ring.store.coder.heads > 2**32).all()
    again = pickle.loads(pickle.dumps((ring.store, ring.indexes)))
    ring.store, ring.indexes = again
    ring.add(60)
    ring.check()


@pytest.mark.parametrize("method", REFERENCE or [None])
def test_numbers_run_past_32_bits_many_times(method: str | None) -> None:
    """Also far beyond: a buffer that runs for years."""
    stream = Stream(2, 1, (1, 8, 8), np.uint8, "noise", Stack(3, 0))
    for start in (2**33 - 40, 2**40 - 16, 2**62 - 2**20):
        ring = Ring(stream, method, rows=20)
        ring.store._begin(FrameLayout(stream.obs_shape, 1, 0, 1))
        begin_at(ring, start)
        ring.add(90)
        ring.check()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("limit", [4, 8, 12, 40])
def test_more_patterns_than_the_index_can_number(method: str | None, limit: int) -> None:
    """Where the table of patterns is full, unused ones are dropped; where all are used, the index gets wider."""
    stream = Stream(3, 2, (1, 6, 8), np.uint8, "mixed", Stack(5, 0, "zeros"), done_rate=0.3)
    ring = Ring(stream, method, rows=60)
    rebuilt = 0
    for _ in range(8):
        if ring.store.pattern_limit == 1 << 16:
            ring.store.pattern_limit = limit
            rebuilt += 1
        ring.add(25)
        ring.check()
    assert rebuilt, "the limit was never in force"
    twin = pickle.loads(pickle.dumps((ring.store, ring.indexes)))
    ring.store, ring.indexes = twin
    ring.check()


@pytest.mark.parametrize("method", ["none", *REFERENCE])
def test_every_pattern_in_use(method: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same with patterns of which none can be dropped, not by a store that is built anew either."""
    never_give_up_stacks(monkeypatch)
    begin = FrameStore._begin

    def begin_small(self: FrameStore, layout: FrameLayout) -> None:
        begin(self, layout)
        self.pattern_limit = 40

    monkeypatch.setattr(FrameStore, "_begin", begin_small)
    array, numbers, frames = shuffled_stacks(method, 300)
    np.testing.assert_array_equal(array[:, 0], frames[numbers])
    for row in range(300):  # once more round the ring, now with few patterns
        array[row] = frames[numbers[row]][None] if row % 7 else 0
    np.testing.assert_array_equal(array[1:7, 0], frames[numbers[1:7]])
    assert not array[::7].any()


def shuffled_stacks(method: str | None, count: int) -> tuple[CompressedArray, np.ndarray, np.ndarray]:
    """Observations each of which takes frames of the one before, in an order of its own."""
    rng = np.random.default_rng(0)
    depth = 8
    array = CompressedArray((count, 1), np.uint8, (depth, 32), compression_method=method)
    array._store._begin(FrameLayout((depth, 32), 1, 0, 1))
    frames = rng.integers(0, 256, (depth + count, 32), dtype=np.uint8)
    chosen = np.zeros((count, depth), np.int64)
    numbers = np.arange(depth)
    fresh = depth
    for row in range(count):
        numbers = rng.permutation(numbers)
        if row % 2:
            numbers[rng.integers(depth)] = fresh
            fresh += 1
        chosen[row] = numbers
        array[row] = frames[numbers][None]
    return array, chosen, frames


@pytest.mark.parametrize("method", ["none", *REFERENCE])
def test_no_write_makes_more_patterns_than_there_are_numbers(method: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even one of two observations of every stream, each with frames in an order of its own."""
    never_give_up_stacks(monkeypatch)
    rng = np.random.default_rng(0)
    limit, depth = 64, 8
    first = CompressedArray((500, 3), np.uint8, (depth, 32), compression_method=method)
    second = CompressedArray((500, 3), np.uint8, (depth, 32), share_with=first)
    store = first._store
    store._begin(FrameLayout((depth, 32), 1, 0, 1))
    store.next_probe, store.pattern_limit = 0, limit
    frames = rng.integers(1, 256, (3, depth, 32), dtype=np.uint8)
    most = 0
    for row in range(40):
        pair = [np.stack([rng.permutation(frames[stream]) for stream in range(3)]) for _ in range(2)]
        first.write_row(row, pair[0], second, pair[1])
        if store.pattern_limit != limit:
            break  # the index has become wider
        most = max(most, len(store.coder.patterns))
        np.testing.assert_array_equal([first[row], second[row]], pair)
    assert limit - 12 < most <= limit


@pytest.mark.slow
@pytest.mark.parametrize("method", ["none", *REFERENCE])
def test_really_more_than_65536_patterns(method: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seventy thousand different patterns at once."""
    never_give_up_stacks(monkeypatch)
    array, numbers, frames = shuffled_stacks(method, 70_000)
    assert len(array._store.coder.patterns) > 1 << 16
    assert array._store.indexes[0].pattern.dtype == np.uint32
    rows = np.r_[0:300, np.random.default_rng(0).integers(0, 70_000, 500), 69_700:70_000]
    np.testing.assert_array_equal(array[rows][:, 0], frames[numbers[rows]])


@given(data=st.data())
def test_directory(data: Any) -> None:
    """Locations of all groups from the oldest on are kept, however the ring of them grows and moves."""
    n = data.draw(st.integers(1, 3))
    directory = GroupDirectory(n)
    newest = [-1] * n
    expected: dict[tuple[int, int], int] = {}
    for _ in range(data.draw(st.integers(1, 12))):
        stream = data.draw(st.integers(0, n - 1))
        for _ in range(data.draw(st.integers(1, 150))):
            newest[stream] += 1
            location = hash((stream, newest[stream])) & (2**63 - 1)
            directory.put(stream, newest[stream], location)
            expected[stream, newest[stream]] = location
        other = data.draw(st.integers(0, n - 1))
        directory.oldest[other] = max(directory.oldest[other], newest[other] - data.draw(st.integers(0, 300)), 0)
        for (which, group), location in expected.items():
            if group >= directory.oldest[which]:
                assert directory.locations[which, group % directory.capacity] == location
    assert directory.capacity <= 64 + 1.5 * max(map(len, [[k for k in expected if k[0] == s] for s in range(n)])) + 64


NUMBERS_A_GROUP = {"delta": 8, "delta-zstd": 64}


@pytest.mark.parametrize("method", [method for method in METHODS if method in ("delta", "delta-zstd", "zstd-3", "none")])
def test_frame_numbers_run_out(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    More frames than the index can tell apart are refused; those that are there stay, and a ring of fewer never ends.

    Here the index can tell apart a hundred groups of frames instead of some hundred million.
    """
    monkeypatch.setattr(directory_module, "FRAME_NUMBERS", 100 * NUMBERS_A_GROUP.get(method, 1))
    noise = np.random.default_rng(0).integers(1, 256, (400, 2, 8, 8), dtype=np.uint8)
    noise[:, 0] = noise[0, 0]  # the first environment stands still
    array = CompressedArray((200, 2), np.uint8, (8, 8), compression_method=method)
    twin = np.zeros(array.shape, np.uint8)
    row = 0
    with pytest.raises(StorageError, match=r"environment 1 has no frame numbers left.*smaller buffer"):
        for row in range(200):
            array[row] = noise[row]
            twin[row] = noise[row]
    assert 90 <= row <= 100
    for other in (row, 0, 199):  # again, wherever
        with pytest.raises(StorageError, match="no frame numbers left"):
            array[other] = noise[300]
        np.testing.assert_array_equal(np.asarray(array), twin)
    array.clear()
    twin[:] = 0
    for step in range(400):
        array[step % 60] = twin[step % 60] = noise[step]
        if step % 50 == 49:
            np.testing.assert_array_equal(np.asarray(array), twin)


@needs_numba
@pytest.mark.parametrize("kind", [((1, 7, 9), 0), ((7, 9, 1), 2), ((3, 5, 6), 0), ((5, 6, 3), 2), ((40,), 0), ((5, 8), 1)])
@given(data=st.data())
def test_compiled_matching_is_the_same(kind: Any, data: Any) -> None:
    """Compiled code and NumPy find the same frames in observations that come in any memory order, by rows or cells."""
    shape, axis = kind
    depth = data.draw(st.sampled_from([1, 2, 4, 5]))
    content = data.draw(st.sampled_from(CONTENTS))
    dtype = data.draw(st.sampled_from([np.uint8, np.int16, np.float64]))
    seed = data.draw(st.integers(0, 2**16))
    stream = Stream(seed, 3, shape, dtype, content, Stack(depth, axis) if depth > 1 else None, done_rate=0.2)
    group = shape[axis] if depth > 1 else stream.obs_shape[axis]
    layout = FrameLayout(stream.obs_shape, stream.dtype.itemsize, axis, group)
    compiled, plain = (make_store(stream, method, rows=12) for method in ("delta", "none"))
    for store, _ in (compiled, plain):
        store._begin(layout)
        store.next_probe = 0
    twins = np.zeros((2, 12, 3, *stream.obs_shape), stream.dtype)
    rng = np.random.default_rng(seed)
    for row in range(12):
        turned = data.draw(st.booleans())
        pair = stream.step()[:2]
        given_obs = [np.moveaxis(np.moveaxis(obs, 1, -1).copy(), -1, 1) if turned else obs for obs in pair]
        cells = rng.permutation(3)[: data.draw(st.integers(1, 3))] if data.draw(st.booleans()) else None
        for store, indexes in (compiled, plain):
            if cells is None:
                store.write_row(row, list(zip(indexes, given_obs, strict=True)))
            else:
                for index, obs in zip(indexes, given_obs, strict=True):
                    store.write_cells(index, 3 * row + cells, obs[cells])
        streams = slice(None) if cells is None else cells
        for twin, obs in zip(twins, pair, strict=True):
            twin[row, streams] = obs[streams]
        states = [store.coder.state for store, _ in (compiled, plain)]
        assert states[0].turned == states[1].turned
        np.testing.assert_array_equal(states[0].known, states[1].known)
        np.testing.assert_array_equal(states[0].tail_is_newest, states[1].tail_is_newest)
        known = states[0].known
        np.testing.assert_array_equal(compiled[0].coder.last[known], plain[0].coder.last[known])
        # Frames are numbered otherwise, but the same ones are the same, and in the same order.
        slots = [[np.unique(of_stream, return_inverse=True)[1].tolist() for of_stream in state.slots] for state in states]
        assert slots[0] == slots[1]
    for store, indexes in (compiled, plain):
        for index, twin in zip(indexes, twins, strict=True):
            out = np.empty((36, *stream.obs_shape), stream.dtype)
            store.read(np.arange(36), [(index, out)])
            assert out.tobytes() == twin.tobytes()
