"""What must not go wrong unnoticed: key frames in memory that is used again, writes that are cut short."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
import pytest
from observation_streams import METHODS, Stack, Stream
from store_kit import Ring, never_give_up_stacks

import sb3_extra_buffers.storage as storage_package
from sb3_extra_buffers.storage import CompressedArray, FrameIndex, FrameStore
from sb3_extra_buffers.storage import directory as directory_module
from sb3_extra_buffers.storage import segments as segments_module
from sb3_extra_buffers.storage import store as store_module
from sb3_extra_buffers.storage.directory import GroupDirectory
from sb3_extra_buffers.storage.layout import FrameLayout
from sb3_extra_buffers.storage.liveness import oldest_frames
from sb3_extra_buffers.storage.reference import ReferenceCoder
from sb3_extra_buffers.storage.segments import Segment, SegmentLog

REFERENCE = [method for method in METHODS if str(method).startswith("delta")]
QUICK_METHODS = [method for method in METHODS if method in ("delta", "delta-zstd", "zstd-3", "none")]


@pytest.mark.parametrize("n_envs", [1, 2])
@pytest.mark.parametrize("method", REFERENCE)
def test_a_key_frame_is_not_taken_for_one_that_lay_there_before(method: str, n_envs: int) -> None:
    """
    Frames that a codec halves but patches do not fit, as in a first-person view, and one that comes again, as the first of
    each episode: it looks like a key frame of old, whose segment has been used again since.
    """
    rng = np.random.default_rng(0)
    array = CompressedArray((60, n_envs), np.uint8, (84, 84), compression_method=method)
    again = rng.integers(0, 16, (84, 84), dtype=np.uint8)
    twin = np.zeros(array.shape, np.uint8)
    for step in range(1500):
        row = step % 60
        twin[row] = rng.integers(0, 16, (n_envs, 84, 84), dtype=np.uint8)
        if step % 3 == 0:
            twin[row, step % n_envs] = again
        array[row] = twin[row]
        if step % 20 == 0:
            np.testing.assert_array_equal(np.asarray(array), twin)


def test_compacting_is_not_asked_for_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stacks that do not follow each other: all of their frames are in use, though each is counted by its newest only."""
    rebuilt: list[int] = []
    rebuild = FrameStore._rebuild

    def counted(self: FrameStore, layout: Any) -> None:
        rebuilt.append(self.writes)
        rebuild(self, layout)

    stream = Stream(0, 1, (1, 16, 16), np.uint8, "noise", Stack(4, 0))
    array = CompressedArray((400, 1, *stream.obs_shape), np.uint8, stream.obs_shape)
    twin = np.zeros(array.shape, np.uint8)
    for row in range(8):
        array[row] = twin[row] = stream.step()[0]  # in order at first, so that the stack is found
    rng = np.random.default_rng(0)
    monkeypatch.setattr(FrameStore, "_rebuild", counted)
    for step in range(4000):
        row = (8 + step) % 400
        twin[row] = rng.integers(0, 256, twin[row].shape, dtype=np.uint8)
        array[row] = twin[row]
    np.testing.assert_array_equal(np.asarray(array), twin)
    assert len(rebuilt) <= 4


