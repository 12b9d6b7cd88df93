"""The packed log: coded bytes in large segments, whole segments given back and used again."""

from __future__ import annotations

import errno
import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

ByteArray = npt.NDArray[np.uint8]

OFFSET_BITS = 32
OFFSET_MASK = (1 << OFFSET_BITS) - 1
_LOOK_AFTER = 100
_FIRST_ROOM = 64


READ_AHEAD = 8
"""Bytes after each segment that compiled code may read, though nothing is there."""


def _allocate(size: int) -> ByteArray:
    """
    Take zeroed memory straight from the system: it counts only once touched, and goes back when dropped.

    :param size: Bytes
    :return: The memory
    """
    if not hasattr(mmap, "MAP_PRIVATE"):
        return np.zeros(size, dtype=np.uint8)
    try:  # Python's default is shared memory, which a forked worker would write into
        return np.frombuffer(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), dtype=np.uint8)
    except OSError as error:
        if error.errno != errno.ENOMEM:
            raise
        raise MemoryError(
            f"out of memory: {size:,} bytes for another segment of compressed observations were refused by the system; "
            "what is stored so far is unharmed"
        ) from error


# What the words of a segment's book are; from LAST_GROUP on one for each stream.
USED = 0
RESERVED = 1  # promised to groups that began here: a group must end in the segment that holds its key frame
FRAMES = 2
NEWEST_KEY = 3
LAST_GROUP = 4


def book_bytes(n_streams: int) -> int:
    """
    Tell how large the book of a segment is.

    :param n_streams: Number of streams
    :return: Bytes
    """
    return 8 * (LAST_GROUP + n_streams)


class Segment:
    """
    One block of the log. Bytes are appended, never changed.

    :param size: Capacity in bytes
    :param n_streams: Number of streams that write into it
    """

    def __init__(self, size: int, n_streams: int) -> None:
        self._take_memory(size, n_streams)
        self.clear()

    def _take_memory(self, size: int, n_streams: int) -> None:
        # Its numbers, where compiled code can change them, lie in the same block: small allocations that live as long as a
        # segment would lie scattered among the tensors of a training process and keep their memory from being reused.
        first = book_bytes(n_streams)
        block = _allocate(first + size + READ_AHEAD)
        self.book: npt.NDArray[np.int64] = block[:first].view(np.int64)
        self.memory = block[first : first + size]

    @property
    def used(self) -> int:
        """Bytes that are written."""
        return int(self.book[USED])

    @property
    def free(self) -> int:
        """Bytes that are neither written nor promised."""
        return int(self.memory.size - self.book[USED] - self.book[RESERVED])

    @property
    def last_group(self) -> npt.NDArray[np.int64]:
        """For each stream the last group that is here, -1 for none."""
        return self.book[LAST_GROUP:]

    def clear(self) -> None:
        """Forget the contents; the memory stays."""
        self.book[:] = 0
        self.book[NEWEST_KEY] = -1
        self.last_group[:] = -1

    def __getstate__(self) -> dict[str, Any]:
        return {"book": self.book.copy(), "memory": (self.memory.size, self.memory[: self.used].tobytes())}

    def __setstate__(self, state: dict[str, Any]) -> None:
        size, data = state["memory"]
        self._take_memory(size, len(state["book"]) - LAST_GROUP)
        self.book[:] = state["book"]
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
        self.opened = 0  # since something was released, or would have been
        # The current slot, again where compiled code can read it.
        self.head: npt.NDArray[np.int64] = np.full(1, -1, dtype=np.int64)
        self._refresh_pointers()

    def _refresh_pointers(self) -> None:
        """Make the tables of addresses, with room to grow: replacing them is for compiled code a new table."""
        room = _FIRST_ROOM + 2 * len(self.slots)
        pointers, books = np.zeros((2, room), dtype=np.uint64)
        for slot, segment in enumerate(self.slots):
            pointers[slot], books[slot] = segment.memory.ctypes.data, segment.book.ctypes.data
        self.books: npt.NDArray[np.uint64] = books
        self.pointers: npt.NDArray[np.uint64] = pointers

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
        return segment.free >= size

    def may_have_much_to_release(self) -> bool:
        """
        Tell whether enough segments have been opened since ``release`` to look through all of them again.

        :return: Whether they are a hundredth of all, so that looking costs each of them the same however many there are
        """
        return _LOOK_AFTER * self.opened >= len(self.order)

    def open_segment(self) -> None:
        """Begin a new segment, in recycled memory where there is some."""
        if self.free:
            slot = self.free.pop()
        else:
            slot = len(self.slots)
            segment = Segment(self.segment_bytes, self.n_streams)
            self.slots.append(segment)
            if slot < len(self.pointers):
                self.pointers[slot], self.books[slot] = segment.memory.ctypes.data, segment.book.ctypes.data
            else:
                self._refresh_pointers()
        self.order.append(slot)
        self.opened += 1
        self.head[0] = slot

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
        segment.book[USED] = offset + size
        return offset, segment.memory[offset : offset + size]

    def release(self, oldest_group: npt.NDArray[np.int64]) -> None:
        """
        Recycle the segments whose groups are all older than what is still in use.

        :param oldest_group: For each stream the first group in use
        """
        self.opened = 0
        dead = {slot for slot in self.order if self._is_dead(slot, oldest_group)}
        self._free(self.order, [slot for slot in self.order if slot not in dead])

    def _is_dead(self, slot: int, oldest_group: npt.NDArray[np.int64]) -> bool:
        segment = self.slots[slot]
        return slot != self.current and segment.book[RESERVED] == 0 and bool(np.all(segment.last_group < oldest_group))

    def _free(self, before: list[int], order: list[int]) -> None:
        """Keep some of the segments."""
        # Out of use first: an interrupt then loses a segment, but never has one in use and free.
        self.order = order
        kept = set(order)
        for slot in before:
            if slot not in kept:
                self.slots[slot].clear()
                self.free.append(slot)

    def clear(self) -> None:
        """Forget everything; the memory stays."""
        self.head[0] = -1
        self._free(self.order[::-1], [])

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
        del state["pointers"], state["books"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._refresh_pointers()
