"""How an observation splits into the frames that are stored, and finding that out from the data."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

ByteArray = npt.NDArray[np.uint8]

MAX_DEPTH = 64
"""Deepest frame stack that is looked for."""
MIN_FRAME_BYTES = 32
"""Smaller frames are not worth a reference each."""

_MOST_COLOURS = 4
_BYTES = np.dtype(np.uint8)


@dataclass(frozen=True)
class FrameLayout:
    """
    A stack of ``depth`` frames along one axis of the observation, ``group`` planes a frame; depth 1 is no stack.

    In C order the observation is ``outer`` blocks of ``depth`` frames' parts of ``part_bytes`` bytes; a stored frame
    is its ``outer`` parts one after the other.

    :param obs_shape: Shape of one observation
    :param itemsize: Bytes an element
    :param axis: Axis along which frames are stacked
    :param group: Planes of that axis that make one frame
    """

    obs_shape: tuple[int, ...]
    itemsize: int
    axis: int
    group: int

    @classmethod
    def whole(cls, obs_shape: tuple[int, ...], itemsize: int) -> FrameLayout:
        """The layout without a stack: the observation is the frame."""
        return cls(obs_shape, itemsize, 0, obs_shape[0])

    @cached_property
    def length(self) -> int:
        """Planes along the axis."""
        return self.obs_shape[self.axis]

    @cached_property
    def depth(self) -> int:
        """Frames in an observation."""
        return self.length // self.group

    @cached_property
    def outer(self) -> int:
        """Elements before the axis."""
        return math.prod(self.obs_shape[: self.axis])

    @cached_property
    def plane_bytes(self) -> int:
        """Bytes of one plane's contiguous part."""
        return math.prod(self.obs_shape[self.axis + 1 :]) * self.itemsize

    @cached_property
    def part_bytes(self) -> int:
        """Bytes of one frame's contiguous part."""
        return self.group * self.plane_bytes

    @cached_property
    def frame_bytes(self) -> int:
        """Bytes of a frame."""
        return self.outer * self.part_bytes

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of one row of a frame, 0 where a frame has only one."""
        if self.outer == 1:
            shape = self.obs_shape
            row = shape[-1] * self.itemsize if self.axis < len(shape) - 1 else self.frame_bytes
            if self.axis < len(shape) - 2 and shape[-1] <= _MOST_COLOURS:  # channels last: that was only a pixel
                row *= shape[-2]
        else:
            row = self.obs_shape[self.axis - 1] * self.part_bytes
        return row if row < self.frame_bytes else 0

    @cached_property
    def pixel_bytes(self) -> int:
        """Bytes of a pixel that lie side by side in a frame: its colours, where they are the last axis."""
        if self.outer > 1:
            return self.part_bytes
        channels_last = self.axis < len(self.obs_shape) - 2 and self.obs_shape[-1] <= _MOST_COLOURS and not self.interleaves
        return self.obs_shape[-1] * self.itemsize if channels_last else self.itemsize

    @cached_property
    def obs_bytes(self) -> int:
        """Bytes of an observation."""
        return self.depth * self.frame_bytes

    @cached_property
    def turned_strides(self) -> tuple[int, ...] | None:
        """Strides of a batch whose stack is its second axis, but the last in memory; None where the stack is elsewhere."""
        if self.axis or len(self.obs_shape) < 2:
            return None
        turned = (*self.obs_shape[1:], self.length)
        steps = [math.prod(turned[place:]) * self.itemsize for place in range(len(turned) + 1)]
        return steps[0], steps[-1], *steps[1:-1]

    @cached_property
    def interleaves(self) -> bool:
        """Whether codecs get a frame pixel by pixel: its colours have more to do with each other than neighbours have."""
        return self.outer == 1 and 2 <= self.group <= 4 and len(self.obs_shape) >= 3

    def is_turned(self, obs: npt.NDArray[Any]) -> bool:
        """Find out whether a batch has these strides; those of a single observation do not depend on how many there are."""
        wanted = self.turned_strides
        return obs.strides == wanted or (wanted is not None and len(obs) == 1 and obs.strides[1:] == wanted[1:])

    def split(self, obs: ByteArray) -> ByteArray:
        """Cut observations into frames."""
        parts = obs.reshape(len(obs), self.outer, self.depth, self.part_bytes)
        return np.ascontiguousarray(parts.swapaxes(1, 2)).reshape(len(obs), self.depth, self.frame_bytes)

    def join(self, frames: ByteArray, out: ByteArray) -> None:
        """Put frames together again."""
        parts = frames.reshape(len(frames), self.depth, self.outer, self.part_bytes)
        out.reshape(len(out), self.outer, self.depth, self.part_bytes)[...] = parts.swapaxes(1, 2)


def candidates(obs_shape: tuple[int, ...], itemsize: int) -> Iterator[FrameLayout]:
    """List the ways in which an observation may be a stack, deepest first."""
    for axis in sorted({0, len(obs_shape) - 1}):
        length = obs_shape[axis]
        for group in range(1, length // 2 + 1):
            if length % group:
                continue
            layout = FrameLayout(obs_shape, itemsize, axis, group)
            if layout.depth <= MAX_DEPTH and layout.frame_bytes >= MIN_FRAME_BYTES:
                yield layout


def memory_order(obs: npt.NDArray[Any], layout: FrameLayout) -> tuple[ByteArray, bool]:
    """
    Take the bytes of a batch as they lie in memory, where that is one of two orders that the coder can walk.

    Channel-first views of channel-last memory are what ``VecTransposeImage`` hands out: reading them in C order would
    cost a strided copy of everything, although only the newest frame is of interest.
    """
    flags = obs.flags
    turned = not flags.c_contiguous and layout.is_turned(obs)
    memory = obs.ravel("K" if turned else "C")
    if memory.dtype != _BYTES:
        memory = memory.view(_BYTES)
    # Compiled code knows only one kind of array.
    return memory if flags.writeable else memory.copy(), turned


def c_order(memory: ByteArray, turned: bool, layout: FrameLayout) -> ByteArray:
    """Bring bytes in memory order to C order."""
    if not turned:
        return memory
    pixels = memory.reshape(len(memory), -1, layout.length, layout.itemsize)
    return np.ascontiguousarray(pixels.swapaxes(1, 2)).reshape(len(memory), -1)
