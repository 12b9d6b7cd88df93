"""One key of the observations: the columns that hold it, and what an observation must look like to go into them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from stable_baselines3.common.preprocessing import get_obs_shape

from sb3_extra_buffers.storage import (
    CompressedArray,
    Frames,
    MemoryUsage,
    StoreLock,
    cast_exactly,
    check_dtypes,
    make_frames,
    make_spec,
)
from sb3_extra_buffers.storage._core import PlainColumn

NAMES = ("obs", "next_obs")


class Field:
    """The observations of one key, or all of them where they are not a Dict."""

    def __init__(
        self,
        key: str | None,
        space: spaces.Space[Any],
        table_shape: tuple[int, int],
        views: int,
        raw_below: int,
        dtypes: Mapping[str, Any] | None,
        options: Mapping[str, Any],
    ) -> None:
        self.key, self.space, self.views = key, space, views
        self.obs_shape: tuple[int, ...] = get_obs_shape(space)  # type: ignore[assignment]
        self.dtype: np.dtype[Any] = np.dtype(space.dtype)
        self.table_shape = table_shape
        self.row_shape = (table_shape[1], *self.obs_shape)
        elem_type, runs_type = check_dtypes(dtypes, self.dtype, self.obs_shape)
        _check_range(space, elem_type)
        # Made for small observations, too: a wrong option should not wait for the first image.
        methods = (options["compression_method"], elem_type, runs_type)
        self.spec = make_spec(*methods, options["compression_kwargs"], options["decompression_kwargs"])
        self.is_compressed = math.prod(self.obs_shape) * self.dtype.itemsize >= raw_below
        self.stored_dtype: np.dtype[Any] = elem_type if self.is_compressed else self.dtype
        self.arrays: tuple[Any, ...] = ()

    def make_columns(self, lock: StoreLock, wraps: bool, frames: Frames | None = None) -> list[Any]:
        """Make what holds the observations."""
        if not self.is_compressed:
            self.arrays = tuple(np.zeros((*self.table_shape, *self.obs_shape), self.dtype) for _ in range(self.views))
            return [PlainColumn(array, False, partial(self.accept, view=view)) for view, array in enumerate(self.arrays)]
        if frames is None:
            frames = make_frames(*self.table_shape, self.views, self.obs_shape, self.stored_dtype, self.spec, lock, wraps)
        frames.accept = self.accept
        self.frames = frames
        self.arrays = tuple(CompressedArray.of_frames(frames, view, self.dtype, self.obs_shape) for view in range(self.views))
        return [frames]

    def accept(self, obs: Any, view: int) -> npt.NDArray[Any]:
        """Refuse what cannot be stored."""
        values, shape = np.asarray(obs), self.row_shape
        if values.shape != shape:
            # With one environment SB3 takes an observation as it is, too; one of a Discrete space it reshapes.
            as_it_is = shape[0] == 1 and values.shape == shape[1:]
            if not as_it_is and not (isinstance(self.space, spaces.Discrete) and values.size == shape[0]):
                name = NAMES[view] if self.key is None else f"{NAMES[view]}[{self.key!r}]"
                turned = len(shape) == 4 and values.shape == (shape[0], *shape[2:], shape[1])
                advice = (
                    ": its channels are last; with VecNormalize, use VecNormalize(VecTransposeImage(env))" if turned else ""
                )
                raise ValueError(
                    f"{name} has shape {values.shape}, but {shape[0]} environment(s) of {self.space} give {shape}{advice}"
                )
            values = values.reshape(shape)
        return cast_exactly(values, self.dtype, self.stored_dtype)

    def memory_usage(self, rows: int) -> MemoryUsage:
        """Tell what they take."""
        if self.is_compressed:
            return MemoryUsage.of_frames(self.frames, self.dtype)
        return MemoryUsage.of_arrays(array[:rows] for array in self.arrays)


def _check_range(space: spaces.Space[Any], elem_type: np.dtype[Any]) -> None:
    """Refuse a type that does not hold all values of a space, rather than the first observation that has one."""
    if not isinstance(space, spaces.Box) or elem_type.kind not in "iu" or np.dtype(space.dtype).kind not in "iu":
        return
    low, high, limits = int(space.low.min()), int(space.high.max()), np.iinfo(elem_type)
    if space.low.size and not limits.min <= low <= high <= limits.max:
        raise ValueError(
            f"elem_type {elem_type} holds {limits.min} to {limits.max}, but observations are {low} to {high}: choose a larger "
            "elem_type, correct the limits of the space, or leave `dtypes` out"
        )
