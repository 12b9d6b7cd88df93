"""Frames as pictures: what can be drawn, how large, and as PNG."""

from __future__ import annotations

import math
import struct
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

from sb3_extra_buffers.recording.buffers import RecordBuffer
from sb3_extra_buffers.recording.records import Episode

Picture = npt.NDArray[np.uint8]

# Three by five pixels a digit, a row of three bits each.
_DIGITS = ("75557", "26227", "71747", "71717", "55711", "74717", "74757", "71111", "75757", "75717")


def are_pictures(shape: tuple[int, ...] | None) -> bool:
    """
    Tell whether frames of a shape can be drawn.

    :param shape: The shape
    :return: Whether they can
    """
    return shape is not None and (len(shape) == 2 or (len(shape) == 3 and _channels_axis(shape) is not None))


def _channels_axis(shape: tuple[int, ...]) -> int | None:
    """Where the channels are: at the end, or in front as SB3 has them; the shortest axis tells."""
    if shape[2] <= min(shape[:2]) and shape[2] <= 64:
        return 2
    return 0 if shape[0] <= min(shape[1:]) and shape[0] <= 64 else None


def picture_size(shape: tuple[int, ...]) -> tuple[int, int]:
    """
    Tell how large a frame is drawn.

    :param shape: Its shape, of which ``are_pictures`` says that it can be drawn
    :return: Height and width
    """
    return shape[-2:] if len(shape) == 2 or _channels_axis(shape) == 0 else shape[:2]  # type: ignore[return-value]


def as_picture(frame: npt.NDArray[Any]) -> Picture:
    """
    Make a picture of a frame.

    Of a stack of frames, gray or RGB, the newest (last) is drawn. Floats from 0 to 1 and booleans go from black to white;
    other numbers are drawn as they are, and what is outside of 0 to 255 as the nearest of these.

    :param frame: The frame
    :return: Gray ``(height, width)`` or RGB ``(height, width, 3)``
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
    """
    Make an RGB picture of a frame, see ``as_picture``.

    :param frame: The frame
    :return: ``(height, width, 3)``
    """
    picture = as_picture(frame)
    return np.repeat(picture[..., None], 3, axis=2) if picture.ndim == 2 else picture


def colour_codes(pictures: Picture) -> npt.NDArray[np.int32]:
    """
    Number the colours of pictures.

    :param pictures: RGB, along the last axis
    :return: A number below 2 to the 24 for each pixel
    """
    red, green, blue = (pictures[..., channel].astype(np.int32) for channel in range(3))
    return red << 16 | green << 8 | blue


def palette_of(codes: npt.NDArray[Any]) -> Picture:
    """
    Make colours of their numbers.

    :param codes: The numbers
    :return: RGB, a row each
    """
    return np.stack([codes >> 16, codes >> 8 & 255, codes & 255], axis=1).astype(np.uint8)


def enlarge(picture: Picture, scale: int) -> Picture:
    """
    Draw each pixel as a square.

    :param picture: The picture
    :param scale: Its side
    :return: The larger picture
    """
    return picture if scale == 1 else picture.repeat(scale, axis=0).repeat(scale, axis=1)


def choose_episode(recording: RecordBuffer | Episode, index: int) -> Episode:
    """
    Find the episode to draw, and check that it can be.

    :param recording: A recording, or one episode
    :param index: Which episode of a recording
    :return: The episode
    """
    episode = recording if isinstance(recording, Episode) else recording.episode(index)
    shape = episode.buffer.frame_shape
    if shape is None:
        raise ValueError("the recording has no frames to draw")
    if not are_pictures(shape):
        raise ValueError(f"frames of shape {shape} cannot be drawn; they must be (height, width) or (height, width, channels)")
    return episode


def check_scale(scale: int | None, default: int) -> int:
    """
    Check how large to draw a pixel.

    :param scale: What was asked for
    :param default: What to do if nothing was
    :return: The side of a pixel
    """
    if scale is None:
        return default
    if scale < 1:
        raise ValueError(f"scale is {scale}; it must be a whole number, at least 1")
    return int(scale)


def encode_png(picture: Picture) -> bytes:
    """
    Encode a picture as PNG.

    :param picture: Gray or RGB
    :return: The file
    """
    height, width = picture.shape[:2]
    lines = np.empty((height, 1 + picture[0].size), np.uint8)
    lines[:, 0] = 0  # no filter
    lines[:, 1:] = picture.reshape(height, -1)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0 if picture.ndim == 2 else 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines, 9)) + chunk(b"IEND", b"")


def draw_number(picture: Picture, number: int, top: int, right: int, scale: int) -> None:
    """
    Write a number into a picture.

    :param picture: RGB, changed in place
    :param number: The number
    :param top: Row of its upper edge
    :param right: Column of its right edge
    :param scale: Size of a dot of the letters
    """
    for digit in reversed(str(number)):
        rows = [[int(row) >> 2 & 1, int(row) >> 1 & 1, int(row) & 1] for row in _DIGITS[int(digit)]]
        dots = enlarge(np.array(rows, np.uint8), scale).astype(bool)
        left = right - 3 * scale
        picture[top : top + 5 * scale, left:right][dots] = 200
        right = left - scale


def evenly_spaced(total: int, most: int) -> list[int]:
    """
    Choose places that are spread evenly, the first and the last among them.

    :param total: Number of places
    :param most: How many to choose, at most
    :return: The chosen ones
    """
    if total <= most:
        return list(range(total))
    if most == 1:
        return [0]
    return [math.floor(place * (total - 1) / (most - 1) + 0.5) for place in range(most)]
