"""The lock that everything which belongs to one buffer shares."""

from __future__ import annotations

import _thread
import os
import weakref

from sb3_extra_buffers.storage.errors import refuse_earlier

__getattr__ = refuse_earlier("_empty_state")

_locks: weakref.WeakSet[StoreLock] = weakref.WeakSet()


class StoreLock(_thread.RLock):  # type: ignore[misc]  # it is not final, whatever the stubs say
    """
    A lock that the thread which holds it may take again: a signal handler that reads does not wait for itself.

    It can be copied and pickled; the copy is another lock, which nobody holds.
    In a forked child nobody holds it either, unless the thread that has forked does: others are not there.
    """

    __slots__ = ("abandoned",)

    def __init__(self) -> None:
        super().__init__()
        self.abandoned = 0  # how often it may have been taken from a thread that is not there: what that did is not done
        _locks.add(self)

    def is_mine(self) -> bool:
        """
        Find out who holds it.

        :return: Whether this thread does
        """
        held: bool = self._is_owned()  # type: ignore[attr-defined]
        return held

    def __reduce__(self) -> tuple[type[StoreLock], tuple[()]]:
        return StoreLock, ()


def _release_those_of_others() -> None:
    for lock in _locks:
        if not lock.is_mine():
            lock.abandoned += 1
            lock._at_fork_reinit()  # type: ignore[attr-defined]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_those_of_others)
