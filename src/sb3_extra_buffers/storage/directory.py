"""Where each group of frames lies: a ring of locations for each stream."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_FIRST_CAPACITY = 64


class GroupDirectory:
    """
    Locations of the groups from ``oldest`` on, at ``group % capacity``.

    :param n_streams: Number of streams
    """

    def __init__(self, n_streams: int) -> None:
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
        if group - self.oldest[stream] >= self.capacity - self.capacity // 16:
            self._grow()

    def put(self, stream: int, group: int, location: int) -> None:
        """
        Enter a group.

        :param stream: The stream
        :param group: Its number, at most one more than any before
        :param location: Where it lies
        """
        if not self.has_room(stream, group):
            self._grow()
        self.locations[stream, group % self.capacity] = location

    def _grow(self) -> None:
        old = self.locations
        # By a quarter: the index is what is left to pay once frames are small.
        capacity = self.capacity + max(_FIRST_CAPACITY, self.capacity // 4)
        locations = np.zeros((len(old), capacity), dtype=np.uint64)
        for stream, oldest in enumerate(self.oldest.tolist()):
            groups = np.arange(oldest, oldest + old.shape[1])
            locations[stream, groups % capacity] = old[stream, groups % old.shape[1]]
        self.locations = locations  # only now: an interrupt must not find it half filled

    @property
    def nbytes(self) -> int:
        """Size of the directory."""
        return self.locations.nbytes
