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
from frames_kit import QUICK_METHODS, CodecCalls, Ring, contents_of, read_column, watch_codecs
from observation_streams import Stack, Stream
from test_tables import TableKit

from sb3_extra_buffers.codecs import CodecError
from sb3_extra_buffers.storage import Frames, StorageError
from sb3_extra_buffers.storage.layout import FrameLayout

ROWS = 36


@pytest.fixture
def codecs(monkeypatch: pytest.MonkeyPatch) -> CodecCalls:
    made = CodecCalls()
    watch_codecs(monkeypatch, made)
    return made


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
    ring.add(50)
    return ring


def is_whole(ring: Ring, frames: Frames, pair: Any) -> bool:
    """
    Look at a column one of whose rows was being written: that one is wholly new or wholly old, all others are as they were.

    :return: Whether it is new
    """
    got, old = contents_of(frames), ring.twins
    new = old.copy()
    new[:, ring.row] = pair
    assert got.tobytes() in (old.tobytes(), new.tobytes())
    return got.tobytes() == new.tobytes()


def goes_on(ring: Ring, frames: Frames, pair: Any, seed: int) -> None:
    """Add to a column in which a write was cut short, or that was saved in the middle of one: all is right from now on."""
    twins = contents_of(frames)
    depth = frames.layout.depth
    rng = np.random.default_rng(seed)
    following: list[tuple[np.ndarray, np.ndarray]] = [pair]
    if depth > 1:
        # The likeliest to be mistaken for something else: what was last written goes on with a frame of the row that was not.
        last = [frames.last_observation(env) for env in range(2)]
        for frame in range(depth):
            for known in pair:
                parts = np.stack(
                    [known[i] if last[i] is None else last[i].reshape(frames.obs_shape) for i in range(2)]  # type: ignore[union-attr]
                )
                follows = np.concatenate([parts[:, 1:], known[:, frame : frame + 1]], axis=1)
                following.append((follows, follows))
        begin = int(rng.integers(len(following)))
        following = following[begin:] + following[:begin]
    following += [(pair[1], pair[1]), (pair[1], pair[0]), pair]
    for number, (obs, next_obs) in enumerate(following):
        row = (ring.row + number) % ROWS
        frames.write(row, obs, 0, next_obs)
        twins[:, row] = obs, next_obs
        outs = [np.empty_like(obs) for _ in range(2)]
        frames.read(np.full(2, row), np.arange(2), outs[0], 0, outs[1])
        assert np.stack(outs).tobytes() == twins[:, row].tobytes(), f"write {number} afterwards"
    assert contents_of(frames).tobytes() == twins.tobytes()


def loaded(ring: Ring, saved: bytes) -> Frames:
    """Load a column, and write its last rows again, so that it has an open chunk in the middle of things."""
    frames: Frames = pickle.loads(saved)
    for row in [(ring.row - back) % ROWS for back in range(12, 0, -1)]:
        frames.write(row, ring.twins[0][row], 0, ring.twins[1][row])
    return frames


def steps(ring: Ring, codecs: CodecCalls, number: int = 14) -> Iterator[tuple[Any, int, Frames]]:
    """
    Go through adds, and for each through some of the calls of a codec that it makes.

    :return: The pair to add, the call, and a copy of the column to add it to
    """
    rng = random.Random(0)
    for _ in range(number):
        pair = ring.stream.step()[:2]
        if rng.random() < 0.4:  # a stack in which nothing is known, stored frame by frame
            pair = tuple(np.random.default_rng(rng.randrange(99)).integers(0, 3, (2, *pair[0].shape), dtype=np.uint8))
        saved = pickle.dumps(ring.frames)
        copy = loaded(ring, saved)
        before = codecs.calls
        copy.write(ring.row, pair[0], 0, pair[1])
        calls = codecs.calls - before
        for call in sorted(rng.sample(range(calls), min(calls, 4))):
            yield pair, call, loaded(ring, saved)
        ring.write(pair)
        ring.went_on(pair)
        if rng.random() < 0.5:
            ring.row = rng.randrange(ROWS)  # so that chunks are coded again, too


