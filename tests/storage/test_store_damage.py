"""Damaged memory gives an error, or other data of the right shape where nothing tells; never a crash."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from observation_streams import METHODS, Stack, Stream, needs_numba
from store_kit import Ring

from sb3_extra_buffers.storage import FrameStore, StorageError
from sb3_extra_buffers.storage.records import CODED, HEADER_BYTES, KEYED, OPEN_BIT, PACKED, RAW

REFERENCE = [method for method in METHODS if str(method).startswith("delta")]
PLAIN = [method for method in METHODS if method is not None and method not in REFERENCE]


class Bits(Stream):
    """Short lines of zeros and ones: references do not pay, but every codec does."""

    def __init__(self, seed: int, n_envs: int, depth: int) -> None:
        super().__init__(seed, n_envs, (1, 24, 24), np.uint8, "noise", Stack(depth, 0), 0.05)
        rng = np.random.default_rng(seed)
        self.frames = [
            (rng.integers(0, 2, (1, 24, 4), dtype=np.uint8).repeat(6, axis=2) for _ in count()) for _ in range(n_envs)
        ]


def filled(method: str, content: str) -> Ring:
    stream = Bits(0, 2, 3) if content == "bits" else Stream(0, 2, (1, 24, 24), np.uint8, content, Stack(3, 0))
    ring = Ring(stream, method, rows=150)
    ring.add(110)  # not round the ring, so that every record is in use
    ring.check()
    return ring


_made: dict[tuple[str, str], Ring] = {}


def fresh(method: str, content: str) -> Ring:
    """A filled ring that may be spoiled."""
    if (method, content) not in _made:
        _made[method, content] = filled(method, content)
    return _made[method, content].copy()


def read_all(ring: Ring) -> list[np.ndarray | None]:
    """
    Read both arrays, by themselves and together, into memory whose surroundings are watched.

    :return: What was read; None for each that was refused
    """
    cells = np.arange(ring.rows * ring.stream.n_envs)
    shape = (len(cells), *ring.stream.obs_shape)
    size = int(np.prod(shape))
    results: list[np.ndarray | None] = []
    for parts in ([0], [1], [0, 1]):
        guarded = [np.full(size + 512, 0x5C, np.uint8) for _ in parts]
        outs = [memory[256 : 256 + size].reshape(shape) for memory in guarded]
        try:
            ring.store.read(cells, [(ring.indexes[which], out) for which, out in zip(parts, outs, strict=True)])
        except StorageError:
            results.extend([None] * len(parts))
        else:
            results.extend(outs)
        for memory in guarded:
            assert (memory[:256] == 0x5C).all() and (memory[-256:] == 0x5C).all(), "written out of bounds"
    return results


def records(store: FrameStore) -> Iterator[tuple[int, int, int]]:
    """Segment, offset and kind of each record in the log."""
    coder = store.coder
    for stream in range(store.n_streams):
        last = int(coder.heads[stream]) >> coder.shift
        for group in range(int(coder.directory.oldest[stream]), last + 1):
            location = int(coder.directory.locations[stream, group % coder.directory.capacity])
            if not location & OPEN_BIT:
                slot, offset = location >> 32, location & 0xFFFFFFFF
                yield slot, offset, int(coder.log.slots[slot].memory[offset + 4])


CASES = [(method, content) for method in REFERENCE for content in ("game", "mixed", "bits")]
CASES += [(method, content) for method in PLAIN for content in ("game", "mixed")]


@pytest.mark.parametrize(("method", "content"), CASES)
@given(data=st.data())
def test_any_damage_does_no_harm(method: str, content: str, data: st.DataObject) -> None:
    """Bytes anywhere in the log, in the open groups and in the directory become others."""
    ring = fresh(method, content)
    coder = ring.store.coder
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    targets = [segment.memory[: segment.used] for segment in coder.log.slots if segment.used]
    if hasattr(coder, "staging"):
        targets += [coder.staging[stream, : int(coder.staged[stream])] for stream in range(ring.store.n_streams)]
    how = data.draw(st.sampled_from(["flip", "noise", "zeros", "ones", "shift", "headers"]))
    for _ in range(data.draw(st.integers(1, 30))):
        target = targets[rng.integers(len(targets))]
        start = int(rng.integers(target.size))
        part = target[start : start + int(rng.integers(1, 40))]
        if how == "flip":
            part[0] ^= np.uint8(1 << rng.integers(8))
        elif how == "noise":
            part[:] = rng.integers(0, 256, part.size)
        elif how == "shift":
            target[:] = np.roll(target, int(rng.integers(1, 9)))
        elif how == "headers":
            places = list(records(ring.store))
            slot, offset, _ = places[rng.integers(len(places))]
            header = coder.log.slots[slot].memory[offset : offset + HEADER_BYTES + 4]
            header[rng.integers(header.size)] = rng.choice([0, 1, 2, 3, 4, 127, 128, 254, 255])
        else:
            part[:] = 0 if how == "zeros" else 255
    read_all(ring)


@pytest.mark.parametrize(("method", "content"), CASES)
def test_locations_outside_the_log_are_refused(method: str, content: str) -> None:
    ring = fresh(method, content)
    coder = ring.store.coder
    bad = [
        len(coder.log.slots) << 32,
        (2**31 - 1) << 32,
        coder.log.segment_bytes,
        coder.log.segment_bytes - 1,
        0xFFFFFFFF,
    ]
    before = coder.directory.locations.copy()
    for location in bad:
        coder.directory.locations[:] = location
        assert all(result is None for result in read_all(ring)), f"location {location:x}"
    coder.directory.locations[:] = before
    ring.check()


@pytest.mark.parametrize(
    ("method", "content", "kind"),
    [
        *[(method, "bits", CODED) for method in REFERENCE],
        *[(method, "game", PACKED) for method in REFERENCE if method == "delta-zstd"],
        *[(method, "bits", CODED) for method in PLAIN if method != "none"],
    ],
)
def test_damaged_blobs_are_noticed(method: str, content: str, kind: int) -> None:
    """What a codec made has a checksum: no flipped bit goes unnoticed, and none is taken for data."""
    ring = fresh(method, content)
    coder = ring.store.coder
    found = [(slot, offset) for slot, offset, its_kind in records(ring.store) if its_kind == kind]
    assert found, "the content does not lead to such records"
    rng = np.random.default_rng(0)
    packed = kind == PACKED or method in PLAIN
    for slot, offset in [found[0], found[len(found) // 2], found[-1]]:
        memory = coder.log.slots[slot].memory
        length = int.from_bytes(memory[offset : offset + 4].tobytes(), "little")
        start = offset + HEADER_BYTES + (0 if method in PLAIN else 4)
        stop = offset + HEADER_BYTES + length
        if not packed:  # patches follow the blob
            stop = start + int.from_bytes(memory[start - 4 : start].tobytes(), "little")
        assert stop > start
        for place in {start, stop - 1, *rng.integers(start, stop, 12).tolist()}:
            before = memory[place]
            memory[place] ^= np.uint8(1 << rng.integers(8))
            assert any(result is None for result in read_all(ring)), f"byte {place - start} of {stop - start}"
            memory[place] = before
    ring.check()


@pytest.mark.parametrize(("method", "content"), CASES)
def test_wrong_kinds_and_lengths_are_refused(method: str, content: str) -> None:
    ring = fresh(method, content)
    memory_of = ring.store.coder.log.slots
    places = list(records(ring.store))
    for slot, offset, kind in [places[0], places[-1]]:
        header = memory_of[slot].memory[offset : offset + HEADER_BYTES]
        before = header.copy()
        for wrong in {KEYED, CODED, PACKED, RAW, 4, 255} - {kind}:
            header[4] = wrong
            results = read_all(ring)
            if wrong > RAW:
                assert any(result is None for result in results), wrong
        header[:] = before
        for length in (0, 2**32 - 1, ring.store.coder.log.segment_bytes):
            header[:4] = np.frombuffer(length.to_bytes(4, "little"), np.uint8)
            assert any(result is None for result in read_all(ring)), length
        header[:] = before
    ring.check()


@pytest.mark.parametrize(("method", "content"), CASES)
@given(data=st.data())
def test_a_damaged_index_does_no_harm(method: str, content: str, data: st.DataObject) -> None:
    """Entries that name a pattern or a frame that there is not."""
    ring = fresh(method, content)
    for _ in range(data.draw(st.integers(1, 5))):
        index = ring.indexes[data.draw(st.integers(0, 1))]
        array = data.draw(st.sampled_from([index.newest, index.pattern]))
        array[data.draw(st.integers(0, len(array) - 1))] ^= array.dtype.type(1 << data.draw(st.integers(0, 15)))
    read_all(ring)


@pytest.mark.parametrize(("method", "content"), CASES)
def test_patterns_that_there_are_not_are_refused(method: str, content: str) -> None:
    ring = fresh(method, content)
    for bit in (14, 15):
        for index in ring.indexes:
            index.pattern[7] ^= np.uint16(1 << bit)
        assert all(result is None for result in read_all(ring)), f"bit {bit}"
        for index in ring.indexes:
            index.pattern[7] ^= np.uint16(1 << bit)
    ring.check()


@pytest.mark.parametrize("method", REFERENCE)
@pytest.mark.parametrize("content", ["game", "bits"])
def test_open_groups_of_environments_that_there_are_not_are_refused(method: str, content: str) -> None:
    ring = fresh(method, content)
    for stream in (ring.store.n_streams, 1 << 20, (1 << 62) - 1):
        ring.store.coder.directory.locations[:] = OPEN_BIT | stream
        assert all(result is None for result in read_all(ring)), f"environment {stream}"


@needs_numba
def test_key_frames_beyond_the_segment_are_refused() -> None:
    """A key frame that begins inside of a segment must end there, too."""
    ring = fresh("delta", "game")
    coder = ring.store.coder
    slot, offset = next((slot, offset) for slot, offset, kind in records(ring.store) if kind == KEYED)
    key = coder.log.slots[slot].memory[offset + HEADER_BYTES : offset + HEADER_BYTES + 4]
    before = key.copy()
    size = coder.layout.frame_bytes
    for place in (coder.log.segment_bytes - size + 1, coder.log.segment_bytes - 1, coder.log.segment_bytes, 2**32 - 1):
        key[:] = np.frombuffer(place.to_bytes(4, "little"), np.uint8)
        assert any(result is None for result in read_all(ring)), place
    key[:] = np.frombuffer((coder.log.segment_bytes - size).to_bytes(4, "little"), np.uint8)
    assert all(result is not None for result in read_all(ring)), "the last place where a frame fits"
    key[:] = before
    ring.check()


@pytest.mark.parametrize("method", METHODS)
def test_error_says_what_is_wrong(method: str | None) -> None:
    ring = Ring(Stream(0, 1, (1, 24, 24), np.uint8, "game", Stack(3, 0)), method, rows=40)
    ring.add(60)
    for segment in ring.store.coder.log.slots:
        segment.memory[:] = 255
    with pytest.raises(StorageError, match=r"damaged|longer than its segment"):
        ring.read(0)
    assert issubclass(StorageError, RuntimeError)
