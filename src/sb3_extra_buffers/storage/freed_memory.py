"""Freed memory that the C library keeps for the next minibatch."""

from __future__ import annotations

import ctypes
import os

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # what mallopt calls them
_KEPT = 1 << 30
_IN_THE_HEAP = 32 << 20  # glibc allows no more: what is larger is handed back each time
_USERS_OWN = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_MAX_")


def keep_freed_memory() -> bool:
    """
    Let the process keep up to 1 GB of the memory it frees, instead of handing it back and fetching it again.

    For each minibatch of images, torch allocates and frees some 100 MB. Once more than 64 MB are free at the end of its heap,
    glibc hands them back to the system, and the next minibatch waits for tens of thousands of pages. SB3's rollout arrays,
    freed when they are replaced, happen to leave room for a good part of it; compressed ones leave none.

    This affects the whole process, and works with glibc only (Linux, but not Alpine). If you have set glibc's thresholds
    yourself, through environment variables, nothing is changed.

    :return: Whether it was done
    """
    if any(name in os.environ for name in _USERS_OWN) or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return False
    try:
        if not (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc"):
            return False
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError, ValueError):  # another C library, or another system
        return False
    # Either one alone would have glibc no longer raise the other by itself.
    return bool(mallopt(_MMAP_THRESHOLD, _IN_THE_HEAP)) and bool(mallopt(_TRIM_THRESHOLD, _KEPT))
