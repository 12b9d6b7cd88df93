"""NumPy's values in pickles, without NumPy's own way to pickle a type: a damaged one can crash the process that loads it."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np


def can_pack(value: Any) -> bool:
    """Find out whether a value can be packed."""
    if type(value) is not np.ndarray and not isinstance(value, (np.generic, np.dtype)):
        return False
    dtype = value if isinstance(value, np.dtype) else value.dtype
    return dtype.kind in "biufcmMSUO" and np.dtype(dtype.str) == dtype


class Packed:
    """A value of NumPy's; pickled or copied, it is that value."""

    __slots__ = ("_parts", "_value")

    def __init__(self, value: Any, parts: list[Any] | None = None) -> None:
        self._value, self._parts = value, parts

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        value = self._value
        if isinstance(value, np.dtype):
            return np.dtype, (value.str,)
        if isinstance(value, np.generic):
            return restore_array, (value.dtype.str, None, "C", value.tobytes())
        order = "C" if value.flags.c_contiguous or not value.flags.f_contiguous else "F"
        data: Any = self._parts
        if data is None:  # from protocol 5 on a pickler writes it from where it is
            data = value.reshape(-1, order=order).view(np.uint8)
            data = pickle.PickleBuffer(data) if protocol >= 5 else data.tobytes()
        return restore_array, (value.dtype.str, value.shape, order, data)


def restore_array(dtype: str, shape: tuple[int, ...] | None, order: Any, data: Any) -> Any:
    """Make an array, or a number, of what was packed."""
    if isinstance(data, list):
        array = np.empty(len(data), dtype=object)
        for place, part in enumerate(data):
            array[place] = part
        return array.reshape(shape).copy(order=order)
    flat = np.frombuffer(data, np.dtype(dtype))
    return flat[0] if shape is None else flat.reshape(shape, order=order).copy(order=order)
