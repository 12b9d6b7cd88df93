"""Numbers that grow: frames past 2**32, patterns past 2**16, groups past the directory's size."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from observation_streams import CONTENTS, METHODS, Stack, Stream
from store_kit import (
    Ring,
    begin_at,
    head_of,
    image_of,
    limits,
    make_store,
    never_give_up_stack,
    read_index,
    store_by,
)

from sb3_extra_buffers.storage import CompressedArray, StorageError
from sb3_extra_buffers.storage.layout import FrameLayout

REFERENCE = [method for method in METHODS if str(method).startswith("delta")]


@pytest.mark.parametrize("content", ["game", "mixed"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("before", [10, 100, 600])
def test_frame_numbers_cross_32_bits(method: str | None, content: str, before: int) -> None:
    """The index holds the low 32 bits of frame numbers only."""
    stream = Stream(1, 2, (1, 8, 8), np.uint8, content, Stack(4, 0))
    ring = Ring(stream, method, rows=40)
    # The layout must be known from the start, since a store that is built anew counts from zero.
    store_by(ring.store, FrameLayout(stream.obs_shape, 1, 0, 1))
    begin_at(ring.store, 2**32 - before)
    for _ in range(5):
        ring.add(25)
        ring.check()
    if before == 10:
        assert all(stream["head"] > 2**32 for stream in image_of(ring.store).streams)
    ring.store = pickle.loads(pickle.dumps(ring.store))
    ring.add(60)
    ring.check()


@pytest.mark.parametrize("method", REFERENCE or [None])
def test_numbers_run_past_32_bits_many_times(method: str | None) -> None:
    """Also far beyond: a buffer that runs for years."""
    stream = Stream(2, 1, (1, 8, 8), np.uint8, "noise", Stack(3, 0))
    for start in (2**33 - 40, 2**40 - 16, 2**56 - 2**20):
        ring = Ring(stream, method, rows=20)
        store_by(ring.store, FrameLayout(stream.obs_shape, 1, 0, 1))
        begin_at(ring.store, start)
        ring.add(90)
        ring.check()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("limit", [4, 8, 12, 40])
def test_more_patterns_than_the_index_can_number(method: str | None, limit: int) -> None:
    """Where the table of patterns is full, unused ones are dropped; where all are used, the index gets wider."""
    stream = Stream(3, 2, (1, 6, 8), np.uint8, "mixed", Stack(5, 0, "zeros"), done_rate=0.3)
    with limits(narrow_patterns=limit):
        ring = Ring(stream, method, rows=60)
        store_by(ring.store, FrameLayout(stream.obs_shape, 1, 0, 1))
        never_give_up_stack(ring.store)
        for _ in range(8):
            ring.add(25)
            ring.check()
        assert ring.store.core.work[0] > 1, "the limit was never in force"
        ring.store = pickle.loads(pickle.dumps(ring.store))
        ring.check()
        ring.add(70)
        ring.check()


@pytest.mark.parametrize("method", ["none", *REFERENCE])
def test_every_pattern_in_use(method: str | None) -> None:
    """The same with patterns of which none can be dropped, not by a store that is built anew either."""
    with limits(narrow_patterns=40):
        array, numbers, frames = shuffled_stacks(method, 300)
        np.testing.assert_array_equal(array[:, 0], frames[numbers])
        assert image_of(array._store).indexes[0]["wide"]
        for row in range(300):  # once more round the ring, now with few patterns
            array[row] = frames[numbers[row]][None] if row % 7 else 0
        np.testing.assert_array_equal(array[1:7, 0], frames[numbers[1:7]])
        assert not array[::7].any()


def shuffled_stacks(method: str | None, count: int) -> tuple[CompressedArray, np.ndarray, np.ndarray]:
    """Observations each of which takes frames of the one before, in an order of its own."""
    rng = np.random.default_rng(0)
    depth = 8
    array = CompressedArray((count, 1), np.uint8, (depth, 32), compression_method=method)
    store_by(array._store, FrameLayout((depth, 32), 1, 0, 1))
    never_give_up_stack(array._store)
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
def test_no_write_makes_more_patterns_than_there_are_numbers(method: str | None) -> None:
    """Not even one of two observations of every stream, each with frames in an order of its own."""
    rng = np.random.default_rng(0)
    limit, depth = 64, 8
    with limits(narrow_patterns=limit):
        first = CompressedArray((500, 3), np.uint8, (depth, 32), compression_method=method)
        second = CompressedArray((500, 3), np.uint8, (depth, 32), share_with=first)
        store = first._store
        store_by(store, FrameLayout((depth, 32), 1, 0, 1))
        never_give_up_stack(store)
        frames = rng.integers(1, 256, (3, depth, 32), dtype=np.uint8)
        most = 0
        for row in range(40):
            pair = [np.stack([rng.permutation(frames[stream]) for stream in range(3)]) for _ in range(2)]
            first.write_row(row, pair[0], second, pair[1])
            np.testing.assert_array_equal([first[row], second[row]], pair)
            image = image_of(store)
            if image.indexes[0]["wide"]:
                break
            most = max(most, image.head["n_patterns"])
            assert image.head["n_patterns"] <= limit, "an index of 16 bits names more patterns than that"
        assert limit - 12 < most <= limit


@pytest.mark.slow
@pytest.mark.parametrize("method", ["none", *REFERENCE])
def test_really_more_than_65536_patterns(method: str | None) -> None:
    """Seventy thousand different patterns at once."""
    array, numbers, frames = shuffled_stacks(method, 70_000)
    assert head_of(array._store)["n_patterns"] > 1 << 16
    assert image_of(array._store).indexes[0]["wide"]
    rows = np.r_[0:300, np.random.default_rng(0).integers(0, 70_000, 500), 69_700:70_000]
    np.testing.assert_array_equal(array[rows][:, 0], frames[numbers[rows]])


@given(data=st.data())
def test_directory(data: Any) -> None:
    """All groups from the oldest on are found, however their ring grows and moves, and it is no larger than it must be."""
    n = data.draw(st.integers(1, 3))
    rows = 400
    with limits(min_segment=1 << 9, first_room=4, block_rows=3):
        stream = Stream(0, n, (40,), np.uint8, "noise")
        store, (index, _) = make_store(stream, "none", rows)
        rng = np.random.default_rng(data.draw(st.integers(0, 99)))
        twin = np.zeros((rows, n, 40), np.uint8)
        row, most = [0] * n, 1
        for _ in range(data.draw(st.integers(1, 12))):
            which = data.draw(st.integers(0, n - 1))
            reach = data.draw(st.integers(1, rows))  # a ring of so many rows from here on; what is older stays for a while
            for _ in range(data.draw(st.integers(1, 150))):
                row[which] = (row[which] + 1) % reach
                twin[row[which], which] = rng.integers(0, 256, 40)
                store.write_cells(index, np.array([row[which] * n + which]), twin[row[which], which][None])
                most = max(most, head_of(store)["n_groups"])
            assert read_index(store, index, rows).tobytes() == twin.tobytes()
        patterns = 8 * 2 * 4 + 32 * 4
        capacity = (store.core.usage()[3] - patterns - 6 * int(twin.any(2).sum())) / n / 8
        assert capacity <= 1.35 * most + 3 * 4


NUMBERS_A_GROUP = {"delta": 8, "delta-zstd": 64}


@pytest.mark.parametrize("method", [method for method in METHODS if method in ("delta", "delta-zstd", "zstd-3", "none")])
def test_frame_numbers_run_out(method: str) -> None:
    """
    More frames than the index can tell apart are refused; those that are there stay, and a ring of fewer never ends.

    Here the index can tell apart 128 groups of frames instead of some hundred million.
    """
    with limits(frame_numbers=128 * NUMBERS_A_GROUP.get(method, 1)):
        run_out_of_numbers(method)


def run_out_of_numbers(method: str) -> None:
    noise = np.random.default_rng(0).integers(1, 256, (400, 2, 8, 8), dtype=np.uint8)
    noise[:, 0] = noise[0, 0]  # the first environment stands still
    array = CompressedArray((200, 2), np.uint8, (8, 8), compression_method=method)
    twin = np.zeros(array.shape, np.uint8)
    row = 0
    with pytest.raises(StorageError, match=r"an environment has no frame numbers left.*smaller buffer"):
        for row in range(200):
            array[row] = noise[row]
            twin[row] = noise[row]
    assert 118 <= row <= 128
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


class Frames:
    """
    Which frames an observation is made of, the plain way: those of the last one are known, and zeros need none.

    :param layout: The layout
    """

    def __init__(self, layout: FrameLayout) -> None:
        self.layout = layout
        self.last: list[bytes] | None = None
        self.names: list[int] = []
        self.stored: list[bytes] = []

    def write(self, obs: np.ndarray) -> None:
        memory = np.ascontiguousarray(obs).reshape(1, -1).view(np.uint8)
        frames = [frame.tobytes() for frame in self.layout.split(memory)[0]]
        if frames == self.last:
            return
        moved = self.last is not None and frames[:-1] == self.last[1:]
        if len(frames) == 1:
            self.names = [self.store(frames[0])]
        elif moved:
            # The newest may be the last one again; else it is new, even if it is dark.
            again = self.names[-1] == len(self.stored) - 1 and bool(self.stored) and frames[-1] == self.stored[-1]
            self.names = [*self.names[1:], self.names[-1] if again else self.store(frames[-1])]
        else:
            known: dict[bytes, int] = {}
            for frame, name in zip(self.last or (), self.names, strict=True):
                if name >= 0:
                    known.setdefault(frame, name)
            names = []
            for frame in frames:
                if any(frame) and frame not in known:
                    known[frame] = self.store(frame)
                names.append(known[frame] if any(frame) else -1)
            self.names = names
        self.last = frames

    def store(self, frame: bytes) -> int:
        self.stored.append(frame)
        return len(self.stored) - 1


@pytest.mark.parametrize("kind", [((1, 7, 9), 0), ((7, 9, 1), 2), ((3, 5, 6), 0), ((5, 6, 3), 2), ((40,), 0), ((5, 8), 1)])
@given(data=st.data())
def test_the_same_frames_are_found(kind: Any, data: Any) -> None:
    """Every method finds the frames that a plain model finds, in observations of any memory order, by rows or cells."""
    shape, axis = kind
    depth = data.draw(st.sampled_from([1, 2, 4, 5]))
    content = data.draw(st.sampled_from(CONTENTS))
    dtype = data.draw(st.sampled_from([np.uint8, np.int16, np.float64]))
    seed = data.draw(st.integers(0, 2**16))
    stream = Stream(seed, 3, shape, dtype, content, Stack(depth, axis) if depth > 1 else None, done_rate=0.2)
    group = shape[axis] if depth > 1 else stream.obs_shape[axis]
    layout = FrameLayout(stream.obs_shape, stream.dtype.itemsize, axis, group)
    stores = [make_store(stream, method, rows=12) for method in ("delta", "none")]
    models = [Frames(layout) for _ in range(3)]
    for store, _ in stores:
        store_by(store, layout)
        never_give_up_stack(store)
    twins = np.zeros((2, 12, 3, *stream.obs_shape), stream.dtype)
    rng = np.random.default_rng(seed)
    for row in range(12):
        pair = stream.step()[:2]
        given_obs = [np.moveaxis(np.moveaxis(obs, 1, -1).copy(), -1, 1) if data.draw(st.booleans()) else obs for obs in pair]
        cells = rng.permutation(3)[: data.draw(st.integers(1, 3))] if data.draw(st.booleans()) else None
        for store, indexes in stores:
            if cells is None:
                store.write_row(row, indexes[0], given_obs[0], indexes[1], given_obs[1])
            else:
                for index, obs in zip(indexes, given_obs, strict=True):
                    store.write_cells(index, 3 * row + cells, obs[cells])
        streams = range(3) if cells is None else cells.tolist()
        for twin, obs in zip(twins, pair, strict=True):
            for which in streams:
                twin[row, which] = obs[which]
                models[which].write(obs[which])
        for store, _ in stores:
            image = image_of(store)
            for model, state in zip(models, image.streams, strict=True):
                if model.last is None:
                    continue
                # Frames are numbered otherwise, but the same ones are the same, and in the same order.
                numbers = state.lists["numbers"]
                order = [np.unique(names, return_inverse=True)[1].tolist() for names in (numbers, model.names)]
                assert order[0] == order[1]
                assert [n < 0 for n in numbers] == [n < 0 for n in model.names]
            assert store.core.usage()[1] == sum(len(model.stored) for model in models)
    for store, indexes in stores:
        for index, twin in zip(indexes, twins, strict=True):
            assert read_index(store, index, 12).tobytes() == twin.tobytes()
