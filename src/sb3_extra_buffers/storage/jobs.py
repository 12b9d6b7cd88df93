"""Work that a thread may take over, and that gets done without one as well."""

from __future__ import annotations

import _thread
import contextlib
import os
import queue
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

Result = TypeVar("Result")


class Job(Generic[Result]):
    """
    Work that a helper thread may take, and that the thread which wants its result does itself if none has.

    So it gets done without a helper as well: in a forked child, where threads are gone, or while the interpreter shuts
    down and will not start another. There is nothing to deadlock on, and a signal handler may use jobs at any moment.
    """

    def __init__(self, work: Callable[[], Result]) -> None:
        self._work = work
        # The first thread to enter itself does the work. One atomic step: a lock that is taken when Ctrl-C comes, but not
        # known to be taken yet, would never be released.
        self._owner: dict[str, int] = {}
        self._running = _thread.allocate_lock()
        self._running.acquire()
        self._finished = False
        self._results: list[Result] = []
        self._error: BaseException | None = None

    def _claim(self) -> bool:
        """Whether this thread is the one to do it."""
        me = _thread.get_ident()
        return self._owner.setdefault("thread", me) == me

    def run(self) -> None:
        """Do the work, unless another thread does it or has done it."""
        if not self._claim():
            return
        try:
            self._results.append(self._work())
        except BaseException as error:
            self._error = error
        self._finished = True
        self._running.release()

    def settle(self) -> None:
        """
        Make sure that no other thread works on it any more: call it off, or wait. A Ctrl-C is raised after that, not before.

        A result that nobody has wanted is dropped here. If it went with the job, it might be the helper that lets go of it
        last, while the process ends: torch does not survive that.
        """
        self._wait()
        self._results.clear()

    def _wait(self) -> None:
        if self._claim():
            return
        interrupt: BaseException | None = None
        while not self._finished:
            try:
                self._running.acquire(timeout=1.0)
            except BaseException as error:
                interrupt = error
        if interrupt is not None:
            raise interrupt

    def result(self) -> Result:
        """Do the work or wait for it."""
        self.run()
        self._wait()
        if self._error is not None:
            raise self._error
        return self._results.pop()


class Helper:
    """A thread that takes jobs, started with the first one."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.forget_thread()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.forget_thread)

    def forget_thread(self) -> None:
        """Begin anew: threads do not survive a fork."""
        self._jobs: queue.SimpleQueue[Job[Any]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def offer(self, job: Job[Any]) -> None:
        """Let the thread take a job when it is free."""
        self._jobs.put(job)
        if self._thread is None:
            # Two threads that come here together start two helpers, which does no harm.
            thread = threading.Thread(target=_take_jobs, args=(self._jobs,), name=self._name, daemon=True)
            with contextlib.suppress(RuntimeError):  # the interpreter is shutting down, or there are too many threads
                thread.start()
                self._thread = thread


def _take_jobs(jobs: queue.SimpleQueue[Job[Any]]) -> None:
    while True:
        jobs.get().run()
