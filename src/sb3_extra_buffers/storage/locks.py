"""The lock that everything which belongs to one buffer shares."""

from __future__ import annotations

import _thread
import os
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

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
        Tell who holds it.

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


class LockedState(dict[str, Any]):
    """
    What ``__getstate__`` gives so that other threads wait until all of it is pickled, or copied.

    The lock is taken when the first entry is, and released after the last one or when pickling is given up: both are the
    start and the end of an iteration. Until then others may have changed the object, so what was its attribute then is read
    again. What is loaded is a plain dict.

    :param attributes: The object's ``__dict__``
    :param lock: The lock
    :param state: What of it is to be saved; all by default
    """

    def __init__(self, attributes: Mapping[str, Any], lock: StoreLock, state: Mapping[str, Any] | None = None) -> None:
        super().__init__(attributes if state is None else state)
        self._attributes = attributes
        self._lock = lock
        self._before = {key: value for key, value in self.items() if attributes.get(key, self) is value}

    def _entries(self) -> Iterator[tuple[str, Any]]:
        with self._lock:
            for key, value in self.items():
                unchanged = self._before.get(key, self) is value  # by a subclass that saves something else
                yield key, self._attributes.get(key, value) if unchanged else value

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return _empty_state, (), None, None, self._entries()


def _empty_state() -> dict[str, Any]:
    return {}
