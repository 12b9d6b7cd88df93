"""What ``docs/format.md`` says is what the core does: a decoder written from that page reads the same from chunks."""

from __future__ import annotations

import pickle
import random
import struct
import zlib
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import reference_decoder
from frames_kit import QUICK_METHODS, Ring, contents_of, split_by
from hypothesis import given
from hypothesis import strategies as st
from observation_streams import Stack, Stream
from reference_decoder import (
    BLOB,
    BOOK,
    CODED,
    HEADER,
    JOINT,
    KEYED,
    PACKED,
    PALETTE,
    RAW,
    RECORD_HEADER,
    ChunkDecoder,
    apply_patch,
)

from sb3_extra_buffers.storage import Frames
from sb3_extra_buffers.storage._core import READ_AHEAD, checksum
from sb3_extra_buffers.storage.layout import FrameLayout

FORMS: dict[str, Any] = {
    "no stack": ((9, 8), np.uint8, None),
    "no stack, floats": ((3, 5), np.float32, None),
    "colours": ((3, 8, 8), np.uint8, None),
    "stack first": ((1, 9, 8), np.uint8, Stack(4, 0)),
    "stack first, floats": ((1, 5, 4), np.float32, Stack(4, 0, "repeat")),
    "stack last": ((9, 8, 1), np.uint8, Stack(4, -1)),
    "stack last, floats": ((5, 4, 1), np.float32, Stack(4, -1, "repeat")),
    "stack of colours": ((3, 8, 8), np.uint8, Stack(4, 0)),
}


def make_ring(method: str, form: str, content: str, rows: int = 40, seed: int = 0, **options: Any) -> Ring:
    shape, dtype, stack = FORMS[form]
    return Ring(Stream(seed, 2, shape, dtype, content, stack, done_rate=0.1), method, rows, **options)


def chunks_of(frames: Frames) -> list[ChunkDecoder]:
    """All chunks, the open one last, in the hands of the decoder."""
    sealed, last = frames.chunks()
    return [ChunkDecoder(bytes(chunk), *frames.spec.codecs()) for chunk in [*sealed, *([last] if last else [])]]


def check(ring: Ring) -> list[ChunkDecoder]:
    """Compare what the decoder makes of all chunks with what the column gives, and that with what was written."""
    got = contents_of(ring.frames)
    assert got.tobytes() == ring.twins.tobytes()
    decoded = np.zeros_like(got)
    chunks = chunks_of(ring.frames)
    for chunk in chunks:  # later ones are newer
        first = chunk.head["first_row"]
        for row in range(chunk.rows):
            for env in range(ring.stream.n_envs):
                for view in range(2):
                    obs = np.frombuffer(chunk.observation(row, env, view), got.dtype).reshape(got.shape[3:])
                    decoded[view, first + row, env] = obs
    assert decoded.tobytes() == got.tobytes()
    return chunks


def coders_of(chunks: list[ChunkDecoder]) -> set[int]:
    return set().union(*(chunk.coders() for chunk in chunks))


@pytest.mark.parametrize("content", ["game", "noise", "mixed"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("method", QUICK_METHODS)
def test_the_decoder_gives_what_the_column_gives(method: str, form: str, content: str) -> None:
    ring = make_ring(method, form, content)
    assert check(ring) == []
    for count in (1, 15, 1, 60, 50):
        ring.add(count)
        chunks = check(ring)
    assert chunks[-1].depth == (1 if ring.stream.stack is None else 4) or content != "game"
    ring.frames.clear()
    ring.twins[:] = 0
    assert check(ring) == []
    ring.row = 0
    ring.add(7)
    check(ring)


@given(
    seed=st.integers(0, 10_000),
    method=st.sampled_from(QUICK_METHODS),
    form=st.sampled_from(sorted(FORMS)),
    count=st.integers(0, 90),
    rows=st.integers(1, 50),
    chunk_rows=st.sampled_from([1, 16, 32, 64]),
)
def test_any_stream_at_any_moment(seed: int, method: str, form: str, count: int, rows: int, chunk_rows: int) -> None:
    ring = make_ring(method, form, ("game", "noise", "mixed")[seed % 3], rows, seed, chunk_rows=chunk_rows)
    ring.add(count)
    check(ring)


def test_checksums() -> None:
    assert checksum(b"123456789") == reference_decoder.checksum(b"123456789") == 0xE3069283
    rng = random.Random(0)
    for size in (0, 1, 7, 8, 9, 63, 64, 1000, 5001):
        data = rng.randbytes(size)
        assert checksum(data) == reference_decoder.checksum(data)
    assert READ_AHEAD == reference_decoder.READ_AHEAD


def write_all(ring: Ring, frames: np.ndarray) -> None:
    """Write frames to both views, the same for all environments."""
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
        ("delta-zstd", steps, {PACKED}),
        ("delta-zstd", few_values, {CODED}),
        ("zstd-3", few_values, {BLOB}),
        ("none", few_values, {RAW}),
    ],
)
def test_each_coder(method: str, make_frames: Callable[..., np.ndarray], wanted: set[int]) -> None:
    if method not in QUICK_METHODS:
        pytest.skip(f"{method} is not installed")
    shape = (3, 16, 16)  # planes, which codecs get interleaved
    ring = Ring(Stream(0, 2, shape, np.uint8), method, rows=150, chunk_rows=64)
    write_all(ring, make_frames(np.random.default_rng(1), 200, shape))
    chunks = check(ring)
    assert all(chunk.head["flags"] & reference_decoder.INTERLEAVE for chunk in chunks)
    assert wanted <= coders_of(chunks)