CASES = [(method, depth) for method in QUICK_METHODS for depth in (1, 3)]


@pytest.mark.parametrize(("method", "depth"), CASES)
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_a_codec_that_fails(method: str, depth: int, error: type[BaseException], codecs: CodecCalls) -> None:
    def fail() -> None:
        raise error

    ring = ring_of(method, depth)
    cut = 0
    for pair, call, frames in steps(ring, codecs):
        codecs.arm(call, fail)
        try:
            frames.write(ring.row, pair[0], 0, pair[1])
        except error:
            assert codecs.disarm()
            assert not is_whole(ring, frames, pair), "it says that it has failed"
            cut += 1
        else:  # what it was asked for could wait
            assert codecs.disarm() and error is MemoryError
            assert is_whole(ring, frames, pair)
        goes_on(ring, frames, pair, call)
    assert cut > 6


@pytest.mark.parametrize(("method", "depth"), CASES)
def test_a_column_that_is_saved_and_read_in_the_middle_of_a_write(method: str, depth: int, codecs: CodecCalls) -> None:
    ring = ring_of(method, depth)
    done = 0
    for pair, call, frames in steps(ring, codecs, 9):
        saved: list[bytes] = []

        def save(frames: Frames = frames, saved: list[bytes] = saved, pair: Any = pair) -> None:
            saved.append(pickle.dumps(frames))
            assert not is_whole(ring, frames, pair), "not before it is done"
            frames.usage()
            saved.append(pickle.dumps(frames))

        codecs.arm(call, save)
        frames.write(ring.row, pair[0], 0, pair[1])
        assert codecs.disarm() and len(saved) == 2
        assert is_whole(ring, frames, pair)
        goes_on(ring, frames, pair, call)
        for seed in range(2 * depth):
            copy = pickle.loads(saved[seed % 2])
            assert not is_whole(ring, copy, pair)
            goes_on(ring, copy, pair, seed)
        done += 1
    assert done > 6


def changes(frames: Frames, row: int) -> list[Callable[[], Any]]:
    """Everything that changes a column."""
    obs = np.full((2, *frames.obs_shape), 9, np.uint8)
    sealed, _ = pickle.loads(pickle.dumps(frames)).chunks()
    return [
        lambda: frames.write(row, obs, 0, obs),
        lambda: frames.write(row, obs),
        lambda: frames.write((row + 7) % ROWS, obs[:1], 1, envs=[1]),
        lambda: frames.set_layout(FrameLayout.whole(frames.obs_shape, 1)),
        lambda: frames.adopt(bytes(sealed[0])),
        lambda: frames.adopt_row(sealed[0], row, 0),
        frames.clear,
    ]


@pytest.mark.parametrize(("method", "depth"), CASES)
def test_a_codec_that_writes_is_refused(method: str, depth: int, codecs: CodecCalls) -> None:
    """In the middle of a write nobody else may begin one, whatever thread they are in; the first one is not disturbed."""
    ring = ring_of(method, depth)
    ring.frames.next_look = 0
    done = 0
    for pair, call, frames in steps(ring, codecs, 9):

        def change(frames: Frames = frames) -> None:
            for attempt in changes(frames, ring.row):
                with pytest.raises(RuntimeError, match="in use by this very thread") as refused:
                    attempt()
                assert not isinstance(refused.value, StorageError)

        codecs.arm(call, change)
        frames.write(ring.row, pair[0], 0, pair[1])
        assert codecs.disarm()
        assert is_whole(ring, frames, pair)
        goes_on(ring, frames, pair, call)
        done += 1
    assert done > 6


