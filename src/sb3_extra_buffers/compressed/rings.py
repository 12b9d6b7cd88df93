"""A ring on disk: a directory that follows a buffer, so that the buffer may be larger than memory and outlives the process."""

from __future__ import annotations

import atexit
import contextlib
import gc
import logging
import os
import struct
import threading
import time
import weakref
from typing import Any

from sb3_extra_buffers.compressed.file_loading import fill_buffer
from sb3_extra_buffers.compressed.file_saving import Moment
from sb3_extra_buffers.compressed.ring_memory import MappedMemory, parse_bytes
from sb3_extra_buffers.compressed.saved_spaces import make_space
from sb3_extra_buffers.storage._core import BLOCK_ROWS, Chunk
from sb3_extra_buffers.storage.directory import Replacement, SavedDirectory
from sb3_extra_buffers.storage.disk import DISK, Disk, Handle, folder_path
from sb3_extra_buffers.storage.manifests import MANIFEST

DURABILITIES = ("chunk", "full")

_COUNTER = "added.count"
_NUMBER = struct.Struct("<q")
_SECONDS = 1.0  # between two states with durability="full"
_FINISHING = 60.0  # that a buffer which was deleted may take to write its newest rows
_PLAIN_ROWS = 512  # between two states where there are no chunks
_REST = 4  # times as long as writing a state takes, there is no other one
_MOST_BEHIND = 64 << 20  # bytes of full chunks that are not written yet, before adding has to wait

_log = logging.getLogger(__name__)


def tell_of_copy(path: Any) -> None:
    """Say that a copy of a ring on disk is in memory: ``load_replay_buffer`` puts one in the place of the ring."""
    _log.warning(
        "This copy of the buffer with storage_dir %s is in memory only: nothing that is added to it is written there. A ring "
        "goes on by itself with what is in storage_dir, and does not need load_replay_buffer().",
        path,
    )


