"""Every allocation of the core may fail: then nothing has changed, the error says how much was asked for, and it goes on."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from observation_streams import METHODS, Stack, Stream
from store_kit import Ring, head_of, image_of, limits, load_image, never_give_up_stack, store_by, watch_codecs

from sb3_extra_buffers.storage import CompressedArray
from sb3_extra_buffers.storage._core import refuse_allocation
from sb3_extra_buffers.storage.layout import FrameLayout

QUICK_METHODS = [method for method in METHODS if method in ("delta", "delta-zstd", "zstd-3", "none")]


def each_refused(call: Callable[[], Any], check: Callable[[], None]) -> tuple[int, int]:
    """
    Make a call again and again, each time with another of its allocations refused, until it gets all that it asks for.

    :param call: The call
    :param check: Called after each that has failed
    :return: How often it failed, and how often it could do without
    """
    failed = done_without = 0
    while True:
        refuse_allocation(failed + done_without)
        try:
            call()
        except MemoryError as error:
            assert refuse_allocation(-1) == -1, "it failed, but for another reason"
            asked = re.search(r"out of memory: ([\d,]+) bytes .* unharmed", str(error))
            assert asked is not None and int(asked[1].replace(",", "")) > 0, error
            failed += 1
            check()
        else:
            if refuse_allocation(-1) >= 0:
                return failed, done_without
            done_without += 1


def add(ring: Ring, checks: bool = True) -> int:
    """
    Add a row, with each of its allocations refused in turn.

    :param ring: The ring
    :param checks: Whether to compare all of it after each failure
    :return: How many adds have failed
    """
    return write(ring, ring.stream.step()[:2], checks)


def write(ring: Ring, pair: Any, checks: bool) -> int:
    """
    Write a row, with each allocation refused in turn.

    :param ring: The ring
    :param pair: What to write
    :param checks: Whether to compare all of it after each failure
    :return: How many writes have failed
    """

    def call() -> None:
        ring.write(pair)
        ring.twins[:, ring.row] = pair  # from here on, also if it is written again because it could do without something

    failed, _ = each_refused(call, ring.check if checks else lambda: None)
    ring.went_on(pair)
    return failed


@pytest.mark.parametrize(("depth", "content"), [(1, "game"), (1, "mixed"), (4, "game"), (4, "mixed")])
@pytest.mark.parametrize("method", QUICK_METHODS)
def test_adds(method: str, depth: int, content: str) -> None:
    """From the first one on, through layouts that are found, segments, directories and patterns that grow, and compaction."""
    stream = Stream(1, 2, (1, 8, 8), np.uint8, content, Stack(depth, 0) if depth > 1 else None, done_rate=0.1)
    failed = 0
    with limits(min_segment=1 << 9, first_room=1, first_check=8, block_rows=2):
        ring = Ring(stream, method, rows=24)
        rng = np.random.default_rng(0)
        for step in range(150):
            if step > 60:
                ring.row = int(
                    rng.integers(0, 24 if step % 8 == 0 else 3)
                )  # so that old segments stay for the sake of a few frames
            if step % 4:
                failed += add(ring)
            else:
                ring.add()  # what could not be done for lack of memory is tried again
        ring.check()
        assert ring.store.layout.depth == depth
        assert ring.store.core.work[1] > 2 or content == "game"
    assert failed > (10 if content == "mixed" else 2)


def about_to_compact(stream: Stream, method: str, rng: np.random.Generator) -> Ring:
    """A ring whose next write compacts."""
    ring = Ring(stream, method, rows=24)
    ring.add(24)
    while not head_of(ring.store)["flags"] >> 5 & 1:
        ring.row = int(rng.integers(0, 3))
        ring.add()
    return ring


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("method", QUICK_METHODS)
def test_compaction(method: str, depth: int) -> None:
    """What is not in use stays until there is memory to store the rest again; the row is written all the same."""
    stream = Stream(1, 2, (1, 8, 8), np.uint8, "noise", Stack(depth, 0) if depth > 1 else None, done_rate=0.1)
    rng = np.random.default_rng(0)
    with limits(min_segment=1 << 9, first_room=1, first_check=8, block_rows=2):
        ring = about_to_compact(stream, method, rng)
        image, twins, pair = ring.store.core.image(), ring.twins.copy(), stream.step()[:2]
        done_without = 0
        for refused in range(10_000):
            load_image(ring.store, image)
            ring.twins[:] = twins
            ring.row = 5
            refuse_allocation(refused)
            try:
                ring.write(pair)
            except MemoryError:
                left = refuse_allocation(-1)
            else:
                left = refuse_allocation(-1)
                ring.twins[:, ring.row] = pair
                done_without += left < 0
            assert ring.store.core.work[0] or left < 0, "with memory it is compacted"
            if refused % 3 == 0 or left >= 0:
                ring.check()
                ring.row = 6
                for _ in range(3):
                    ring.add()
                ring.check()
            if left >= 0:
                break
        assert done_without > 10


@pytest.mark.parametrize("method", ["zstd-3", "delta-zstd"])
def test_a_codec_that_has_no_memory(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If all is to be stored again, that waits, and the row is written. If it is the row itself, the error is the codec's."""
    fails_at: list[int] = []

    def call(_: str) -> None:
        if fails_at:
            fails_at[0] -= 1
            if fails_at[0] < 0:
                fails_at.clear()
                raise MemoryError("that of the codec")

    watch_codecs(monkeypatch, call)
    stream = Stream(1, 2, (1, 8, 8), np.uint8, "noise")
    rng = np.random.default_rng(0)
    with limits(min_segment=1 << 9, first_room=1, first_check=8, block_rows=2):
        ring = about_to_compact(stream, method, rng)
        fails_at.append(0)
        ring.add()
        assert not fails_at and ring.store.core.work[0] == 0
        ring.check()
        while ring.store.core.work[0] == 0:  # it is asked for again
            ring.row = int(rng.integers(0, 3))
            ring.add()
        ring.check()
        fails_at.append(1)
        with pytest.raises(MemoryError, match="that of the codec"):
            ring.add(20)
        fails_at.clear()
        ring.check()


