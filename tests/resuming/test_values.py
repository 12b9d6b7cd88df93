"""Plain values and what objects held come back as they were, and nothing else comes out of a file."""

from __future__ import annotations

import contextlib
import json
import pickle
from collections import deque
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sb3_extra_buffers import StorageError
from sb3_extra_buffers.training_utils.resuming.objects import capture, put_back
from sb3_extra_buffers.training_utils.resuming.values import KEEP, Captured, UnsavableError, values_from_bytes, values_to_bytes

KEYS = st.one_of(st.text(max_size=3), st.integers(), st.booleans(), st.tuples(st.integers(), st.text(max_size=2)))
LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.complex_numbers(), st.text(), st.binary(), st.just(KEEP)
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(st.floats(), min_size=30, max_size=40),
        st.lists(st.integers(-(2**70), 2**70), min_size=30, max_size=40),
        st.lists(st.booleans(), min_size=30, max_size=40),
        st.tuples(inner, inner),
        st.dictionaries(KEYS, inner, max_size=4),
        st.sets(KEYS, max_size=4),
        st.frozensets(KEYS, max_size=4),
        st.builds(
            lambda parts, most: deque(parts, most), st.lists(inner, max_size=4), st.one_of(st.none(), st.integers(4, 9))
        ),
        st.builds(Captured, st.text(max_size=5), inner),
    ),
    max_leaves=12,
)


def same(one: Any, other: Any) -> bool:
    """Equal in type and value, with NaN equal to itself and -0 different from 0."""
    if type(one) is not type(other):
        return False
    if isinstance(one, (float, complex)):
        return repr(one) == repr(other)
    if isinstance(one, (list, tuple, deque)):
        limits = getattr(one, "maxlen", None) == getattr(other, "maxlen", None)
        return limits and len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, Captured):
        return one.kind == other.kind and same(one.state, other.state)
    return one is other if one is KEEP else bool(one == other)


@given(VALUES)
def test_values_come_back(value: Any) -> None:
    assert same(values_from_bytes(values_to_bytes(value)), value)


@given(st.sampled_from(["<f4", ">i2", "|b1", "<u8", "<c16", "|S3", "<U2"]), st.lists(st.integers(0, 3), max_size=3))
def test_arrays_come_back(dtype: str, shape: list[int]) -> None:
    array = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
    for value in (array, array[..., ::-1] if shape else array):
        back = values_from_bytes(values_to_bytes(value))
        assert back.dtype == value.dtype and back.shape == value.shape and np.array_equal(back, value)
    back = values_from_bytes(values_to_bytes(np.array(1).astype(dtype)[()]))
    assert type(back) is np.dtype(dtype).type


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[", b"\xff", b'{"tuple":3}', b'{"dict":[1]}', b'{"what":1}', b'{"object":1}', b"[" * 9**5]
)
def test_damaged_values(data: bytes) -> None:
    with pytest.raises(StorageError):
        values_from_bytes(data)


@given(st.binary(max_size=50))
def test_any_bytes(data: bytes) -> None:
    with contextlib.suppress(StorageError):
        values_from_bytes(data)


def test_what_stays_is_recognised_in_another_process() -> None:
    assert pickle.loads(pickle.dumps([KEEP]))[0] is KEEP


class Thing:
    """A plain object."""

    def __init__(self, value: Any) -> None:
        self.value = value


class Slotted:
    """Keeps things where vars() does not see them."""

    __slots__ = ("value",)


def test_objects_are_put_back_and_never_made() -> None:
    array = np.arange(3)
    thing = Thing([Thing(1), {"a": array}])
    saved = values_from_bytes(values_to_bytes(capture(thing)))
    array += 7
    inner = thing.value[0]
    inner.value = 5
    assert put_back(thing, saved) is thing and thing.value[0] is inner and inner.value == 1
    assert thing.value[1]["a"] is array and array.tolist() == [0, 1, 2]
    for other in (None, Thing(None), Thing([None, {}]), [thing]):
        with pytest.raises(UnsavableError, match="was saved, but a"):
            put_back(other, saved)


@pytest.mark.parametrize("value", [Slotted(), iter([]), open, np.array([None]), lambda: 1, json])
def test_what_is_hidden_is_refused_and_what_is_constant_stays(value: Any) -> None:
    if callable(value) or value is json:
        assert capture(Thing(value)).state == {}
        return
    with pytest.raises(UnsavableError, match=r"Thing.value is a|Thing.*value"):
        capture(Thing(value))


def test_limits() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(UnsavableError, match="nested too deeply"):
        capture(endless)
    with pytest.raises(UnsavableError, match="more than 64 MB"):
        capture(np.zeros(9 * 10**6))
