"""Where each group of frames lies: a ring of locations for each stream."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sb3_extra_buffers.storage.errors import StorageError

_FIRST_CAPACITY = 64
FRAME_NUMBERS = 1 << 32
"""How many frames of a stream the index can tell apart: it holds 32 bits of their numbers."""


class GroupDirectory:
    """
    Locations of the groups from ``oldest`` on, at ``group % capacity``.

    There is never room for more groups than have numbers, so that no frame can be taken for another.

    :param n_streams: Number of streams
    :param shift: Two to this power is how many frame numbers a group takes, whether it has as many frames or not
    """

    def __init__(self, n_streams: int, shift: int = 0) -> None:
        self.most_groups = FRAME_NUMBERS >> shift
        self.locations: npt.NDArray[np.uint64] = np.zeros((n_streams, _FIRST_CAPACITY), dtype=np.uint64)
        self.oldest: npt.NDArray[np.int64] = np.zeros(n_streams, dtype=np.int64)

    @property
    def capacity(self) -> int:
        """Groups that fit, for each stream."""
        return int(self.locations.shape[1])

    def has_room(self, stream: int, group: int) -> bool:
        """
        Tell whether a group can be entered without growing.

        :param stream: The stream
        :param group: Its number
        :return: Whether it fits
        """
        return bool(group - self.oldest[stream] < self.capacity)

    def make_room(self, stream: int, group: int) -> None:
        """
        Grow unless a group, and a good number of others after it, can be entered.

        :param stream: The stream
        :param group: Its number
        """
        may_grow = self.capacity < self.most_groups
        if may_grow and group - self.oldest[stream] >= self.capacity - self.capacity // 16:
            self._grow()
        if not self.has_room(stream, group):
            raise StorageError(
                f"environment {stream} has no frame numbers left: {self.capacity:,} groups of frames are in use, and an index "
                "can tell no more apart. Nothing that is stored is lost. Use a smaller buffer, one with more environments, "
                'or the method "delta", whose groups take fewer numbers than those of "delta-zstd"'
            )

    def put(self, stream: int, group: int, location: int) -> None:
        """
        Enter a group.

        :param stream: The stream
        :param group: Its number, at most one more than any before
        :param location: Where it lies
        """
        if not self.has_room(stream, group):
            self.make_room(stream, group)
        self.locations[stream, group % self.capacity] = location

    def _grow(self) -> None:
        old = self.locations
        # By a quarter: the index is what is left to pay once frames are small.
        capacity = min(self.capacity + max(_FIRST_CAPACITY, self.capacity // 4), self.most_groups)
        locations = np.zeros((len(old), capacity), dtype=np.uint64)
        for stream, oldest in enumerate(self.oldest.tolist()):
            groups = np.arange(oldest, oldest + old.shape[1])
            locations[stream, groups % capacity] = old[stream, groups % old.shape[1]]
        self.locations = locations  # only now: an interrupt must not find it half filled

    @property
    def nbytes(self) -> int:
        """Size of the directory."""
        return self.locations.nbytes
