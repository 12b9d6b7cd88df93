"""Spaces of Gymnasium: compare them, guess them from arrays, scale actions, and describe them as JSON that people can read."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces


def same_form(one: spaces.Space[Any], other: spaces.Space[Any]) -> bool:
    """Tell whether elements have the same keys, shapes and types. Bounds are ignored."""
    if isinstance(one, spaces.Dict) and isinstance(other, spaces.Dict):
        return one.spaces.keys() == other.spaces.keys() and all(same_form(one[key], other[key]) for key in one.spaces)
    return type(one) is type(other) and one.shape == other.shape and one.dtype == other.dtype


def any_box(shape: tuple[int, ...], dtype: np.dtype[Any]) -> spaces.Space[Any]:
    """Make the space of all arrays of a shape and type."""
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return spaces.Box(limits.min, limits.max, shape, dtype=dtype.type)
    if dtype.kind == "b":
        return spaces.Box(0, 1, shape, dtype=np.bool_)
    if dtype.kind == "f":
        return spaces.Box(-np.inf, np.inf, shape, dtype=dtype.type)
    raise TypeError(f"there is no space of {dtype}")


def discrete_for(actions: Any) -> spaces.Discrete:
    """Make a ``Discrete`` space that holds these integers, of which there is at least one."""
    low, high = min(int(actions.min()), 0), int(actions.max())
    return spaces.Discrete(high - low + 1, start=low)


def scale_actions(space: spaces.Space[Any], actions: Any) -> Any:
    """Scale actions of a ``Box`` with finite bounds to -1 … 1, as SB3's replay buffers hold them; others stay."""
    if not _is_scaled(space):
        return actions
    return (2.0 * ((actions - space.low) / (space.high - space.low)) - 1.0).astype(space.dtype)  # type: ignore[attr-defined]


def unscale_actions(space: spaces.Space[Any], actions: Any) -> Any:
    """Undo ``scale_actions``, but for rounding."""
    if not _is_scaled(space):
        return actions
    return (space.low + 0.5 * (actions + 1.0) * (space.high - space.low)).astype(space.dtype)  # type: ignore[attr-defined]


def _is_scaled(space: spaces.Space[Any]) -> bool:
    if not isinstance(space, spaces.Box) or space.dtype.kind != "f":
        return False
    if (space.low == -1).all() and (space.high == 1).all():  # nothing to do, and nothing to be rounded
        return False
    return bool(np.isfinite(space.low).all() and np.isfinite(space.high).all() and (space.low < space.high).all())


def describe_space(space: spaces.Space[Any]) -> dict[str, Any] | None:
    """Describe a space as JSON; None for spaces whose elements are no arrays."""
    if isinstance(space, spaces.Discrete):
        return {"type": "Discrete", "n": int(space.n), "start": int(space.start), "dtype": str(space.dtype)}
    if isinstance(space, spaces.Box):
        bounds = {"low": _bounds(space.low), "high": _bounds(space.high)}
        return {"type": "Box", **bounds, "shape": list(space.shape), "dtype": str(space.dtype)}
    if isinstance(space, spaces.MultiDiscrete):
        return {"type": "MultiDiscrete", "nvec": space.nvec.tolist(), "start": space.start.tolist(), "dtype": str(space.dtype)}
    if isinstance(space, spaces.MultiBinary):
        return {"type": "MultiBinary", "n": list(space.shape)}
    return None


def space_from(description: Any, shape: tuple[int, ...]) -> spaces.Space[Any] | None:
    """Make a space from what ``describe_space`` gave; None where it does not describe one whose elements have this shape."""
    try:
        space = _space(description, shape)
    except (KeyError, TypeError, ValueError, OverflowError, AssertionError):
        return None
    return space if space is not None and space.shape == shape else None


def _space(description: Any, shape: tuple[int, ...]) -> spaces.Space[Any] | None:
    if description["type"] == "MultiBinary":
        return spaces.MultiBinary(shape) if description["n"] == list(shape) else None
    dtype = np.dtype(description["dtype"])
    if dtype.kind not in "biuf":
        return None
    match description["type"]:
        case "Discrete":
            return spaces.Discrete(description["n"], start=description["start"], dtype=dtype.type)
        case "Box" if description["shape"] == list(shape):
            low, high = (np.broadcast_to(np.array(description[key], dtype), shape) for key in ("low", "high"))
            return spaces.Box(low, high, dtype=dtype.type)
        case "MultiDiscrete":
            nvec, start = (np.array(description[key], dtype) for key in ("nvec", "start"))
            return spaces.MultiDiscrete(nvec, dtype=dtype.type, start=start)
    return None


def _bounds(values: Any) -> Any:
    # JSON has no infinity; NumPy reads it from a string. Bounds that are all the same are written once.
    if values.size and (values == values.flat[0]).all():
        value = values.flat[0].item()
        return str(value) if np.isinf(value) else value
    return [_bounds(part) for part in values] if values.ndim > 1 else [_bounds(np.array([value])) for value in values]
