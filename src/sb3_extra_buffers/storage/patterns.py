"""Which frames an observation is made of, told relative to its newest one; few such patterns ever occur."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

ZERO = -1
"""In place of a distance or a frame number: a frame of zeros, which is not stored."""
UNWRITTEN = 0
"""The pattern of a cell before it is written; it reads as zeros."""
RUN = 1
"""The pattern of consecutive frames."""
ROUND = (1 << 32) - 1
"""Frame numbers are kept modulo 2**32; fewer are in use at a time."""
MAX_DISTANCE = 1 << 12
"""Older frames are stored again rather than referred to, so that they need not be kept for ever."""


class PatternTable:
    """
    Interned tuples of distances from the newest frame.

    :param depth: Frames in an observation
    """

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.ids: dict[tuple[int, ...], int] = {}
        self.offsets: npt.NDArray[np.int64] = np.full((8, depth), ZERO, dtype=np.int64)
        # How many there are, again where compiled code can read it.
        self.count: npt.NDArray[np.int64] = np.ones(1, dtype=np.int64)
        self.intern(tuple(range(depth - 1, -1, -1)))

    def __len__(self) -> int:
        return len(self.ids) + 1

    def intern(self, offsets: tuple[int, ...]) -> int:
        """
        Number a pattern.

        :param offsets: Distance of each frame from the newest, or ``ZERO``
        :return: Its number
        """
        number = self.ids.get(offsets)
        if number is not None:
            return number
        number = len(self)
        if number == len(self.offsets):
            self.offsets = np.concatenate([self.offsets, np.empty_like(self.offsets)])
        self.offsets[number] = offsets
        self.ids[offsets] = number
        self.count[0] = len(self)
        return number

    @property
    def reach(self) -> npt.NDArray[np.int64]:
        """For each pattern the distance of its oldest frame, ``ZERO`` where there are only zeros."""
        return np.asarray(self.offsets[: len(self)].max(axis=1))

    @property
    def nbytes(self) -> int:
        """Size of the table."""
        return self.offsets.nbytes

    def __getstate__(self) -> dict[str, Any]:
        return {"depth": self.depth, "patterns": list(self.ids)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["depth"])  # type: ignore[misc]
        for offsets in state["patterns"]:
            self.intern(offsets)