@pytest.mark.parametrize("method", QUICK_METHODS)
def test_patterns_that_grow(method: str) -> None:
    """Stacks of known frames in any order: the table of patterns grows, and then the index gets wider."""
    rng = np.random.default_rng(0)
    stream = Stream(0, 2, (6, 32), np.uint8, "noise")
    failed = 0
    with limits(narrow_patterns=30):
        ring = Ring(stream, method, rows=40)
        store_by(ring.store, FrameLayout((6, 32), 1, 0, 1))
        never_give_up_stack(ring.store)
        frames = rng.integers(1, 256, (6, 32), dtype=np.uint8)
        for step in range(70):
            pair: Any = tuple(np.stack([rng.permutation(frames) for _ in range(2)]) for _ in range(2))
            failed += write(ring, pair, checks=step % 3 == 0)
            ring.check()
        assert image_of(ring.store).indexes[0]["wide"] and head_of(ring.store)["n_patterns"] > 30
    assert failed > 8


@pytest.mark.parametrize("method", QUICK_METHODS)
def test_a_layout_that_cannot_be_changed(method: str) -> None:
    """Storing all of it by frames, or as a whole again, happens wholly or not at all."""
    stream = Stream(2, 2, (1, 12, 12), np.uint8, "mixed", Stack(3, 0))
    with limits(min_segment=1 << 9, first_room=1):
        ring = Ring(stream, method, rows=20)
        ring.store.next_look = 0
        for depth in (3, 1, 3, 3):
            ring.add(13)
            before = ring.store.layout
            layout = FrameLayout(stream.obs_shape, 1, 0, 3 // depth)

            def unchanged(before: FrameLayout = before) -> None:
                assert ring.store.layout == before
                ring.check()

            failed, _ = each_refused(lambda layout=layout: ring.store.core.rebuild(layout), unchanged)
            assert failed > 12
            assert ring.store.layout == layout
            ring.check()
        ring.add(30)
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
    """Reading, clearing, another array, an image and loading it."""
    stream = Stream(3, 2, (1, 12, 12), np.uint8, "mixed", Stack(3, 0))
    with limits(min_segment=1 << 9, first_room=1, narrow_patterns=4):
        ring = Ring(stream, method, rows=20)
        ring.add(50)
        assert each_refused(lambda: ring.read(0), ring.check)[0] == 1
        made: list[int] = []
        assert each_refused(lambda: made.append(ring.store.new_index(9)), ring.check)[0] > 3
        assert made[-1] == len(made) + 1, "what failed has left no array behind"
        images: list[bytes] = []
        each_refused(lambda: images.append(ring.store.core.image()), ring.check)
        assert len(set(images)) == 1, "an image is whole"
        failed, _ = each_refused(lambda: load_image(ring.store, images[0]), ring.check)
        assert failed > 12
        ring.check()
        ring.add(3)
        ring.check()
        assert each_refused(ring.store.clear, ring.check)[0] > 0
        assert not ring.read(0).any() and not ring.read(1).any()
        ring.twins[:] = 0
        ring.add(30)
        ring.check()


@pytest.mark.parametrize("method", QUICK_METHODS)
def test_making_a_store(method: str) -> None:
    made: list[CompressedArray] = []
    failed, _ = each_refused(
        lambda: made.append(CompressedArray((9, 2), np.uint8, (3, 8, 8), compression_method=method)), lambda: None
    )
    assert failed > 8 and len(made) == 1
    noise = np.random.default_rng(0).integers(0, 256, made[0].shape, dtype=np.uint8)
    made[0][:] = noise
    np.testing.assert_array_equal(np.asarray(made[0]), noise)
