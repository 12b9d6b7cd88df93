"""What every codec promises: the same bits back, whatever the array, and a value that can be shared and pickled."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sb3_extra_buffers.codecs import COMPRESSION_METHOD_MAP, Codec, CodecError, codec_from_config, make_codec

NATIVE = ["?", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "g", "c8", "c16"]
DTYPES = [np.dtype(code) for code in [*NATIVE, ">u2", ">i4", ">u8", ">f2", ">f4", ">f8"]]


def round_trip(codec: Codec, frame: npt.NDArray[Any]) -> None:
    blob = codec.encode(frame)
    assert type(blob) is bytes
    out = np.full(frame.nbytes, 0xA5, dtype=np.uint8)
    codec.decode(blob, out)
    assert out.tobytes() == frame.tobytes()


@st.composite
def frames(draw: st.DrawFn) -> npt.NDArray[Any]:
    """Arbitrary bits, or stretches of equal bytes, read as some dtype."""
    dtype = draw(st.sampled_from(DTYPES))
    stretch = st.tuples(st.binary(min_size=1, max_size=4), st.integers(1, 400)).map(lambda part: part[0] * part[1])
    raw = draw(st.one_of(st.binary(max_size=300), st.lists(stretch, max_size=5).map(b"".join)))[:3000]
    return np.frombuffer(raw[: len(raw) - len(raw) % dtype.itemsize], dtype=dtype)


@settings(max_examples=60, deadline=None)
@given(frame=frames(), runs_type=st.sampled_from([np.uint8, np.uint16]))
def test_round_trip_of_any_bits(each_method: str, frame: npt.NDArray[Any], runs_type: type) -> None:
    round_trip(make_codec(each_method, elem_type=frame.dtype, runs_type=runs_type), frame)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_round_trip_of_every_dtype_and_size(each_method: str, dtype: np.dtype[Any]) -> None:
    codec = make_codec(each_method, elem_type=dtype)
    rng = np.random.default_rng(0)
    for size in (0, 1, 2, 3, 63, 64, 65, 128, 129, 700):
        noise = np.frombuffer(rng.bytes(size * dtype.itemsize), dtype=dtype)
        for frame in (noise, np.repeat(noise, 5), np.zeros(size, dtype=dtype)):
            round_trip(codec, frame)
            out = np.ones(frame.shape, dtype=dtype)
            codec.decode(codec.encode(frame), out)
            assert out.tobytes() == frame.tobytes()


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (1, 1, 1), (4, 7, 5)], ids=str)
def test_round_trip_of_every_shape(each_method: str, shape: tuple[int, ...]) -> None:
    frame = np.random.default_rng(0).integers(0, 3, shape).astype(np.uint8)
    out = np.full(shape, 9, dtype=np.uint8)
    codec = make_codec(each_method)
    codec.decode(codec.encode(frame), out)
    assert np.array_equal(out, frame)


@pytest.mark.parametrize("dtype", ["u1", "u2", "f4", "f8", "c16", "g"])
def test_round_trip_of_views(each_method: str, dtype: str) -> None:
    base = np.random.default_rng(0).integers(0, 3, (8, 6, 4)).astype(dtype)
    codec = make_codec(each_method, elem_type=dtype)
    unaligned = np.frombuffer(b"\x00" + base.tobytes(), dtype=dtype, offset=1).reshape(base.shape)
    read_only = base.copy()
    read_only.flags.writeable = False
    views = [base[::2], base[::-1], base[..., 1], base.transpose(2, 0, 1), np.asfortranarray(base), unaligned, read_only]
    views.append(np.broadcast_to(base[0], (5, 6, 4)))
    for view in views:
        before = view.tobytes()
        out = np.empty(view.shape, dtype=dtype)
        codec.decode(codec.encode(view), out)
        assert np.array_equal(out, view)
        assert view.tobytes() == before


@pytest.mark.parametrize("elem_type", ["u2", "f4", "f8", "c16"])
def test_frames_of_another_dtype_than_elem_type_keep_their_bytes(each_method: str, elem_type: str) -> None:
    codec = make_codec(each_method, elem_type=elem_type)
    for size in range(40):
        round_trip(codec, np.repeat(np.arange(size, dtype=np.uint8), 7)[: size * 3 + 1])


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_round_trip_of_special_floats(each_method: str, dtype: str) -> None:
    bits = np.dtype(f"u{np.dtype(dtype).itemsize}")
    infinity = int(np.array(np.inf, dtype=dtype).view(bits))
    sign = 1 << (8 * bits.itemsize - 1)
    patterns = [0, sign, 1, sign | 1, infinity, infinity | sign, infinity + 1, infinity + 2, sign | (infinity + 1), sign - 1]
    patterns += [int(np.array(np.nan, dtype=dtype).view(bits))]
    frame = np.repeat(np.array(patterns * 3, dtype=bits), 4).view(dtype)
    round_trip(make_codec(each_method, elem_type=dtype), frame)


def test_unaligned_output(each_method: str) -> None:
    frame = np.repeat(np.arange(50, dtype=np.float64), 3)
    codec = make_codec(each_method, elem_type=np.float64)
    around = np.full(frame.nbytes + 9, 7, dtype=np.uint8)
    codec.decode(codec.encode(frame), around[1:-8])
    assert around[1:-8].tobytes() == frame.tobytes()
    assert around[0] == 7 and (around[-8:] == 7).all()


def test_blobs_may_be_any_bytes_like_object(each_method: str) -> None:
    frame = np.repeat(np.arange(100, dtype=np.uint16), 9)
    codec = make_codec(each_method, elem_type=np.uint16)
    blob = codec.encode(frame)
    log = np.zeros(len(blob) + 50, dtype=np.uint8)
    log[13 : 13 + len(blob)] = np.frombuffer(blob, dtype=np.uint8)
    strided = np.repeat(np.frombuffer(blob, dtype=np.uint8), 2)[::2]
    forms: list[Any] = [blob, bytearray(blob), memoryview(blob), log[13 : 13 + len(blob)], strided, strided.data]
    for form in forms:
        out = np.zeros_like(frame)
        codec.decode(form, out)
        assert np.array_equal(out, frame)


def test_same_input_gives_same_bytes(each_method: str) -> None:
    frame = np.random.default_rng(0).integers(0, 4, 4000).astype(np.uint8)
    codec = make_codec(each_method)
    first = codec.encode(frame)
    codec.encode(np.zeros(99, dtype=np.uint8))
    assert codec.encode(frame) == first
    assert make_codec(each_method).encode(frame.copy()) == first


def test_flat_frames_shrink(each_method: str) -> None:
    frame = np.zeros((84, 84), dtype=np.uint8)
    frame[20:24] = 200
    blob = make_codec(each_method).encode(frame)
    assert len(blob) <= (frame.nbytes + 16 if each_method in ("none", "gzip0") else frame.nbytes // 20)


def test_object_frames_are_refused(each_method: str) -> None:
    with pytest.raises(CodecError, match="Python objects"):
        make_codec(each_method).encode(np.array([None, 1]))


def test_is_a_value(each_method: str) -> None:
    codec, twin = make_codec(each_method), make_codec(each_method)
    frame = np.arange(300, dtype=np.uint8)
    pickled = pickle.dumps(codec)
    blob = codec.encode(frame)
    assert pickle.dumps(codec) == pickled, "use must not change the value"
    assert codec == twin and hash(codec) == hash(twin)
    assert codec != make_codec("gzip5") and codec != object()
    assert codec_from_config(json.loads(json.dumps(codec.get_config()))) == codec
    for copied in (pickle.loads(pickled), copy.copy(codec), copy.deepcopy(codec)):
        assert copied == codec and type(copied) is type(codec)
        out = np.zeros_like(frame)
        copied.decode(blob, out)
        assert np.array_equal(out, frame)


def test_is_frozen(each_method: str) -> None:
    codec = make_codec(each_method)
    for option in [field.name for field in dataclasses.fields(codec)] or ["anything"]:
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(codec, option, 1)


def test_four_threads_share_a_codec(each_method: str) -> None:
    codec = make_codec(each_method)
    rng = np.random.default_rng(0)
    inputs = [np.repeat(rng.integers(0, 256, 400, dtype=np.uint8), rng.integers(1, 30, 400)) for _ in range(4)]
    blobs = [codec.encode(frame) for frame in inputs]
    start = threading.Barrier(4)

    def work(index: int) -> bool:
        start.wait()
        out = np.zeros_like(inputs[index])
        for _ in range(30):
            out[:] = 0
            codec.decode(blobs[index], out)
            if not np.array_equal(out, inputs[index]) or codec.encode(inputs[index]) != blobs[index]:
                return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))


def test_every_registered_codec_is_tested(tested_names: set[str]) -> None:
    assert tested_names == set(COMPRESSION_METHOD_MAP)


def test_every_codec_class_is_registered() -> None:
    def named(cls: type[Any]) -> set[type[Any]]:
        own = {cls} if hasattr(cls, "name") else set()
        return own.union(*(named(child) for child in cls.__subclasses__()))

    ours = {cls for cls in named(Codec) if cls.__module__.startswith("sb3_extra_buffers.")}
    assert ours == set(COMPRESSION_METHOD_MAP.values())
