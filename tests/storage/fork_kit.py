"""Forked children that say how they are."""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Callable


def run_in_child(work: Callable[[], None]) -> int:
    """Fork, do something in the child, and return the child's status; 0 if all went well."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    return os.waitpid(child, 0)[1]


def run_in_child_of_another_thread(work: Callable[[], None]) -> int:
    """The same, forked by another thread, whatever this one is doing."""
    statuses: list[int] = []
    thread = threading.Thread(target=lambda: statuses.append(run_in_child(work)))
    thread.start()
    thread.join()
    return statuses[0]
