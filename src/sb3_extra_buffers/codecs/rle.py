"""``rle``: run-length coding in NumPy.

Payload: the values of all runs, then their lengths, then the bytes that do not fill an element (none when the frame
is of ``elem_type``). The number of runs follows from the payload's length.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from sb3_extra_buffers.codecs.base import ByteArray, Codec
from sb3_extra_buffers.codecs.errors import CodecError

Elements: TypeAlias = npt.NDArray[np.unsignedinteger[Any]]
"""Bit patterns of the elements: one unsigned integer each, or one row of them where no integer is wide enough."""


def element_dtype(elem_type: npt.DTypeLike) -> np.dtype[Any]:
    """Check an ``elem_type``."""
    dtype = np.dtype(elem_type)
    if dtype.kind not in "biufc":
        raise ValueError(f"elem_type must be a numeric or bool dtype, not {dtype}")
    return dtype


def runs_dtype(runs_type: npt.DTypeLike) -> np.dtype[Any]:
    """Check a ``runs_type``."""
    dtype = np.dtype(runs_type)
    if dtype.kind != "u":
        raise ValueError(f"runs_type must be an unsigned integer dtype, not {dtype}")
    native: np.dtype[Any] = dtype.newbyteorder("=")
    return native


@dataclass(frozen=True)
class RleCodec(Codec):
    """
    Run-length coding of bit patterns.

    :param elem_type: Type of the elements; only its size matters, runs are of equal bits
    :param runs_type: Unsigned integer type of the run lengths; a run too long for it is split
    """

    name: ClassVar[str] = "rle"

    elem_type: np.dtype[Any] = np.dtype(np.uint8)  # noqa: RUF009 (a dtype is immutable)
    runs_type: np.dtype[Any] = np.dtype(np.uint16)  # noqa: RUF009

    def __post_init__(self) -> None:
        object.__setattr__(self, "elem_type", element_dtype(self.elem_type))
        object.__setattr__(self, "runs_type", runs_dtype(self.runs_type))

    @property
    def wire_format(self) -> str:
        return f"rle/{self.elem_type.itemsize}/{self.runs_type.itemsize}"

    @cached_property
    def _max_run(self) -> int:
        return int(np.iinfo(self.runs_type).max)

    @cached_property
    def _unit(self) -> np.dtype[Any]:
        """The widest unsigned integer that divides an element evenly."""
        return np.dtype(f"u{next(size for size in (8, 4, 2, 1) if self.elem_type.itemsize % size == 0)}")

    def _elements(self, data: ByteArray) -> Elements:
        units: Elements = data.view(self._unit)
        if self._unit.itemsize == self.elem_type.itemsize:
            return units
        return units.reshape(-1, self.elem_type.itemsize // self._unit.itemsize)

    def _encode_payload(self, data: ByteArray) -> bytes:
        body = data.size - data.size % self.elem_type.itemsize
        values, lengths = self._find_runs(self._elements(data[:body]))
        return b"".join((values.data, lengths.data, data[body:].data))

    def _decode_payload(self, payload: ByteArray, out: ByteArray) -> None:
        body = out.size - out.size % self.elem_type.itemsize
        elements = self._elements(out[:body])
        n_tail = out.size - body
        n_runs, rest = divmod(payload.size - n_tail, self.elem_type.itemsize + self.runs_type.itemsize)
        if rest or not 0 <= n_runs <= len(elements):
            raise CodecError(f"{self.name}: the blob does not hold the {out.size} bytes asked for")
        split = n_runs * self.elem_type.itemsize
        # Copies (small ones), because a blob may lie at any address and numba takes alignment for granted.
        values = self._elements(payload[:split].copy())
        lengths = payload[split : payload.size - n_tail].copy().view(self.runs_type)
        if not self._fill_runs(values, lengths, elements):
            raise CodecError(f"{self.name}: the runs do not add up to the {out.size} bytes asked for")
        out[body:] = payload[payload.size - n_tail :]

    def _find_runs(self, elements: Elements) -> tuple[Elements, Elements]:
        """Find the runs of equal elements."""
        if len(elements) == 0:
            return elements, np.empty(0, dtype=self.runs_type)
        changed = elements[1:] != elements[:-1]
        if changed.ndim > 1:
            changed = changed.any(axis=1)
        bounds = np.concatenate(([0], np.flatnonzero(changed) + 1, [len(elements)]))
        values, lengths = elements[bounds[:-1]], np.diff(bounds)
        if lengths.max() > self._max_run:
            pieces = -(-lengths // self._max_run)
            last_pieces = np.cumsum(pieces) - 1
            remainders = lengths - (pieces - 1) * self._max_run
            values = np.repeat(values, pieces, axis=0)
            lengths = np.full(len(values), self._max_run)
            lengths[last_pieces] = remainders
        return values, lengths.astype(self.runs_type)

    def _fill_runs(self, values: Elements, lengths: Elements, out: Elements) -> bool:
        """Write the runs if they fill ``out`` exactly."""
        # Each length is bounded before they are added, so that the sum cannot wrap around to the right number.
        if len(lengths) and (lengths.min() == 0 or lengths.max() > len(out)):
            return False
        if int(lengths.sum(dtype=np.uint64)) != len(out):
            return False
        out[:] = np.repeat(values, lengths.astype(np.intp), axis=0)
        return True
