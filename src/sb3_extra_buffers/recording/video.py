"""Episodes as videos and contact sheets."""

from __future__ import annotations

import os

from sb3_extra_buffers.recording.buffers import RecordBuffer
from sb3_extra_buffers.recording.records import Episode


def export_video(
    recording: RecordBuffer | Episode,
    path: str | os.PathLike[str],
    episode: int = 0,
    fps: float | None = None,
    progress: bool = True,
    scale: int | None = None,
    quality: int = 8,
) -> None:
    """
    Export an episode as a video, with its final frame if that was recorded.

    :param recording: A recording, or one episode
    :param path: Where: a name that ends with ``.mp4`` or ``.gif``
    :param episode: Which episode of a recording, from the end if negative
    :param fps: Frames a second; what the recording says (``metadata["fps"]``), or 30, by default
    :param progress: Whether to show a progress bar
    :param scale: Draw each pixel as a square of this size; by default frames are made at least 240 pixels high
    :param quality: Quality of an mp4, from 1 to 10
    """
    raise NotImplementedError


def export_contact_sheet(
    recording: RecordBuffer | Episode,
    path: str | os.PathLike[str],
    episode: int = 0,
    columns: int = 8,
    rows: int = 6,
    scale: int | None = None,
) -> None:
    """
    Export frames of an episode, evenly spaced from the first to the last, side by side as a PNG.

    :param recording: A recording, or one episode
    :param path: Where: a name that ends with ``.png``
    :param episode: Which episode of a recording, from the end if negative
    :param columns: Frames beside each other
    :param rows: Frames below each other, at most
    :param scale: Draw each pixel as a square of this size; 1 by default
    """
    raise NotImplementedError
