"""Casts that lose nothing, or are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

_KINDS = {"b": "booleans", "i": "integers", "u": "integers", "f": "floats", "c": "complex numbers"}


def cast_exactly(values: npt.NDArray[Any], declared: np.dtype[Any], stored: np.dtype[Any]) -> npt.NDArray[Any]:
    """
    Bring values to the type they are stored as, if that changes none of them.

    :param values: Given values
    :param declared: Type that the array is declared to have
    :param stored: Type that its elements are stored as
    :return: The values as ``stored``; the same array where nothing is to do
    """
    if values.dtype == stored == declared:
        return values
    if values.dtype.kind not in _KINDS:
        raise TypeError(f"observations of dtype {values.dtype} cannot be stored; {declared} is wanted")
    if (values.dtype.kind in "fc" and declared.kind in "biu") or (values.dtype.kind == "c" and declared.kind == "f"):
        raise TypeError(
            f"observations are {_KINDS[values.dtype.kind]} ({values.dtype}), but the space is declared with "
            f"{_KINDS[declared.kind]} ({declared}); convert them or correct the observation space"
        )
    if values.dtype.kind == declared.kind and declared.kind in "fc":
        with np.errstate(over="ignore"):
            values = values.astype(declared, copy=False)  # to the precision of the space, as SB3's own buffer does
    if values.dtype == stored:
        return values
    with np.errstate(all="ignore"):
        cast = values.astype(stored)
        back = cast.astype(values.dtype)
    same = _same_bits(back, values)
    if values.dtype.kind in "iu" and stored.kind in "iu":
        same &= (cast < 0) == (values < 0)  # -1 is cast to 255 and comes back as -1
    if not same.all():
        changed = values[~same].flat[0]
        advice = "correct the observation, or the type of the observation space"
        if stored != declared:
            advice = "choose an elem_type that holds it, or leave `dtypes` out to store observations as they are"
        raise ValueError(f"the value {changed} ({values.dtype}) would change when stored as {stored}; {advice}")
    return cast


def _same_bits(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    bits = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}.get(a.dtype.itemsize)
    if bits is None:
        # Such types have bytes that mean nothing. Nothing but their own type holds a NaN of theirs: refuse it.
        same = (a == b) & (np.signbit(a.real) == np.signbit(b.real)) & (np.signbit(a.imag) == np.signbit(b.imag))
        return np.asarray(same)
    return np.asarray(np.ascontiguousarray(a).view(bits) == np.ascontiguousarray(b).view(bits)).reshape(a.shape)
