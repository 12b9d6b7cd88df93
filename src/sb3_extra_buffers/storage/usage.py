"""What a buffer takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sb3_extra_buffers.storage.frames import Frames

CODERS = {0: "patch", 1: "codec", 3: "raw", 4: "codec", 5: "key", 6: "palette", 7: "joint"}
"""What the core's coders are called here: ``docs/format.md`` describes them."""


@dataclass(frozen=True)
class MemoryUsage:
    """
    Bytes of the observations written so far.

    :param raw_bytes: What they would take uncompressed
    :param stored_bytes: What their frames take
    :param index_bytes: What it takes to find them
    :param frames_stored: Frames that are stored
    :param frames_shared: Frames that are not, because another observation has them already
    :param frames_by_coder: How many of those that are stored are a ``patch`` on another frame, a ``key`` frame that patches
        are on, a picture coded by a ``palette`` or by ``joint`` deltas, what a ``codec`` has made, or ``raw``
    """

    raw_bytes: int
    stored_bytes: int
    index_bytes: int
    frames_stored: int
    frames_shared: int
    frames_by_coder: Mapping[str, int] = field(default_factory=dict)

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
        by_coder: Counter[str] = Counter()
        for coder, count in enumerate(frames.coded_frames()):
            by_coder[CODERS.get(coder, f"coder {coder}")] += count
        obs_bytes = layout.obs_bytes // frames.dtype.itemsize * dtype.itemsize
        return cls(
            raw_bytes=written * obs_bytes,
            stored_bytes=stored_bytes,
            index_bytes=index_bytes,
            frames_stored=stored,
            frames_shared=max(written * layout.depth - stored, 0),
            frames_by_coder=dict(+by_coder),
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
            dict(Counter(self.frames_by_coder) + Counter(other.frames_by_coder)),
        )

    def __str__(self) -> str:
        if not self.raw_bytes:
            return "no observations yet"
        coded = ", ".join(f"{count:,} {name}" for name, count in sorted(self.frames_by_coder.items(), key=lambda of: -of[1]))
        return (
            f"{_readable(self.raw_bytes)} of observations in {_readable(self.total_bytes)} "
            f"({self.ratio:.1f}x smaller; {_readable(self.index_bytes)} of it index; "
            f"{self.frames_stored:,} frames stored{f': {coded}' if coded else ''}; {self.frames_shared:,} shared)"
        )


def _readable(count: float) -> str:
    for unit in ("B", "KB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
