"""All that a buffer holds, to be compared with what it held at another time."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def _bytes_of(array: npt.NDArray[Any]) -> Any:
    return repr(array.tolist()) if array.dtype == object else (array.shape, array.tobytes())


def contents(buffer: Any) -> dict[str, Any]:
    """
    Read everything that can be told from outside.

    :param buffer: Any buffer of SB3's or ours
    :return: By name; the same for two buffers that hold the same
    """
    found: dict[str, Any] = {"pos": buffer.pos % buffer.buffer_size, "full": buffer.size() == buffer.buffer_size}
    for name, value in vars(buffer).items():
        if isinstance(value, dict) and name in ("observations", "next_observations"):
            found |= {f"{name} {key}": _bytes_of(np.asarray(part)) for key, part in value.items()}
        elif name in ("observations", "next_observations", "action_masks", "_current_ep_start"):
            found[name] = _bytes_of(np.asarray(value))
        elif isinstance(value, np.ndarray) and not name.startswith("_"):
            found[name] = _bytes_of(value)
    if hasattr(buffer, "priorities"):
        found["priorities"] = _bytes_of(buffer.priorities)
    return found