@pytest.mark.parametrize(("method", "depth"), CASES)
def test_in_the_middle_of_a_read(method: str, depth: int, codecs: CodecCalls) -> None:
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
        saved.append(pickle.dumps(ring.frames))
        assert contents_of(ring.frames).tobytes() == ring.twins.tobytes()
        assert contents_of(pickle.loads(saved[-1])).tobytes() == ring.twins.tobytes()

    def change() -> None:
        """Chunks that are sealed may be read while something is written; what is decoded under the lock may not."""
        pair = ring.stream.step()[:2]
        try:
            ring.write(pair)
        except RuntimeError as error:
            assert "in use by this very thread" in str(error)
        else:
            written.append(pair)

    written: list[Any] = []
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
        codecs.arm(call, save)
        ring.check()
        assert codecs.disarm()
        codecs.arm(call % (calls // 3), change)
        assert read_column(ring.frames).tobytes() == ring.twins[0].tobytes(), "what was there when it began"
        codecs.disarm()
        while written:
            ring.went_on(written.pop())
        ring.check()
    assert saved
    ring.add(5)
    ring.check()


@pytest.mark.parametrize("method", QUICK_METHODS)
def test_a_table_that_is_saved_and_read_in_the_middle_of_a_row(method: str, codecs: CodecCalls) -> None:
    """A signal handler comes when one column has been coded and another is being coded: it sees no column's new row."""
    kit = TableKit(method, rows=ROWS)
    kit.add(50)
    looked = 0
    for number in range(40):

        def look() -> None:
            nonlocal looked
            kit.check()
            for frames, twins in zip(kit.frames, (kit.twins[1:3], kit.twins[4:5]), strict=True):
                assert contents_of(pickle.loads(pickle.dumps(frames))).tobytes() == np.stack(twins).tobytes()
            for change in (lambda: kit.table.append(kit.row()), kit.table.clear, *changes(kit.frames[0], 3)[:2]):
                with pytest.raises(RuntimeError, match="in use by this very thread"):
                    change()
            looked += 1

        values = kit.row()
        codecs.arm(number % 9, look)
        kit.table.append(values)
        codecs.disarm()
        kit.note(values)
        kit.check()
    assert looked > 5


def test_a_handler_that_replaces_an_array_in_the_middle_of_a_row(codecs: CodecCalls) -> None:
    """What was prepared for one array must not be put into another, whose elements may have other sizes."""
    kit = TableKit("zstd-3" if "zstd-3" in QUICK_METHODS else "none", rows=20)
    kit.add(5)
    attributes = {**kit.state, "actions": kit.plain[0].array}
    other = np.zeros((20, 2, 3), np.float64)

    def read() -> None:
        attributes["actions"] = other
        (actions,) = kit.table.begin_read(np.arange(5), np.zeros(5, np.int64), (0,), attributes).finish()
        np.testing.assert_array_equal(actions, kit.twins[0][:5, 0])

    values = kit.row()
    codecs.arm(0, read)
    kit.table.append(values, attributes)
    assert codecs.disarm()
    kit.note(values)
    kit.check()
    assert not other.any()


def test_a_write_while_a_stack_is_looked_for_is_refused() -> None:
    """The search is made in Python: a signal handler that comes then may read, but not write."""
    ring = Ring(Stream(0, 2, (1, 9, 8), np.uint8, "game", Stack(4, 0), done_rate=0.0), "delta", rows=ROWS)
    look = ring.frames.search.look
    refused = 0

    def handler(*args: Any) -> Any:
        nonlocal refused
        before = contents_of(ring.frames)
        assert before.tobytes() == ring.twins.tobytes()
        for change in (lambda: ring.frames.write(3, np.ones((2, 4, 9, 8), np.uint8)), ring.frames.clear):
            with pytest.raises(RuntimeError, match="in use by this very thread"):
                change()
            refused += 1
        return look(*args)

    ring.frames.search.look = handler  # type: ignore[method-assign]
    for _ in range(40):
        pair = ring.stream.step()[:2]
        ring.write(pair)
        ring.went_on(pair)
    ring.check()
    assert refused and ring.frames.layout.depth == 4