@pytest.mark.parametrize("method", ["delta"] if "delta" in METHODS else [])
def test_one_hard_frame_does_not_make_all_reading_slow(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a batch that asks for what a codec has coded pays for it."""
    rng = np.random.default_rng(0)
    array = CompressedArray((60, 1), np.uint8, (84, 84), compression_method=method)
    twin = np.zeros(array.shape, np.uint8)
    frame = np.zeros((1, 84, 84), np.uint8)
    for row in range(60):
        frame[0, row] = rng.integers(0, 256, 84)
        twin[row] = rng.integers(0, 16, (1, 84, 84)) if 20 <= row < 30 else frame
        array[row] = twin[row]
    np.testing.assert_array_equal(np.asarray(array), twin)
    expanded: list[int] = []
    expand = ReferenceCoder._expand

    def counted(self: ReferenceCoder, *args: Any) -> Any:
        expanded.append(1)
        return expand(self, *args)

    monkeypatch.setattr(ReferenceCoder, "_expand", counted)
    zeros = np.zeros(16, np.int64)
    for rows, hard in ((np.arange(2, 18), False), (np.arange(40, 56), False), (np.arange(18, 34), True)):
        np.testing.assert_array_equal(array[rows, zeros], twin[rows, zeros])
        np.testing.assert_array_equal(array[rows[0] : rows[-1] + 1], twin[rows[0] : rows[-1] + 1])
        assert bool(expanded) == hard


@pytest.mark.parametrize("method", ["none", *REFERENCE])
def test_patterns_are_dropped_in_a_wide_index_too(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "_NARROW_LIMIT", 40)
    never_give_up_stacks(monkeypatch)
    rng = np.random.default_rng(0)
    shape = (8, 32)
    array = CompressedArray((60, 1), np.uint8, shape, compression_method=method)
    array._store._begin(FrameLayout(shape, 1, 0, 1))
    array._store.next_probe = 0
    frames = rng.integers(1, 256, shape, dtype=np.uint8)
    most = 0
    for step in range(3000):
        obs = rng.permutation(frames)[None]
        array[step % 60] = obs
        np.testing.assert_array_equal(array[step % 60], obs)
        most = max(most, len(array._store.coder.patterns))
    assert array._store.indexes[0].pattern.dtype == np.uint32
    assert most < 6 * 60


class Cut(BaseException):
    """What Ctrl-C is."""


FOLDER = str(Path(storage_package.__file__).parent)


def cut_after(lines: int, codes: tuple[CodeType, ...] = ()) -> Any:
    """
    Make a trace that raises once.

    :param lines: After so many lines
    :param codes: Of these functions; of the whole storage package by default
    """
    left = itertools.count(lines, -1)

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code not in codes if codes else not frame.f_code.co_filename.startswith(FOLDER):
            return None
        if event == "line" and next(left) == 0:
            raise Cut
        return trace

    return trace


def add_with(ring: Ring, trace: Any, again: bool) -> bool:
    """
    Write a row, which may be cut short.

    :param ring: The ring
    :param trace: The trace
    :param again: Whether to write the row again then
    :return: Whether it was cut short
    """
    pair = ring.stream.step()[:2]
    parts = list(zip(ring.indexes, pair, strict=True))
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        ring.store.write_row(ring.row, parts)
        cut = False
    except Cut:
        cut = True
    finally:
        sys.settrace(before)
    if again:
        ring.store.write_row(ring.row, parts)
        ring.twins[:, ring.row] = pair
    for which, obs in enumerate(pair):  # else each cell holds the old one, the new one, or nothing
        got, twin = ring.read(which)[ring.row], ring.twins[which, ring.row]
        for env in range(ring.stream.n_envs):
            assert got[env].tobytes() in (twin[env].tobytes(), obs[env].tobytes(), bytes(obs[env].nbytes))
        twin[...] = got
    ring.row = (ring.row + 1) % ring.rows
    return cut


@pytest.mark.parametrize("content", ["game", "mixed", "noise"])
@pytest.mark.parametrize("depth", [1, 4])
@pytest.mark.parametrize("method", QUICK_METHODS)
def test_a_write_that_is_cut_short(method: str, depth: int, content: str) -> None:
    """Wherever Ctrl-C falls: what was stored stays, and what is stored afterwards is right."""
    stream = Stream(7, 2, (1, 12, 12), np.uint8, content, Stack(depth, 0) if depth > 1 else None, done_rate=0.05)
    ring = Ring(stream, method, rows=24)
    ring.add(40)
    cuts = 0
    for lines in range(0, 260, 3):
        cuts += add_with(ring, cut_after(lines), again=lines % 2 == 1)
        ring.check()
        ring.add(lines % 4)
        ring.check()
    assert cuts > 20
    ring.add(60)
    ring.check()


HOUSEKEEPING: dict[str, tuple[Any, ...]] = {
    "directory": (GroupDirectory._grow, GroupDirectory.make_room),
    "release": (SegmentLog.release, SegmentLog._free, ReferenceCoder.release, Segment.clear),
    "segments": (SegmentLog.open_segment, SegmentLog._refresh_pointers, Segment.__init__),
    "groups": (ReferenceCoder._open, ReferenceCoder._close, ReferenceCoder._store_key, ReferenceCoder._open_coded),
    "rebuilding": (FrameStore._rebuild, FrameStore._settle, FrameIndex.become, FrameIndex.narrow),
}


@pytest.mark.parametrize(
    ("method", "part"),
    [
        pair
        for pair in itertools.product(QUICK_METHODS, HOUSEKEEPING)
        if pair[1] != "groups" or str(pair[0]).startswith("delta")
    ],
)
def test_housekeeping_that_is_cut_short(method: str, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same in what is done only now and then."""
    monkeypatch.setattr(segments_module, "_FIRST_ROOM", 2)
    monkeypatch.setattr(segments_module, "_LOOK_AFTER", 4)
    monkeypatch.setattr(directory_module, "_FIRST_CAPACITY", 4)
    codes = tuple(function.__code__ for function in HOUSEKEEPING[part])
    cuts = 0
    for lines in range(20):
        stream = Stream(lines, 2, (1, 64, 64), np.uint8, "mixed", Stack(3, 0), done_rate=0.05)
        ring = Ring(stream, method, rows=30)
        ring.add(8)
        ring.store.must_compact = part == "rebuilding"
        for _ in range(70):
            if add_with(ring, cut_after(lines, codes), again=lines % 2 == 1):
                cuts += 1
                break
        ring.check()
        ring.add(35)
        ring.check()
    assert cuts >= 5, "hardly anything was cut short"


@pytest.mark.parametrize("method", QUICK_METHODS)
def test_frames_of_an_observation_that_is_being_put_together_are_in_use(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After darkness no entry refers to a frame; storing the second one must not recycle the first."""
    rng = np.random.default_rng(0)
    array = CompressedArray((3, 1), np.uint8, (4, 32, 32), compression_method=method)
    array._store._begin(FrameLayout((4, 32, 32), 1, 0, 1))
    array._store.next_probe = 0
    for row in (0, 1, 2, 0):
        array[row] = np.zeros((1, 4, 32, 32), np.uint8)
    numbers: list[int] = []
    append = FrameStore._append

    def watched(self: FrameStore, stream: int, frame: np.ndarray) -> int:
        if numbers:
            assert oldest_frames(self)[stream] <= numbers[0]
        numbers.append(append(self, stream, frame))
        return numbers[-1]

    monkeypatch.setattr(FrameStore, "_append", watched)
    obs = rng.integers(0, 256, (1, 4, 32, 32), dtype=np.uint8)
    array[1] = obs
    assert len(numbers) == 4
    np.testing.assert_array_equal(array[1], obs)


@pytest.mark.parametrize("lead", [(10,), (10, 2, 3)])
def test_rows_of_other_axes(lead: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    array = CompressedArray(lead, np.uint8, (1, 8, 8), compression_method=QUICK_METHODS[-1])
    for row in range(3):
        obs = rng.integers(0, 256, (*lead[1:], 1, 8, 8), dtype=np.uint8).swapaxes(-1, -2)
        array.write_row(row, obs)
        np.testing.assert_array_equal(array[row], obs)
