"""What buffers on a device take besides what SB3's take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

import torch as th

DEFAULT_METHOD = "delta"


class GpuOptions(TypedDict, total=False):
    """Options of every buffer on a device."""

    dtypes: Mapping[str, Any] | None
    compression_method: str
    buffer_device: th.device | str | None
    heap_bytes: int | None
    compression_kwargs: Mapping[str, Any] | None
    max_slot_bytes: int | None


DEFAULTS: dict[str, Any] = {
    "dtypes": None,
    "compression_method": DEFAULT_METHOD,
    "buffer_device": None,
    "heap_bytes": None,
    "compression_kwargs": None,
    "max_slot_bytes": None,
}

DESCRIPTIONS = """
    :param dtypes: ``elem_type`` to store elements as and ``runs_type`` for run lengths, as ``find_gpu_buffer_dtypes``
        gives them; found from the observation space by default. For Dict observations also a mapping from key to such a
        dict
    :param compression_method: Name or shorthand of the method: ``"delta"``, ``"rle"``, ``"none"``, or a codec of the CPU
        side such as ``"zstd-5"``
    :param buffer_device: Where observations are kept; the device that samples go to by default
    :param heap_bytes: Bytes for the observations of the full buffer (for Dict observations of each key), which then never
        become more; by default the heap is sized by the first observations and grows
    :param compression_kwargs: Options of the method, for example ``{"compresslevel": 5}``
    :param max_slot_bytes: Deprecated: ``heap_bytes`` divided by the number of cells
"""
