"""A damaged image gives an error, or other data of the right shape where nothing tells; never a crash."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from itertools import count

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from observation_streams import METHODS, Stack, Stream
from reference_decoder import BLOB, CODED, HEAD, KEYED, MAGIC, OPEN, PACKED, RAW, STREAM, Image
from store_kit import Ring, image_of, load_image

from sb3_extra_buffers.storage import StorageError

REFERENCE = [method for method in METHODS if str(method).startswith("delta")]
PLAIN = [method for method in METHODS if method is not None and method not in REFERENCE]
RECORD_HEADER = 6


class Bits(Stream):
    """Short lines of zeros and ones: references do not pay, but every codec does."""

    def __init__(self, seed: int, n_envs: int, depth: int) -> None:
        super().__init__(seed, n_envs, (1, 24, 24), np.uint8, "noise", Stack(depth, 0), 0.05)
        rng = np.random.default_rng(seed)
        self.frames = [
            (rng.integers(0, 2, (1, 24, 8), dtype=np.uint8).repeat(3, axis=2) for _ in count()) for _ in range(n_envs)
        ]


_made: dict[tuple[str, str], tuple[Ring, Image]] = {}


def filled(method: str, content: str) -> tuple[Ring, Image]:
    """A filled ring, and what its image is made of."""
    if (method, content) not in _made:
        stream = Bits(0, 2, 3) if content == "bits" else Stream(0, 2, (1, 24, 24), np.uint8, content, Stack(3, 0))
        ring = Ring(stream, method, rows=150)
        ring.add(110)  # not round the ring, so that every record is in use
        ring.check()
        _made[method, content] = ring, image_of(ring.store)
    return _made[method, content]


def spoiled(ring: Ring, image: bytes | bytearray) -> Ring | None:
    """
    Load an image.

    :param ring: Where it came from
    :param image: The image
    :return: A ring that may be spoiled further; None where loading says that it is damaged
    """
    twin = object.__new__(Ring)
    twin.__dict__.update(ring.__dict__)
    twin.store = object.__new__(type(ring.store))
    twin.store.__dict__.update(ring.store.__dict__)
    try:
        load_image(twin.store, bytes(image))
    except StorageError as error:
        assert "saved observations are damaged" in str(error)
        return None
    return twin


def read_all(ring: Ring | None, briefly: bool = False) -> list[np.ndarray | None]:
    """
    Read both arrays, by themselves and together, into memory whose surroundings are watched.

    :param ring: The ring; None where it could not even be loaded
    :param briefly: Only together
    :return: What was read; None for each that was refused
    """
    if ring is None:
        return [None] * 4
    cells = np.arange(ring.rows * ring.stream.n_envs)
    shape = (len(cells), *ring.stream.obs_shape)
    size = int(np.prod(shape))
    results: list[np.ndarray | None] = []
    for parts in ([0], [1], [0, 1])[-1 if briefly else 0 :]:
        guarded = [np.full(size + 512, 0x5C, np.uint8) for _ in parts]
        outs = [memory[256 : 256 + size].reshape(shape) for memory in guarded]
        beside = (ring.indexes[parts[1]], outs[1]) if len(parts) > 1 else ()
        try:
            assert ring.store.read(cells, None, ring.indexes[parts[0]], outs[0], *beside)
        except StorageError:
            results.extend([None] * len(parts))
        else:
            results.extend(outs)
        for memory in guarded:
            assert (memory[:256] == 0x5C).all() and (memory[-256:] == 0x5C).all(), "written out of bounds"
    return results


def use(ring: Ring | None, seed: int) -> None:
    """
    Read a store that may be damaged, and go on with it: what is written from now on is read back, or refused.

    :param ring: The ring; None where it could not even be loaded
    :param seed: Of what is written
    """
    read_all(ring, briefly=True)
    if ring is None:
        return
    noise = np.random.default_rng(seed).integers(0, 256, (12, 2, *ring.stream.obs_shape), dtype=np.uint8)
    for number, obs in enumerate(noise):
        try:
            ring.store.write_row(number * 7 % ring.rows, 0, obs, 1, noise[number - 1])
        except StorageError:
            continue
        outs = [np.empty_like(obs) for _ in range(2)]
        cells = number * 7 % ring.rows * 2 + np.arange(2)
        try:
            assert ring.store.read(cells, None, 0, outs[0], 1, outs[1])
        except StorageError:
            continue  # a key frame or a directory that is not what it was
    read_all(ring, briefly=True)
    ring.store.core.image()
    ring.store.core.usage()
    ring.store.clear()
    assert all(result is not None and not result.any() for result in read_all(ring, briefly=True))
    ring.store.write_row(3, 0, noise[0], 1, noise[1])
    cells = 6 + np.arange(2)
    outs = [np.empty_like(noise[0]) for _ in range(2)]
    assert ring.store.read(cells, None, 0, outs[0], 1, outs[1])
    np.testing.assert_array_equal(outs, noise[:2], "a store that was cleared is as good as new")


def records(parts: Image) -> Iterator[tuple[int, int]]:
    """Where in the image each record of the log is, and its kind."""
    for groups in parts.directory:
        for location in groups.lists["locations"]:
            if not location & OPEN:
                at = parts.segments[location >> 32].bytes_at + (location & 0xFFFFFFFF)
                yield at, parts.image[at + 4]


CASES = [(method, content) for method in REFERENCE for content in ("game", "mixed", "bits")]
CASES += [(method, content) for method in PLAIN for content in ("game", "mixed")]
# Where much is tried, what codecs have in common is tried with one of them.
FEWER = [
    pytest.param(method, content, marks=[pytest.mark.slow] * (method in PLAIN and method not in ("none", "zstd-3")))
    for method, content in CASES
]


@pytest.mark.parametrize(("method", "content"), FEWER)
@given(data=st.data())
def test_any_damage_does_no_harm(method: str, content: str, data: st.DataObject) -> None:
    """Bytes anywhere in the log and in the open groups become others."""
    ring, parts = filled(method, content)
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    image = np.frombuffer(parts.image, np.uint8).copy()
    targets = [
        image[part.bytes_at : part.bytes_at + len(part.data)] for part in (*parts.segments, *parts.streams) if part.data
    ]
    places = list(records(parts))
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
            at, _ = places[rng.integers(len(places))]
            image[at + rng.integers(RECORD_HEADER + 4)] = rng.choice([0, 1, 2, 3, 4, 127, 128, 254, 255])
        else:
            part[:] = 0 if how == "zeros" else 255
    use(spoiled(ring, image.tobytes()), 0)


def numbers_of(parts: Image) -> Iterator[tuple[str, int, str]]:
    """Every number of an image that is not in a long list, and some of those that are: what it is, where, how it is packed."""
    for place, name in enumerate(HEAD):
        yield name, parts.head.at + 8 * place, "<Q"
    for which, segment in enumerate(parts.segments[:2]):
        for place in range(3 + parts.n_streams):
            yield f"segment {which}, number {place}", segment.at + 8 * place, "<Q"
    for place in range(parts.depth * min(3, len(parts.patterns) - 1)):
        end = parts.streams[0].at
        yield "pattern", end - 8 * (place + 1), "<Q"
    for which, stream in enumerate(parts.streams):
        for place, name in enumerate((*STREAM, *("number",) * parts.depth)):
            yield f"{name} of stream {which}", stream.at + 8 * place, "<Q"
    for which, groups in enumerate(parts.directory):
        yield f"oldest of stream {which}", groups.at, "<Q"
        for place in {0, 1, len(groups.lists["locations"]) - 1}:
            yield f"location of stream {which}", groups.bytes_at + 8 * place, "<Q"
    for which, index in enumerate(parts.indexes):
        for place, name in enumerate(("cells", "wide", "overwritten")):
            yield f"{name} of index {which}", index.at + 8 * place, "<Q"
        for cell in (0, 7, 100):
            yield f"newest of index {which}", index.bytes_at + 4 * cell, "<I"
            yield f"pattern in index {which}", index.bytes_at + 4 * index["cells"] + 2 * cell, "<H"


@pytest.mark.parametrize(
    ("method", "content"),
    [("delta", "bits"), ("delta", "game"), ("none", "mixed")] + [("delta-zstd", "game")] * ("delta-zstd" in METHODS),
)
def test_every_number_may_be_any_other(method: str, content: str) -> None:
    """Each number of an image in turn, with every bit flipped and with values at the edges of what is possible."""
    ring, parts = filled(method, content)
    rng = random.Random(0)
    for name, at, form in numbers_of(parts):
        size = struct.calcsize(form)
        (before,) = struct.unpack_from(form, parts.image, at)
        edges = [
            0,
            1,
            2,
            63,
            64,
            65,
            2**31,
            2**32,
            2**40,
            2**56,
            2**56 + 1,
            2**63,
            2**64 - 1,
            2**64 - 2,
            before + 1,
            before - 1,
        ]
        values = {value % 2 ** (8 * size) for value in edges} | {before ^ 1 << bit for bit in range(8 * size)}
        for value in rng.sample(sorted(values - {before}), 6):
            image = bytearray(parts.image)
            struct.pack_into(form, image, at, value)
            try:
                use(spoiled(ring, image), value % 1000)
            except MemoryError:
                continue  # a number that says how much there is may ask for more than there is
            except BaseException as error:
                raise AssertionError(f"{name}: {before} became {value}") from error


@pytest.mark.parametrize(("method", "content"), [(m, c) for m, c in CASES if m in ("delta", "delta-zstd", "none")])
@given(seed=st.integers(0, 2**32))
def test_flipped_bits_anywhere(method: str, content: str, seed: int) -> None:
    """In the log, in tables, in what is known of environments: wherever they fall."""
    ring, parts = filled(method, content)
    rng = np.random.default_rng(seed)
    image = bytearray(parts.image)
    for at in rng.integers(0, len(image), rng.integers(1, 9)).tolist():
        image[at] ^= 1 << int(rng.integers(8))
    try:
        use(spoiled(ring, image), seed)
    except MemoryError:
        return


@pytest.mark.parametrize(("method", "content"), [("delta", "game"), ("delta-zstd", "game"), ("none", "mixed")])
def test_an_image_that_was_cut_off(method: str, content: str) -> None:
    """Wherever it ends, and whatever was added to it: it is not taken for a whole one."""
    ring, parts = filled(method, content)
    lengths = {0, 1, 7, 8, 9, len(parts.image) - 1, *random.Random(0).sample(range(len(parts.image)), 200)}
    for part in (*parts.segments, *parts.streams, *parts.directory, *parts.indexes):
        lengths |= {part.at - 1, part.at, part.at + 1, part.at + 8, part.bytes_at}
    for length in lengths:
        assert spoiled(ring, parts.image[:length]) is None, length
    assert spoiled(ring, parts.image + b"\0") is None
    assert spoiled(ring, b"X" + parts.image[1:]) is None
    assert spoiled(ring, MAGIC + bytes(500)) is None
    assert spoiled(ring, MAGIC + b"\xff" * 500) is None


def test_an_image_of_other_observations_is_refused() -> None:
    """The same bytes mean something else in a store of another shape, method or number of environments."""
    one = Ring(Stream(0, 2, (1, 24, 24), np.uint8, "game"), "delta", rows=10)
    one.add(5)
    image = one.store.core.image()
    for shape, n_envs, method in (((1, 24, 25), 2, "delta"), ((1, 24, 24), 3, "delta"), ((24, 1, 24), 2, "delta")):
        other = Ring(Stream(0, n_envs, shape, np.uint8, "game"), method, rows=10)
        with pytest.raises(StorageError, match="damaged"):
            load_image(other.store, image)
    for method in ("none", *[method for method in REFERENCE if method == "delta-zstd"]):
        other = Ring(Stream(0, 2, (1, 24, 24), np.uint8, "game"), method, rows=10)
        with pytest.raises(StorageError, match="damaged"):
            load_image(other.store, image)


@pytest.mark.parametrize(("method", "content"), CASES)
def test_locations_outside_the_log_are_refused(method: str, content: str) -> None:
    ring, parts = filled(method, content)
    size = ring.store.core.segment_bytes
    for location in (len(parts.segments) << 32, (2**31 - 1) << 32, size, size - 1, 0xFFFFFFFF):
        image = bytearray(parts.image)
        for groups in parts.directory:
            number = len(groups.lists["locations"])
            struct.pack_into(f"<{number}Q", image, groups.bytes_at, *[location] * number)
        assert all(result is None for result in read_all(spoiled(ring, image))), f"location {location:x}"


@pytest.mark.parametrize(
    ("method", "content", "kind"),
    [
        *[(method, "bits", CODED) for method in REFERENCE],
        *[(method, "game", PACKED) for method in REFERENCE if method == "delta-zstd"],
        *[(method, "game" if method.startswith("rle") else "mixed", BLOB) for method in PLAIN if method != "none"],
    ],
)
def test_damaged_blobs_are_noticed(method: str, content: str, kind: int) -> None:
    """What a codec made has a checksum: no flipped bit goes unnoticed, and none is taken for data."""
    ring, parts = filled(method, content)
    found = [at for at, its_kind in records(parts) if its_kind == kind]
    if not found and kind == BLOB:
        ring, parts = filled(method, "bits")
        found = [at for at, its_kind in records(parts) if its_kind == kind]
    assert found, "the content does not lead to such records"
    rng = np.random.default_rng(0)
    for at in [found[0], found[len(found) // 2], found[-1]]:
        (length,) = struct.unpack_from("<I", parts.image, at)
        start = at + RECORD_HEADER + (0 if kind == BLOB else 4)
        stop = at + RECORD_HEADER + length
        if kind == CODED:  # patches follow the blob
            stop = start + struct.unpack_from("<I", parts.image, start - 4)[0]
        assert stop > start
        for place in {start, stop - 1, *rng.integers(start, stop, 12).tolist()}:
            image = bytearray(parts.image)
            image[place] ^= 1 << int(rng.integers(8))
            assert any(result is None for result in read_all(spoiled(ring, image))), f"byte {place - start} of {stop - start}"


@pytest.mark.parametrize(("method", "content"), CASES)
def test_wrong_kinds_and_lengths_are_refused(method: str, content: str) -> None:
    ring, parts = filled(method, content)
    places = list(records(parts))
    for at, kind in [places[0], places[-1]]:
        for wrong in {KEYED, CODED, PACKED, RAW, BLOB, 5, 255} - {kind}:
            image = bytearray(parts.image)
            image[at + 4] = wrong
            results = read_all(spoiled(ring, image))
            if wrong > BLOB:
                assert any(result is None for result in results), wrong
        for length in (0, 2**32 - 1, ring.store.core.segment_bytes):
            image = bytearray(parts.image)
            struct.pack_into("<I", image, at, length)
            assert any(result is None for result in read_all(spoiled(ring, image))), length


@pytest.mark.parametrize(("method", "content"), FEWER)
@given(data=st.data())
def test_a_damaged_index_does_no_harm(method: str, content: str, data: st.DataObject) -> None:
    """Entries that name a pattern or a frame that there is not."""
    ring, parts = filled(method, content)
    image = bytearray(parts.image)
    for _ in range(data.draw(st.integers(1, 5))):
        index = parts.indexes[data.draw(st.integers(0, 1))]
        image[data.draw(st.integers(index.bytes_at, index.bytes_at + 6 * index["cells"] - 1))] ^= 1 << data.draw(
            st.integers(0, 7)
        )
    use(spoiled(ring, image), 0)


@pytest.mark.parametrize(("method", "content"), CASES)
def test_patterns_that_there_are_not_are_refused(method: str, content: str) -> None:
    ring, parts = filled(method, content)
    for bit in (6, 7):
        image = bytearray(parts.image)
        for index in parts.indexes:
            image[index.bytes_at + 4 * index["cells"] + 2 * 7 + 1] ^= 1 << bit
        assert all(result is None for result in read_all(spoiled(ring, image))), f"bit {8 + bit}"


@pytest.mark.parametrize("method", REFERENCE)
@pytest.mark.parametrize("content", ["game", "bits"])
def test_open_groups_of_environments_that_there_are_not_are_refused(method: str, content: str) -> None:
    ring, parts = filled(method, content)
    for stream in (ring.store.n_streams, 1 << 20, (1 << 62) - 1):
        image = bytearray(parts.image)
        for groups in parts.directory:
            number = len(groups.lists["locations"])
            struct.pack_into(f"<{number}Q", image, groups.bytes_at, *[OPEN | stream] * number)
        assert all(result is None for result in read_all(spoiled(ring, image))), f"environment {stream}"


def test_key_frames_beyond_the_segment_are_refused() -> None:
    """A key frame that begins inside of a segment must end there, too."""
    ring, parts = filled("delta", "game")
    at = next(at for at, kind in records(parts) if kind == KEYED)
    segment, size = ring.store.core.segment_bytes, parts.frame_bytes
    for place in (segment - size + 1, segment - 1, segment, 2**32 - 1):
        image = bytearray(parts.image)
        struct.pack_into("<I", image, at + RECORD_HEADER, place)
        assert any(result is None for result in read_all(spoiled(ring, image))), place
    struct.pack_into("<I", image, at + RECORD_HEADER, segment - size)
    assert all(result is not None for result in read_all(spoiled(ring, image))), "the last place where a frame fits"


@pytest.mark.parametrize("method", METHODS)
def test_error_says_what_is_wrong(method: str | None) -> None:
    ring = Ring(Stream(0, 1, (1, 24, 24), np.uint8, "game", Stack(3, 0)), method, rows=40)
    ring.add(60)
    parts = image_of(ring.store)
    image = bytearray(parts.image)
    for segment in parts.segments:
        image[segment.bytes_at : segment.bytes_at + len(segment.data)] = b"\xff" * len(segment.data)
    load_image(ring.store, bytes(image))
    with pytest.raises(StorageError, match="damaged"):
        ring.read(0)
    assert issubclass(StorageError, RuntimeError)
