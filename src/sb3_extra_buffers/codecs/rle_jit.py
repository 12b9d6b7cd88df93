"""``rle-jit``: the format of ``rle``, compiled by numba at first use."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from sb3_extra_buffers.codecs._optional import has_numba, install_hint
from sb3_extra_buffers.codecs.base import Codec
from sb3_extra_buffers.codecs.rle import Elements, RleCodec


def _warn_fallback(reason: str, stacklevel: int) -> None:
    warnings.warn(f"{reason}, rle-jit falls back to rle: {install_hint('numba')}", stacklevel=stacklevel + 1)


@cache
def _kernels() -> Any:
    try:
        from sb3_extra_buffers.codecs import _rle_kernels
    except ImportError as error:  # installed, but for another version of NumPy
        _warn_fallback(f"numba cannot be imported ({error})", stacklevel=2)
        return None
    return _rle_kernels


@dataclass(frozen=True)
class RleJitCodec(RleCodec):
    """
    Compiled run-length coding; its blobs are those of ``rle``, byte for byte.

    :param elem_type: Type of the elements; only its size matters, runs are of equal bits
    :param runs_type: Unsigned integer type of the run lengths; a run too long for it is split
    """

    name: ClassVar[str] = "rle-jit"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.is_available():
            raise ImportError(f"rle-jit needs numba: {install_hint('numba')}")

    @classmethod
    def is_available(cls) -> bool:
        return has_numba()

    @classmethod
    def create(cls, **options: Any) -> Codec:
        try:
            return cls(**options)
        except ImportError:
            _warn_fallback("numba is missing", stacklevel=3)
        return RleCodec(**options)

    def _find_runs(self, elements: Elements) -> tuple[Elements, Elements]:
        if elements.ndim > 1 or elements.size == 0 or _kernels() is None:
            return super()._find_runs(elements)
        if not elements.flags.carray:  # numba compiles anew for a read-only array and takes alignment for granted
            elements = elements.copy()
        values, lengths = np.empty_like(elements), np.empty(elements.size, dtype=self.runs_type)
        count = _kernels().find_runs(elements, np.uint64(self._max_run), values, lengths)
        return values[:count], lengths[:count]

    def _fill_runs(self, values: Elements, lengths: Elements, out: Elements) -> bool:
        if out.ndim > 1 or not out.flags.aligned or _kernels() is None:
            return super()._fill_runs(values, lengths, out)
        return bool(_kernels().fill_runs(values, lengths, out))


def init_jit(elem_type: npt.DTypeLike = np.uint8, runs_type: npt.DTypeLike = np.uint16) -> None:
    """
    Compile ``rle-jit`` for these types now rather than at the first frame; warns when numba is missing.

    :param elem_type: Type of the elements
    :param runs_type: Type of the run lengths
    """
    codec = RleJitCodec.create(elem_type=elem_type, runs_type=runs_type)
    frame = np.zeros(2, dtype=elem_type)
    codec.decode(codec.encode(frame), frame)
