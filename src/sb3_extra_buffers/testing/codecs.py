"""What every codec promises."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from sb3_extra_buffers.codecs import Codec, CodecError

_DTYPES = ("?", "u1", "i2", "u4", "i8", "f2", "f4", "f8", ">u2", ">f4", "c16")
_SHAPES = ((), (0,), (3, 0, 2), (1,), (2, 1, 3), (63,), (64,), (65,), (4, 36, 36))


def check_codec(codec: Codec, seed: int = 0) -> None:
    """
    Check that a codec is lossless for all arrays, refuses what it cannot decode, and is a value.

    :param codec: The codec
    :param seed: Seed of the arrays
    """
    rng = np.random.default_rng(seed)
    for label, frame in _frames(rng):
        _check_round_trip(codec, frame, label)
    picture = np.repeat(rng.integers(0, 256, 500, dtype=np.uint8), 8)
    _check_blob_forms(codec, picture)
    _check_refusals(codec, picture)
    _check_value(codec, picture)
    _check_threads(codec, picture)


def _frames(rng: np.random.Generator) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    for code in _DTYPES:
        dtype = np.dtype(code)
        for shape in _SHAPES:
            size = int(np.prod(shape))
            noise = np.frombuffer(rng.bytes(size * dtype.itemsize), dtype=np.uint8)
            noise = (noise & 1 if dtype.kind == "b" else noise).view(dtype).reshape(shape)
            yield f"noise of {dtype} {shape}", noise
            yield f"zeros of {dtype} {shape}", np.zeros(shape, dtype)
            yield f"flat areas of {dtype} {shape}", np.repeat(noise, 7)
    cube = rng.integers(0, 3, (8, 6, 4)).astype(np.uint16)
    read_only = cube.copy()
    read_only.flags.writeable = False
    views = {"every second row": cube[::2], "reversed": cube[::-1], "transposed": cube.transpose(2, 0, 1)}
    views |= {"Fortran order": np.asfortranarray(cube), "broadcast": np.broadcast_to(cube[0], (5, 6, 4))}
    views |= {"read-only": read_only}
    views["unaligned"] = np.frombuffer(b"\x00" + cube.tobytes(), cube.dtype, offset=1).reshape(cube.shape)
    yield from views.items()


def _decoded(codec: Codec, blob: Any, like: npt.NDArray[Any]) -> npt.NDArray[Any]:
    out = np.empty(like.shape, like.dtype)
    out.reshape(-1).view(np.uint8)[:] = 0xA5
    codec.decode(blob, out)
    return out


def _check_round_trip(codec: Codec, frame: npt.NDArray[Any], label: str) -> None:
    before = frame.tobytes()
    blob = codec.encode(frame)
    assert frame.tobytes() == before, f"{codec}: encode changed its input ({label})"
    assert _decoded(codec, blob, frame).tobytes() == before, f"{codec}: {label} did not come back as it was"
    assert codec.encode(frame) == blob, f"{codec}: the same input gave two different blobs ({label})"


def _check_blob_forms(codec: Codec, frame: npt.NDArray[Any]) -> None:
    blob = bytes(codec.encode(frame))
    log = np.frombuffer(b"\x07" * 13 + blob + b"\x07" * 9, dtype=np.uint8)[13 : 13 + len(blob)]
    for form in (blob, bytearray(blob), memoryview(blob), log):
        same = np.array_equal(_decoded(codec, form, frame), frame)
        assert same, f"{codec}: a blob given as {type(form).__name__} was not decoded right"
    around = np.full(frame.nbytes + 9, 7, dtype=np.uint8)
    codec.decode(blob, around[1:-8])
    untouched = around[0] == 7 and bool((around[-8:] == 7).all())
    assert untouched and around[1:-8].tobytes() == frame.tobytes(), f"{codec}: decode wrote outside of `out`"


def _check_refusals(codec: Codec, frame: npt.NDArray[Any]) -> None:
    blob = bytes(codec.encode(frame))
    cases = {f"cut to {n} bytes": blob[:n] for n in {0, 1, len(blob) // 2, len(blob) - 1}}
    cases["with a byte too many"] = blob + b"\x00"
    for place in {0, len(blob) // 3, len(blob) - 1}:
        cases[f"with a bit flipped in byte {place}"] = blob[:place] + bytes([blob[place] ^ 4]) + blob[place + 1 :]
    for label, damaged in cases.items():
        _expect_refusal(codec, damaged, frame.size, f"a blob {label}")
    for size in (0, frame.size - 1, frame.size + 1, frame.size * 4):
        _expect_refusal(codec, blob, size, f"a blob of {frame.size} bytes for an output of {size}")


def _expect_refusal(codec: Codec, blob: bytes, size: int, label: str) -> None:
    out = np.full(size, 0xA5, dtype=np.uint8)
    try:
        codec.decode(blob, out)
    except CodecError:
        assert (out == 0xA5).all(), f"{codec}: refused {label}, but wrote to `out`"
        return
    except Exception as error:
        raise AssertionError(f"{codec}: {label} gave {type(error).__name__}, not CodecError") from error
    raise AssertionError(f"{codec}: {label} was decoded, not refused with CodecError")


def _check_value(codec: Codec, frame: npt.NDArray[Any]) -> None:
    blob = codec.encode(frame)
    config = json.loads(json.dumps(codec.get_config()))
    twins = {
        "pickle": pickle.loads(pickle.dumps(codec)),
        "copy": copy.copy(codec),
        "deepcopy": copy.deepcopy(codec),
        "get_config and from_config": type(codec).from_config(config),
    }
    for label, twin in twins.items():
        assert twin == codec and hash(twin) == hash(codec), f"{codec}: {label} gave {twin}, which does not equal it"
        assert np.array_equal(_decoded(twin, blob, frame), frame), f"{codec}: its twin by {label} cannot read its blobs"


def _check_threads(codec: Codec, frame: npt.NDArray[Any]) -> None:
    frames = [np.roll(frame, shift) for shift in range(4)]
    blobs = [codec.encode(part) for part in frames]

    def work(number: int) -> bool:
        return all(
            np.array_equal(_decoded(codec, blobs[number], frame), frames[number])
            and codec.encode(frames[number]) == blobs[number]
            for _ in range(20)
        )

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4))), f"{codec}: threads that share it disturb each other"
