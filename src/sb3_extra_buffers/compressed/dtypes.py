"""Choosing types by hand, and compiling ``rle-jit`` ahead of time."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from sb3_extra_buffers.codecs import init_jit
from sb3_extra_buffers.storage import check_dtypes
from sb3_extra_buffers.storage.methods import parse_any_method


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
    name = parse_any_method(compression_method).name
    if name.endswith("-jit"):
        init_jit(elem_type=elem_type, runs_type=runs_type)
    return {"elem_type": elem_type, "runs_type": runs_type}
