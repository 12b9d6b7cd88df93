"""Buffers that are saved to a simulated disk, and what they held."""

from __future__ import annotations

from typing import Any

from buffer_contents import contents
from numbered_worlds import ENVS, KINDS, Feed

from sb3_extra_buffers.compressed.file_loading import open_buffer
from sb3_extra_buffers.compressed.file_saving import save_buffer
from sb3_extra_buffers.storage.disk import DISK, Disk

PATH = "/buffer.sb3x"
FILE_KINDS = list(KINDS)
RING_KINDS = [kind for kind in KINDS if kind != "on a device"]


def make(kind: str, steps: int, **kwargs: Any) -> tuple[Any, Feed]:
    """A buffer with some steps in it, and what adds more."""
    buffer = KINDS[kind][0](**kwargs)
    feed = Feed(buffer, KINDS[kind][1])
    for _ in range(steps):
        feed.add()
    return buffer, feed


def save(buffer: Any, disk: Disk = DISK, path: Any = PATH) -> int:
    return save_buffer(buffer, path, disk)


def load(disk: Disk = DISK, path: Any = PATH, repair: bool = False, cls: Any = None, **handed_in: Any) -> Any:
    return open_buffer(cls, path, "cpu", repair, handed_in, disk)


def held(buffer: Any) -> dict[str, Any]:
    """What can be sampled: slots beyond that do not count."""
    used = buffer.buffer_size if buffer.full else buffer.pos
    return {"used": used, "envs": ENVS, **contents(buffer)}
