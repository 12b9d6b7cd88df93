"""Equality to the bit, with a message that says where it ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch as th


def assert_same(got: Any, expected: Any, what: str = "value") -> None:
    """
    Assert that two values are equal in type, shape, device and every bit.

    :param got: Arrays, tensors or plain values, or tuples, lists and dicts of them
    :param expected: What it should be
    :param what: Its name, for the message
    """
    assert type(got) is type(expected), f"{what} is of {type(got)}, expected is {type(expected)}"
    if isinstance(expected, Mapping):
        assert got.keys() == expected.keys(), f"{what} has the keys {list(got)}, expected are {list(expected)}"
        for key in expected:
            assert_same(got[key], expected[key], f"{what}[{key!r}]")
    elif isinstance(expected, (tuple, list)):
        assert len(got) == len(expected), f"{what} has {len(got)} parts, expected are {len(expected)}"
        names = getattr(expected, "_fields", None) or range(len(expected))
        for name, one, other in zip(names, got, expected, strict=True):
            assert_same(one, other, f"{what}.{name}" if isinstance(name, str) else f"{what}[{name}]")
    elif isinstance(expected, th.Tensor):
        assert got.device == expected.device, f"{what} is on {got.device}, expected is {expected.device}"
        _assert_same_array(got.detach().cpu().numpy(), expected.detach().cpu().numpy(), what)
    elif isinstance(expected, np.ndarray):
        _assert_same_array(got, expected, what)
    else:
        assert got == expected, f"{what} is {got!r}, expected is {expected!r}"


def _assert_same_array(got: Any, expected: Any, what: str) -> None:
    assert got.dtype == expected.dtype, f"{what} has dtype {got.dtype}, expected is {expected.dtype}"
    assert got.shape == expected.shape, f"{what} has shape {got.shape}, expected is {expected.shape}"
    if got.tobytes() == expected.tobytes():
        return
    # Byte by byte, so that NaN equals itself and 0.0 does not equal -0.0.
    width = got.dtype.itemsize
    bits = [np.frombuffer(array.tobytes(), np.uint8).reshape(-1, width) for array in (got, expected)]
    different = np.flatnonzero((bits[0] != bits[1]).any(axis=1))
    place = tuple(map(int, np.unravel_index(different[0], got.shape)))
    raise AssertionError(
        f"{what} differs in {len(different)} of {got.size} elements; the first is {place}: {got[place]!r}, "
        f"expected is {expected[place]!r}"
    )
