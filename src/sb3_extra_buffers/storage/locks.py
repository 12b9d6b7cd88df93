"""A lock for each buffer, so that one thread may add to it while others sample."""

from __future__ import annotations

import _thread
import os
import weakref
from typing import Any


class StoreLock(_thread.RLock):
    """A reentrant lock that pickles and copies as a new one, and is free in a forked child, whoever held it."""

    def __init__(self) -> None:
        _locks.add(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return StoreLock, ()


_locks: weakref.WeakSet[StoreLock] = weakref.WeakSet()


def _free_all() -> None:
    for lock in list(_locks):
        lock._at_fork_reinit()  # type: ignore[attr-defined]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_all)
