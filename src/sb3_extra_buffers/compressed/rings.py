"""A ring on disk: a directory that follows a buffer, so that the buffer may be larger than memory and outlives the process."""

from __future__ import annotations

import atexit
import contextlib
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
from sb3_extra_buffers.storage.disk import DISK, Disk, folder_path
from sb3_extra_buffers.storage.manifests import MANIFEST

DURABILITIES = ("chunk", "full")

_COUNTER = "added.count"
_NUMBER = struct.Struct("<q")
_SECONDS = 1.0  # between two states with durability="full"
_PLAIN_ROWS = 512  # between two states where there are no chunks
_REST = 4  # times as long as writing a state takes, there is no other one
_MOST_BEHIND = 64 << 20  # bytes of full chunks that are not written yet, before adding has to wait

_log = logging.getLogger(__name__)


def tell_of_copy(path: Any) -> None:
    """
    Say that a copy of a ring on disk is in memory: ``load_replay_buffer`` puts one in the place of the ring.

    :param path: The ring's directory
    """
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

    :param buffer: The buffer, with all that its constructor makes
    :param path: The directory
    :param max_memory: Bytes of full chunks that may be in the memory of the process; None to have all of them mapped, and
        leave it to the system what stays
    :param durability: ``"chunk"``, or ``"full"`` for a state every second
    :param disk: The disk that it is on
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
        self._mapped: set[str] = set()
        self._before: Moment | None = None
        self._state: Replacement | None = None
        self._error: BaseException | None = None
        self._last = 0.0
        self._due, self._hurry, self._written = threading.Event(), threading.Event(), threading.Event()
        self._stops = False
        self._writing = threading.RLock()
        self._thread: threading.Thread | None = None
        self._lock = self._disk_lock()
        try:
            self._open(buffer)
            self._columns = [field.frames for field in buffer._fields if field.is_compressed]
            self._sealed = self._saved = self._count_sealed()
        except BaseException:
            self._release()
            raise
        self._end = weakref.finalize(buffer, self._stop)
        self._end.atexit = False
        atexit.register(_close, weakref.ref(self))

    # -- beginning and end --------------------------------------------------------------------------------------------------

    def _disk_lock(self) -> int | None:
        with contextlib.suppress(FileExistsError):
            self._disk.make_folder(self.path)
        try:
            return self._disk.lock(self.path)
        except NotADirectoryError:
            raise FileExistsError(f"storage_dir {self.path} is not a directory; name another one") from None
        except BlockingIOError:
            raise BlockingIOError(
                f"storage_dir {self.path} is in use by another buffer, which writes to it; close that, or name another one"
            ) from None

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
            self._mapped = {chunk[0] for said in saved.body["frames"] for chunk in said["spans"]}
            self._memory.note(saved)
            added = saved.body.get("added")
            self._counted = added if type(added) is int and 0 <= added < 1 << 62 else 0
        else:
            self._disk.sync_folder(os.path.dirname(os.path.abspath(self.path)))
            moment.body["added"] = 0
            self._state = moment.save(self.path, self._disk, held=True)
        self._counter = self._disk.open_counter(os.path.join(self.path, _COUNTER))
        if goes_on:
            self._say_what_is_lost(buffer, _NUMBER.unpack_from(self._counter)[0] - self._counted)
        self._counted -= buffer._table.appended
        self._count(buffer._table.appended)

    def _say_what_is_lost(self, buffer: Any, lost: int) -> None:
        known = "nothing was lost" if lost == 0 else f"{lost} rows that were added after them are lost"
        _log.warning(
            "%s goes on with the %d rows in %s; %s",
            type(buffer).__name__,
            buffer.size(),
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
        """
        Bring the directory up to date, priorities included, and wait for that.

        :param buffer: The buffer, where it is about to be deleted
        """
        if os.getpid() == self._process:
            self._write(everything=True, buffer=buffer)
            self.raise_error()

    def close(self, buffer: Any = None) -> None:
        """
        Bring the directory up to date, and leave it to others.

        :param buffer: The buffer, where it is about to be deleted
        """
        if os.getpid() == self._process and not self._stops:
            try:
                self.flush(buffer)
            finally:
                self._end()
            if buffer is not None:
                _log.info("The buffer with storage_dir %s was deleted; its %d rows are there", self.path, buffer.size())

    def _stop(self) -> None:
        self._stops = True
        if os.getpid() == self._process:
            for event in (self._due, self._hurry, self._written):
                event.set()
            with self._writing:
                self._release()

    def _release(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            self._disk.close(lock)

    # -- while rows are added -----------------------------------------------------------------------------------------------

    def raise_error(self) -> None:
        """Tell what has gone wrong on the thread, once; the buffer goes on, and the directory with the next chunk."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def wait_for_room(self, lock: Any) -> None:
        """
        Wait for the disk if it cannot keep up, as memory would fill with what is not written; called before a row is added.

        :param lock: That of the buffer; who holds it cannot wait, as writing needs it
        """
        while self._sealed - self._saved > _MOST_BEHIND and self._thread is not None and self._thread.is_alive():
            if self._error is not None or self._stops or os.getpid() != self._process or lock.is_mine():
                return
            self._written.clear()
            self._hurry.set()
            self._due.set()
            self._written.wait(0.1)

    def note_row(self, row: int, appended: int) -> None:
        """
        Have a state written if it is time to; called whenever a row was added.

        :param row: The row
        :param appended: How many rows have been added in all
        """
        if os.getpid() != self._process:
            return  # a child has the buffer, but not the ring
        self._count(appended)
        if row % (BLOCK_ROWS if self._columns else _PLAIN_ROWS) == 0:
            sealed = self._count_sealed()
            if sealed != self._sealed or not self._columns:
                self._sealed = sealed
                self._wake()
        if self._is_full and time.monotonic() - self._last >= _SECONDS:
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

    def _count_sealed(self) -> int:
        return sum(frames.sealed_bytes for frames in self._columns)

    def _wake(self) -> None:
        if self._thread is None and not self._stops:
            given = weakref.ref(self), self._due, self._hurry
            self._thread = threading.Thread(target=_work, args=given, daemon=True, name="ring on disk")
            self._thread.start()
        self._last = time.monotonic()
        self._due.set()

    def _write(self, everything: bool = False, buffer: Any = None) -> None:
        with self._writing:
            buffer = self._buffer() if buffer is None else buffer
            if buffer is None or self._stops:
                return
            try:
                with buffer._lock:
                    moment = Moment(buffer, before=None if everything else self._before)
                    sealed = self._count_sealed()
                self._arrange_chunks(moment)
                moment.body["added"] = self._counted + moment.appended
                state = moment.save(self.path, self._disk, self._state, held=True)
                self._before, self._state, self._saved = moment, state, sealed
                self._map_chunks(buffer, moment, state)
                moment.frames = []  # or overwritten chunks would stay until the next one
            except BaseException as error:
                self._before = self._state = None  # the next state looks at what is there, which may be this one already
                if not isinstance(error, Exception):
                    raise
                self._error = error
            finally:
                buffer = None  # the error knows this frame
                self._written.set()

    def _arrange_chunks(self, moment: Moment) -> None:
        """Where chunks are going to be read from the disk, have those that are not there yet take few pages to be read."""
        if self._memory.holds(sum(len(chunk) for _, frozen in moment.frames for chunk in frozen.chunks if chunk is not frozen.open)):
            return
        for frames, (_, frozen) in zip(self._columns, moment.frames, strict=True):
            arranged = {id(chunk): frames.arrange(chunk) for chunk in frozen.chunks if chunk is not frozen.open}
            frozen.spans = [(arranged.get(id(chunk), chunk), *rows) for chunk, *rows in frozen.spans]

    def _map_chunks(self, buffer: Any, moment: Moment, state: Replacement) -> None:
        """Have the oldest chunks come from the directory, until the others take no more memory than they may."""
        saved = SavedDirectory.of(state)
        in_memory = []
        there: set[str] = set()
        for frames, (_, frozen), said in zip(self._columns, moment.frames, moment.body["frames"], strict=True):
            for (chunk, _, first, _), (name, *_) in zip(frozen.spans, said["spans"], strict=False):
                if chunk is not frozen.open and name not in there:
                    there.add(name)
                    if name not in self._mapped:
                        in_memory.append((first < moment.pos, first, frames, chunk, name))  # rows from there on are of the last lap
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
        del this
        hurry.wait(min(_SECONDS, _REST * (time.monotonic() - begun)))
        hurry.clear()


def _close(ring: weakref.ref[RingOnDisk]) -> None:
    this = ring()
    if this is not None:
        this.close()


def _shown(value: Any) -> str:
    """What a file says, as people write it."""
    with contextlib.suppress(ValueError, TypeError, KeyError, AssertionError):
        value = make_space(value)
    text = str(value)
    return text if len(text) <= 200 else text[:197] + "..."
