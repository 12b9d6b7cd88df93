"""Frames as pictures: which can be drawn, how large, and in which colours."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from sb3_extra_buffers.recording.buffers import RecordBuffer
from sb3_extra_buffers.recording.records import Episode

Picture = npt.NDArray[np.uint8]


def are_pictures(shape: tuple[int, ...] | None) -> bool:
    """Tell whether frames of a shape can be drawn."""
    return shape is not None and (len(shape) == 2 or (len(shape) == 3 and _channels_axis(shape) is not None))


def _channels_axis(shape: tuple[int, ...]) -> int | None:
    """Where the channels are: at the end, or in front as SB3 has them; the shortest axis tells."""
    if shape[2] <= min(shape[:2]) and shape[2] <= 64:
        return 2
    return 0 if shape[0] <= min(shape[1:]) and shape[0] <= 64 else None


def picture_size(shape: tuple[int, ...]) -> tuple[int, int]:
    """Tell the height and width of a picture of a frame that ``are_pictures``."""
    return shape[-2:] if len(shape) == 2 or _channels_axis(shape) == 0 else shape[:2]  # type: ignore[return-value]


def as_picture(frame: npt.NDArray[Any]) -> Picture:
    """
    Make a picture of a frame: gray ``(height, width)`` or RGB ``(height, width, 3)``.

    Of a stack of frames, gray or RGB, the newest (last) is drawn. Floats from 0 to 1 and booleans go from black to white;
    other numbers are drawn as they are, and clipped to 0 to 255.
    """
    if not are_pictures(frame.shape):
        raise ValueError(
            f"frames of shape {frame.shape} cannot be drawn; they must be (height, width) or (height, width, channels)"
        )
    if frame.ndim == 3:
        if _channels_axis(frame.shape) == 0:
            frame = np.moveaxis(frame, 0, 2)
        frame = frame[..., -3:] if frame.shape[2] % 3 == 0 else frame[..., -1]
    if frame.dtype == np.uint8:
        return frame
    if frame.dtype == np.bool_:
        return np.where(frame, np.uint8(255), np.uint8(0))
    if frame.dtype.kind == "c":
        raise ValueError("frames of complex numbers cannot be drawn")
    if frame.dtype.kind == "f":
        frame = np.nan_to_num(frame)
        if frame.size and frame.min() >= 0 and frame.max() <= 1:
            frame = np.rint(frame * 255)
    picture: Picture = np.clip(frame, 0, 255).astype(np.uint8)
    return picture


def as_rgb(frame: npt.NDArray[Any]) -> Picture:
    """Make an RGB picture of a frame, see ``as_picture``."""
    picture = as_picture(frame)
    return np.repeat(picture[..., None], 3, axis=2) if picture.ndim == 2 else picture


def colour_codes(pictures: Picture) -> npt.NDArray[np.int32]:
    """Number the colours of RGB pictures: a number below 2 to the 24 for each pixel."""
    red, green, blue = (pictures[..., channel].astype(np.int32) for channel in range(3))
    return red << 16 | green << 8 | blue


def palette_of(codes: npt.NDArray[Any]) -> Picture:
    """Turn numbers of colours into rows of RGB."""
    return np.stack([codes >> 16, codes >> 8 & 255, codes & 255], axis=1).astype(np.uint8)


def enlarge(picture: Picture, scale: int) -> Picture:
    """Draw each pixel as a square of this side."""
    return picture if scale == 1 else picture.repeat(scale, axis=0).repeat(scale, axis=1)


def choose_episode(recording: RecordBuffer | Episode, index: int) -> Episode:
    """Find the episode to draw, and check that it can be drawn."""
    episode = recording if isinstance(recording, Episode) else recording.episode(index)
    shape = episode.buffer.frame_shape
    if shape is None:
        raise ValueError("the recording has no frames to draw")
    if not are_pictures(shape):
        raise ValueError(f"frames of shape {shape} cannot be drawn; they must be (height, width) or (height, width, channels)")
    return episode


def check_scale(scale: int | None, default: int) -> int:
    """Check how large to draw a pixel."""
    if scale is None:
        return default
    if scale < 1:
        raise ValueError(f"scale is {scale}; it must be a whole number, at least 1")
    return int(scale)


def evenly_spaced(total: int, most: int) -> list[int]:
    """Choose places that are spread evenly, the first and the last among them."""
    if total <= most:
        return list(range(total))
    if most == 1:
        return [0]
    return [math.floor(place * (total - 1) / (most - 1) + 0.5) for place in range(most)]
