"""
A write is whole or not there, whatever Python does in the middle of it.

Codecs are the only Python that runs there, so a codec stands for whatever may come: Ctrl-C, the end of memory, a signal
handler that saves the buffer, or one that tries to change it.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import numpy as np
import pytest
from observation_streams import METHODS, Stack, Stream
from store_kit import Ring, head_of, limits, read_index, watch_codecs

from sb3_extra_buffers.codecs import CodecError
from sb3_extra_buffers.storage import FrameStore, StorageError
from sb3_extra_buffers.storage.layout import FrameLayout

METHODS_HERE = [method for method in METHODS if method in ("delta", "delta-zstd", "zstd-3", "none")]
ROWS = 20


class Codecs:
    """Does something at a certain call of a codec."""

    def __init__(self) -> None:
        self.left = -1
        self.action: Callable[[], None] = lambda: None
        self.calls = 0

    def __call__(self, _: str) -> None:
        self.calls += 1
        self.left -= 1
        if self.left == -1:
            self.action()

    def arm(self, after: int, action: Callable[[], None]) -> None:
        """
        Have something done.

        :param after: After so many calls
        :param action: What to do
        """
        self.left, self.action = after, action

    def disarm(self) -> bool:
        """
        Have nothing done from now on.

        :return: Whether it has been done
        """
        done, self.left = self.left < 0, -1
        return done


@pytest.fixture
def codecs(monkeypatch: pytest.MonkeyPatch) -> Codecs:
    made = Codecs()
    watch_codecs(monkeypatch, made)
    return made


@pytest.fixture(autouse=True)
def small() -> Iterator[None]:
    with limits(min_segment=1 << 9, first_room=1, first_check=8, block_rows=2):
        yield


class Hard(Stream):
    """Frames that only a codec makes smaller, a still one now and then, and zeros: all ways of storing them come in turn."""

    def __init__(self, seed: int, depth: int) -> None:
        super().__init__(seed, 2, (1, 12, 12), np.uint8, "noise", Stack(depth, 0) if depth > 1 else None, 0.15)
        rng = np.random.default_rng(seed)

        def frame(number: int) -> np.ndarray:
            bits = rng.integers(0, 2, (1, 12, 12), dtype=np.uint8) * np.uint8(1 + number % 3)
            return bits if rng.random() < 0.8 else np.zeros_like(bits)

        self.frames = [map(frame, count()) for _ in range(2)]


def ring_of(method: str, depth: int) -> Ring:
    ring = Ring(Hard(3, depth), method, rows=ROWS)
    ring.add(30)
    return ring


def contents(store: FrameStore) -> np.ndarray:
    """Both arrays, all rows."""
    return np.stack([read_index(store, index, ROWS).reshape(ROWS, 2, *store.obs_shape) for index in (0, 1)])


def is_whole(ring: Ring, store: FrameStore, pair: Any) -> bool:
    """
    Look at a store whose row was being written: all others are as they were, and that one is wholly new or wholly old.

    :return: Whether it is new
    """
    got, old = contents(store), ring.twins
    new = old.copy()
    new[:, ring.row] = pair
    assert got.tobytes() in (old.tobytes(), new.tobytes())
    return got.tobytes() == new.tobytes()


def goes_on(ring: Ring, store: FrameStore, pair: Any, seed: int) -> None:
    """Add to a store in which a write was cut short, or that was saved in the middle of one: all is right from now on."""
    twins = contents(store)
    depth = store.layout.depth
    rng = np.random.default_rng(seed)
    following: list[tuple[np.ndarray, np.ndarray]] = [pair]
    if depth > 1:
        # The likeliest to be mistaken for something else: what was last written goes on with a frame of the row that was not.
        last = [store.core.last_observation(stream) for stream in range(2)]
        for frame in range(depth):
            for known in pair:
                parts = np.stack(
                    [known[i] if last[i] is None else last[i].reshape(store.obs_shape) for i in range(2)]  # type: ignore[union-attr]
                )
                follows = np.concatenate([parts[:, 1:], known[:, frame : frame + 1]], axis=1)
                following.append((follows, follows))
        begin = int(rng.integers(len(following)))
        following = following[begin:] + following[:begin]
    following += [(pair[1], pair[1]), (pair[1], pair[0]), pair]
    for number, (obs, next_obs) in enumerate(following):
        row = (ring.row + number) % ROWS
        store.write_row(row, 0, obs, 1, next_obs)
        twins[:, row] = obs, next_obs
        outs = [np.empty_like(obs) for _ in range(2)]
        assert store.read(2 * row + np.arange(2), None, 0, outs[0], 1, outs[1])
        assert np.stack(outs).tobytes() == twins[:, row].tobytes(), f"write {number} afterwards"
    assert contents(store).tobytes() == twins.tobytes()


def steps(ring: Ring, codecs: Codecs, number: int = 25) -> Iterator[tuple[Any, int, FrameStore]]:
    """
    Go through adds, and for each through some of the calls of a codec that it makes.

    :return: The pair to add, the call, and a copy of the store to add it to
    """
    rng = random.Random(0)
    for _ in range(number):
        pair = ring.stream.step()[:2]
        if rng.random() < 0.4:  # a stack in which nothing is known, stored frame by frame
            pair = tuple(np.random.default_rng(rng.randrange(99)).integers(0, 3, (2, *pair[0].shape), dtype=np.uint8))
        image = pickle.dumps(ring.store)
        before = codecs.calls
        pickle.loads(image).write_row(ring.row, 0, pair[0], 1, pair[1])
        calls = codecs.calls - before
        for call in sorted(rng.sample(range(calls), min(calls, 4))):
            yield pair, call, pickle.loads(image)
        ring.write(pair)
        ring.went_on(pair)
        if rng.random() < 0.5:
            ring.row = rng.randrange(ROWS)  # so that it is compacted, too


CASES = [(method, depth) for method in METHODS_HERE for depth in (1, 3)]


@pytest.mark.parametrize(("method", "depth"), CASES)
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_a_codec_that_fails(method: str, depth: int, error: type[BaseException], codecs: Codecs) -> None:
    def fail() -> None:
        raise error

    ring = ring_of(method, depth)
    cut = 0
    for pair, call, store in steps(ring, codecs):
        codecs.arm(call, fail)
        try:
            store.write_row(ring.row, 0, pair[0], 1, pair[1])
        except error:
            assert codecs.disarm()
            assert not is_whole(ring, store, pair), "it says that it has failed"
            cut += 1
        else:  # while everything was stored again for a better layout, which can wait
            assert codecs.disarm() and error is MemoryError
            assert is_whole(ring, store, pair)
        goes_on(ring, store, pair, call)
    assert cut > 10


@pytest.mark.parametrize(("method", "depth"), CASES)
def test_a_store_that_is_saved_and_read_in_the_middle_of_a_write(method: str, depth: int, codecs: Codecs) -> None:
    ring = ring_of(method, depth)
    done = 0
    for pair, call, store in steps(ring, codecs, 16):
        saved: list[bytes] = []

        def save(store: FrameStore = store, saved: list[bytes] = saved, pair: Any = pair) -> None:
            saved.append(pickle.dumps(store))
            assert not is_whole(ring, store, pair), "not before it is done"
            store.core.usage()
            saved.append(pickle.dumps(store))

        codecs.arm(call, save)
        store.write_row(ring.row, 0, pair[0], 1, pair[1])
        assert codecs.disarm() and len(saved) == 2
        assert is_whole(ring, store, pair)
        goes_on(ring, store, pair, call)
        for seed in range(2 * depth):
            copy = pickle.loads(saved[seed % 2])
            assert not is_whole(ring, copy, pair)
            goes_on(ring, copy, pair, seed)
        done += 1
    assert done > 10


def changes(store: FrameStore, row: int) -> list[Callable[[], Any]]:
    """Everything that changes a store."""
    obs = np.full((2, *store.obs_shape), 9, np.uint8)
    return [
        lambda: store.write_row(row, 0, obs, 1, obs),
        lambda: store.core.write(row, 0, obs),
        lambda: store.core.write_cells(1, np.array([1]), obs[:1]),
        lambda: store.core.rebuild(FrameLayout.whole(store.obs_shape, 1)),
        store.clear,
        lambda: store.new_index(7),
    ]


@pytest.mark.parametrize(("method", "depth"), CASES)
def test_a_codec_that_writes_is_refused(method: str, depth: int, codecs: Codecs) -> None:
    """In the middle of a write nobody else may begin one, whatever thread they are in; the first one is not disturbed."""
    ring = ring_of(method, depth)
    ring.store.next_look = 0
    done = 0
    for pair, call, store in steps(ring, codecs, 20):

        def change(store: FrameStore = store) -> None:
            for attempt in changes(store, ring.row):
                with pytest.raises(RuntimeError, match="in use by this very thread") as refused:
                    attempt()
                assert not isinstance(refused.value, StorageError)

        codecs.arm(call, change)
        store.write_row(ring.row, 0, pair[0], 1, pair[1])
        assert codecs.disarm()
        assert is_whole(ring, store, pair)
        goes_on(ring, store, pair, call)
        done += 1
    assert done > 8


@pytest.mark.parametrize(("method", "depth"), CASES)
def test_in_the_middle_of_a_read(method: str, depth: int, codecs: Codecs) -> None:
    """The same, while something is read: a codec that fails, saves, reads, or tries to write."""
    ring = ring_of(method, depth)
    ring.add(30)
    if method == "none":
        pytest.skip("nothing is decoded by a codec")

    def fail(error: type[BaseException]) -> Callable[[], None]:
        def raise_it() -> None:
            raise error

        return raise_it

    saved: list[bytes] = []

    def save() -> None:
        saved.append(pickle.dumps(ring.store))
        assert contents(ring.store).tobytes() == ring.twins.tobytes()

    def change() -> None:
        for attempt in changes(ring.store, 0):
            with pytest.raises(RuntimeError, match="in use by this very thread"):
                attempt()

    before = codecs.calls
    ring.check()
    calls = codecs.calls - before
    assert calls > 3, "nothing that a codec has coded"
    for call in sorted(random.Random(0).sample(range(calls), min(calls, 12))):
        for error in (KeyboardInterrupt, MemoryError, CodecError):
            codecs.arm(call, fail(error))
            with pytest.raises(StorageError if error is CodecError else error):
                ring.check()
            assert codecs.disarm()
            ring.check()
        for action in (save, change):
            codecs.arm(call, action)
            ring.check()
            assert codecs.disarm()
    for image in saved:
        assert contents(pickle.loads(image)).tobytes() == ring.twins.tobytes()
    ring.add(5)
    ring.check()


@pytest.mark.parametrize("method", [method for method in METHODS_HERE if method == "zstd-3"])
def test_an_error_that_was_dealt_with_is_not_raised_for_another(method: str, codecs: Codecs) -> None:
    """A frame that cannot be read keeps the rest from being compacted; Ctrl-C afterwards is Ctrl-C."""
    ring = ring_of(method, 1)
    rng = random.Random(0)
    while not head_of(ring.store)["flags"] >> 5 & 1:  # until the next write compacts
        ring.row = rng.randrange(3)
        ring.add()

    def damaged() -> None:
        raise CodecError("a frame that cannot be read")

    def interrupted() -> None:
        raise KeyboardInterrupt

    rebuilds = ring.store.core.work[0]
    codecs.arm(0, damaged)
    ring.add()
    assert codecs.disarm() and ring.store.core.work[0] == rebuilds
    ring.check()
    pair = ring.stream.step()[:2]
    codecs.arm(0, interrupted)
    with pytest.raises(KeyboardInterrupt):
        ring.write(pair)
    assert codecs.disarm()
    ring.check()
