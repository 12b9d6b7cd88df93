"""Work in a fresh process, which tells how far it is."""

from __future__ import annotations

import multiprocessing
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from sb3_extra_buffers.cli.errors import CommandError

Report = Callable[[int], None]
"""Takes how much is done."""

Result = TypeVar("Result")

_SECONDS_BETWEEN_REPORTS = 0.1
_SECONDS_TO_END = 5.0


def _throttled(connection: Connection) -> Report:
    last = 0.0

    def report(done: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= _SECONDS_BETWEEN_REPORTS:
            last = now
            # Raises once the parent is gone: a child whose parent was killed does not live on.
            connection.send(("done", done))

    return report


def _child(connection: Connection, task: Callable[..., Any], args: tuple[Any, ...]) -> None:
    # Ctrl-C reaches the whole process group; the parent alone decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        connection.send(("result", task(*args, _throttled(connection))))
    except BrokenPipeError:
        return
    except Exception as error:
        connection.send(("error", (f"{type(error).__name__}: {error}", traceback.format_exc())))


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """
    Let Ctrl-C wait until the child has started.

    The child inherits that, so it cannot be interrupted before it says that it ignores interrupts, and nothing is lost here.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    # Starting the tracker, which is done once, would let interrupts through again.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def run_in_child(task: Callable[..., Result], *args: Any, report: Report) -> Result:
    """
    Run a function in a process of its own and wait for it.

    The process is spawned, so that it starts with the memory of a fresh interpreter and no threads.

    :param task: Importable function; after ``args`` it gets a ``Report`` to call
    :param args: Its picklable arguments
    :param report: Called in this process with what the task reports
    :return: What the function returned
    """
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(sender, task, args), daemon=True)
    try:
        with _interrupts_held_back():
            process.start()
        sender.close()
        while True:
            kind, value = receiver.recv()
            if kind == "done":
                report(value)
            elif kind == "result":
                result: Result = value
                return result
            else:
                summary, details = value
                raise CommandError(f"{summary}\n\n{details}")
    except EOFError:
        process.join()
        raise CommandError(_why_it_died(process.exitcode)) from None
    finally:
        receiver.close()
        _end(process)


def _why_it_died(exit_code: int | None) -> str:
    if exit_code is not None and -exit_code == getattr(signal, "SIGKILL", None):
        return "the system killed the measuring process, most likely for want of memory: try a smaller --size"
    return f"the measuring process died with exit code {exit_code}"


def _end(process: multiprocessing.process.BaseProcess) -> None:
    """Let the process finish if it is about to, else end it."""
    if process.pid is None:  # it never started
        return
    process.join(timeout=0.5)
    if process.is_alive():
        process.terminate()
        process.join(_SECONDS_TO_END)
    if process.is_alive():
        process.kill()
        process.join()
