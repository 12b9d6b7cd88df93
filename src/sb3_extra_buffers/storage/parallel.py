"""A second core for large batches, by a thread of our own: compiled code runs there without the GIL."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

MIN_BYTES = 1 << 21
"""Handing over half of a smaller output takes longer than it saves."""

_lock = threading.Lock()
_helper: ThreadPoolExecutor | None = None


def _forget_helper() -> None:
    # Threads do not survive a fork; work handed to the parent's would never be done.
    global _helper, _lock
    _helper = None
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_helper)


def _the_helper() -> ThreadPoolExecutor:
    global _helper
    with _lock:
        if _helper is None:
            _helper = ThreadPoolExecutor(1, thread_name_prefix="sb3-extra-buffers")
        return _helper


def _cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def worth_halving(count: int, nbytes: int) -> bool:
    """
    Tell whether there is enough work for two cores.

    :param count: Number of rows
    :param nbytes: Bytes that are to be written
    :return: Whether ``in_halves`` would be faster
    """
    return nbytes >= MIN_BYTES and count > 1 and _cores() > 1


def in_halves(work: Callable[[int, int], int], count: int) -> int:
    """
    Do work on rows, on two cores.

    :param work: Takes first row and row to stop before; releases the GIL; returns 0 or an error code
    :param count: Number of rows
    :return: 0, or the error code
    """
    middle = count // 2
    other = _the_helper().submit(work, middle, count)
    try:
        result = work(0, middle)
    finally:
        rest = other.result()  # never leave while the other half still writes
    return result or rest
