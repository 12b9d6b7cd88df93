"""What is recorded, checked before anything is written."""

from __future__ import annotations

import json
import math
import operator
import reprlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from sb3_extra_buffers.storage import cast_exactly

FeatureSpec = npt.DTypeLike | tuple[tuple[int, ...], npt.DTypeLike]

MOST_DIMENSIONS = 30
"""NumPy has at least 32, of which a buffer needs two."""

_DEEPEST = 64
SLOWEST, FASTEST = 0.01, 100_000.0


def check_shape(shape: tuple[int, ...] | None, name: str) -> Any:
    """
    Check a shape.

    :param shape: The shape
    :param name: What it is called
    :return: The same as a tuple of plain integers, or None
    """
    if shape is None:
        return None
    try:
        sizes = tuple(operator.index(size) for size in shape)
    except TypeError:
        raise TypeError(f"{name} is {shape!r}; it must be a tuple of sizes, or () for a number") from None
    if any(size < 1 for size in sizes):
        raise ValueError(f"{name} is {sizes}; sizes start at 1")
    if len(sizes) > MOST_DIMENSIONS:
        raise ValueError(f"{name} has {len(sizes)} dimensions; allowed: at most {MOST_DIMENSIONS}")
    return sizes


def check_dtype(dtype: npt.DTypeLike, name: str) -> np.dtype[Any]:
    """
    Check the type of elements.

    :param dtype: The type
    :param name: What it is called
    :return: The type
    """
    found = np.dtype(dtype)
    if found.kind not in "biufc":
        raise TypeError(f"{name} is {found}; only numbers and booleans can be recorded")
    return found


def check_feature(name: str, spec: FeatureSpec) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """
    Check what is said of a feature.

    :param name: Its name
    :param spec: The type of a number, or ``(shape, type)``
    :return: Shape and type
    """
    check_json(name, f"the name of feature {name!r}")
    shape, dtype = spec if isinstance(spec, tuple) else ((), spec)
    return check_shape(shape, f"the shape of feature {name!r}"), check_dtype(dtype, f"the type of feature {name!r}")


def check_metadata(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    """
    Check that JSON can hold metadata.

    :param metadata: The metadata
    :return: What JSON makes of it
    """
    try:
        plain: dict[str, Any] = json.loads(json.dumps(dict(metadata or {}), allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"metadata must be something that JSON can hold: {error}") from error
    check_json(plain, "metadata")
    fps = plain.get("fps")
    if isinstance(fps, (int, float)) and frames_per_second(fps) is None:
        raise ValueError(f'metadata["fps"] is {reprlib.repr(fps)}; allowed: {SLOWEST} to {FASTEST:,.0f}, or None')
    return plain


def check_json(value: Any, name: str) -> None:
    """
    Check that what JSON holds can be written and shown: no text that is not Unicode, nothing infinite, nothing too deep.

    :param value: What JSON made of it
    :param name: What it is called
    """
    level = [value]
    for _ in range(_DEEPEST):
        inner: list[Any] = []
        for item in level:
            if isinstance(item, str):
                try:
                    item.encode()
                except UnicodeEncodeError as error:
                    raise ValueError(f"{name} has text that is not Unicode: {error}") from error
            elif isinstance(item, float) and not math.isfinite(item):
                raise ValueError(f"{name} has {item} for a number")
            elif isinstance(item, dict):
                inner += [*item.keys(), *item.values()]
            elif isinstance(item, list):
                inner += item
        if not inner:
            return
        level = inner
    raise ValueError(f"{name} is nested more than {_DEEPEST} deep")


def frames_per_second(value: Any) -> float | None:
    """
    Make a speed of what is said about one.

    :param value: What is said
    :return: Frames per second; None if no video can have that speed
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not SLOWEST <= value <= FASTEST:
        return None
    return float(value)


def as_stored(value: Any, shape: tuple[int, ...], dtype: np.dtype[Any], name: str) -> npt.NDArray[Any]:
    """
    Bring a value to the shape and type that it is stored as, if that changes nothing.

    :param value: What was given
    :param shape: The shape
    :param dtype: The type
    :param name: What it is called
    :return: The value; the same array where nothing is to do
    """
    array = value if type(value) is np.ndarray else np.asarray(value)
    if array.shape != shape:
        if shape or array.size != 1:
            raise ValueError(f"{name} has shape {array.shape}, but this recording was made for {shape}")
        array = array.reshape(())
    if array.dtype == dtype:
        return array
    try:
        return cast_exactly(array, dtype, dtype)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name} of type {array.dtype} cannot be recorded as {dtype} exactly: {error}") from error
