"""Spaces of Gymnasium as JSON, so that a recording can say what its actions are."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces


def describe_space(space: spaces.Space[Any]) -> dict[str, Any] | None:
    """
    Describe a space.

    :param space: The space
    :return: What JSON can hold of it; None for spaces whose elements are no arrays
    """
    if isinstance(space, spaces.Discrete):
        return {"type": "Discrete", "n": int(space.n), "start": int(space.start), "dtype": str(space.dtype)}
    if isinstance(space, spaces.Box):
        return {
            "type": "Box",
            "low": _bounds(space.low),
            "high": _bounds(space.high),
            "shape": list(space.shape),
            "dtype": str(space.dtype),
        }
    if isinstance(space, spaces.MultiDiscrete):
        return {"type": "MultiDiscrete", "nvec": space.nvec.tolist(), "start": space.start.tolist(), "dtype": str(space.dtype)}
    if isinstance(space, spaces.MultiBinary):
        return {"type": "MultiBinary", "n": list(space.shape)}
    return None


def space_from(description: Any, shape: tuple[int, ...]) -> spaces.Space[Any] | None:
    """
    Make a space from its description.

    :param description: What ``describe_space`` gave; a file may say anything instead
    :param shape: Shape of the elements
    :return: The space; None if this is no description of one with such elements
    """
    try:
        space = _space(description, shape)
    except (KeyError, TypeError, ValueError, OverflowError, AssertionError):
        return None
    return space if space is not None and space.shape == shape else None


def _space(said: Any, shape: tuple[int, ...]) -> spaces.Space[Any] | None:
    if said["type"] == "MultiBinary":
        return spaces.MultiBinary(shape) if said["n"] == list(shape) else None
    dtype = np.dtype(said["dtype"])
    if dtype.kind not in "biuf":
        return None
    match said["type"]:
        case "Discrete":
            return spaces.Discrete(said["n"], start=said["start"], dtype=dtype.type)
        case "Box" if said["shape"] == list(shape):
            low, high = (np.broadcast_to(np.array(said[key], dtype), shape) for key in ("low", "high"))
            return spaces.Box(low, high, dtype=dtype.type)
        case "MultiDiscrete":
            return spaces.MultiDiscrete(np.array(said["nvec"], dtype), dtype=dtype.type, start=np.array(said["start"], dtype))
    return None


def _bounds(values: Any) -> Any:
    # JSON has no infinity; NumPy reads it from a string. Bounds that are all the same are said once.
    if values.size and (values == values.flat[0]).all():
        value = values.flat[0].item()
        return str(value) if np.isinf(value) else value
    return [_bounds(part) for part in values] if values.ndim > 1 else [_bounds(np.array([value])) for value in values]
