"""The lock that everything which belongs to one buffer shares."""

from __future__ import annotations

import copy
import os
import pickle
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sb3_extra_buffers.storage import CompressedArray, StoreLock


def in_thread(work: Callable[[], Any]) -> Any:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    thread.join(30)
    assert results, "the thread hangs"
    return results[0]


def is_free(lock: StoreLock) -> bool:
    """Whether another thread could take it."""

    def try_it() -> bool:
        taken = lock.acquire(blocking=False)
        if taken:
            lock.release()
        return taken

    return bool(in_thread(try_it))


def test_only_its_own_thread_takes_it_again() -> None:
    lock = StoreLock()
    assert is_free(lock) and not lock.is_mine()
    with lock, lock:
        assert lock.is_mine() and not is_free(lock) and not in_thread(lock.is_mine)
    assert is_free(lock)


@pytest.mark.parametrize("twin", [copy.copy, copy.deepcopy, lambda lock: pickle.loads(pickle.dumps(lock))])
def test_a_copy_is_another_lock_that_nobody_holds(twin: Callable[[Any], Any]) -> None:
    lock = StoreLock()
    with lock:
        other = twin(lock)
        assert type(other) is StoreLock and is_free(other)
    one, same = twin((lock, lock)) if twin is not copy.copy else (lock, lock)
    assert one is same


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_in_a_forked_child_nobody_holds_it() -> None:
    lock = StoreLock()
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            done.wait(30)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(30)
    child = os.fork()
    if child == 0:
        os._exit(0 if lock.acquire(timeout=600) else 1)
    _, status = os.waitpid(child, 0)
    done.set()
    holder.join()
    assert os.waitstatus_to_exitcode(status) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_thread_that_forks_still_holds_it_in_the_child() -> None:
    """It is going to release it there, too, and until then others have to wait."""
    lock = StoreLock()
    with lock, lock:
        child = os.fork()
    if child == 0:
        os._exit(0 if is_free(lock) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with lock:
        child = os.fork()
        if child == 0:
            taken: list[bool] = []
            other = threading.Thread(target=lambda: taken.append(lock.acquire(blocking=False)))
            other.start()
            other.join()
            os._exit(int(taken[0]))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_arrays_that_share_frames_share_their_lock() -> None:
    lock = StoreLock()
    one = CompressedArray((4, 2), np.uint8, (30, 30), lock=lock)
    other = CompressedArray((4, 2), np.uint8, (30, 30), share_with=one)
    alone = CompressedArray((4, 2), np.uint8, (30, 30))
    assert one.lock is other.lock is lock is not alone.lock
    loaded, its_other = pickle.loads(pickle.dumps((one, other)))
    assert loaded.lock is its_other.lock is not lock
    assert one.copy().lock is not lock and one.swapaxes(0, 1).lock is lock
