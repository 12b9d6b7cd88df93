"""The run-length format itself, and that both its implementations write the same bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sb3_extra_buffers.codecs import has_numba, init_jit, make_codec
from sb3_extra_buffers.codecs._jit import jit_kernel
from sb3_extra_buffers.codecs.rle import RleCodec

needs_numba = pytest.mark.skipif(not has_numba(), reason="numba is missing")
RLE_METHODS = ["rle", pytest.param("rle-jit", marks=needs_numba)]


def run_count(blob: bytes, elem_type: npt.DTypeLike, runs_type: npt.DTypeLike) -> int:
    count, rest = divmod(len(blob) - 4, np.dtype(elem_type).itemsize + np.dtype(runs_type).itemsize)
    assert rest == 0
    return count


@pytest.mark.parametrize("name", RLE_METHODS)
def test_layout(name: str) -> None:
    blob = make_codec(name).encode(np.array([5, 5, 5, 6, 6, 9], dtype=np.uint8))
    assert blob[:-4] == bytes([5, 6, 9]) + np.array([3, 2, 1], dtype=np.uint16).tobytes()


@pytest.mark.parametrize("name", RLE_METHODS)
def test_bytes_beyond_the_last_element_follow_the_runs(name: str) -> None:
    blob = make_codec(name, elem_type=np.uint32, runs_type=np.uint8).encode(np.arange(7, dtype=np.uint8))
    assert blob[:-4] == bytes([0, 1, 2, 3, 1, 4, 5, 6])


@pytest.mark.parametrize("name", RLE_METHODS)
@pytest.mark.parametrize("length", [1, 254, 255, 256, 510, 511, 1000])
def test_long_runs_are_split(name: str, length: int) -> None:
    codec = make_codec(name, runs_type=np.uint8)
    frame = np.concatenate((np.full(length, 3), [4], np.full(length, 5))).astype(np.uint8)
    blob = codec.encode(frame)
    assert run_count(blob, np.uint8, np.uint8) == 2 * -(-length // 255) + 1
    out = np.zeros_like(frame)
    codec.decode(blob, out)
    assert np.array_equal(out, frame)


@pytest.mark.parametrize("name", RLE_METHODS)
def test_runs_longer_than_uint16(name: str) -> None:
    codec = make_codec(name)
    frame = np.full(200_001, 7, dtype=np.uint8)
    blob = codec.encode(frame)
    assert run_count(blob, np.uint8, np.uint16) == 4
    out = np.zeros_like(frame)
    codec.decode(blob, out)
    assert np.array_equal(out, frame)


@pytest.mark.parametrize("name", RLE_METHODS)
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "c16"])
def test_bit_patterns_are_compared_not_values(name: str, dtype: str) -> None:
    """-0.0 equals 0.0 and NaN differs from NaN, but not as bits."""
    frame = np.array([0.0, -0.0, 0.0, np.nan, np.nan, np.nan], dtype=dtype)
    assert run_count(make_codec(name, elem_type=dtype).encode(frame), dtype, np.uint16) == 4


@pytest.mark.parametrize("dtype", ["c16", "c32" if np.dtype("g").itemsize == 16 else "c16"])
def test_wide_elements_differ_in_any_part(dtype: str) -> None:
    parts = np.dtype(dtype).itemsize // 8
    for part in range(parts):
        rows = np.zeros((5, parts), dtype=np.uint64)
        rows[2, part] = 1
        assert run_count(make_codec("rle", elem_type=dtype).encode(rows), dtype, np.uint16) == 3


@needs_numba
@pytest.mark.parametrize("runs_type", [np.uint8, np.uint16, np.uint32, np.uint64])
@settings(max_examples=60, deadline=None)
@given(runs=st.lists(st.tuples(st.integers(0, 255), st.integers(1, 600)), max_size=8), seed=st.integers(0, 99))
def test_jit_writes_the_same_bytes(runs_type: type, runs: list[tuple[int, int]], seed: int) -> None:
    noise = np.random.default_rng(seed).integers(0, 2, seed).tolist()
    frame = np.array([value for value, length in runs for _ in range(length)] + noise, dtype=np.uint8)
    plain, jit = make_codec("rle", runs_type=runs_type), make_codec("rle-jit", runs_type=runs_type)
    assert jit.encode(frame) == plain.encode(frame)


@needs_numba
@pytest.mark.parametrize("dtype", ["u1", "i2", "f4", "f8", ">f8", "g", "c16"])
def test_jit_writes_the_same_bytes_for_every_width(dtype: str) -> None:
    rng = np.random.default_rng(0)
    frame = np.repeat(rng.integers(0, 3, 200), rng.integers(1, 90, 200)).astype(dtype)
    plain, jit = make_codec("rle", elem_type=dtype), make_codec("rle-jit", elem_type=dtype)
    assert jit.encode(frame) == plain.encode(frame)


@pytest.mark.parametrize("runs_type", [np.int16, np.float32, bool, "S2"])
def test_runs_type_must_be_unsigned(runs_type: Any) -> None:
    with pytest.raises(ValueError, match="runs_type"):
        RleCodec(runs_type=runs_type)
    with pytest.raises(ValueError, match="runs_type"):
        make_codec("zstd", runs_type=runs_type)


@pytest.mark.parametrize("elem_type", [object, "S3", "M8[s]"])
def test_elem_type_must_be_numeric(elem_type: Any) -> None:
    with pytest.raises(ValueError, match="elem_type"):
        RleCodec(elem_type=elem_type)
    with pytest.raises(ValueError, match="elem_type"):
        make_codec("zstd", elem_type=elem_type)


@needs_numba
def test_init_jit_compiles_what_the_codec_runs() -> None:
    init_jit(np.float32, np.uint8)
    from sb3_extra_buffers.codecs import _rle_kernels

    kernels: list[Any] = [_rle_kernels.find_runs, _rle_kernels.fill_runs]
    compiled = [len(kernel.signatures) for kernel in kernels]
    codec = make_codec("rle-jit", elem_type=np.float32, runs_type=np.uint8)
    frame = np.repeat(np.arange(9, dtype=np.float32), 9)
    frame.flags.writeable = False
    codec.decode(codec.encode(frame), np.empty_like(frame))
    assert [len(kernel.signatures) for kernel in kernels] == compiled, "read-only input compiled anew"


@needs_numba
def test_kernels_get_aligned_arrays_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """numba takes alignment for granted, so code compiled from it may crash on anything else."""
    from sb3_extra_buffers.codecs import _rle_kernels

    calls = []

    def spy(kernel: Any) -> Any:
        def call(*args: Any) -> Any:
            calls.append(all(arg.flags.aligned for arg in args if isinstance(arg, np.ndarray)))
            return kernel(*args)

        return call

    monkeypatch.setattr(_rle_kernels, "find_runs", spy(_rle_kernels.find_runs))
    monkeypatch.setattr(_rle_kernels, "fill_runs", spy(_rle_kernels.fill_runs))
    codec = make_codec("rle-jit", elem_type=np.float32)
    aligned = np.repeat(np.arange(9, dtype=np.float32), 9)
    unaligned = np.zeros(aligned.nbytes + 1, dtype=np.uint8)[1:].view(np.float32)
    unaligned[:] = aligned
    log = np.frombuffer(b"\x00" + codec.encode(unaligned), dtype=np.uint8)
    for out in (np.zeros_like(aligned), unaligned):
        out[:] = 0
        codec.decode(log[1:], out)
        assert np.array_equal(out, aligned)
    assert calls == [True, True]


@needs_numba
def test_kernels_compile_without_a_cache_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    import numba
    from numba.core.caching import CacheImpl

    def double(value: Any) -> Any:
        return value + value

    monkeypatch.setattr(CacheImpl, "_locator_classes", [])
    with pytest.raises(RuntimeError, match="cannot cache"):
        numba.njit(cache=True)(double)
    assert jit_kernel(double)(21) == 42


@needs_numba
def test_compiled_code_on_disk_is_as_old_as_the_oldest_source() -> None:
    """Kernels are compiled into each other, so a change of any file makes all of them out of date."""
    from sb3_extra_buffers.codecs._jit import _stamp_of_sources
    from sb3_extra_buffers.codecs._rle_kernels import find_runs

    stamp = find_runs._cache._cache_file._source_stamp
    assert stamp == _stamp_of_sources()
    names = [name.replace("\\", "/") for name, _, _ in stamp]
    assert {"codecs/_rle_kernels.py", "codecs/_jit.py"} <= set(names)
