"""What must not go wrong unnoticed: key frames of chunks that are gone, writes that are cut short anywhere."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from frames_kit import QUICK_METHODS, REFERENCE, Ring, contents_of, frames_of_array, split_by, watch_codecs
from observation_streams import Stack, Stream

import sb3_extra_buffers
from sb3_extra_buffers.storage import CompressedArray
from sb3_extra_buffers.storage.layout import FrameLayout


@pytest.mark.parametrize("n_envs", [1, 2])
@pytest.mark.parametrize("method", REFERENCE)
def test_a_key_frame_is_not_taken_for_one_that_is_gone(method: str, n_envs: int) -> None:
    """
    Frames that a codec halves but patches do not fit, as in a first-person view, and one that comes again, as the first of
    each episode: it looks like a key frame of old, whose chunk has gone since.
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


@pytest.mark.parametrize("method", ["delta"])
def test_one_hard_frame_does_not_make_all_reading_slow(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a batch that asks for what a codec has coded pays for it."""
    calls: list[str] = []
    watch_codecs(monkeypatch, calls.append)
    rng = np.random.default_rng(0)
    array = CompressedArray((60, 1), np.uint8, (44, 44), compression_method=method)
    twin = np.zeros(array.shape, np.uint8)
    frame = np.zeros((1, 44, 44), np.uint8)  # too small to be worth a codebook
    for row in range(60):
        frame[0, row % 44] = rng.integers(0, 256, 44)
        twin[row] = rng.integers(0, 16, (1, 44, 44)) if 20 <= row < 30 else frame
        array[row] = twin[row]
    assert "encode" in calls
    np.testing.assert_array_equal(np.asarray(array), twin)
    calls.clear()
    zeros = np.zeros(16, np.int64)
    for rows, hard in ((np.arange(2, 18), False), (np.arange(40, 56), False), (np.arange(18, 34), True)):
        np.testing.assert_array_equal(array[rows, zeros], twin[rows, zeros])
        np.testing.assert_array_equal(array[rows[0] : rows[-1] + 1], twin[rows[0] : rows[-1] + 1])
        assert bool(calls) == hard


class Cut(BaseException):
    """What Ctrl-C is."""


FOLDER = str(Path(sb3_extra_buffers.__file__).parent)


def cut_after(lines: int) -> Any:
    """
    Make a trace that raises once.

    :param lines: After so many lines of the package: of the column, and of the codecs that the core calls back
    """
    passed = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal passed
        if not frame.f_code.co_filename.startswith(FOLDER):
            return None
        if event == "line":
            passed += 1
            if passed == lines + 1:
                raise Cut
        return trace

    return trace


def add_with(ring: Ring, trace: Any, again: bool) -> bool:
    """
    Write a row, which may be cut short: it is written wholly, or not at all.

    :param ring: The ring
    :param trace: The trace
    :param again: Whether to write the row again then
    :return: Whether it was cut short
    """
    pair = ring.stream.step()[:2]
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        ring.write(pair)
        cut = False
    except Cut:
        cut = True
    finally:
        sys.settrace(before)
    got = contents_of(ring.frames)[:, ring.row]
    assert got.tobytes() in (ring.twins[:, ring.row].tobytes(), np.stack(pair).tobytes())
    if again or not cut:
        ring.write(pair)
        ring.went_on(pair)
    else:
        ring.went_on(tuple(got))
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
    for lines in range(180):
        cuts += add_with(ring, cut_after(lines % 60), again=lines % 2 == 1)
        ring.check()
        ring.add(lines % 4)
        ring.check()
    assert cuts > 8
    ring.add(60)
    ring.check()


@pytest.mark.parametrize("lead", [(10,), (10, 2, 3)])
def test_rows_of_other_axes(lead: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    array = CompressedArray(lead, np.uint8, (1, 8, 8), compression_method=QUICK_METHODS[-1])
    for row in range(3):
        obs = rng.integers(0, 256, (*lead[1:], 1, 8, 8), dtype=np.uint8).swapaxes(-1, -2)
        array[row] = obs
        np.testing.assert_array_equal(array[row], obs)


@pytest.mark.parametrize("method", QUICK_METHODS)
def test_darkness_at_the_beginning(method: str) -> None:
    """After a reset everything is dark, and the first frame is the one that was the last before it."""
    rng = np.random.default_rng(0)
    array = CompressedArray((6, 1), np.uint8, (3, 12, 12), compression_method=method)
    split_by(frames_of_array(array), FrameLayout((3, 12, 12), 1, 0, 1))
    frame = rng.integers(1, 256, (12, 12), dtype=np.uint8)
    for _ in range(3):
        obs = np.zeros((1, 3, 12, 12), np.uint8)
        for row in range(6):
            array[row] = obs
            np.testing.assert_array_equal(array[row], obs)
            obs = np.concatenate([obs[:, 1:], frame[None, None]], axis=1)
        array.clear()
