"""All that a buffer holds, to be compared with what it held at another time."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer

_SMALLEST = RolloutBuffer(1, spaces.Box(0, 255, (1,), np.uint8), spaces.Discrete(2), "cpu")
ROLLOUTS_ARE_FLOATS = _SMALLEST.observations.dtype == np.float32
"""Whether this SB3 keeps, and samples, all observations of a rollout as float32. SB3 2.7.0 does, 2.7.1 and later do not."""


def as_kept_by(theirs: Any, observations: Any) -> Any:
    """
    Decode all observations of our buffer, in the type in which SB3's buffer keeps the same ones.

    :param theirs: SB3's buffer
    :param observations: Those of ours, which have the type of their space, whatever SB3 does: an array or a dict of arrays
    :return: ndarray, or dict of them
    """
    if isinstance(observations, dict):
        return {key: as_kept_by(theirs, part) for key, part in observations.items()}
    dtype = np.float32 if ROLLOUTS_ARE_FLOATS and isinstance(theirs, RolloutBuffer) else None
    return np.asarray(observations, dtype=dtype)


def _bytes_of(array: npt.NDArray[Any]) -> Any:
    return repr(array.tolist()) if array.dtype == object else (array.shape, array.tobytes())


def contents(buffer: Any, theirs: Any = None) -> dict[str, Any]:
    """
    Read everything that can be told from outside.

    :param buffer: Any buffer of SB3's or ours
    :param theirs: SB3's buffer that it will be compared with, if any
    :return: By name; the same for two buffers that hold the same
    """
    found: dict[str, Any] = {"pos": buffer.pos % buffer.buffer_size, "full": buffer.size() == buffer.buffer_size}
    getattr(buffer, "infos", None)  # HER makes them when somebody asks for them
    for name, value in vars(buffer).items():
        if isinstance(value, dict) and name in ("observations", "next_observations"):
            found |= {f"{name} {key}": _bytes_of(part) for key, part in as_kept_by(theirs, value).items()}
        elif name in ("observations", "next_observations"):
            found[name] = _bytes_of(as_kept_by(theirs, value))
        elif name in ("action_masks", "_current_ep_start"):
            found[name] = _bytes_of(np.asarray(value))
        elif isinstance(value, np.ndarray) and not name.startswith("_"):
            found[name] = _bytes_of(value)
    if hasattr(buffer, "priorities"):
        found["priorities"] = _bytes_of(buffer.priorities)
    return found
