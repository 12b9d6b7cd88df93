"""What a buffer takes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sb3_extra_buffers.storage.frames import Frames


@dataclass(frozen=True)
class MemoryUsage:
    """
    Bytes of the observations written so far.

    :param raw_bytes: What they would take uncompressed
    :param stored_bytes: What their frames take
    :param index_bytes: What it takes to find them
    :param frames_stored: Frames that are stored
    :param frames_shared: Frames that are not, because another observation has them already
    """

    raw_bytes: int
    stored_bytes: int
    index_bytes: int
    frames_stored: int
    frames_shared: int

    @classmethod
    def of_frames(cls, frames: Frames, dtype: np.dtype[Any]) -> MemoryUsage:
        """
        Measure a column of frames.

        :param frames: The column
        :param dtype: Type that observations have outside of it
        :return: The figures
        """
        written, stored, stored_bytes, index_bytes, _ = frames.usage()
        layout = frames.layout
        obs_bytes = layout.obs_bytes // frames.dtype.itemsize * dtype.itemsize
        return cls(
            raw_bytes=written * obs_bytes,
            stored_bytes=stored_bytes,
            index_bytes=index_bytes,
            frames_stored=stored,
            frames_shared=max(written * layout.depth - stored, 0),
        )

    @classmethod
    def of_arrays(cls, arrays: Iterable[np.ndarray[Any, Any]]) -> MemoryUsage:
        """
        Measure arrays that are kept as they are.

        :param arrays: The arrays
        :return: The figures
        """
        total = sum(array.nbytes for array in arrays)
        return cls(total, total, 0, 0, 0)

    @property
    def total_bytes(self) -> int:
        """Bytes in all."""
        return self.stored_bytes + self.index_bytes

    @property
    def ratio(self) -> float:
        """How many times smaller than uncompressed; 1.0 when nothing is written."""
        return self.raw_bytes / self.total_bytes if self.raw_bytes else 1.0

    def __add__(self, other: MemoryUsage) -> MemoryUsage:
        return MemoryUsage(
            self.raw_bytes + other.raw_bytes,
            self.stored_bytes + other.stored_bytes,
            self.index_bytes + other.index_bytes,
            self.frames_stored + other.frames_stored,
            self.frames_shared + other.frames_shared,
        )

    def __str__(self) -> str:
        if not self.raw_bytes:
            return "no observations yet"
        return (
            f"{_readable(self.raw_bytes)} of observations in {_readable(self.total_bytes)} "
            f"({self.ratio:.1f}x smaller; {_readable(self.index_bytes)} of it index; "
            f"{self.frames_stored:,} frames stored, {self.frames_shared:,} shared)"
        )


def _readable(count: float) -> str:
    for unit in ("B", "KB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
