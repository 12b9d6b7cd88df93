"""From a method string to the coding of frames on a device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from sb3_extra_buffers.codecs import COMPRESSION_METHOD_MAP as _CODECS
from sb3_extra_buffers.codecs import Codec, make_codec

# For users: which codecs of the CPU side are there.
from sb3_extra_buffers.codecs import has_igzip as has_igzip
from sb3_extra_buffers.codecs import has_lz4 as has_lz4
from sb3_extra_buffers.codecs import has_numba as has_numba
from sb3_extra_buffers.codecs import has_zstd as has_zstd
from sb3_extra_buffers.gpu_buffers.byte_coding import ByteCoding
from sb3_extra_buffers.gpu_buffers.delta_coding import RECORD, DeltaCoding
from sb3_extra_buffers.gpu_buffers.frame_coding import FrameCoding
from sb3_extra_buffers.gpu_buffers.raw_buffer import SharedRawHeap
from sb3_extra_buffers.gpu_buffers.rle_coding import RleCoding
from sb3_extra_buffers.gpu_buffers.size_estimation import parse_compression_method
from sb3_extra_buffers.gpu_buffers.utils import runs_dtype_for, torch_dtype_to_numpy

COMPRESSION_METHOD_MAP: Mapping[str, type[FrameCoding] | None] = MappingProxyType(
    {"none": None, "rle": RleCoding, "delta": DeltaCoding}
    | {name: ByteCoding for name in _CODECS if name not in ("none", "rle")}
)
"""Every method and what codes frames for it; None where observations are kept as they are."""

_RUN_SIZES = (1, 2, 4, 8)


@dataclass(frozen=True)
class GpuMethod:
    """
    A method with all of its options; a plain, picklable value.

    :param name: Name of the method
    :param level: Level, where it has one
    :param elem_type: Type that elements are stored as
    :param run_size: Bytes of a run length
    :param codec: The codec behind it, if it is one of the CPU side
    """

    name: str
    level: int | None
    elem_type: np.dtype[Any]
    run_size: int
    codec: Codec | None = None

    @classmethod
    def parse(
        cls,
        method: str,
        dtypes: Mapping[str, Any] | None,
        dtype: npt.DTypeLike,
        obs_shape: tuple[int, ...],
        compression_kwargs: Mapping[str, Any] | None = None,
    ) -> GpuMethod:
        """
        Check a choice of method and options.

        :param method: Name or shorthand
        :param dtypes: ``elem_type`` and ``runs_type`` of NumPy or torch, either may be missing
        :param dtype: Type of the observations
        :param obs_shape: Shape of one observation
        :param compression_kwargs: Options of the method
        :return: The method
        """
        elem_type, run_size = _check_dtypes(dtypes, dtype, obs_shape)
        options = dict(compression_kwargs or {})
        name, level = parse_compression_method(method, options.pop("compresslevel", None))
        if COMPRESSION_METHOD_MAP.get(name, ByteCoding) is not ByteCoding:
            if options:
                raise ValueError(f"{name!r} has no option {', '.join(map(repr, options))}")
            return cls(name, level, elem_type, run_size)
        if level is not None:
            options["compresslevel"] = level
        return cls(name, level, elem_type, run_size, make_codec(name, elem_type, _unsigned(run_size), options))

    @property
    def align(self) -> int:
        """What all lengths in the heap are multiples of."""
        if self.name == "rle":
            return RleCoding.alignment(self.elem_type.itemsize, self.run_size)
        return RECORD if self.name == "delta" else 1

    def make_coding(self, frame_bytes: int, heap: SharedRawHeap, n_envs: int) -> FrameCoding:
        """
        Make what codes frames.

        :param frame_bytes: Bytes of a frame
        :param heap: Where payloads go
        :param n_envs: Number of environments
        :return: The coding
        """
        if self.codec is not None:
            return ByteCoding(frame_bytes, heap, self.codec)
        if self.name == "rle":
            return RleCoding(frame_bytes, heap, self.elem_type.itemsize, self.run_size)
        return DeltaCoding(frame_bytes, heap, n_envs)


def _unsigned(size: int) -> np.dtype[Any]:
    return np.dtype(f"u{size}")


def _check_dtypes(
    dtypes: Mapping[str, Any] | None, dtype: npt.DTypeLike, obs_shape: tuple[int, ...]
) -> tuple[np.dtype[Any], int]:
    given = dict(dtypes or {})
    elem_type = torch_dtype_to_numpy(given.pop("elem_type", dtype))
    runs_type = torch_dtype_to_numpy(given.pop("runs_type", runs_dtype_for(max(int(np.prod(obs_shape)), 1))))
    if given:
        raise ValueError(f"dtypes has unknown keys {', '.join(map(repr, given))}; allowed: 'elem_type', 'runs_type'")
    if elem_type.kind not in "biufc":
        raise ValueError(f"elem_type must be a numeric or boolean type, not {elem_type}")
    if runs_type.kind not in "iu" or runs_type.itemsize not in _RUN_SIZES:
        raise ValueError(f"runs_type must be an integer type, not {runs_type}")
    return elem_type, runs_type.itemsize
