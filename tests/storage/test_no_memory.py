"""Every allocation of the core may fail: then nothing has changed, the error says how much was asked for, and it goes on."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from frames_kit import QUICK_METHODS, CodecCalls, Ring, contents_of, refuse_each, watch_codecs
from observation_streams import Stack, Stream

from sb3_extra_buffers.storage import CompressedArray
from sb3_extra_buffers.storage._core import refuse_allocation
from sb3_extra_buffers.storage.layout import FrameLayout


def add(ring: Ring) -> int:
    """Add a row, with each of its allocations refused in turn; how many adds have failed."""
    pair = ring.stream.step()[:2]

    def write() -> None:
        ring.write(pair)
        ring.twins[:, ring.row] = pair  # from here on, also if it is written again because it could do without something

    failed, _ = refuse_each(write, ring.check)
    ring.went_on(pair)
    return failed


@pytest.mark.parametrize(("depth", "content"), [(1, "game"), (1, "mixed"), (4, "game"), (4, "mixed")])
@pytest.mark.parametrize("method", QUICK_METHODS)
def test_adds(method: str, depth: int, content: str) -> None:
    """From the first one on, through layouts that are found, chunks that are sealed, and rows out of order."""
    stream = Stream(1, 2, (1, 8, 8), np.uint8, content, Stack(depth, 0) if depth > 1 else None, done_rate=0.1)
    ring = Ring(stream, method, rows=40)
    rng = np.random.default_rng(0)
    failed = 0
    for step in range(110):
        if step > 60 and step % 5 == 0:
            ring.row = int(rng.integers(40))
        if step % 4:
            failed += add(ring)
        else:
            ring.add()  # what could not be done for lack of memory is tried again
    ring.check()
    assert ring.frames.layout.depth == depth
    assert failed > 20


def test_the_error_says_how_much() -> None:
    ring = Ring(Stream(0, 2, (1, 8, 8), np.uint8, "noise"), "delta", rows=40)
    refuse_allocation(0)
    try:
        with pytest.raises(MemoryError, match=r"out of memory: [\d,]+ bytes .* unharmed"):
            ring.add(20)
    finally:
        refuse_allocation(-1)


@pytest.mark.parametrize("method", QUICK_METHODS)
def test_a_layout_that_cannot_be_changed(method: str) -> None:
    """The open chunk is coded again wholly or not at all."""
    stream = Stream(2, 2, (1, 12, 12), np.uint8, "mixed", Stack(3, 0))
    ring = Ring(stream, method, rows=40)
    ring.frames.next_look = 0
    for depth in (3, 1, 3, 3):
        ring.add(13)
        before, layout = ring.frames.layout, FrameLayout(stream.obs_shape, 1, 0, 3 // depth)

        def unchanged(before: FrameLayout = before) -> None:
            assert ring.frames.layout == before
            ring.check()

        failed, _ = refuse_each(lambda layout=layout: ring.frames.set_layout(layout), unchanged)
        assert failed > 3 and ring.frames.layout == layout
        ring.check()
    ring.add(60)
    ring.check()


@pytest.mark.parametrize("method", QUICK_METHODS)
def test_a_layout_that_is_found_when_there_is_no_memory(method: str) -> None:
    """Then it is stored as it was, and the row is there all the same."""
    stream = Stream(4, 1, (1, 12, 12), np.uint8, "noise", Stack(4, 0), done_rate=0.0)
    for refused in range(0, 40, 3):
        ring = Ring(stream, method, rows=20)
        for _ in range(12):
            pair = ring.stream.step()[:2]
            refuse_allocation(refused)
            try:
                ring.write(pair)
            except MemoryError:
                continue
            finally:
                refuse_allocation(-1)
            ring.went_on(pair)
            ring.check()
        ring.add(30)
        ring.check()


@pytest.mark.parametrize("method", QUICK_METHODS)
def test_everything_else(method: str) -> None:
    """Reading, chunks, saving and loading, making one."""
    ring = Ring(Stream(3, 2, (1, 12, 12), np.uint8, "mixed", Stack(3, 0)), method, rows=40)
    ring.add(70)
    out: list[Any] = []
    assert refuse_each(lambda: out.append(contents_of(ring.frames)), ring.check)[0] > 0
    assert out[-1].tobytes() == ring.twins.tobytes()
    refuse_each(lambda: out.append(pickle.dumps(ring.frames)), ring.check)
    saved = out[-1]
    assert refuse_each(lambda: out.append(pickle.loads(saved)), ring.check)[0] > 3
    assert contents_of(out[-1]).tobytes() == ring.twins.tobytes()
    made: list[CompressedArray] = []
    assert (
        refuse_each(
            lambda: made.append(CompressedArray((9, 2), np.uint8, (3, 8, 8), compression_method=method)), lambda: None
        )[0]
        > 2
    )
    noise = np.random.default_rng(0).integers(0, 256, made[0].shape, dtype=np.uint8)
    made[0][:] = noise
    np.testing.assert_array_equal(np.asarray(made[0]), noise)
    refuse_each(ring.frames.clear, ring.check)
    assert not contents_of(ring.frames).any()


@pytest.mark.parametrize("method", [method for method in QUICK_METHODS if method != "none"])
def test_a_codec_that_has_no_memory(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = CodecCalls()
    watch_codecs(monkeypatch, calls)

    def fail() -> None:
        raise MemoryError("that of the codec")

    ring = Ring(Stream(1, 2, (1, 8, 8), np.uint8, "noise"), method, rows=40)
    ring.add(50)
    failed = 0
    for step in range(40):
        pair = ring.stream.step()[:2]
        calls.arm(step % 3, fail)
        try:
            ring.write(pair)
        except MemoryError as error:
            assert str(error) == "that of the codec"
            failed += 1
            calls.disarm()
            ring.check()
            ring.write(pair)
        calls.disarm()
        ring.went_on(pair)
        ring.check()
    assert failed > 3
