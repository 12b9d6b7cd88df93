"""One piece of work at a time, in a thread that neither a fork nor the end of the process can cut in two unnoticed."""

from __future__ import annotations

import atexit
import os
import threading
import warnings
import weakref
from collections.abc import Callable


class BackgroundWork:
    """
    Work that goes on while training does. If it fails, whoever asks next gets the error.

    A process that ends by itself waits for it, and so does a fork: in the child there would be no thread to finish it.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        _ALL.add(self)

    @property
    def is_busy(self) -> bool:
        """Whether work is still going on."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, work: Callable[[], None]) -> None:
        """
        Begin; nothing else may be going on.

        :param work: What to do
        """
        self.finish()

        def run() -> None:
            try:
                work()
            except BaseException as error:
                self._error = error

        # Not a daemon: the interpreter waits for it before it ends.
        self._thread = threading.Thread(target=run, name="sb3-extra-buffers-checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Wait until nothing is going on."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def check(self) -> None:
        """Raise the error of work that has failed, once."""
        if self._error is not None and not self.is_busy:
            error, self._error = self._error, None
            raise error

    def finish(self) -> None:
        """Wait until nothing is going on, and raise the error if there is one."""
        self.wait()
        self.check()


_ALL: weakref.WeakSet[BackgroundWork] = weakref.WeakSet()


def wait_for_all() -> None:
    """Wait until no work of this process is going on."""
    for work in list(_ALL):
        work.wait()


def _tell_of_errors() -> None:
    for work in list(_ALL):
        try:
            work.check()
        except BaseException as error:
            warnings.warn(f"the last checkpoint was not written: {error!r}", stacklevel=1)


atexit.register(_tell_of_errors)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=wait_for_all)
