"""A recording as one HTML file that shows its episodes, offline."""

from __future__ import annotations

import os
from collections.abc import Sequence

from sb3_extra_buffers.recording.buffers import RecordBuffer


def write_viewer(
    recording: RecordBuffer,
    path: str | os.PathLike[str],
    episodes: Sequence[int] | None = None,
    title: str | None = None,
    fps: float | None = None,
    progress: bool = False,
) -> None:
    """
    Write a page to look at episodes with: one file that needs no network and no server.

    :param recording: The recording
    :param path: Where: a name that ends with ``.html``
    :param episodes: Which episodes, by their place, from the end if negative; all by default
    :param title: Heading; the environment's id (``metadata["env_id"]``) by default
    :param fps: Frames a second at normal speed; what the recording says (``metadata["fps"]``), or 30, by default
    :param progress: Whether to show a progress bar
    """
    raise NotImplementedError
