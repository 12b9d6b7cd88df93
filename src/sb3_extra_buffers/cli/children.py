"""Work in a fresh process, which tells how far it is."""

from __future__ import annotations

import multiprocessing
import signal
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

from sb3_extra_buffers.cli.errors import CommandError

Report = Callable[[int], None]
"""Takes how much is done."""

_SECONDS_BETWEEN_REPORTS = 0.1
_SECONDS_OF_A_TURN = 0.01
_SECONDS_TO_END = 5.0


class _ParentIsGone(Exception):
    """A child whose parent was killed does not live on."""


def _reporter(connection: Connection, in_turns: bool) -> Report:
    last = turn_ends = 0.0

    def report(done: int) -> None:
        nonlocal last, turn_ends
        try:
            if time.monotonic() - last >= _SECONDS_BETWEEN_REPORTS:
                last = time.monotonic()
                connection.send(("done", done))
            if in_turns and time.monotonic() >= turn_ends:
                connection.send(("turn", None))
                connection.recv()
                turn_ends = time.monotonic() + _SECONDS_OF_A_TURN
        except (OSError, EOFError) as error:
            raise _ParentIsGone from error

    return report


def _child(connection: Connection, task: Callable[..., Any], args: tuple[Any, ...], in_turns: bool) -> None:
    # Ctrl-C reaches the whole process group; the parent alone decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        connection.send(("result", task(*args, _reporter(connection, in_turns))))
    except (_ParentIsGone, BrokenPipeError):
        return
    except CommandError as error:  # which says all that there is to say
        connection.send(("refused", error))
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
    # The mask is for the child. This process may get the signal in another of its threads, so it has a handler, too.
    came: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, _: came.append(number)) if _is_main_thread() else None
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if handler is not None:
            signal.signal(signal.SIGINT, handler)
    if came:
        raise KeyboardInterrupt


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


class Call(NamedTuple):
    """What to run in a process."""

    task: Callable[..., Any]
    args: tuple[Any, ...]
    report: Report


class _Child:
    """A call and its process, which is spawned: it starts with the memory of a fresh interpreter, and no threads."""

    def __init__(self, call: Call, in_turns: bool) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, self._its_end = context.Pipe()
        self._process = context.Process(target=_child, args=(self._its_end, call.task, call.args, in_turns), daemon=True)
        self._report = call.report
        self.result: Any = None

    def start(self) -> None:
        with _interrupts_held_back():
            self._process.start()
        self._its_end.close()  # else the end of the process would not end the pipe

    def read(self) -> str:
        """Take in one message; tells of what kind it was."""
        kind: str
        try:
            kind, value = self.connection.recv()
        except EOFError:
            self._process.join()
            raise CommandError(_why_it_died(self._process.exitcode)) from None
        if kind == "refused":
            raise value
        if kind == "error":
            raise CommandError("\n\n".join(value))
        if kind == "done":
            self._report(value)
        elif kind == "result":
            self.result = value
        return kind

    def go_on(self) -> None:
        """Say that it is its turn."""
        with suppress(OSError):  # it has died: reading from it will say so
            self.connection.send(None)

    def end(self) -> None:
        """Let the process finish if it is about to, else end it."""
        self.connection.close()
        if self._process.pid is None:  # it never started
            return
        self._process.join(timeout=0.5)
        if self._process.is_alive():
            self._process.terminate()
            self._process.join(_SECONDS_TO_END)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def _why_it_died(exit_code: int | None) -> str:
    if exit_code is not None and -exit_code == getattr(signal, "SIGKILL", None):
        return "the system killed the measuring process, most likely because memory ran out: try a smaller --size"
    return f"the measuring process died with exit code {exit_code}"


def run_in_children(*calls: Call, in_turns: bool = False) -> list[Any]:
    """
    Run functions side by side, each in a process of its own, and wait for them.

    If one fails, or on Ctrl-C, all are ended.
    """
    children = [_Child(call, in_turns) for call in calls]
    try:
        for child in children:
            child.start()
        running: dict[Any, _Child] = {child.connection: child for child in children}
        at_work, waiting = set(children), deque[_Child]()
        while running:
            for connection in wait(list(running)):
                child = running[connection]
                kind = child.read()
                if kind == "result":
                    del running[connection]
                elif kind == "turn":
                    waiting.append(child)
                if kind != "done":
                    at_work.discard(child)
                if waiting and not at_work:
                    child = waiting.popleft()
                    at_work.add(child)
                    child.go_on()
        return [child.result for child in children]
    finally:
        for child in children:
            child.end()
