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

# For users: which codecs are installed.
from sb3_extra_buffers.codecs import has_igzip as has_igzip
from sb3_extra_buffers.codecs import has_lz4 as has_lz4
from sb3_extra_buffers.codecs import has_numba as has_numba
from sb3_extra_buffers.codecs import has_zstd as has_zstd
from sb3_extra_buffers.gpu_buffers.codings import CHANGE_BYTES, ByteCoding, DeltaCoding, FrameCoding, RleCoding
from sb3_extra_buffers.gpu_buffers.raw_buffer import SharedRawHeap
from sb3_extra_buffers.gpu_buffers.size_estimation import parse_compression_method
from sb3_extra_buffers.gpu_buffers.utils import INTEGERS, runs_dtype_for, torch_dtype_to_numpy

COMPRESSION_METHOD_MAP: Mapping[str, type[FrameCoding] | None] = MappingProxyType(
    {"none": None, "rle": RleCoding, "delta": DeltaCoding}
    | {name: ByteCoding for name in _CODECS if name not in ("none", "rle")}
)
"""Every method and the class that codes its frames; None where observations are kept as they are."""


@dataclass(frozen=True)
class GpuMethod:
    """A method with all of its options; a plain value that can be pickled."""

    name: str
    level: int | None
    elem_type: np.dtype[Any]
    """Type that elements are stored as."""
    run_size: int
    """Bytes of a run length."""
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
        """Check a choice of method and options for observations of this type and shape."""
        elem_type, run_size = _check_dtypes(dtypes, dtype, obs_shape)
        options = dict(compression_kwargs or {})
        name, level = parse_compression_method(method, options.pop("compresslevel", None))
        if COMPRESSION_METHOD_MAP.get(name, ByteCoding) is not ByteCoding:
            if options:
                raise ValueError(f"{name!r} has no option {', '.join(map(repr, options))}")
            return cls(name, level, elem_type, run_size)
        if level is not None:
            options["compresslevel"] = level
        return cls(name, level, elem_type, run_size, make_codec(name, elem_type, np.dtype(f"u{run_size}"), options))

    @property
    def align(self) -> int:
        """All lengths in the heap are multiples of this."""
        if self.name == "rle":
            return RleCoding.alignment(self.elem_type.itemsize, self.run_size)
        return CHANGE_BYTES if self.name == "delta" else 1

    def make_coding(self, frame_bytes: int, heap: SharedRawHeap, n_envs: int) -> FrameCoding:
        """Make the coding of frames in this heap."""
        if self.codec is not None:
            return ByteCoding(frame_bytes, heap, self.codec)
        if self.name == "rle":
            return RleCoding(frame_bytes, heap, self.elem_type.itemsize, self.run_size)
        return DeltaCoding(frame_bytes, heap, n_envs)


def _check_dtypes(
    dtypes: Mapping[str, Any] | None, dtype: npt.DTypeLike, obs_shape: tuple[int, ...]
) -> tuple[np.dtype[Any], int]:
    given = dict(dtypes or {})
    elem_type = torch_dtype_to_numpy(given.pop("elem_type", dtype))
    runs_type = torch_dtype_to_numpy(given.pop("runs_type", runs_dtype_for(max(int(np.prod(obs_shape)), 1))))
    if given:
        raise ValueError(f"dtypes has unknown keys {', '.join(map(repr, given))}; allowed: 'elem_type', 'runs_type'")
    if elem_type.kind not in "biufc":
        raise ValueError(f"elem_type must be a numeric or boolean type, got {elem_type}")
    if runs_type.kind not in "iu" or runs_type.itemsize not in INTEGERS:
        raise ValueError(f"runs_type must be an integer type, got {runs_type}")
    return elem_type, runs_type.itemsize
