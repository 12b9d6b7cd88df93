"""Choosing types by hand, and compiling ahead of time."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from sb3_extra_buffers.codecs import has_numba, init_jit, parse_method
from sb3_extra_buffers.storage import check_dtypes
from sb3_extra_buffers.storage.methods import REFERENCE_METHODS
from sb3_extra_buffers.storage.warm_up import compile_kernels


def find_buffer_dtypes(
    obs_shape: SupportsIndex | Iterable[SupportsIndex],
    elem_dtype: npt.DTypeLike = np.uint8,
    compression_method: str = "rle",
) -> dict[str, np.dtype[Any]]:
    """
    Find the types that a buffer stores with, and compile the method where it is a jitted one.

    Call it before starting ``SubprocVecEnv`` workers: nothing is compiled in them then.

    :param obs_shape: Shape of one observation
    :param elem_dtype: Type of its elements
    :param compression_method: Name or shorthand of the method
    :return: ``elem_type`` and ``runs_type``
    """
    shape = tuple(map(operator.index, obs_shape)) if isinstance(obs_shape, Iterable) else (operator.index(obs_shape),)
    elem_type, runs_type = check_dtypes(None, elem_dtype, shape)
    name = parse_method(compression_method, REFERENCE_METHODS).name
    if name.endswith("-jit"):
        init_jit(elem_type=elem_type, runs_type=runs_type)
    elif name in REFERENCE_METHODS and has_numba():
        compile_kernels()
    return {"elem_type": elem_type, "runs_type": runs_type}
