"""How much memory of a process the chunks of a ring on disk may take: their own, and pages of files that are mapped."""

from __future__ import annotations

import os
import weakref

from sb3_extra_buffers import _support
from sb3_extra_buffers.storage._core import Mapping
from sb3_extra_buffers.storage.directory import SavedDirectory

_MOST_READS = 32  # between two looks at the memory
_READ_BYTES = 8 << 20  # that a batch may touch, about
_STATM = "/proc/self/statm"
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


def parse_bytes(given: int | str | None) -> int | None:
    """Understand a number of bytes."""
    if given is None or (isinstance(given, int) and not isinstance(given, bool) and given >= 0):
        return given
    try:
        return _support.parse_bytes(given)  # type: ignore[arg-type]
    except (ValueError, AttributeError):
        raise ValueError(f"max_memory is {given!r}; it must be a number of bytes, or a string such as '2GB'") from None


class MappedMemory:
    """
    The memory of a ring's chunks: those in memory of their own, and pages of mapped files that have been touched.

    A page that is left counts for the process no longer, but stays in memory for as long as the system has room for it.
    """

    def __init__(self, most: int | None) -> None:
        self.most = most
        self.own = 0
        """Bytes of full chunks that are not mapped."""
        self._mappings: weakref.WeakSet[Mapping] = weakref.WeakSet()
        self._reads = 0
        self._between = min(max((most or 0) // _READ_BYTES, 1), _MOST_READS)
        self._others = file_bytes()

    def holds(self, sealed: int) -> bool:
        """Say whether all chunks may stay in memory of their own."""
        return self.most is not None and sealed <= self.most

    def most_of_own(self, own: int, are_mapped: bool) -> int:
        """Say how many bytes of chunks may stay in memory of their own."""
        if self.most is None:
            return 0
        return self.most if own <= self.most and not are_mapped else self.most // 8

    def note(self, saved: SavedDirectory) -> None:
        """Know of what has been mapped."""
        self._mappings.update(saved.mappings())
        self._bound()

    def note_read(self) -> None:
        """Look every now and then how much has been touched; called whenever something is read."""
        self._reads += 1
        if self.most is not None and self._reads % self._between == 0:
            self._bound()

    def _bound(self) -> None:
        """Leave all pages once there are too many: what is left of mapped files is code then, and others' business."""
        if self.most is not None and self._mappings and file_bytes() - self._others > max(self.most - self.own, 0):
            for mapping in list(self._mappings):
                mapping.leave()
            self._others = file_bytes()


def file_bytes() -> int:
    """Count the pages of files in the memory of this process."""
    try:
        with open(_STATM, "rb") as file:
            return int(file.read().split()[2]) * _PAGE
    except (OSError, ValueError, IndexError):
        return 0
