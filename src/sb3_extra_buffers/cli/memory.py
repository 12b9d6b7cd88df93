"""Memory of this process and of the machine."""

from __future__ import annotations

import ctypes
import gc
import sys
from contextlib import suppress
from pathlib import Path

import psutil


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


def container_bytes(root: Path = Path("/")) -> int | None:
    """
    Tell the memory that the control groups of this process allow it: those of containers, of batch systems, of systemd.

    :param root: Where the file system begins
    :return: Bytes; None if nothing limits it
    """
    limits = []
    try:
        groups = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:  # not Linux
        return None
    for group in groups:
        _, controllers, path = group.split(":", 2)
        if not controllers:
            folder, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            folder, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        # A limit of any group above counts, too. Inside a container, the first folder is that of the container.
        for part in ("", *path.strip("/").split("/")):
            folder = folder / part
            with suppress(OSError, ValueError):  # no limit is "max"; the path may be that outside of a container
                limits.append(int((folder / name).read_text()))
    return min(limits, default=None)


def machine_bytes() -> int:
    """
    Tell how much memory there is, for this container if it has a limit.

    :return: Bytes
    """
    total = int(psutil.virtual_memory().total)
    limit = container_bytes()
    return total if limit is None else min(total, limit)


def free_bytes() -> int:
    """
    Tell how much memory can be had without swapping.

    :return: Bytes
    """
    return min(int(psutil.virtual_memory().available), machine_bytes())
