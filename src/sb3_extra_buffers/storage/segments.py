"""The packed log: coded bytes in large segments, whole segments given back and used again."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

ByteArray = npt.NDArray[np.uint8]

OFFSET_BITS = 32
OFFSET_MASK = (1 << OFFSET_BITS) - 1


READ_AHEAD = 8
"""Bytes after each segment that compiled code may read, though nothing is there."""


def _allocate(size: int) -> ByteArray:
    """
    Take zeroed memory straight from the system: it counts only once touched, and goes back when dropped.

    :param size: Bytes
    :return: The memory, followed by ``READ_AHEAD`` more bytes
    """
    total = size + READ_AHEAD
    if hasattr(mmap, "MAP_PRIVATE"):  # Python's default is shared memory, which a forked worker would write into
        memory = np.frombuffer(mmap.mmap(-1, total, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), dtype=np.uint8)
    else:
        memory = np.zeros(total, dtype=np.uint8)
    return memory[:size]


class Segment:
    """
    One block of the log. Bytes are appended, never changed.

    :param size: Capacity in bytes
    :param n_streams: Number of streams that write into it
    """

    def __init__(self, size: int, n_streams: int) -> None:
        self.memory = _allocate(size)
        self.used = 0
        self.frames = 0
        # Promised to groups that began here: a group must end in the segment that holds its key frame.
        self.reserved = 0
        self.newest_key = -1
        self.last_group = np.full(n_streams, -1, dtype=np.int64)

    def clear(self) -> None:
        """Forget the contents; the memory stays."""
        self.used = self.frames = self.reserved = 0
        self.newest_key = -1
        self.last_group[:] = -1

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        state["memory"] = (self.memory.size, self.memory[: self.used].tobytes())
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        size, data = state.pop("memory")
        self.__dict__.update(state)
        self.memory = _allocate(size)
        self.memory[: len(data)] = np.frombuffer(data, dtype=np.uint8)


class SegmentLog:
    """
    Segments in the order of their making, each at a fixed slot of a pointer table that compiled code reads.

    A location is ``slot << 32 | offset``.

    :param segment_bytes: Capacity of a segment
    :param n_streams: Number of streams
    """

    def __init__(self, segment_bytes: int, n_streams: int) -> None:
        self.segment_bytes = segment_bytes
        self.n_streams = n_streams
        self.slots: list[Segment] = []
        self.order: list[int] = []
        self.free: list[int] = []
        self._refresh_pointers()

    def _refresh_pointers(self) -> None:
        addresses = [segment.memory.ctypes.data for segment in self.slots]
        self.pointers = np.array(addresses, dtype=np.uint64)

    @property
    def current(self) -> int:
        """Slot of the segment in which new groups begin; -1 before the first."""
        return self.order[-1] if self.order else -1

    def has_room(self, size: int) -> bool:
        """
        Tell whether the current segment can promise some more bytes.

        :param size: Bytes
        :return: Whether they fit
        """
        if not self.order:
            return False
        segment = self.slots[self.order[-1]]
        return segment.used + segment.reserved + size <= segment.memory.size

    def open_segment(self) -> None:
        """Begin a new segment, in recycled memory where there is some."""
        if self.free:
            slot = self.free.pop()
        else:
            slot = len(self.slots)
            self.slots.append(Segment(self.segment_bytes, self.n_streams))
            self._refresh_pointers()
        self.order.append(slot)

    def allot(self, slot: int, size: int, alignment: int = 1) -> tuple[int, ByteArray]:
        """
        Take bytes at the end of a segment.

        :param slot: The segment
        :param size: Bytes
        :param alignment: What the offset must be a multiple of
        :return: Offset and the bytes to fill
        """
        segment = self.slots[slot]
        offset = -(-segment.used // alignment) * alignment
        if offset + size > segment.memory.size:
            raise RuntimeError(f"a record of {size} bytes was not reserved in its segment")
        segment.used = offset + size
        return offset, segment.memory[offset : offset + size]

    def release(self, oldest_group: npt.NDArray[np.int64]) -> None:
        """
        Recycle the segments whose groups are all older than what is still in use.

        :param oldest_group: For each stream the first group in use
        """
        live = []
        for slot in self.order:
            segment = self.slots[slot]
            if slot != self.current and segment.reserved == 0 and bool(np.all(segment.last_group < oldest_group)):
                segment.clear()
                self.free.append(slot)
            else:
                live.append(slot)
        self.order = live

    def clear(self) -> None:
        """Forget everything; the memory stays."""
        for slot in self.order:
            self.slots[slot].clear()
        self.free.extend(reversed(self.order))
        self.order = []

    @property
    def used_bytes(self) -> int:
        """Bytes written into segments that are in use."""
        return sum(self.slots[slot].used for slot in self.order)

    @property
    def held_bytes(self) -> int:
        """Bytes of all segments, recycled ones included."""
        return sum(segment.memory.size for segment in self.slots)

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        del state["pointers"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._refresh_pointers()
