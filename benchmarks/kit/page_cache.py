"""A page cache with little room, and what the disk behind it can do. Linux only."""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

PAGE = mmap.PAGESIZE
_PRESENT = np.uint64(1 << 63)
_TIMES = 20


class SmallCache:
    """
    A page cache that has room for only some pages of the files of a ring, and throws out those that were used the longest ago.

    Nothing here can make the system's own cache smaller, so after each batch the program does to these files what the system
    would do: it looks which pages are mapped, and has the oldest ones dropped that are too many. Linux maps up to 16 pages
    around the one that is touched, if they are in memory, and they count as used, for the system as well as here.
    """

    def __init__(self, mappings: Sequence[Any], folder: Path, room: int) -> None:
        self._room = room // PAGE
        self._files = [os.open(path, os.O_RDONLY) for path in sorted(folder.glob("*.pack"))]
        self._inodes = {os.fstat(file).st_ino: file for file in self._files}
        address_of = {mapping: np.frombuffer(mapping, np.uint8).ctypes.data for mapping in mappings}
        # A chunk that was overwritten may be mapped for a while after its pack was removed.
        self._mappings = [mapping for mapping in mappings if _inode_at(address_of[mapping]) in self._inodes]
        self._places = [(address_of[mapping], -(-len(mapping) // PAGE)) for mapping in self._mappings]
        self._of = [self._inodes[_inode_at(address)] for address, _ in self._places]
        self._used = [np.zeros(pages, np.int64) for _, pages in self._places]
        self._batch = 0
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.empty()

    def empty(self) -> None:
        """Throw out everything."""
        self._leave()
        for file in self._files:
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)

    def shrink(self) -> None:
        """Note what has been used since the last call, and throw out what was used the longest ago, until the rest fits."""
        self._batch += 1
        with open("/proc/self/pagemap", "rb", 0) as file:
            for (address, pages), used in zip(self._places, self._used, strict=True):
                present = np.frombuffer(os.pread(file.fileno(), 8 * pages, address // PAGE * 8), np.uint64) & _PRESENT
                used[present > 0] = self._batch
        self._leave()  # a page that somebody has mapped would stay
        there = [self._resident(address, pages) for address, pages in self._places]
        ages = np.concatenate([used[found] for used, found in zip(self._used, there, strict=True)])
        if len(ages) <= self._room:
            return
        oldest = np.partition(ages, len(ages) - self._room)[len(ages) - self._room]
        left = self._room - int((ages > oldest).sum())  # of those that were used last in the same batch, some may stay
        for file, used, found in zip(self._of, self._used, there, strict=True):
            kept = used > oldest
            same = np.flatnonzero(found & (used == oldest))
            kept[same[:left]] = True
            left -= len(same[:left])
            for page in np.flatnonzero(found & ~kept).tolist():
                os.posix_fadvise(file, page * PAGE, PAGE, os.POSIX_FADV_DONTNEED)

    def resident_bytes(self) -> int:
        """Count what is in memory."""
        return PAGE * sum(int(self._resident(address, pages).sum()) for address, pages in self._places)

    def time_reads(self, count: int, size: int) -> float:
        """
        Measure what the disk can do: reads of pages that are not in memory, all of them asked for before the first is awaited.
        """
        draw, times = random.Random(count), []
        for _ in range(_TIMES):
            self.empty()
            places = []
            for _ in range(count):
                file = draw.choice(self._files)
                last = max((os.fstat(file).st_size - size) // PAGE, 0)
                places.append((file, draw.randrange(last + 1) * PAGE))
            start = time.perf_counter_ns()
            for file, place in places:
                os.posix_fadvise(file, place, size, os.POSIX_FADV_WILLNEED)
            for file, place in places:
                os.pread(file, size, place)
            times.append((time.perf_counter_ns() - start) / 1000)
        return median(times)

    def reads_a_second(self, threads: int) -> int:
        """Measure what the disk can do."""
        self.empty()
        for file in self._files:
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)  # nothing is read ahead
        pages = [(file, page * PAGE) for file in self._files for page in range(os.fstat(file).st_size // PAGE)]
        pages = random.Random(threads).sample(pages, min(len(pages), 2000))

        def read(first: int) -> None:
            for file, place in pages[first::threads]:
                os.pread(file, PAGE, place)

        start = time.perf_counter()
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(read, range(threads)))
        return round(len(pages) / (time.perf_counter() - start))

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            os.close(file)

    def _leave(self) -> None:
        for mapping in self._mappings:
            mapping.leave()

    def _resident(self, address: int, pages: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
        found = np.zeros(pages, np.uint8)
        given = ctypes.c_void_p(address), ctypes.c_size_t(pages * PAGE), found.ctypes.data_as(ctypes.c_void_p)
        if self._libc.mincore(*given) != 0:
            raise OSError(ctypes.get_errno(), "mincore")
        return (found & 1).astype(np.bool_)


def _inode_at(address: int) -> int:
    """The inode of the file that is mapped at an address."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, _, rest = line.partition("-")
        if int(first, 16) == address:
            return int(rest.split()[4])
    raise ValueError(f"nothing is mapped at {address:#x}")
