"""A damaged blob raises ``CodecError``: never wrong data, never a crash, never a large allocation."""

from __future__ import annotations

import tracemalloc
import zlib
from collections.abc import Callable

import numpy as np
import pytest

from sb3_extra_buffers.codecs import Codec, CodecError, available_methods, make_codec

CANARY = 0xA5
FRAMES = {
    "empty": np.zeros(0, dtype=np.uint8),
    "one": np.array([7], dtype=np.uint8),
    "flat": np.zeros(500, dtype=np.uint8),
    "runs": np.repeat(np.arange(12, dtype=np.uint8), 25),
    "noise": np.random.default_rng(0).integers(0, 256, 80, dtype=np.uint8),
}


def seal(codec: Codec, payload: bytes) -> bytes:
    """Forge a blob: any payload with a right checksum, so that the decoder itself has to cope."""
    return payload + zlib.crc32(payload, zlib.crc32(codec.wire_format.encode())).to_bytes(4, "little")


def refuse(codec: Codec, blob: bytes, size: int) -> None:
    out = np.full(size, CANARY, dtype=np.uint8)
    with pytest.raises(CodecError):
        codec.decode(blob, out)
    assert (out == CANARY).all(), "a failed decode must leave the output alone"


@pytest.mark.parametrize("kind", FRAMES)
def test_every_truncation_is_refused(each_method: str, kind: str) -> None:
    codec, frame = make_codec(each_method), FRAMES[kind]
    blob = codec.encode(frame)
    for length in range(len(blob)):
        refuse(codec, blob[:length], frame.nbytes)
    refuse(codec, blob[1:], frame.nbytes)


@pytest.mark.parametrize("kind", FRAMES)
def test_every_flipped_bit_is_refused(each_method: str, kind: str) -> None:
    codec, frame = make_codec(each_method), FRAMES[kind]
    blob = codec.encode(frame)
    for bit in range(8 * len(blob)):
        damaged = bytearray(blob)
        damaged[bit // 8] ^= 1 << bit % 8
        refuse(codec, bytes(damaged), frame.nbytes)


@pytest.mark.parametrize("kind", FRAMES)
def test_trailing_bytes_are_refused(each_method: str, kind: str) -> None:
    codec, frame = make_codec(each_method), FRAMES[kind]
    blob = codec.encode(frame)
    for tail in (b"\x00", b"garbage", blob):
        refuse(codec, blob + tail, frame.nbytes)


@pytest.mark.parametrize("kind", ["flat", "runs", "noise"])
def test_forged_trailing_bytes_are_refused(each_method: str, kind: str) -> None:
    codec, frame = make_codec(each_method), FRAMES[kind]
    payload = codec.encode(frame)[:-4]
    for tail in (b"\x00", b"garbage", payload):
        refuse(codec, seal(codec, payload + tail), frame.nbytes)


def test_another_size_is_refused(each_method: str) -> None:
    codec, frame = make_codec(each_method), FRAMES["runs"]
    blob = codec.encode(frame)
    for size in (0, 1, frame.nbytes - 1, frame.nbytes + 1, 2 * frame.nbytes):
        refuse(codec, blob, size)
    refuse(codec, codec.encode(FRAMES["empty"]), 1)


def test_blobs_of_another_format_are_refused(each_method: str) -> None:
    codec, frame = make_codec(each_method), FRAMES["runs"]
    for other in (make_codec(name) for name in available_methods()):
        blob = other.encode(frame)
        if other.wire_format == codec.wire_format:
            out = np.zeros_like(frame)
            codec.decode(blob, out)
            assert np.array_equal(out, frame)
        else:
            refuse(codec, blob, frame.nbytes)


def test_a_payload_that_two_formats_could_read_is_refused() -> None:
    """Three sevens as one run are the bytes 7, 3, 0: without a mark of the format ``none`` would return those."""
    refuse(make_codec("none"), make_codec("rle").encode(np.full(3, 7, dtype=np.uint8)), 3)


@pytest.mark.parametrize("kind", ["one", "flat", "runs", "noise"])
def test_forged_payloads_stay_within_the_output(each_method: str, kind: str) -> None:
    """With a right checksum a changed payload may decode to something else, but only into ``out``."""
    codec, frame = make_codec(each_method), FRAMES[kind]
    payload = codec.encode(frame)[:-4]
    rng = np.random.default_rng(0)
    forged = [payload[:length] for length in range(len(payload))]
    forged += [rng.bytes(int(length)) for length in rng.integers(0, 60, 50)]
    for _ in range(300):
        changed = bytearray(payload)
        for position in rng.integers(0, len(payload), rng.integers(1, 4)):
            changed[position] = rng.integers(256)
        forged.append(bytes(changed))
    around = np.full(frame.nbytes + 64, CANARY, dtype=np.uint8)
    refused = 0
    for candidate in forged:
        try:
            codec.decode(seal(codec, candidate), around[32:-32])
        except CodecError:
            refused += 1
        assert (around[:32] == CANARY).all() and (around[-32:] == CANARY).all()
    assert refused


def test_bombs_are_refused_without_allocating(each_method: str) -> None:
    codec = make_codec(each_method)
    bomb = codec.encode(np.zeros(1 << 25, dtype=np.uint8))
    out = np.zeros(100, dtype=np.uint8)
    tracemalloc.start()
    with pytest.raises(CodecError):
        codec.decode(bomb, out)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < len(bomb) + (1 << 20)
    assert not out.any()


@pytest.mark.parametrize("name", [name for name in ("rle", "rle-jit") if name in available_methods()])
@pytest.mark.parametrize(
    "lengths",
    [
        [0, 10],
        [10, 0],
        [9],
        [11],
        [2**64 - 1, 11],  # adds up to 10 once the sum wraps around
        [2**63, 2**63, 10],
        [2**64 - 1] * 10,
        [1] * 11,
        [],
    ],
    ids=str,
)
def test_runs_that_do_not_add_up_are_refused(name: str, lengths: list[int]) -> None:
    codec = make_codec(name, runs_type=np.uint64)
    payload = bytes(len(lengths)) + np.array(lengths, dtype=np.uint64).tobytes()
    refuse(codec, seal(codec, payload), 10)


@pytest.mark.parametrize(
    "make_out",
    [
        lambda: np.zeros((10, 2), dtype=np.uint8)[:, 0],
        lambda: np.zeros((5, 2), dtype=np.uint8).T,
        lambda: np.frombuffer(bytes(10), dtype=np.uint8),
        lambda: bytearray(10),
        lambda: np.full(10, None),
    ],
    ids=["strided", "transposed", "read-only", "not an array", "objects"],
)
def test_unfit_outputs_are_refused(each_method: str, make_out: Callable[[], np.ndarray]) -> None:
    codec = make_codec(each_method)
    with pytest.raises(CodecError):
        codec.decode(codec.encode(np.zeros(10, dtype=np.uint8)), make_out())
