"""Types and sizes: from NumPy to torch, and how large a heap is worth beginning with."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt
import torch as th

from sb3_extra_buffers.gpu_buffers.size_estimation import estimate_save_ratio

OVERALLOC_FACTOR = 1.5
"""How much more than estimated or measured a heap has, so that payloads can come and go between two compactions."""


def numpy_dtype_to_torch(dtype: npt.DTypeLike | th.dtype) -> th.dtype:
    """
    Find the torch type of a NumPy type.

    :param dtype: Anything NumPy takes for a dtype; a torch type is returned as it is
    :return: The torch type
    """
    if isinstance(dtype, th.dtype):
        return dtype
    wanted = np.dtype(dtype)
    try:
        return th.from_numpy(np.empty(0, dtype=wanted.newbyteorder("="))).dtype
    except TypeError:
        raise TypeError(f"torch has no type for {wanted}; a tensor of such observations cannot be made") from None


def torch_dtype_to_numpy(dtype: npt.DTypeLike | th.dtype) -> np.dtype[Any]:
    """
    Find the NumPy type of a torch type.

    :param dtype: A torch type; anything NumPy takes for a dtype is taken as well
    :return: The NumPy type
    """
    if not isinstance(dtype, th.dtype):
        return np.dtype(dtype)
    try:
        found: np.dtype[Any] = th.empty(0, dtype=dtype).numpy().dtype
    except (TypeError, RuntimeError):
        raise TypeError(f"NumPy has no type for {dtype}; environments give their observations as NumPy arrays") from None
    return found


def to_device(tensor: th.Tensor, device: th.device) -> th.Tensor:
    """
    Copy from the host to a device, without waiting for the device where that is safe.

    The memory of the tensor may be written to, or be gone, as soon as this returns.

    :param tensor: A tensor on the host
    :param device: Where to
    :return: The copy; the tensor itself if the device is the host
    """
    if device.type == "cuda":
        # Only from pinned memory does a copy of any size queue up behind what the device is doing; and torch keeps that
        # memory until the copy is done. Elsewhere a copy that nobody waits for may read memory that is gone by then, which
        # on mps has been seen to happen (pytorch issues 139550 and 189690).
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def estimate_max_slot_bytes(
    obs_shape: SupportsIndex | Iterable[SupportsIndex],
    elem_dtype: npt.DTypeLike | th.dtype = th.uint8,
    compression_method: str = "rle",
    compresslevel: int | None = None,
    overalloc_factor: float = OVERALLOC_FACTOR,
) -> int:
    """
    Estimate the bytes that one observation needs, from ratios that were published for MsPacman.

    :param obs_shape: Shape of one observation
    :param elem_dtype: Type of its elements
    :param compression_method: Name or shorthand of the method
    :param compresslevel: Level, where the method is not a shorthand
    :param overalloc_factor: How much more than estimated
    :return: Bytes. For ``rle`` never fewer than it can need at worst, a run for every element
    """
    if not overalloc_factor > 0:
        raise ValueError(f"overalloc_factor is {overalloc_factor}; it must be greater than 0")
    shape = tuple(obs_shape) if isinstance(obs_shape, Iterable) else (obs_shape,)
    elements = math.prod(int(length) for length in shape)
    itemsize = torch_dtype_to_numpy(elem_dtype).itemsize
    estimate = math.ceil(elements * itemsize * estimate_save_ratio(compression_method, compresslevel) * overalloc_factor)
    if compression_method == "rle":
        estimate = max(estimate, elements * (itemsize + runs_dtype_for(elements).itemsize))
    return max(estimate, 1)


def estimate_total_heap_bytes(
    n_cells: int,
    obs_shape: SupportsIndex | Iterable[SupportsIndex],
    elem_dtype: npt.DTypeLike | th.dtype = th.uint8,
    compression_method: str = "rle",
    compresslevel: int | None = None,
    overalloc_factor: float = OVERALLOC_FACTOR,
) -> int:
    """
    Estimate the bytes that all observations of a buffer need, for ``heap_bytes``.

    :param n_cells: How many there are: rows times environments, twice that where ``next_obs`` is kept as well
    :param obs_shape: Shape of one observation
    :param elem_dtype: Type of its elements
    :param compression_method: Name or shorthand of the method
    :param compresslevel: Level, where the method is not a shorthand
    :param overalloc_factor: How much more than estimated
    :return: Bytes
    """
    if n_cells < 1:
        raise ValueError(f"n_cells is {n_cells}; a buffer has at least one")
    return n_cells * estimate_max_slot_bytes(obs_shape, elem_dtype, compression_method, compresslevel, overalloc_factor)


def runs_dtype_for(elements: int) -> th.dtype:
    """
    Choose the type of run lengths: no run is longer than the observation.

    Signed but for one byte, since torch computes little with other unsigned types.

    :param elements: Elements of the observation
    :return: An integer type
    """
    types = (th.uint8, th.int16, th.int32)
    return next((dtype for dtype in types if elements <= th.iinfo(dtype).max), th.int64)
