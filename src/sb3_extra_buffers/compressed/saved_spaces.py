"""Spaces of Gymnasium as JSON, exactly; no others than those below can come back."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Any

import numpy as np
from gymnasium import spaces

from sb3_extra_buffers.storage.json_values import from_json, make_dtype, make_shape, to_json

MOST_EVEN_BYTES = 1 << 26
"""Of all spaces of a file together: bounds that are all the same take no room in it, but several times this in memory."""


def describe_space(space: spaces.Space[Any]) -> dict[str, Any]:
    """Describe a space."""
    said: dict[str, Any] = {"type": type(space).__name__}
    if type(space) is spaces.Dict:
        said["spaces"] = [[key, describe_space(part)] for key, part in space.spaces.items()]
    elif type(space) is spaces.Box:
        said |= {"dtype": np.dtype(space.dtype).str, "shape": list(space.shape)}
        said |= {"low": _bounds(space.low), "high": _bounds(space.high)}
    elif type(space) is spaces.Discrete:
        said |= {"n": to_json(space.n), "start": to_json(space.start), "dtype": np.dtype(space.dtype).str}
    elif type(space) is spaces.MultiDiscrete:
        said |= {"nvec": to_json(space.nvec), "start": to_json(space.start), "dtype": np.dtype(space.dtype).str}
    elif type(space) is spaces.MultiBinary:
        said["n"] = int(space.n) if isinstance(space.n, (int, np.integer)) else list(space.shape)
    else:
        raise TypeError(
            f"{space} cannot be saved to a file, which holds spaces of the classes Box, Discrete, MultiDiscrete, MultiBinary "
            "and Dict; save_replay_buffer() and pickle save any"
        )
    return said


def make_space(said: Any, room: list[int] | None = None) -> spaces.Space[Any]:
    """Make a space of its description."""
    kind = said["type"]
    room = [MOST_EVEN_BYTES] if room is None else room
    if kind == "Dict":
        parts = [(key, make_space(part, room)) for key, part in said["spaces"]]
        if not all(isinstance(key, str) for key, _ in parts) or len(dict(parts)) != len(parts):
            raise ValueError("the keys of a Dict space are not what they should be")
        return spaces.Dict(OrderedDict(parts))
    if kind == "MultiBinary":
        is_number = type(said["n"]) is int
        shape = _bounded(make_shape([said["n"]] if is_number else said["n"]), 1, room)
        return spaces.MultiBinary(shape[0] if is_number else shape)
    dtype: Any = make_dtype(said["dtype"]).type
    if kind == "Box":
        shape = make_shape(said["shape"])
        low, high = (_make_bounds(said[name], shape, np.dtype(dtype), room) for name in ("low", "high"))
        return spaces.Box(low, high, shape, dtype)
    if kind == "Discrete":
        return spaces.Discrete(from_json(said["n"]), start=from_json(said["start"]), dtype=dtype)
    if kind == "MultiDiscrete":
        return spaces.MultiDiscrete(from_json(said["nvec"]), dtype=dtype, start=from_json(said["start"]))
    raise ValueError(f"{kind!r} is not a space that can be loaded")


def _bounds(values: Any) -> Any:
    """Bounds; one number where all are the same to the last bit."""
    first = values.reshape(-1)[:1]
    even = values.size > 0 and values.tobytes() == first.tobytes() * values.size
    return to_json(first[0] if even else np.ascontiguousarray(values))


def _make_bounds(said: Any, shape: tuple[int, ...], dtype: np.dtype[Any], room: list[int]) -> Any:
    values = from_json(said)
    if not isinstance(values, (np.ndarray, np.generic)) or values.dtype != dtype:
        raise ValueError("the bounds of a Box are not what they should be")
    if isinstance(values, np.generic):
        return np.full(_bounded(shape, dtype.itemsize, room), values)
    if values.shape != shape:
        raise ValueError(f"the bounds of a Box have shape {values.shape}, not {shape}")
    return values


def _bounded(shape: tuple[int, ...], itemsize: int, room: list[int]) -> tuple[int, ...]:
    room[0] -= math.prod(shape) * itemsize
    if room[0] < 0:
        raise ValueError(f"a space of shape {shape} is too large, or there are too many")
    return shape
