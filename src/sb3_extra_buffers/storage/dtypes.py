"""Which types to store elements and run lengths as, and compiling ``rle-jit`` for them ahead of time."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from sb3_extra_buffers.codecs import init_jit
from sb3_extra_buffers.storage.methods import parse_any_method


def find_smallest_dtype(max_val: int, signed: bool = False) -> type[np.integer[Any]]:
    """
    Find the smallest integer type that holds a value.

    :param max_val: The largest value (or, if ``signed``, the one of the largest magnitude)
    :param signed: Whether the type must be signed
    :return: The type
    """
    kinds: tuple[type[np.integer[Any]], ...] = (np.uint8, np.uint16, np.uint32, np.uint64)
    if signed:
        kinds = (np.int8, np.int16, np.int32, np.int64)
    elif max_val < 0:
        raise ValueError(f"no unsigned type holds {max_val}; pass signed=True")
    for kind in kinds:
        limits = np.iinfo(kind)
        if limits.min <= max_val <= limits.max:
            return kind
    raise ValueError(f"no integer type of NumPy holds {max_val}")


def runs_type_for(obs_shape: tuple[int, ...]) -> type[np.integer[Any]]:
    """
    Choose the type of run lengths: no run is longer than the observation.

    :param obs_shape: Shape of one observation
    :return: An unsigned integer type
    """
    return find_smallest_dtype(max(math.prod(obs_shape), 1))


def check_dtypes(
    dtypes: Mapping[str, npt.DTypeLike] | None, dtype: npt.DTypeLike, obs_shape: tuple[int, ...]
) -> tuple[np.dtype[Any], np.dtype[Any]]:
    """
    Complete a choice of types.

    :param dtypes: ``elem_type`` and ``runs_type``, either may be missing
    :param dtype: Type of the observations
    :param obs_shape: Shape of one observation
    :return: Type of the elements, type of run lengths
    """
    given = dict(dtypes or {})
    elem_type = np.dtype(given.pop("elem_type", dtype))
    runs_type = np.dtype(given.pop("runs_type", runs_type_for(obs_shape)))
    if given:
        raise ValueError(f"dtypes has unknown keys {', '.join(map(repr, given))}; allowed: 'elem_type', 'runs_type'")
    if elem_type.kind not in "biufc":
        raise ValueError(f"elem_type must be a numeric or boolean type, not {elem_type}")
    return elem_type, runs_type


def find_buffer_dtypes(
    obs_shape: SupportsIndex | Iterable[SupportsIndex],
    elem_dtype: npt.DTypeLike = np.uint8,
    compression_method: str = "rle",
) -> dict[str, np.dtype[Any]]:
    """
    Find the types in which a buffer stores elements and run lengths, and compile the method if it is ``rle-jit``.

    Call it before the ``SubprocVecEnv`` workers start, so that numba does not hold up the first rollout.

    :param obs_shape: Shape of one observation
    :param elem_dtype: Type of its elements
    :param compression_method: Name or shorthand of the method
    :return: ``elem_type`` and ``runs_type``
    """
    shape = tuple(map(operator.index, obs_shape)) if isinstance(obs_shape, Iterable) else (operator.index(obs_shape),)
    elem_type, runs_type = check_dtypes(None, elem_dtype, shape)
    if parse_any_method(compression_method).name.endswith("-jit"):
        init_jit(elem_type=elem_type, runs_type=runs_type)
    return {"elem_type": elem_type, "runs_type": runs_type}
