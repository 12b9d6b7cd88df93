"""Memory of this process and of the machine."""

from __future__ import annotations

import ctypes
import gc
import sys
from pathlib import Path

import psutil

_CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")


def resident_bytes() -> int:
    """
    Tell the resident memory of this process, as ``top`` shows it.

    :return: Bytes
    """
    return int(psutil.Process().memory_info().rss)


def resident_bytes_after_release() -> int:
    """
    Give freed memory back to the system first, so that what is allocated next cannot hide in it.

    :return: Resident bytes
    """
    gc.collect()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it, musl does not
        if trim is not None:
            trim(0)
    return resident_bytes()


def _container_bytes() -> int | None:
    try:
        return int(_CONTAINER_LIMIT.read_text())
    except (OSError, ValueError):  # no container, or one without a limit ("max")
        return None


def machine_bytes() -> int:
    """
    Tell how much memory there is, for this container if it has a limit.

    :return: Bytes
    """
    total = int(psutil.virtual_memory().total)
    limit = _container_bytes()
    return total if limit is None else min(total, limit)


def free_bytes() -> int:
    """
    Tell how much memory can be had without swapping.

    :return: Bytes
    """
    return min(int(psutil.virtual_memory().available), machine_bytes())
