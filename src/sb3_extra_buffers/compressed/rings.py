"""A ring on disk: a directory that follows a buffer, so that the buffer may be larger than memory and outlives the process."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import re
import threading
import time
import weakref
from typing import Any

from sb3_extra_buffers.compressed.file_loading import fill_buffer
from sb3_extra_buffers.compressed.file_saving import Moment
from sb3_extra_buffers.storage._core import Chunk
from sb3_extra_buffers.storage.directory import MANIFEST, Replacement, SavedDirectory
from sb3_extra_buffers.storage.disk import DISK, Disk

DURABILITIES = ("chunk", "full")

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SECONDS = 1.0  # between two states with durability="full"

_log = logging.getLogger(__name__)


def parse_bytes(given: int | str | None) -> int | None:
    """
    Understand a number of bytes.

    :param given: A number, or a string such as ``"2GB"``, ``"500 MB"``, ``"1.5G"``; None for none
    :return: The number
    """
    if given is None or (isinstance(given, int) and not isinstance(given, bool) and given >= 0):
        return given
    pattern = r"\s*([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?)i?B?\s*"
    found = re.fullmatch(pattern, given, re.IGNORECASE) if isinstance(given, str) else None
    if found is None:
        raise ValueError(f"max_memory is {given!r}; it must be a number of bytes, or a string such as '2GB'")
    return int(float(found[1]) * _UNITS[found[2].upper()])


class RingOnDisk:
    """
    Keeps a directory up to date with a buffer, on a thread of its own.

    Whenever a chunk is full, the state of that moment replaces the one before. So the directory can be loaded, or opened to be
    read, at any time, and after a crash holds all rows but the newest ones. Full chunks are mapped from there then, so that
    the system may take their memory.

    :param buffer: The buffer, with all that its constructor makes
    :param path: The directory
    :param max_memory: Bytes of full chunks that stay in the memory of the process; the oldest ones are mapped first
    :param durability: ``"chunk"``, or ``"full"`` for a state every second
    :param disk: The disk that it is on
    """

    def __init__(self, buffer: Any, path: Any, max_memory: int | str | None, durability: str, disk: Disk = DISK) -> None:
        if durability not in DURABILITIES:
            raise ValueError(f"durability is {durability!r}; allowed: {', '.join(map(repr, DURABILITIES))}")
        self.path, self._disk = os.fspath(path), disk
        self._most = parse_bytes(max_memory) or 0
        self._is_full = durability == "full"
        self._every = max([field.frames.chunk_rows for field in buffer._fields if field.is_compressed], default=512)
        self._process = os.getpid()
        self._buffer = weakref.ref(buffer)
        self._mapped: set[str] = set()
        self._before: Moment | None = None
        self._state: Replacement | None = None
        self._error: BaseException | None = None
        self._last = 0.0
        self._due, self._stops = threading.Event(), False
        self._writing = threading.Lock()
        self._thread: threading.Thread | None = None
        self._lock = self._open(buffer)
        self._end = weakref.finalize(buffer, self._stop)
        self._end.atexit = False
        atexit.register(_close, weakref.ref(self))

    # -- beginning and end --------------------------------------------------------------------------------------------------

    def _open(self, buffer: Any) -> int | None:
        """Go on with what is in the directory, or begin there; returns the lock."""
        with contextlib.suppress(FileExistsError):
            self._disk.make_folder(self.path)
        try:
            lock = self._disk.lock(self.path)
            names = self._disk.names_in(self.path)
        except NotADirectoryError:
            raise FileExistsError(f"storage_dir {self.path} is not a directory; name another one") from None
        except BlockingIOError:
            raise BlockingIOError(
                f"storage_dir {self.path} is in use by another buffer, which writes to it; close that, or name another one"
            ) from None
        try:
            with buffer._lock:
                moment = Moment(buffer)
            if MANIFEST in names:
                saved = SavedDirectory(self.path, self._disk)
                self._compare(saved.body, moment.body)
                fill_buffer(buffer, saved)
                _log.warning(
                    "%s goes on with the %d rows in %s; what was added after the last state there is lost, %s at most",
                    type(buffer).__name__,
                    buffer.size(),
                    self.path,
                    "about a second" if self._is_full else f"{self._every} rows",
                )
            else:
                self._disk.sync_folder(os.path.dirname(os.path.abspath(self.path)))
                self._state = moment.save(self.path, self._disk, held=True)
        except BaseException:
            if lock is not None:
                self._disk.close(lock)
            raise
        return lock

    def _compare(self, there: Any, here: Any) -> None:
        """Refuse a ring of another form."""
        for part in ("class", "arguments", "options"):
            if there[part] == here[part]:
                continue
            names = sorted(there[part].keys() | here[part].keys()) if isinstance(there[part], dict) else []
            differ = [name for name in names if there[part].get(name) != here[part].get(name)]
            told = [
                ", ".join(f"{name}={_shown(body[part].get(name))}" for name in differ) if differ else body[part]
                for body in (there, here)
            ]
            raise ValueError(
                f"storage_dir {self.path} holds a ring of another form: {told[0]}, and this buffer has {told[1]}; use the "
                "same arguments, or another directory"
            )

    def flush(self) -> None:
        """Bring the directory up to date, priorities included, and wait for that."""
        if os.getpid() == self._process:
            self._write(everything=True)
            self.raise_error()

    def close(self) -> None:
        """Bring the directory up to date, and leave it to others."""
        if os.getpid() == self._process and not self._stops:
            try:
                self.flush()
            finally:
                self._end()

    def _stop(self) -> None:
        self._stops = True
        self._due.set()
        if os.getpid() == self._process and self._lock is not None:
            with self._writing:
                lock, self._lock = self._lock, None
                if lock is not None:
                    self._disk.close(lock)

    # -- while rows are added -----------------------------------------------------------------------------------------------

    def raise_error(self) -> None:
        """Tell what has gone wrong on the thread, once; the buffer goes on, and the directory with the next chunk."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def note_row(self, appended: int) -> None:
        """
        Have a state written if it is time to; called whenever a row was added.

        :param appended: How many rows have been added in all
        """
        if appended % self._every == 1 or (self._is_full and time.monotonic() - self._last >= _SECONDS):
            if self._thread is None and os.getpid() == self._process and not self._stops:
                given = weakref.ref(self), self._due
                self._thread = threading.Thread(target=_work, args=given, daemon=True, name="ring on disk")
                self._thread.start()
            self._last = time.monotonic()
            self._due.set()

    def _write(self, everything: bool = False) -> None:
        with self._writing:
            buffer = self._buffer()
            if buffer is None or self._stops:
                return
            try:
                with buffer._lock:
                    moment = Moment(buffer, before=None if everything else self._before)
                state = moment.save(self.path, self._disk, self._state, held=True)
                self._before, self._state = moment, state
                self._map_chunks(buffer, moment, state)
                moment.frames = []  # or overwritten chunks would stay until the next one
            except Exception as error:
                self._error, self._before, self._state = error, None, None

    def _map_chunks(self, buffer: Any, moment: Moment, state: Replacement) -> None:
        """Have the oldest chunks come from the directory, until the others take no more memory than they may."""
        saved = SavedDirectory.of(state)
        columns = [field.frames for field in buffer._fields if field.is_compressed]
        in_memory = []
        there: set[str] = set()
        for frames, (_, frozen), said in zip(columns, moment.frames, moment.body["frames"], strict=True):
            names = {(first, lap): name for name, first, _, lap in said["chunks"]}
            for chunk in frozen.chunks[:-1]:
                name = None if chunk is None else names.get((chunk.first_row, chunk.lap))
                if chunk is not None and name is not None:
                    there.add(name)
                    if name not in self._mapped:
                        in_memory.append((chunk.lap, chunk.first_row, frames, chunk, name))
        self._mapped &= there
        left = sum(len(chunk) for *_, chunk, _ in in_memory)
        for *_, frames, chunk, name in sorted(in_memory, key=lambda one: one[:2]):
            if left <= self._most:
                break
            frames.exchange(chunk, Chunk(saved.read(name)))
            self._mapped.add(name)
            left -= len(chunk)


def _work(ring: weakref.ref[RingOnDisk], due: threading.Event) -> None:
    while True:
        due.wait()
        due.clear()
        this = ring()
        if this is None or this._stops:
            return
        this._write()
        del this


def _close(ring: weakref.ref[RingOnDisk]) -> None:
    this = ring()
    if this is not None:
        this.close()


def _shown(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 200 else text[:197] + "..."
