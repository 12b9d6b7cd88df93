"""What ``docs/format.md`` says is what the core does: a decoder written from that page reads the same observations."""

from __future__ import annotations

import copy
import pickle
import struct
import zlib
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import reference_decoder
from hypothesis import given
from hypothesis import strategies as st
from observation_streams import METHODS, Stack, Stream
from reference_decoder import BLOB, CODED, KEYED, OPEN, PACKED, RAW, Image, apply_patch
from store_kit import Ring, begin_at, image_of, limits

from sb3_extra_buffers.storage import FrameStore
from sb3_extra_buffers.storage.layout import FrameLayout

STORED = [method for method in METHODS if method in ("delta", "delta-zstd", "zstd-3", "none")]
FORMS = {
    "no stack": ((9, 8), np.uint8, None),
    "no stack, floats": ((3, 5), np.float32, None),
    "colours": ((3, 8, 8), np.uint8, None),
    "stack first": ((1, 9, 8), np.uint8, Stack(4, 0)),
    "stack first, floats": ((1, 5, 4), np.float32, Stack(4, 0, "repeat")),
    "stack last": ((9, 8, 1), np.uint8, Stack(4, -1)),
    "stack last, floats": ((5, 4, 1), np.float32, Stack(4, -1, "repeat")),
    "stack of colours": ((3, 8, 8), np.uint8, Stack(4, 0)),
}


def make_ring(method: str, form: str, content: str, rows: int = 24, seed: int = 0) -> Ring:
    shape, dtype, stack = FORMS[form]
    return Ring(Stream(seed, 2, shape, dtype, content, stack, done_rate=0.1), method, rows)


def check(ring: Ring) -> Image:
    """Compare what the decoder makes of a store with what the store gives, and that with what was written."""
    image = image_of(ring.store)
    for which, index in enumerate(ring.indexes):
        got = ring.read(which).reshape(-1, *ring.stream.obs_shape)
        assert got.tobytes() == ring.twins[which].tobytes()
        decoded = image.observations(index)
        assert len(decoded) == len(got) == ring.rows * ring.stream.n_envs
        for cell, obs in enumerate(got):
            assert decoded[cell] == obs.tobytes(), (which, cell)
    return image


def kinds_of(image: Image) -> set[int]:
    """The kinds of all records that the directory leads to, open groups included."""
    kinds = set()
    for stream, groups in zip(image.streams, image.directory, strict=True):
        for place in groups.lists["locations"]:
            record = stream.data if place & OPEN else image.segments[place >> 32].data[place & 0xFFFFFFFF :]
            kinds.add(record[4])
    return kinds