class RingOnDisk:
    """
    Keeps a directory up to date with a buffer, on a thread of its own.

    Whenever a chunk is full, the state of that moment replaces the one before. So the directory can be loaded, or opened to be
    read, at any time, and after a crash holds all rows but the newest ones. Full chunks are mapped from there then, so that
    the system may take their memory.
    """

    def __init__(self, buffer: Any, path: Any, max_memory: int | str | None, durability: str, disk: Disk = DISK) -> None:
        if durability not in DURABILITIES:
            raise ValueError(f"durability is {durability!r}; allowed: {', '.join(map(repr, DURABILITIES))}")
        # Where it is now, whatever the working directory will be.
        self.path, self._disk = os.path.abspath(folder_path(path)) if disk is DISK else folder_path(path), disk
        self._memory = MappedMemory(parse_bytes(max_memory))
        self._is_full = durability == "full"
        self._process = os.getpid()
        self._buffer = weakref.ref(buffer)
        self._table: Any = None
        self._mapped: set[str] = set()
        self._before: Moment | None = None
        self._state: Replacement | None = None
        self._error: BaseException | None = None
        self._due, self._hurry, self._written = threading.Event(), threading.Event(), threading.Event()
        self._is_closed = self._stops = False
        self._writing = threading.RLock()
        self._thread: threading.Thread | None = None
        self._lock = self._disk_lock()
        try:
            self._folder = self._disk.identity(self.path)
            self._open(buffer)
            self._sealed = self._saved = _sealed_bytes(buffer)
        except BaseException:
            self._release()
            raise
        _WRITERS[self.path] = self._process, self._buffer

    # -- beginning and end --------------------------------------------------------------------------------------------------

    def _disk_lock(self) -> Handle | None:
        with contextlib.suppress(FileExistsError):
            self._disk.make_folder(self.path)
        begun = time.monotonic()
        while True:
            try:
                return self._disk.lock(self.path)
            except NotADirectoryError:
                raise FileExistsError(f"storage_dir {self.path} is not a directory; name another one") from None
            except BlockingIOError:
                process, other = _WRITERS.get(self.path, (0, weakref.ref(self)))
                most = _FINISHING if other() is None else _SECONDS
                if process != self._process or time.monotonic() - begun > most:
                    raise BlockingIOError(
                        f"storage_dir {self.path} is in use by another buffer, which writes to it; close that, or name "
                        "another one"
                    ) from None
            # That buffer may have been deleted, and be in reference cycles, as those of models are, or still be written.
            gc.collect()
            time.sleep(0.01)

    def _open(self, buffer: Any) -> None:
        """Go on with what is in the directory, or begin there."""
        goes_on = MANIFEST in self._disk.names_in(self.path)
        with buffer._lock:
            moment = Moment(buffer)
        self._counted = 0  # rows that were added before this buffer was made
        if goes_on:
            saved = SavedDirectory(self.path, self._disk)
            self._compare(saved.body, moment.body)
            fill_buffer(buffer, saved)
            self._state = Replacement.of(saved)
            buffer._end_episodes()  # the environment starts a new one
            self._table = buffer._table
            self._mapped = {chunk[0] for said in saved.body["frames"] for chunk in said["spans"]}
            self._memory.note(saved)
            added = saved.body.get("added")
            self._counted = added if type(added) is int and 0 <= added < 1 << 62 else 0
        else:
            self._disk.sync_folder(os.path.dirname(os.path.abspath(self.path)))
            moment.body["added"] = 0
            self._state = moment.save(self.path, self._disk, held=True)
        self._open_counter()
        if goes_on:
            self._say_what_is_lost(buffer, _NUMBER.unpack_from(self._counter)[0] - self._counted)
        self._counted -= buffer._table.appended
        self._count(buffer._table.appended)

    def _open_counter(self) -> None:
        self._counter = self._disk.open_counter(os.path.join(self.path, _COUNTER))

    def _say_what_is_lost(self, buffer: Any, lost: int) -> None:
        known = "nothing was lost" if lost == 0 else f"{_amount(lost, buffer)} that were added after them are lost"
        _log.warning(
            "%s goes on with the %s in %s; %s",
            type(buffer).__name__,
            _amount(buffer.size(), buffer),
            self.path,
            known if lost >= 0 else "how many rows were added after them and are lost is not known",
        )

    def _compare(self, there: Any, here: Any) -> None:
        """Refuse a ring of another form."""
        for part in ("class", "arguments", "options"):
            if there.get(part) == here[part]:
                continue
            are_dicts = isinstance(there.get(part), dict) and isinstance(here[part], dict)
            names = sorted(there[part].keys() | here[part].keys()) if are_dicts else []
            differ = [name for name in names if there[part].get(name) != here[part].get(name)]
            told = [
                ", ".join(f"{name}={_shown(body[part].get(name))}" for name in differ) if differ else _shown(body.get(part))
                for body in (there, here)
            ]
            raise ValueError(
                f"storage_dir {self.path} holds a ring of another form: {told[0]}, and this buffer has {told[1]}; use the "
                "same arguments, or another directory"
            )

    def flush(self, buffer: Any = None) -> None:
        """Bring the directory up to date, priorities included, and wait for that."""
        if os.getpid() == self._process:
            self._write(everything=True, buffer=buffer)
            self.raise_error()

    def close(self, buffer: Any = None) -> None:
        """Bring the directory up to date, and leave it to others."""
        if os.getpid() == self._process and not self._stops:
            self._is_closed = True
            try:
                self.flush(buffer)
            finally:
                self._stop()
            if buffer is not None:
                rows = _amount(buffer.size(), buffer)
                _log.info("The buffer with storage_dir %s was deleted; its %s are there", self.path, rows)

    def close_at_last(self, buffer: Any = None) -> None:
        """Close where an error cannot be raised: log it."""
        try:
            self.close(buffer)
        except Exception as error:
            _log.error("The newest rows are not in storage_dir %s: %s", self.path, error)

    def _stop(self) -> None:
        self._stops = True
        for event in (self._due, self._hurry, self._written):
            event.set()
        with self._writing:
            self._before = self._state = None
            self._release()

    def _release(self) -> None:
        lock, self._lock = self._lock, None
        if _WRITERS.get(self.path) == (self._process, self._buffer):
            del _WRITERS[self.path]
        if lock is not None:
            self._disk.close(lock)

    # -- while rows are added -----------------------------------------------------------------------------------------------

    def check_open(self) -> None:
        """Refuse to go on after ``close``, and raise what has gone wrong on the thread."""
        if self._is_closed:
            raise RuntimeError(
                f"this buffer was closed, so nothing that is added would be written to storage_dir {self.path}; make a buffer "
                "with the same arguments, which goes on with what is there"
            )
        self.raise_error()

    def raise_error(self) -> None:
        """Raise what has gone wrong on the thread, once; the buffer goes on, and the directory with the next chunk."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def wait_for_room(self, lock: Any) -> None:
        """
        Wait for the disk if it cannot keep up, as memory would fill with what is not written; called before a row is added.
        """
        while self._sealed - self._saved > _MOST_BEHIND and self._thread is not None and self._thread.is_alive():
            if self._error is not None or self._stops or os.getpid() != self._process or lock.is_mine():
                return
            self._written.clear()
            self._hurry.set()
            self._due.set()
            self._written.wait(0.1)

    def note_row(self, buffer: Any, row: int) -> None:
        """Have a state written if it is time to; called whenever a row was added."""
        if os.getpid() != self._process:
            return  # a child has the buffer, but not the ring
        self._count(buffer._table.appended)
        if row % BLOCK_ROWS == 0:
            sealed = _sealed_bytes(buffer)
            if sealed != self._sealed or (row % _PLAIN_ROWS == 0 and not _frame_columns(buffer)):
                self._sealed = sealed
                self._wake()
        if self._is_full:
            self._wake()

    def note_reset(self) -> None:
        """Have a state written, as all rows are gone."""
        if os.getpid() == self._process:
            self._wake()

    def note_read(self) -> None:
        """Look after the memory of what is mapped; called whenever a batch is read."""
        self._memory.note_read()

    def _count(self, appended: int) -> None:
        _NUMBER.pack_into(self._counter, 0, self._counted + appended)

    def _wake(self) -> None:
        if self._thread is None and not self._stops:
            given = weakref.ref(self), self._due, self._hurry
            self._thread = threading.Thread(target=_work, args=given, daemon=True, name="ring on disk")
            self._thread.start()
        if not self._due.is_set():
            self._due.set()

    def _write(self, everything: bool = False, buffer: Any = None) -> None:
        with self._writing:
            buffer = self._buffer() if buffer is None else buffer
            if buffer is None or self._stops:
                return
            try:
                self._check_directory()
                with buffer._lock:
                    if buffer._table is not self._table:  # a checkpoint was loaded
                        self._table, self._before, self._mapped = buffer._table, None, set()
                    columns = _frame_columns(buffer)
                    moment = Moment(buffer, before=None if everything else self._before)
                    sealed = _sealed_bytes(buffer)
                self._arrange_chunks(columns, moment)
                moment.body["added"] = self._counted + moment.appended
                state = moment.save(self.path, self._disk, self._state, held=True)
                self._before, self._state, self._saved = moment, state, sealed
                self._map_chunks(columns, moment, state)
                moment.frames = []  # or overwritten chunks would stay until the next one
            except BaseException as error:
                self._before = self._state = None  # the next state looks at what is there, which may be this one already
                if not isinstance(error, Exception):
                    raise
                self._error = error
            finally:
                buffer = None  # the error knows this frame
                self._written.set()

    def _check_directory(self) -> None:
        """Refuse to write to a directory that has taken the place of this one, and notice which files are gone."""
        folder = None
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            folder = self._disk.identity(self.path)
        if folder != self._folder:
            raise FileNotFoundError(
                f"storage_dir {self.path} was removed or replaced while a buffer wrote to it, so nothing more is written "
                "there; save() writes the buffer to another directory"
            )
        names = set(self._disk.names_in(self.path))
        if self._state is not None and self._state.forget_missing(names):
            self._before, self._mapped = None, set()
        if MANIFEST not in names and self._state is None:  # this is no ring any more, and becomes one again
            with contextlib.suppress(FileNotFoundError):
                self._disk.remove(os.path.join(self.path, _COUNTER))
        elif _COUNTER not in names:
            self._open_counter()

    def _arrange_chunks(self, columns: list[Any], moment: Moment) -> None:
        """Where chunks are going to be read from the disk, have those that are not there yet take few pages to be read."""
        if self._memory.holds(
            sum(len(chunk) for _, frozen in moment.frames for chunk in frozen.chunks if chunk is not frozen.open)
        ):
            return
        for frames, (_, frozen) in zip(columns, moment.frames, strict=True):
            arranged = {id(chunk): frames.arrange(chunk) for chunk in frozen.chunks if chunk is not frozen.open}
            frozen.spans = [(arranged.get(id(chunk), chunk), *rows) for chunk, *rows in frozen.spans]

    def _map_chunks(self, columns: list[Any], moment: Moment, state: Replacement) -> None:
        """Have the oldest chunks come from the directory, until the others take no more memory than they may."""
        saved = SavedDirectory.of(state)
        in_memory = []
        there: set[str] = set()
        for frames, (_, frozen), said in zip(columns, moment.frames, moment.body["frames"], strict=True):
            for (chunk, _, first, _), (name, *_) in zip(frozen.spans, said["spans"], strict=False):
                if chunk is not frozen.open and name not in there:
                    there.add(name)
                    if name not in self._mapped:
                        is_new = first < moment.pos  # rows from there on are of the last lap
                        in_memory.append((is_new, first, frames, chunk, name))
        self._mapped &= there
        own = sum(len(chunk) for *_, chunk, _ in in_memory)
        most = self._memory.most_of_own(own, bool(self._mapped))
        for *_, frames, chunk, name in sorted(in_memory, key=lambda one: one[:2]):
            if own <= most:
                break
            frames.exchange(chunk, Chunk(saved.read(name)))
            self._mapped.add(name)
            own -= len(chunk)
        self._memory.own = own
        self._memory.note(saved)


def _work(ring: weakref.ref[RingOnDisk], due: threading.Event, hurry: threading.Event) -> None:
    while True:
        due.wait()
        due.clear()
        this = ring()
        if this is None or this._stops:
            return
        begun = time.monotonic()
        this._write()
        rest = _SECONDS if this._is_full else min(_SECONDS, _REST * (time.monotonic() - begun))
        del this
        hurry.wait(rest)
        hurry.clear()


_WRITERS: dict[str, tuple[int, Any]] = {}
"""By directory: the process, and a weak reference to the buffer that writes there."""


@atexit.register
def _close_all() -> None:
    for _, buffer in list(_WRITERS.values()):
        if (ring := getattr(buffer(), "_ring", None)) is not None:
            ring.close_at_last()


def _frame_columns(buffer: Any) -> list[Any]:
    """The columns of a buffer as they are now: loading a checkpoint replaces them."""
    return [field.frames for field in buffer._fields if field.is_compressed]


def _sealed_bytes(buffer: Any) -> int:
    return sum(frames.sealed_bytes for frames in _frame_columns(buffer))


def _amount(rows: int, buffer: Any) -> str:
    return f"{rows} rows ({rows * buffer.n_envs} transitions)"


def _shown(value: Any) -> str:
    """What a file says, as people write it."""
    with contextlib.suppress(ValueError, TypeError, KeyError, AssertionError):
        value = make_space(value)
    text = str(value)
    return text if len(text) <= 200 else text[:197] + "..."
