"""Types, devices and sizes: from NumPy to torch and back, and how large a heap should be at first."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt
import torch as th

from sb3_extra_buffers.gpu_buffers.size_estimation import estimate_save_ratio

OVERALLOC_FACTOR = 1.5
"""How much more than estimated or measured a heap has, so that payloads can come and go between two compactions."""
INTEGERS = {1: th.uint8, 2: th.int16, 4: th.int32, 8: th.int64}
"""Integers of so many bytes: signed but for one byte, since torch computes little with other unsigned types."""


def numpy_dtype_to_torch(dtype: npt.DTypeLike | th.dtype) -> th.dtype:
    """Find the torch type of a NumPy type."""
    if isinstance(dtype, th.dtype):
        return dtype
    wanted = np.dtype(dtype)
    try:
        return th.from_numpy(np.empty(0, dtype=wanted.newbyteorder("="))).dtype
    except TypeError:
        raise TypeError(f"torch has no type for {wanted}; a tensor of such observations cannot be made") from None


def torch_dtype_to_numpy(dtype: npt.DTypeLike | th.dtype) -> np.dtype[Any]:
    """The NumPy type of a torch type, or of anything NumPy takes for a dtype."""
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

    The memory of the tensor may be written to or freed as soon as this returns. Without a copy where the device is the host.
    """
    if device.type == "cuda":
        # Only from pinned memory is a copy of any size queued, and torch keeps that memory until the copy is done.
        # Elsewhere a copy in the background may read memory that was freed, which on mps has been seen to happen
        # (pytorch issues 139550 and 189690).
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def usable_device(saved: th.device | str) -> th.device:
    """The device of a buffer that was saved, maybe on another machine; the CPU, with a warning, where it does not exist."""
    device = th.device(saved)
    try:
        th.empty(0, device=device)
    except (AssertionError, RuntimeError):  # torch knows no such device, or there are fewer of them
        warnings.warn(f"the buffer was saved on {saved}, which is not available here; it is on the CPU now", stacklevel=3)
        return th.device("cpu")
    return device


def estimate_max_slot_bytes(
    obs_shape: SupportsIndex | Iterable[SupportsIndex],
    elem_dtype: npt.DTypeLike | th.dtype = th.uint8,
    compression_method: str = "rle",
    compresslevel: int | None = None,
    overalloc_factor: float = OVERALLOC_FACTOR,
) -> int:
    """Estimate the bytes that one observation needs, from ratios that were published for MsPacman."""
    if not overalloc_factor > 0:
        raise ValueError(f"overalloc_factor must be positive, got {overalloc_factor}")
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
    """Estimate the bytes that all observations of a buffer need, for ``heap_bytes``."""
    if n_cells < 1:
        raise ValueError(f"n_cells must be positive, got {n_cells}")
    return n_cells * estimate_max_slot_bytes(obs_shape, elem_dtype, compression_method, compresslevel, overalloc_factor)


def runs_dtype_for(elements: int) -> th.dtype:
    """The type of run lengths; no run is longer than the observation."""
    return next(dtype for dtype in INTEGERS.values() if elements <= th.iinfo(dtype).max)