@pytest.mark.parametrize("content", ["game", "noise", "mixed"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("method", STORED)
def test_the_decoder_gives_what_the_store_gives(method: str, form: str, content: str) -> None:
    with limits(min_segment=1024):  # so that segments are used again
        ring = make_ring(method, form, content)
        check(ring)
        for count in (1, 10, 90, 50):
            ring.add(count)
            image = check(ring)
        assert image.depth == (1 if ring.stream.stack is None else 4) or content != "game"
        ring.store.clear()
        ring.twins[:] = 0
        check(ring)
        ring.add(7)
        check(ring)


@given(st.integers(0, 10_000), st.sampled_from(STORED), st.sampled_from(sorted(FORMS)), st.integers(0, 70))
def test_any_stream_at_any_moment(seed: int, method: str, form: str, count: int) -> None:
    ring = make_ring(method, form, ("game", "noise", "mixed")[seed % 3], rows=16, seed=seed)
    ring.add(count)
    check(ring)


def test_an_image_brings_the_size_of_its_segments() -> None:
    """Versions may choose other sizes; what is stored goes on with those that it has."""
    form = sorted(FORMS)[0]
    with limits(min_segment=1 << 9):
        ring = make_ring("delta", form, "game")
        ring.add(40)
    size = ring.store.core.segment_bytes
    assert size < make_ring("delta", form, "game").store.core.segment_bytes
    ring.store = copy.deepcopy(ring.store)
    assert ring.store.core.segment_bytes == size
    check(ring)
    ring.add(90)
    assert ring.store.core.segment_bytes == size
    check(ring)


def write_all(ring: Ring, frames: np.ndarray) -> None:
    """Write frames to both arrays, the same for all environments."""
    for before, after in pairwise(frames):
        pair = np.stack([before] * ring.stream.n_envs), np.stack([after] * ring.stream.n_envs)
        ring.write(pair)
        ring.went_on(pair)


def bars(rng: np.random.Generator, count: int, shape: tuple[int, ...]) -> np.ndarray:
    """Columns that change from frame to frame: each row is like the one above it."""
    return np.broadcast_to(rng.integers(0, 255, (count, 1, 1, shape[-1]), dtype=np.uint8), (count, *shape)).copy()


def steps(rng: np.random.Generator, count: int, shape: tuple[int, ...]) -> np.ndarray:
    """A shape that moves over a still picture, in the same way again and again."""
    frames = np.repeat(rng.integers(0, 255, (1, *shape), dtype=np.uint8), count, axis=0)
    for number, frame in enumerate(frames):
        frame[:, 3::5, number % 12 : number % 12 + 4] = (1, 2, 3, 4)
    return frames


def few_values(rng: np.random.Generator, count: int, shape: tuple[int, ...]) -> np.ndarray:
    """Frames that have nothing to do with each other, but that a codec makes smaller."""
    return rng.integers(0, 3, (count, *shape), dtype=np.uint8)


@pytest.mark.parametrize(
    ("method", "make_frames", "wanted"),
    [
        ("delta", steps, {KEYED}),
        ("delta", few_values, {CODED}),
        ("delta-zstd", steps, {KEYED, PACKED}),
        ("delta-zstd", few_values, {CODED}),
        ("zstd-3", few_values, {BLOB}),
        ("none", few_values, {RAW}),
    ],
)
def test_each_kind_of_record(method: str, make_frames: Callable[..., np.ndarray], wanted: set[int]) -> None:
    if method not in STORED:
        pytest.skip(f"{method} is not installed")
    shape = (3, 16, 16)  # planes, which codecs get interleaved
    ring = Ring(Stream(0, 2, shape, np.uint8), method, rows=150)
    write_all(ring, make_frames(np.random.default_rng(1), 200, shape))
    image = check(ring)
    assert image.interleave
    assert wanted <= kinds_of(image)


def test_the_row_above(monkeypatch: pytest.MonkeyPatch) -> None:
    patches = []

    def note(tokens: bytes, reference: bytes, row: int) -> bytes:
        patches.append((tokens, row))
        return apply_patch(tokens, reference, row)

    monkeypatch.setattr(reference_decoder, "apply_patch", note)
    ring = Ring(Stream(0, 2, (1, 20, 8), np.uint8), "delta")
    write_all(ring, bars(np.random.default_rng(1), 100, (1, 20, 8)))
    check(ring)
    assert any(tokens[:1] == b"\xfd" and row == 8 for tokens, row in patches)


@pytest.mark.parametrize("method", STORED)
def test_numbers_beyond_32_bits(method: str) -> None:
    """An index has 32 bits of a number: those before and after they run over are told apart."""
    ring = make_ring(method, "no stack", "game", rows=200)
    begin_at(ring.store, (1 << 32) - 150)
    ring.add(190)
    image = check(ring)
    numbers = [image.frame_numbers(0, cell)[-1] for cell in range(2 * 190)]
    assert min(numbers) < 1 << 32 < max(numbers)


def test_a_saved_store_holds_the_image() -> None:
    ring = make_ring("delta", "stack first", "game")
    ring.add(40)
    image = ring.store.core.image()
    assert image in pickle.dumps(ring.store)
    loaded: FrameStore = pickle.loads(pickle.dumps(ring.store))
    assert loaded.core.image() == image


def test_one_array_alone() -> None:
    """The image of a single array holds that index and no other."""
    ring = make_ring("delta", "stack first", "game")
    ring.add(40)
    image = Image(ring.store.core.image(1), *ring.store.spec.codecs())
    assert image.head["n_indexes"] == len(image.indexes) == 1
    assert b"".join(image.observations(0)) == ring.twins[1].tobytes()


def test_blobs_end_with_a_checksum() -> None:
    codec = make_ring("none", "no stack", "game").store.spec.codecs()[0]
    payload = bytes(range(50))
    expected = payload + struct.pack("<I", zlib.crc32(payload, zlib.crc32(b"none")))
    assert codec.encode(np.frombuffer(payload, np.uint8)) == expected


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, ">f4", np.float64, np.bool_, np.complex64])
@pytest.mark.parametrize("method", STORED)
def test_channels_last_in_memory(method: str, dtype: str | type) -> None:
    """The order in which observations come changes what is known of the last ones, and nothing else; for any type."""
    ring = Ring(Stream(5, 2, (1, 7, 9), np.dtype(dtype), "mixed", Stack(3, 0)), method, rows=20)
    seen = set()
    for step in range(60):
        pair = tuple(np.asarray(obs, dtype) for obs in ring.stream.step()[:2])
        if step % 7 < 4:
            pair = tuple(np.moveaxis(np.moveaxis(obs, 1, -1).copy(), -1, 1) for obs in pair)
        ring.write(pair)
        ring.went_on(pair)
        if step % 5 == 0:
            seen.add(check(ring).turned)
    assert seen == {0, 1}


@pytest.mark.parametrize("method", STORED)
def test_after_everything_was_stored_again(method: str) -> None:
    """By another layout, to be rid of what is not in use, and with an index of 32 bits a pattern."""
    rng = np.random.default_rng(0)
    with limits(min_segment=1 << 9, first_room=1, first_check=8, narrow_patterns=6):
        ring = make_ring(method, "stack first", "mixed", rows=24)
        ring.store.next_look = 0
        ring.add(30)
        for group in (1, 2, 4, 1):
            layout = FrameLayout(ring.stream.obs_shape, 1, 0, group)
            ring.store.core.rebuild(layout)
            assert check(ring).depth == layout.depth
            ring.add(5)
            check(ring)
        rebuilds = ring.store.core.work[0]
        for _ in range(200):
            ring.row = int(rng.integers(0, 4))
            ring.add()
        image = check(ring)
        assert ring.store.core.work[0] > rebuilds, "nothing was compacted"
        assert any(index["wide"] for index in image.indexes)
