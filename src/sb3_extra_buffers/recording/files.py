"""Recordings in files: a zip of a JSON header and plain arrays, without pickle."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from sb3_extra_buffers.recording.buffers import RecordBuffer


@dataclass(frozen=True)
class RecordingInfo:
    """
    What the header of a recording says.

    :param kind: ``"dense"``, ``"compressed"``, ``"frameless"`` or ``"dummy"``
    :param steps: Number of steps
    :param episodes: Number of episodes, whole or in part
    :param frame_shape: Shape of a frame; None without frames
    :param frame_dtype: Type of its elements, likewise
    :param action_shape: Shape of an action
    :param action_dtype: Type of its elements
    :param features: ``(shape, type)`` of each feature
    :param buffer_size: Size of the ring; None if it is unbounded
    :param metadata: What was said about the recording
    :param raw_bytes: Bytes of everything, uncompressed
    :param file_bytes: Size of the file
    :param members: Compressed and raw bytes of each part of the file
    :param version: Version of the package that wrote it
    """

    kind: str
    steps: int
    episodes: int
    frame_shape: tuple[int, ...] | None
    frame_dtype: str | None
    action_shape: tuple[int, ...]
    action_dtype: str
    features: dict[str, tuple[tuple[int, ...], str]]
    buffer_size: int | None
    metadata: dict[str, Any]
    raw_bytes: int
    file_bytes: int
    members: dict[str, tuple[int, int]]
    version: str


def is_recording(path: str | os.PathLike[str]) -> bool:
    """
    Tell whether a file looks like a recording, by its first bytes and its list of members.

    :param path: The file
    :return: Whether it does; it may be damaged all the same
    """
    raise NotImplementedError


def recording_info(path: str | os.PathLike[str]) -> RecordingInfo:
    """
    Read what the header of a recording says. No frame is read, and nothing in the file is run.

    :param path: The file
    :return: What it says
    """
    raise NotImplementedError


def load_recording(
    path: str | os.PathLike[str], buffer_class: type[RecordBuffer] | None = None, progress: bool = False, **options: Any
) -> RecordBuffer:
    """
    Load a recording.

    :param path: The file
    :param buffer_class: What to load it into; the class it was saved from by default
    :param progress: Whether to show a progress bar
    :param options: Options of the class, for example ``compression_method``
    :return: The recording
    """
    raise NotImplementedError