def textures(rng: np.random.Generator, count: int, shape: tuple[int, ...]) -> np.ndarray:
    """Pictures of a few colours, of which nothing stays in its place."""
    colours = rng.integers(0, 256, (shape[0], 40), dtype=np.uint8)
    places = np.add.outer(np.arange(shape[1]) * 7, np.arange(shape[2]) * 3)
    noise = rng.integers(0, 40, (count, *places.shape)) * (rng.random((count, *places.shape)) < 0.1)
    numbers = (places + rng.integers(0, 40, (count, 1, 1)) + noise) % 40
    return np.ascontiguousarray(colours[:, numbers].swapaxes(0, 1))


def shades(rng: np.random.Generator, count: int, shape: tuple[int, ...]) -> np.ndarray:
    """Pictures of light that falls off, with a little noise."""
    places = np.add.outer(np.arange(shape[1]) * 2, np.arange(shape[2])) + np.arange(shape[0])[:, None, None] * 30
    noise = rng.integers(0, 4, (count, *shape))
    noise[rng.random((count, *shape)) < 0.02] += 90
    return (places + rng.integers(0, 256, (count, 1, 1, 1)) + noise).astype(np.uint8)


@pytest.mark.parametrize(("make_frames", "wanted"), [(textures, PALETTE), (shades, JOINT)])
@pytest.mark.parametrize("shape", [(3, 23, 31), (1, 59, 36), (4, 26, 20), (2, 40, 27)])
def test_pictures(make_frames: Callable[..., np.ndarray], wanted: int, shape: tuple[int, ...]) -> None:
    ring = Ring(Stream(0, 2, shape, np.uint8), "delta", rows=30, chunk_rows=16)
    write_all(ring, make_frames(np.random.default_rng(1), 36, shape))
    assert wanted in coders_of(check(ring))


def count_books(chunk: ChunkDecoder) -> int:
    at = books = 0
    while at < chunk.head["data_bytes"]:
        length, _, coder, _ = struct.unpack_from("<IHBB", chunk.data, at)
        books += coder == BOOK
        at += RECORD_HEADER + length
    return books


