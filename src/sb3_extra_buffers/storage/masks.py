"""Action masks, eight to a byte."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt


class PackedMasks:
    """
    Looks like a float32 ndarray of ones and zeros of shape ``(*leading axes, actions)``; each takes one bit.

    All ones at first. Reading gives new ndarrays; ``swapaxes`` and ``reshape`` are for the leading axes.
    """

    # Not a ufunc operand: NumPy calls __array__.
    __array_priority__ = -1

    dtype: np.dtype[np.float32] = np.dtype(np.float32)

    def __init__(self, shape: tuple[int, ...]) -> None:
        *lead, self._width = shape
        self.bits = np.full((*lead, -(-self._width // 8)), 255, dtype=np.uint8)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape, as NumPy means it."""
        return (*self.bits.shape[:-1], self._width)

    @property
    def nbytes(self) -> int:
        """Bytes that an ndarray of this shape would take."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def packed_nbytes(self) -> int:
        """Bytes that are taken."""
        return self.bits.nbytes

    def __len__(self) -> int:
        return len(self.bits)

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        if copy is False:
            raise ValueError("packed masks have no float memory to share; unpacking them makes a copy")
        return self._unpack(self.bits).astype(dtype or self.dtype, copy=False)

    def __getitem__(self, index: Any) -> npt.NDArray[np.float32]:
        if isinstance(index, tuple):
            whole: npt.NDArray[np.float32] = np.asarray(self)[index]
            return whole
        return self._unpack(self.bits[index])

    def __setitem__(self, index: Any, masks: Any) -> None:
        self.bits[index] = self.pack(masks)

    def pack(self, masks: Any) -> npt.NDArray[np.uint8]:
        """Bring masks into the form in which they are stored."""
        masks = np.asarray(masks)
        bits = masks != 0
        if masks.dtype != np.bool_ and not np.array_equal(masks, bits):
            raise ValueError("action masks must consist of ones (allowed) and zeros, so that a bit can hold each of them")
        return np.packbits(bits, axis=-1)

    def _unpack(self, bits: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        return np.unpackbits(bits, axis=-1, count=self._width).astype(np.float32)

    def _with_bits(self, bits: npt.NDArray[np.uint8]) -> PackedMasks:
        other = object.__new__(PackedMasks)
        other._width, other.bits = self._width, bits
        return other

    def swapaxes(self, axis1: int, axis2: int) -> PackedMasks:
        """Swap two leading axes."""
        if self.bits.ndim - 1 in (axis1 % self.bits.ndim, axis2 % self.bits.ndim):
            raise ValueError("only leading axes can be swapped; use np.asarray(masks) to unpack all of it first")
        return self._with_bits(self.bits.swapaxes(axis1, axis2))

    def reshape(self, *shape: int) -> PackedMasks:
        """Give the leading axes another shape."""
        if shape[-1] != self._width:
            raise ValueError(f"only the leading axes can be reshaped, the last one stays {self._width}")
        return self._with_bits(self.bits.reshape(*shape[:-1], self.bits.shape[-1]))
