"""A ``CompressedArray`` is indexed as an ndarray is: every index is tried on a real one beside it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from observation_streams import METHODS, assert_same_bits

from sb3_extra_buffers.storage import CompressedArray

LEADS = ((7,), (5, 3), (1, 1), (4, 1), (2, 3, 2))
OBS_SHAPES = ((), (3,), (4, 5), (2, 1, 3))
INDEX_TYPES = (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64)


def make_pair(
    lead: tuple[int, ...], obs_shape: tuple[int, ...], dtype: Any = np.int16, seed: int = 0, method: str | None = "none"
) -> tuple[CompressedArray, np.ndarray]:
    """A filled array and its twin."""
    rng = np.random.default_rng(seed)
    twin = rng.integers(1, 100, (*lead, *obs_shape)).astype(dtype)
    array = CompressedArray((*lead, *obs_shape), dtype, obs_shape, compression_method=method)
    if array.shape != twin.shape:  # an obs_shape of () cannot be told from the leading axes, anything else can
        raise AssertionError(f"{array.shape} instead of {twin.shape}")
    array[...] = twin
    return array, twin


@st.composite
def index_items(draw: Any, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """Any index into an array of this shape, advanced ones all of one length so that they broadcast."""
    length = draw(st.integers(0, 4))
    items: list[Any] = []
    axis = 0
    stop = draw(st.integers(0, len(shape)))
    while axis < stop:
        size = shape[axis]
        kind = draw(st.sampled_from(["int", "slice", "array", "list", "mask", "many", "none", "0-d", "full"]))
        if kind == "none":
            items.append(None)
            if draw(st.booleans()):
                continue
            kind = "full"
        if kind == "int":
            items.append(draw(st.integers(-size, size - 1)))
        elif kind == "0-d":
            items.append(np.array(draw(st.integers(-size, size - 1))))
        elif kind == "slice":
            items.append(draw(st.slices(size)))
        elif kind in ("array", "list"):
            dtype = draw(st.sampled_from(INDEX_TYPES))
            lowest = -size if np.dtype(dtype).kind == "i" else 0
            numbers = draw(st.lists(st.integers(lowest, size - 1), min_size=length, max_size=length))
            items.append(numbers if kind == "list" else np.array(numbers, dtype=dtype))
        elif kind == "mask":
            mask = np.zeros(size, dtype=np.bool_)
            mask[draw(st.lists(st.integers(0, size - 1), min_size=min(length, size), max_size=size, unique=True))] = True
            items.append(mask if draw(st.booleans()) else mask.tolist())
        elif kind == "many":
            axes = draw(st.integers(1, stop - axis))
            items.append(draw(hnp.arrays(np.bool_, shape[axis : axis + axes])))
            axis += axes - 1
        else:
            items.append(slice(None))
        axis += 1
    if draw(st.booleans()):
        items.insert(draw(st.integers(0, len(items))), Ellipsis)
    return tuple(items)


@st.composite
def indices(draw: Any, shape: tuple[int, ...]) -> Any:
    """Any index, in the form of a tuple or by itself."""
    chosen = draw(
        st.one_of(
            hnp.basic_indices(shape, allow_newaxis=True, allow_ellipsis=True),
            hnp.integer_array_indices(shape, dtype=np.dtype(draw(st.sampled_from(INDEX_TYPES)))),
            index_items(shape),
            hnp.arrays(np.bool_, shape[: draw(st.integers(1, len(shape)))]),
            st.booleans(),
        )
    )
    return chosen[0] if isinstance(chosen, tuple) and len(chosen) == 1 and draw(st.booleans()) else chosen


def outcome(array: Any, index: Any) -> Any:
    """What an index gives, or that it is refused."""
    try:
        return np.asarray(array[index])
    except IndexError:
        return None


lead_and_obs = st.tuples(st.sampled_from(LEADS), st.sampled_from(OBS_SHAPES))


@given(shapes=lead_and_obs, data=st.data())
def test_reading(shapes: Any, data: Any) -> None:
    array, twin = make_pair(*shapes)
    for _ in range(8):
        index = data.draw(indices(twin.shape))
        expected = outcome(twin, index)
        got = outcome(array, index)
        assert (got is None) == (expected is None), index
        if expected is not None:
            assert_same_bits(got, expected, repr(index))


@given(shapes=lead_and_obs, data=st.data())
def test_writing(shapes: Any, data: Any) -> None:
    array, twin = make_pair(*shapes)
    rng = np.random.default_rng(1)
    for _ in range(6):
        index = data.draw(indices(twin.shape))
        target = outcome(twin, index)
        if target is None:
            with pytest.raises(IndexError):
                array[index] = 1
            continue
        kept = data.draw(st.integers(0, target.ndim))
        shape = tuple(1 if data.draw(st.booleans()) else length for length in target.shape[kept:])
        value = rng.integers(1, 100, shape).astype(np.int16)
        twin[index] = value
        array[index] = value
        assert_same_bits(np.asarray(array), twin, repr(index))


@given(shapes=lead_and_obs, data=st.data())
def test_views(shapes: Any, data: Any) -> None:
    """Reading and writing through ``swapaxes`` and ``reshape`` of the leading axes."""
    lead, obs_shape = shapes
    array, twin = make_pair(lead, obs_shape)
    view, twin_view = array, twin
    if len(lead) > 1:
        axes = data.draw(st.permutations(range(len(lead))))[:2]
        view, twin_view = view.swapaxes(*axes), twin_view.swapaxes(*axes)
        assert view.shape == twin_view.shape
    index = data.draw(indices(twin_view.shape))
    expected = outcome(twin_view, index)
    assume(expected is not None)
    assert_same_bits(outcome(view, index), expected, repr(index))
    twin_view[index] = 7
    view[index] = 7
    assert_same_bits(np.asarray(view), twin_view.copy(), "the view")
    assert_same_bits(np.asarray(array), twin, "what it is a view of")
    flat = view.reshape(-1, *obs_shape)
    twin_flat = twin_view.reshape(-1, *obs_shape)
    assert flat.shape == twin_flat.shape
    index = data.draw(indices(twin_flat.shape))
    expected = outcome(twin_flat, index)
    assume(expected is not None)
    assert_same_bits(outcome(flat, index), expected, repr(index))


@pytest.mark.parametrize("method", METHODS)
@given(data=st.data())
def test_any_order_of_writing(method: str | None, data: Any) -> None:
    """Cells are written in any order, some of them with what lies in others already."""
    seed = data.draw(st.integers(0, 2**16))
    obs_shape = data.draw(st.sampled_from([(4, 9), (40,), (3, 4, 4)]))
    rng = np.random.default_rng(seed)
    twin = np.zeros((6, 2, *obs_shape), np.uint8)
    array = CompressedArray(twin.shape, np.uint8, obs_shape, compression_method=method)
    for _ in range(data.draw(st.integers(1, 30))):
        cell = tuple(rng.integers(0, twin.shape[:2]))
        other = tuple(rng.integers(0, twin.shape[:2]))
        what = rng.integers(4)
        value = twin[other].copy()
        if what == 0:
            value = rng.integers(0, 256, obs_shape)
        elif what == 1:
            value = np.roll(value, -1, axis=0)
            value[-1] = rng.integers(0, 256)
        elif what == 2:
            value.reshape(-1)[rng.integers(value.size)] ^= 1
        value = value.astype(np.uint8)
        array[cell] = value
        twin[cell] = value
    assert_same_bits(np.asarray(array), twin)
    rows, columns = rng.integers(0, 6, 20), rng.integers(0, 2, 20)
    assert_same_bits(array[rows, columns], twin[rows, columns])


OUT_OF_BOUNDS = [
    5,
    -6,
    (0, 3),
    np.array([0, 5]),
    np.array([-6]),
    (np.array([0]), np.array([3])),
    ([0, 1], [0, 1, 2]),
    np.zeros(4, np.bool_),
    np.zeros((5, 2), np.bool_),
    1.5,
    "a",
    np.array([0.5]),
    (0, 0, 0, 0, 0),
    (slice(None),) * 5,
    (..., 0, ...),
]


@pytest.mark.parametrize("index", OUT_OF_BOUNDS, ids=str)
def test_wrong_indices(index: Any) -> None:
    array, twin = make_pair((5, 3), (4, 2))
    with pytest.raises(IndexError):
        twin[index]
    with pytest.raises(IndexError):
        array[index]
    with pytest.raises(IndexError):
        array[index] = 1
    assert_same_bits(np.asarray(array), twin)


@pytest.mark.parametrize("n_rows", [100, 127, 128, 200, 256, 300, 70_000])
@pytest.mark.parametrize("dtype", INDEX_TYPES)
def test_small_index_types(n_rows: int, dtype: Any) -> None:
    """An index array may be of a type that cannot hold the length of the axis."""
    array = CompressedArray((n_rows, 2), np.uint8, (3,), compression_method="none")
    twin = np.zeros((n_rows, 2, 3), np.uint8)
    rows = np.r_[:100, n_rows - 1]
    array[rows] = twin[rows] = np.arange(len(rows))[:, None, None] + np.zeros((1, 2, 3), np.uint8)
    index = np.array([0, 5, 99, -1 if np.dtype(dtype).kind == "i" else 3], dtype=dtype)
    columns = np.array([0, 1, 1, 0], dtype=dtype)
    assert_same_bits(array[index], twin[index])
    assert_same_bits(array[index, columns], twin[index, columns])


def test_empty_ellipsis_separates() -> None:
    """For NumPy an ellipsis that stands for no axis keeps the advanced indices on its sides apart."""
    array, twin = make_pair((3, 5), (4, 5))
    for index in [(None, 0, ..., 0, [1, 2, 3]), (None, 0, ..., 0, np.array([1]), slice(1, None)), (0, ..., 0, [0, 1], 2)]:
        assert_same_bits(array[index], twin[index], repr(index))


def test_wrong_values_change_nothing() -> None:
    array, twin = make_pair((5, 3), (4, 2))
    for value in (np.zeros((2, 4, 2), np.int16), np.zeros((5, 4, 2), np.int16), np.zeros(3, np.int16)):
        with pytest.raises(ValueError, match="shape"):
            array[0] = value
    with pytest.raises(ValueError, match="70000"):
        array[0] = 70_000
    with pytest.raises(ValueError, match="70000"):
        array[0, 0, 0] = 70_000
    with pytest.raises(TypeError, match="float64"):
        array[0] = 0.5
    with pytest.raises(TypeError, match="float64"):
        array[0, 0, 0] = 0.5
    with pytest.raises(TypeError):
        array[0] = "a"
    with pytest.raises((TypeError, ValueError)):
        array[0] = None
    assert_same_bits(np.asarray(array), twin)


def test_assignment_from_itself() -> None:
    array, twin = make_pair((5, 3), (4, 2))
    array[1:] = array[:-1]
    twin[1:] = twin[:-1].copy()
    assert_same_bits(np.asarray(array), twin)
    array[::-1] = array
    assert_same_bits(np.asarray(array), twin[::-1].copy())


def test_last_one_of_equal_indices_wins() -> None:
    array, twin = make_pair((5, 3), (4, 2))
    values = np.arange(4 * 8, dtype=np.int16).reshape(4, 4, 2)
    rows, columns = np.array([2, 2, 0, 2]), np.array([1, 1, 1, 1])
    array[rows, columns] = values
    twin[rows, columns] = values
    assert_same_bits(np.asarray(array), twin)


def test_what_was_read_is_nobody_elses() -> None:
    array, twin = make_pair((5, 3), (4, 2))
    for index in (0, slice(None), (0, 0), (np.array([0]), np.array([0])), (0, 0, 0), ..., np.arange(5) < 2):
        array[index][...] = 99
    np.asarray(array)[...] = 99
    assert_same_bits(np.asarray(array), twin)


def test_cells_are_found_in_large_arrays() -> None:
    """Reading a few cells does not list all of them: ten thousand million cells would not fit."""
    array = CompressedArray((10**6, 4), np.uint8, (3,), compression_method="none")
    array[999_999] = 5
    array[-2, 3] = 6
    assert array[np.array([-1, 999_998]), np.array([0, 3])].tolist() == [[5] * 3, [6] * 3]
    assert array[-2:].sum() == 5 * 12 + 6 * 3
    assert math.prod(array.shape) == array.size