def test_a_codebook_is_for_all_environments() -> None:
    """One of them that shows something else for a while, in other colours, changes nothing for the others."""
    shape = (3, 24, 40)
    rng = np.random.default_rng(3)
    ring = Ring(Stream(0, 4, shape, np.uint8), "delta", rows=400, chunk_rows=400)
    scenes = [textures(rng, 100, shape) for _ in range(5)]
    for t in range(399):
        envs = np.stack([scenes[0][rng.integers(100)] for _ in range(4)])
        if t % 24 < 6:
            envs[t // 24 % 4] = scenes[1 + t // 24 % 4][rng.integers(100)]
        envs[:, :, 0, :2] = rng.integers(0, 256, (4, 3, 2))  # no frame comes again
        ring.write((envs, envs))
        ring.went_on((envs, envs))
    assert contents_of(ring.frames).tobytes() == ring.twins.tobytes()
    chunks = chunks_of(ring.frames)
    again = sum(map(count_books, chunks)) - len(chunks)  # each chunk has the one that it begins with
    assert all(PALETTE in chunk.coders() for chunk in chunks) and again <= 9, (again, len(chunks))


def test_large_frames_without_a_stack_have_short_groups() -> None:
    for shape, shift in (((3, 84, 84), 2), ((1, 84, 84), 3)):
        ring = Ring(Stream(0, 1, shape, np.uint8, "game"), "delta", rows=32, chunk_rows=32)
        ring.add(32)
        (chunk,) = chunks_of(ring.frames)
        assert chunk.head["shift"] == shift
        assert max(chunk.record(0, group)[1] for group in range(len(chunk.lanes[0].groups))) == 1 << shift


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


def test_a_saved_column_holds_its_chunks() -> None:
    ring = make_ring("delta", "stack first", "game")
    ring.add(70)
    sealed, last = ring.frames.chunks()
    chunks = [bytes(chunk) for chunk in (*sealed, last)]
    saved = pickle.dumps(ring.frames, protocol=5)
    assert len(chunks) > 2 and all(chunk in saved for chunk in chunks)
    again_sealed, again_last = pickle.loads(saved).chunks()
    assert sorted(bytes(chunk) for chunk in again_sealed) == sorted(chunks), "nothing of it is coded again"
    assert again_last is None, "nor is the open one"


def test_most_rows_cost_nothing_in_the_index() -> None:
    """Obs is the last next_obs, and next_obs one frame more: that is not stored."""
    ring = Ring(Stream(0, 2, (1, 9, 8), np.uint8, "game", Stack(4, 0), done_rate=0.0), "delta", 64, chunk_rows=64)
    split_by(ring.frames, FrameLayout(ring.stream.obs_shape, 1, 0, 1))
    for _ in range(64):
        pair = ring.stream.step()[:2]
        ring.write(pair)
        ring.went_on(pair)
    (chunk,) = check(ring)
    assert all(len(lane.exceptions) == 1 for lane in chunk.lanes)


def test_numbers_in_the_header() -> None:
    ring = make_ring("delta", "stack first", "game", rows=40)
    ring.add(40 + 18)
    sealed, last = ring.frames.chunks()
    assert [(chunk.first_row, chunk.rows) for chunk in (*sealed, last)] == [(0, 16), (16, 16), (32, 8), (16, 2)]
    assert [rows for _, *rows in ring.frames.spans()[0]] == [[0, 0, 16], [2, 18, 14], [0, 32, 8]]
    for chunk in (*sealed, last):
        head = ChunkDecoder(bytes(chunk)).head
        assert (head["reserved"], head["first_row"], head["rows"], head["size"]) == (
            *(0, chunk.first_row, chunk.rows),
            len(chunk),
        )
        assert head["n_streams"] == head["views"] == 2
    ends = [at + struct.calcsize(kind) for _, at, kind in HEADER]
    assert ends[-1] == reference_decoder.HEADER_BYTES and all(
        end <= at for end, (_, at, _) in zip(ends, HEADER[1:], strict=False)
    )


def test_blobs_end_with_a_checksum() -> None:
    codec = make_ring("none", "no stack", "game").frames.spec.codecs()[0]
    payload = bytes(range(50))
    expected = payload + struct.pack("<I", zlib.crc32(payload, zlib.crc32(b"none")))
    assert codec.encode(np.frombuffer(payload, np.uint8)) == expected


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, ">f4", np.float64, np.bool_, np.complex64])
@pytest.mark.parametrize("method", QUICK_METHODS)
def test_channels_last_in_memory(method: str, dtype: str | type) -> None:
    """The order in which observations come changes nothing of what is stored; for any type."""
    ring = Ring(Stream(5, 2, (1, 7, 9), np.dtype(dtype), "mixed", Stack(3, 0)), method, rows=20)
    for step in range(60):
        pair = tuple(np.asarray(obs, dtype) for obs in ring.stream.step()[:2])
        turned = tuple(np.moveaxis(np.moveaxis(obs, 1, -1).copy(), -1, 1) for obs in pair)
        ring.write(turned if step % 7 < 4 else pair)
        ring.went_on(pair)
        if step % 5 == 0:
            check(ring)


@pytest.mark.parametrize("method", QUICK_METHODS)
def test_chunks_of_several_layouts(method: str) -> None:
    """The open chunk is coded again; sealed ones stay as they are, and each says how it is split."""
    ring = make_ring(method, "stack first", "mixed", rows=80)
    ring.frames.next_look = 0
    seen = set()
    for group in (4, 1, 2, 4, 1):
        layout = FrameLayout(ring.stream.obs_shape, 1, 0, group)
        ring.frames.set_layout(layout)
        ring.add(20)
        assert check(ring)[-1].depth == layout.depth
        seen = {chunk.depth for chunk in chunks_of(ring.frames)}
    assert seen == {1, 2, 4}
