"""Spaces of Gymnasium as JSON, so that a recording can say what its actions are; and what is guessed if it does not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

if TYPE_CHECKING:
    from sb3_extra_buffers.recording.buffers import RecordBuffer


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


def any_box(shape: tuple[int, ...], dtype: np.dtype[Any]) -> spaces.Space[Any]:
    """
    Make a space of all arrays of one form.

    :param shape: Their shape
    :param dtype: Their type
    :return: The space
    """
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return spaces.Box(limits.min, limits.max, shape, dtype=dtype.type)
    if dtype.kind == "b":
        return spaces.Box(0, 1, shape, dtype=np.bool_)
    if dtype.kind == "f":
        return spaces.Box(-np.inf, np.inf, shape, dtype=dtype.type)
    raise TypeError(f"there is no space of {dtype}")


def discrete_for(actions: Any) -> spaces.Discrete:
    """
    Make a space of whole numbers that has room for some.

    :param actions: The numbers, at least one
    :return: The space
    """
    low, high = min(int(actions.min()), 0), int(actions.max())
    return spaces.Discrete(high - low + 1, start=low)


def spaces_of(recording: RecordBuffer) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
    """
    Tell what the frames and the actions of a recording are.

    :param recording: A recording with frames, which is not empty
    :return: The space of the frames and that of the actions, as the recording says, or as large as need be
    """
    assert recording.frame_shape is not None
    said = recording.metadata
    frames = space_from(said.get("frame_space"), recording.frame_shape)
    if frames is None or frames.dtype != recording.frame_dtype:
        frames = any_box(recording.frame_shape, recording.frame_dtype)
    actions = space_from(said.get("action_space"), recording.action_shape)
    if actions is None and (recording.action_shape or recording.action_dtype.kind not in "iu"):
        actions = any_box(recording.action_shape, recording.action_dtype)
    return frames, actions or discrete_for(np.concatenate([episode.actions for episode in recording.episodes()]))


def scale_actions(space: spaces.Space[Any], actions: Any) -> Any:
    """
    Scale actions to -1 … 1, as SB3's replay buffers hold them.

    :param space: Their space
    :param actions: Actions as an environment takes them
    :return: The same, unless the space is a ``Box`` with finite bounds other than these
    """
    if not _is_scaled(space):
        return actions
    return (2.0 * ((actions - space.low) / (space.high - space.low)) - 1.0).astype(space.dtype)  # type: ignore[attr-defined]


def unscale_actions(space: spaces.Space[Any], actions: Any) -> Any:
    """
    Undo ``scale_actions``, but for rounding.

    :param space: Their space
    :param actions: Actions as SB3's replay buffers hold them
    :return: Actions as an environment takes them
    """
    if not _is_scaled(space):
        return actions
    return (space.low + 0.5 * (actions + 1.0) * (space.high - space.low)).astype(space.dtype)  # type: ignore[attr-defined]


def _is_scaled(space: spaces.Space[Any]) -> bool:
    if not isinstance(space, spaces.Box) or space.dtype.kind != "f":
        return False
    if (space.low == -1).all() and (space.high == 1).all():  # nothing to do, and nothing to be rounded
        return False
    return bool(np.isfinite(space.low).all() and np.isfinite(space.high).all() and (space.low < space.high).all())
