"""What ``CompressedArray`` is apart from indexing: its attributes, views, copies, types, limits."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import numpy as np
import pytest
from frames_kit import frames_of_array
from hypothesis import given
from hypothesis import strategies as st
from observation_streams import METHODS, Stack, Stream, assert_same_bits

from sb3_extra_buffers.storage import CompressedArray, MemoryUsage


def filled(method: str | None = "none", rows: int = 6, **options: Any) -> tuple[CompressedArray, np.ndarray]:
    """An array of stacked frames, partly written, and its twin."""
    stream = Stream(0, 2, (1, 6, 8), np.uint8, "game", Stack(4, 0))
    array = CompressedArray((rows + 2, 2, 4, 6, 8), np.uint8, (4, 6, 8), compression_method=method, **options)
    twin = np.zeros(array.shape, array.dtype)
    for row in range(rows):
        array[row] = twin[row] = stream.step()[0]
    return array, twin


# -- what it looks like -----------------------------------------------------------------------------------------------


def test_attributes() -> None:
    array, twin = filled()
    for name in ("shape", "dtype", "ndim", "size", "nbytes"):
        assert getattr(array, name) == getattr(twin, name), name
    assert isinstance(array.nbytes, int)
    assert len(array) == len(twin)
    assert array.obs_shape == (4, 6, 8)
    assert array.compressed_nbytes == array.memory_usage().total_bytes > 0
    assert array.compression_method == "none"


def test_compressed_nbytes_shows_the_compression() -> None:
    array = CompressedArray((400, 1), np.uint8, (64, 64), compression_method="gzip1")
    for row in range(400):
        array[row] = row % 250 + 1
    assert 0 < array.compressed_nbytes < array.nbytes / 20


def test_iteration() -> None:
    array, twin = filled()
    rows = list(array)
    assert len(rows) == len(twin)
    for row, expected in zip(rows, twin, strict=True):
        assert_same_bits(row, expected.copy())


def test_repr_tells_what_it_is() -> None:
    array, _ = filled("gzip1")
    text = repr(array)
    for part in ("CompressedArray", str(array.shape), "uint8", "gzip", "shared"):
        assert part in text
    assert len(text) < 400, "it must not print the observations"


def test_truth() -> None:
    array, _ = filled()
    with pytest.raises(ValueError, match="ambiguous"):
        bool(array)
    single = CompressedArray((1,), np.uint8, (), compression_method="none")
    assert not single
    single[0] = 1
    assert single


@pytest.mark.parametrize("method", METHODS)
def test_decoding_all_of_it(method: str | None) -> None:
    array, twin = filled(method)
    assert_same_bits(np.asarray(array), twin)
    assert_same_bits(np.array(array), twin)
    assert_same_bits(np.array(array, copy=True), twin)
    assert_same_bits(np.asarray(array, dtype=np.float32), twin.astype(np.float32))
    assert_same_bits(array[:], twin)
    assert np.allclose(array, twin)
    assert np.array_equal(array, twin)
    assert not np.allclose(array, twin + 1)
    assert np.sum(array) == twin.sum()
    assert_same_bits(np.add(array, 1), twin + 1)
    assert_same_bits(twin + array, twin + twin)


def test_no_memory_to_share() -> None:
    array, _ = filled()
    with pytest.raises(ValueError, match="copy"):
        np.asarray(array, copy=False)
    with pytest.raises(TypeError):
        memoryview(array)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        np.add(1, 1, out=array)  # type: ignore[call-overload]


def test_comparison_compares_elements_or_is_refused() -> None:
    """Silently comparing identities would be wrong: all elements of a copy are equal."""
    array, twin = filled()
    try:
        same = array == array.copy()
    except TypeError:
        return
    assert_same_bits(np.asarray(same), np.ones(twin.shape, np.bool_))
    assert not np.any(array != array.copy())


def test_comparison_with_ndarrays() -> None:
    array, twin = filled()
    assert_same_bits(np.asarray(array == twin), np.ones(twin.shape, np.bool_))
    assert_same_bits(np.asarray(twin == array), np.ones(twin.shape, np.bool_))


# -- shapes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "obs_shape", "expected"),
    [
        ((5, 2, 3, 4), (3, 4), (5, 2, 3, 4)),
        ((5, 2), (3, 4), (5, 2, 3, 4)),
        ([5, 2], (3, 4), (5, 2, 3, 4)),
        (5, (3, 4), (5, 3, 4)),
        (np.int64(5), (3,), (5, 3)),
        ((5,), (), (5,)),
        ((5, 2), (), (5, 2)),
        ((3, 4), (3, 4), (3, 4, 3, 4)),
        ((0, 2), (3,), (0, 2, 3)),
        ((4, 0), (3,), (4, 0, 3)),
        ((4, 2), (0,), (4, 2, 0)),
        ((4, 2), (3, 0, 2), (4, 2, 3, 0, 2)),
    ],
)
@pytest.mark.parametrize("method", ["delta", "gzip1"])
def test_shapes(shape: Any, obs_shape: tuple[int, ...], expected: tuple[int, ...], method: str) -> None:
    if method not in METHODS:
        pytest.skip(f"{method} is not installed")
    array = CompressedArray(shape, np.float32, obs_shape, compression_method=method)
    twin = np.zeros(expected, np.float32)
    assert (array.shape, array.ndim, array.size, array.nbytes) == (twin.shape, twin.ndim, twin.size, twin.nbytes)
    assert len(array) == len(twin)
    assert_same_bits(np.asarray(array), twin)
    values = np.random.default_rng(0).standard_normal(expected).astype(np.float32)
    array[...] = twin[...] = values
    assert_same_bits(np.asarray(array), twin)
    assert [row.shape for row in array] == [row.shape for row in twin]
    if len(twin):
        assert_same_bits(np.asarray(array[0]), twin[0] if twin.ndim > 1 else np.asarray(twin[0]))
        array[-1] = twin[-1] = 3
        assert_same_bits(np.asarray(array), twin)
    assert_same_bits(np.asarray(pickle.loads(pickle.dumps(array))), twin)
    assert_same_bits(np.asarray(array.copy()), twin)
    assert repr(array)


@pytest.mark.parametrize(("shape", "obs_shape"), [((), (3,)), ((-1,), (3,)), ((5, -2), ()), ((5,), (-3,))])
def test_impossible_shapes(shape: Any, obs_shape: Any) -> None:
    with pytest.raises(ValueError, match="shape"):
        CompressedArray(shape, np.uint8, obs_shape, compression_method="none")


@pytest.mark.parametrize("dtype", [object, "S3", "U2", "datetime64[s]", [("a", "u1")]])
def test_impossible_types(dtype: Any) -> None:
    with pytest.raises(TypeError, match="observations must be numbers"):
        CompressedArray((5,), dtype, (3,), compression_method="none")


def test_unwritten_cells_are_zeros() -> None:
    array = CompressedArray((5, 2), np.float32, (3,), compression_method="none")
    assert_same_bits(np.asarray(array), np.zeros((5, 2, 3), np.float32))
    array[2, 1] = 5
    expected = np.zeros((5, 2, 3), np.float32)
    expected[2, 1] = 5
    assert_same_bits(np.asarray(array), expected)


# -- bits -------------------------------------------------------------------------------------------------------------

TYPES = [
    "?",
    *"bBhHiIqQ",
    "e",
    "f",
    "d",
    "g",
    "F",
    "D",
    ">i2",
    ">u4",
    ">i8",
    ">f2",
    ">f4",
    ">f8",
    ">c8",
]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", TYPES)
def test_every_type_bit_by_bit(dtype: str, method: str | None) -> None:
    """Any bits: NaNs with payloads, negative zeros and what else there is."""
    kind = np.dtype(dtype)
    rng = np.random.default_rng(7)
    values = np.zeros((9, 2, 5, 3), kind)
    if kind.kind == "b":
        values[:6] = rng.integers(0, 2, values[:6].shape)
    else:
        data = np.frombuffer(rng.bytes(values[:6].nbytes), kind).reshape(values[:6].shape)
        values[:6] = data  # a cast between equal types moves bits
        values.view(np.uint8)[:2] = np.frombuffer(rng.bytes(values[:2].nbytes), np.uint8).reshape(
            values[:2].view(np.uint8).shape
        )
    if kind.kind == "f":
        values[3] = -0.0
        values[4] = np.nan
        values[5] = -np.inf
    array = CompressedArray(values.shape, kind, (5, 3), compression_method=method)
    for row in range(7):
        array[row] = values[row]
    assert array.dtype == kind
    assert_same_bits(np.asarray(array), values)
    assert_same_bits(array[np.arange(9), np.zeros(9, int)], values[:, 0].copy())
    assert_same_bits(np.asarray(pickle.loads(pickle.dumps(array))), values)


@pytest.mark.parametrize(
    ("dtype", "elem_type", "good", "bad"),
    [
        (np.float32, np.uint8, [0.0, 255.0], [256.0, -1.0, 0.5, np.nan, np.inf, -0.0]),
        (np.float64, np.float32, [0.5, -0.0, np.inf], [0.1, 1e300]),
        (np.int16, np.uint8, [0, 255], [256, -1]),
        (np.uint8, np.int8, [0, 127], [128, 255]),
        (np.int64, np.float32, [0, 2**24], [2**24 + 1]),
        (np.uint64, np.int64, [0, 2**63 - 1], [2**63]),
        (np.uint8, np.bool_, [0, 1], [2]),
        (np.longdouble, np.int16, [0, 5], [-0.0, 0.5]),
        (np.complex128, np.complex64, [1j], [0.1j]),
    ],
)
def test_elem_type_changes_no_value(dtype: Any, elem_type: Any, good: list[Any], bad: list[Any]) -> None:
    array = CompressedArray((4,), dtype, (3,), dtypes={"elem_type": elem_type}, compression_method="none")
    assert array.stored_dtype == elem_type
    for row, value in enumerate(good):
        array[row] = np.full(3, value, dtype)
        assert_same_bits(array[row], np.full(3, value, dtype))
    before = np.asarray(array)
    for value in bad:
        with pytest.raises(ValueError, match=np.dtype(elem_type).name):
            array[0] = np.array([0, 0, value], dtype)
        assert_same_bits(np.asarray(array), before)


def test_dtypes_are_checked() -> None:
    with pytest.raises(ValueError, match="elem_typ"):
        CompressedArray((4,), np.uint8, (3,), dtypes={"elem_typ": np.uint8})
    with pytest.raises(ValueError, match="elem_type"):
        CompressedArray((4,), np.uint8, (3,), dtypes={"elem_type": object})


# -- views and copies -------------------------------------------------------------------------------------------------


def test_swapaxes() -> None:
    array, twin = filled()
    view = array.swapaxes(0, 1)
    assert view.shape == (2, 8, 4, 6, 8)
    assert_same_bits(np.asarray(view), twin.swapaxes(0, 1).copy())
    assert_same_bits(np.asarray(array.swapaxes(-5, -4)), twin.swapaxes(0, 1).copy())
    assert_same_bits(np.asarray(np.swapaxes(array, 0, 1)), twin.swapaxes(0, 1).copy())
    flat = view.reshape(16, 4, 6, 8)
    assert_same_bits(flat[np.array([3, 3, 15])], twin.swapaxes(0, 1).reshape(16, 4, 6, 8)[[3, 3, 15]])
    assert_same_bits(np.asarray(view.swapaxes(0, 1)), twin)


@pytest.mark.parametrize("axes", [(0, 2), (2, 3), (1, -1), (0, 5), (0, -6)])
def test_swapaxes_of_others_is_refused(axes: tuple[int, int]) -> None:
    array, _ = filled()
    with pytest.raises(ValueError, match="leading axes"):
        array.swapaxes(*axes)


def test_reshape() -> None:
    array, twin = filled()
    for lead in [(16,), (4, 4), (1, 16), (2, 2, 4), (-1,), (4, -1)]:
        for view in (array.reshape(*lead, 4, 6, 8), array.reshape((*lead, 4, 6, 8)), np.reshape(array, (*lead, 4, 6, 8))):
            assert_same_bits(np.asarray(view), twin.reshape(*lead, 4, 6, 8))


@pytest.mark.parametrize("shape", [(16, 24, 8), (16, -1), (-1,), (5, 4, 6, 8), (16, 4, 8, 6), (4, 6, 8), (16 * 4 * 6 * 8,)])
def test_reshape_of_others_is_refused(shape: tuple[int, ...]) -> None:
    array, _ = filled()
    with pytest.raises(ValueError, match=r"reshape"):
        array.reshape(*shape)


def test_reshape_in_another_order_is_refused() -> None:
    array, _ = filled()
    with pytest.raises(ValueError, match="order"):
        array.reshape(16, 4, 6, 8, order="F")


def test_views_write_through() -> None:
    array, twin = filled()
    flat = array.swapaxes(0, 1).reshape(16, 4, 6, 8)
    flat[3] = 9
    twin[3, 0] = 9
    assert_same_bits(np.asarray(array), twin)
    array[4, 1] = 8
    assert (flat[8 + 4] == 8).all()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("how", ["copy", "copy.copy", "deepcopy", "pickle"])
def test_copies_are_independent(method: str | None, how: str) -> None:
    array, twin = filled(method)
    partner = CompressedArray(array.shape, array.dtype, array.obs_shape, share_with=array)
    partner[0] = array[1]
    makers: dict[str, Any] = {
        "copy": lambda a: a.copy(),
        "copy.copy": copy.copy,
        "deepcopy": copy.deepcopy,
        "pickle": lambda a: pickle.loads(pickle.dumps(a)),
    }
    for original, expected in ((array, twin), (array.swapaxes(0, 1), twin.swapaxes(0, 1).copy())):
        other = makers[how](original)
        assert (other.shape, other.dtype, other.compression_method) == (
            expected.shape,
            expected.dtype,
            array.compression_method,
        )
        assert_same_bits(np.asarray(other), expected)
        changed = expected.copy()
        rng = np.random.default_rng(0)
        for row in range(len(other)):
            other[row] = changed[row] = rng.integers(0, 256, other.shape[1:], dtype=np.uint8)
        assert_same_bits(np.asarray(other), changed)
        assert_same_bits(np.asarray(array), twin)
        assert_same_bits(partner[0], twin[1])


def test_arrays_that_share_frames() -> None:
    stream = Stream(1, 2, (1, 6, 8), np.uint8, "game", Stack(4, 0))
    obs = CompressedArray((30, 2, 4, 6, 8), np.uint8, (4, 6, 8), compression_method="gzip1")
    next_obs = CompressedArray(obs.shape, np.uint8, (4, 6, 8), share_with=obs)
    twins = np.zeros((2, *obs.shape), np.uint8)
    for row in range(30):
        twins[0, row], twins[1, row], _, _ = stream.step()
        obs[row], next_obs[row] = twins[0, row], twins[1, row]
    rows, columns = np.array([0, 29, 3, 3, -1]), np.array([0, 1, 1, -1, 0])
    for got, expected in zip((obs, next_obs), twins, strict=True):
        assert_same_bits(got[rows, columns], expected[rows, columns])
        assert_same_bits(np.asarray(got), expected)
    assert obs.memory_usage() == next_obs.memory_usage()
    obs.clear()
    assert not np.asarray(obs).any() and not np.asarray(next_obs).any()


@pytest.mark.parametrize(
    ("shape", "dtype", "obs_shape"),
    [((5, 3, 4), np.uint8, (4,)), ((5, 2, 4), np.int8, (4,)), ((5, 2, 2, 2), np.uint8, (2, 2)), ((4, 2, 4), np.uint8, (4,))],
)
def test_arrays_that_cannot_share_frames(shape: Any, dtype: Any, obs_shape: Any) -> None:
    array = CompressedArray((5, 2, 4), np.uint8, (4,), compression_method="none")
    with pytest.raises(ValueError, match="share"):
        CompressedArray(shape, dtype, obs_shape, share_with=array)


def test_views_cannot_share_frames() -> None:
    array = CompressedArray((2, 2, 4), np.uint8, (4,), compression_method="none")
    with pytest.raises(ValueError, match="view"):
        CompressedArray((2, 2, 4), np.uint8, (4,), share_with=array.swapaxes(0, 1))


def test_clear() -> None:
    array, twin = filled()
    array.clear()
    assert not np.asarray(array).any()
    array[:] = twin
    assert_same_bits(np.asarray(array), twin)


# -- figures ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_memory_usage(method: str | None) -> None:
    array = CompressedArray((50, 2), np.uint8, (4, 6, 8), compression_method=method)
    assert array.memory_usage().raw_bytes == 0
    assert array.memory_usage().ratio == 1.0
    stream = Stream(0, 2, (1, 6, 8), np.uint8, "game", Stack(4, 0), done_rate=0.0)
    for row in range(40):
        array[row] = stream.step()[0]
    usage = array.memory_usage()
    written = 80
    assert usage.raw_bytes == written * 4 * 6 * 8
    assert usage.frames_stored + usage.frames_shared == written * 4
    chunks = 3 * 2  # of both environments; each begins with a stack
    assert len(frames_of_array(array).chunks()[0]) == 2
    assert usage.frames_stored <= written + 3 * chunks  # one new frame an observation; the padding is not stored
    assert usage.stored_bytes > 0 and usage.index_bytes > 0
    assert usage.total_bytes == usage.stored_bytes + usage.index_bytes
    assert usage.ratio == pytest.approx(usage.raw_bytes / usage.total_bytes)
    text = str(usage)
    for part in ("KB", f"{usage.frames_stored:,} frames stored", f"{usage.frames_shared:,} shared", "smaller"):
        assert part in text


def test_memory_usage_adds_up() -> None:
    one, other = MemoryUsage(1, 2, 3, 4, 5), MemoryUsage(10, 20, 30, 40, 50)
    assert one + other == MemoryUsage(11, 22, 33, 44, 55)
    assert (one + other).total_bytes == 55


def test_nothing_is_no_figure() -> None:
    assert str(MemoryUsage(0, 0, 0, 0, 0)) == "no observations yet"


@given(st.integers(1, 10**13))
def test_memory_usage_is_readable(count: int) -> None:
    text = str(MemoryUsage(count, count, 0, 0, 0))
    assert len(text) < 140
    figure, unit = text.split()[:2]
    scale = {"B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9}[unit]
    assert math.isclose(float(figure) * scale, count, rel_tol=0.06, abs_tol=0.5)
