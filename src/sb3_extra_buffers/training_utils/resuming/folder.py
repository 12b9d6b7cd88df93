"""
A folder of checkpoints, each in a folder of its own. One is complete once its manifest is there, which is written last.

Files that the checkpoint before has as well are the same files under another name (hard links), so keeping several of them
takes little more room than keeping one.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import weakref
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from sb3_extra_buffers.compressed.file_saving import Moment
from sb3_extra_buffers.storage import StorageError
from sb3_extra_buffers.storage._core import checksum
from sb3_extra_buffers.storage.disk import DISK, Disk, Handle, read_whole, write_all
from sb3_extra_buffers.storage.manifests import pack_manifest, unpack_manifest

MODEL, STATE, BUFFER = "model.zip", "state.json", "buffer.sb3x"
FORMAT = 1
"""Version of a checkpoint; the buffer in it has its own."""

MANIFEST, _NEW = "checkpoint.json", "checkpoint.new"
_NAME = re.compile(r"checkpoint-(\d{6,12})")
_MOST_BYTES = 1 << 40


class NewerFormatError(StorageError):
    """Another version has written this; it is not damaged."""


class Checkpoint(NamedTuple):
    """A checkpoint in a folder."""

    path: str
    number: int


def checkpoints_in(path: str, disk: Disk = DISK) -> list[Checkpoint]:
    """
    List the complete checkpoints of a folder.

    :param path: The folder
    :param disk: The disk that it is on
    :return: The newest one first
    """
    found = []
    for checkpoint in _all_in(path, disk):
        with contextlib.suppress(OSError):  # somebody is removing it, or it is no folder
            if MANIFEST in disk.names_in(checkpoint.path):
                found.append(checkpoint)
    return sorted(found, key=lambda checkpoint: -checkpoint.number)


def _all_in(path: str, disk: Disk) -> list[Checkpoint]:
    """Also those that were never finished."""
    try:
        names = disk.names_in(path)
    except (FileNotFoundError, NotADirectoryError):
        return []
    matches = [match for name in names if (match := _NAME.fullmatch(name))]
    return [Checkpoint(os.path.join(path, match[0]), int(match[1])) for match in matches]


@contextlib.contextmanager
def told_apart(where: str) -> Iterator[None]:
    """
    Tell what is damaged, or cannot be read at all, from what a newer version has written.

    :param where: What is being read
    """
    try:
        yield
    except OSError as error:
        raise StorageError(f"{where} cannot be read: {error}") from error
    except StorageError as error:
        if "install a newer one" in str(error):
            raise NewerFormatError(str(error)) from error
        raise


def read_manifest(checkpoint: Checkpoint, disk: Disk = DISK) -> dict[str, Any]:
    """
    Read what a checkpoint says of itself.

    :param checkpoint: The checkpoint
    :param disk: The disk that it is on
    :return: What it says
    """
    where = os.path.join(checkpoint.path, MANIFEST)
    with told_apart(where):
        said = unpack_manifest(read_whole(disk, where, 1 << 24), where)
    if said.get("checkpoint_format") != FORMAT:
        raise NewerFormatError(
            f"{where} was written by version {said.get('version')} of sb3-extra-buffers, in format "
            f"{said.get('checkpoint_format')}; this version reads format {FORMAT}: install a newer one"
        )
    return said


def read_file(checkpoint: Checkpoint, said: Mapping[str, Any], name: str, disk: Disk = DISK) -> bytes:
    """
    Read a file of a checkpoint, and check it.

    :param checkpoint: The checkpoint
    :param said: What its manifest says
    :param name: The name of the file
    :param disk: The disk that it is on
    :return: Its bytes
    """
    where = os.path.join(checkpoint.path, name)
    with told_apart(where):
        data = read_whole(disk, where, _MOST_BYTES)
    if said["files"].get(name) != [len(data), checksum(data)]:
        raise StorageError(f"{where} is damaged: its size or its checksum is wrong")
    return data


class CheckpointFolder:
    """
    A folder that checkpoints are written to, by one process at a time.

    :param path: The folder; it is made if it is not there
    :param keep: How many checkpoints to keep
    :param disk: The disk that it is on
    :param damaged: Checkpoints that cannot be read, as paths without links; they are not counted
    """

    def __init__(self, path: str, keep: int, disk: Disk = DISK, damaged: frozenset[str] = frozenset()) -> None:
        self.path, self.keep, self.disk, self._damaged = path, keep, disk, damaged
        self._lock: Handle | None = None
        self.is_open = False
        """Whether checkpoints may be written now."""
        self._writing = threading.Lock()
        _OPEN.add(self)

    def open(self) -> None:
        """Become the one that writes, and clear away what was never finished."""
        self._make_folders(os.path.abspath(self.path))
        for other in list(_OPEN):  # of a training in this process that has ended with an error, and was left behind
            if other.disk is self.disk and os.path.realpath(other.path) == os.path.realpath(self.path):
                other.close()
        try:
            self._lock = self.disk.lock(self.path)
            self.disk.names_in(self.path)
            self.is_open = True
            complete = {checkpoint.number for checkpoint in checkpoints_in(self.path, self.disk)}
            for checkpoint in _all_in(self.path, self.disk):
                if checkpoint.number not in complete:
                    with contextlib.suppress(NotADirectoryError):  # somebody's file
                        self._clear(checkpoint.path)
        except BaseException as error:
            self._leave()
            if isinstance(error, NotADirectoryError):
                raise FileExistsError(f"{self.path} is not a folder; checkpoints need one of their own") from None
            if isinstance(error, BlockingIOError):
                raise BlockingIOError(
                    f"another process writes checkpoints to {self.path}; stop it, or use another folder"
                ) from None
            raise

    def _make_folders(self, path: str) -> None:
        try:
            self.disk.make_folder(path)
        except FileExistsError:
            return
        except FileNotFoundError:
            self._make_folders(os.path.dirname(path))
            self.disk.make_folder(path)
        self.disk.sync_folder(os.path.dirname(path))

    def close(self) -> None:
        """Let others write, once this one is done with what it is writing."""
        with self._writing:
            self._leave()

    def _leave(self) -> None:
        self.is_open = False
        if self._lock is not None:
            self.disk.close(self._lock)
            self._lock = None

    def write(self, said: Mapping[str, Any], contents: Mapping[str, bytes], buffer: Moment | None) -> int:
        """
        Write one more checkpoint, and remove the oldest one if there are too many.

        :param said: What its manifest says
        :param contents: Its files, by name
        :param buffer: The buffer, if there is one
        :return: How many bytes were written
        """
        with self._writing:
            if not self.is_open:
                raise RuntimeError(f"another callback of this process has taken {self.path} over")
            return self._write(said, contents, buffer)

    def _write(self, said: Mapping[str, Any], contents: Mapping[str, bytes], buffer: Moment | None) -> int:
        before = next((checkpoint.path for checkpoint, is_good in self._checkpoints() if is_good), None)
        number = 1 + max([checkpoint.number for checkpoint in _all_in(self.path, self.disk)], default=0)
        path = os.path.join(self.path, f"checkpoint-{number:06d}")
        self.disk.make_folder(path)
        try:
            written = self._fill(path, said, contents, buffer, before)
        except BaseException:
            with contextlib.suppress(OSError):
                self._clear(path)
            raise
        with contextlib.suppress(OSError):  # one too many does no harm, and the next one tries again
            kept = 0
            for checkpoint, is_good in self._checkpoints():
                if kept == self.keep:
                    self._clear(checkpoint.path)
                else:
                    kept += is_good
        return written

    def _checkpoints(self) -> list[tuple[Checkpoint, bool]]:
        """Complete ones, the newest one first, and whether they can be read as far as is known."""
        found = checkpoints_in(self.path, self.disk)
        return [(checkpoint, os.path.realpath(checkpoint.path) not in self._damaged) for checkpoint in found]

    def _fill(
        self, path: str, said: Mapping[str, Any], contents: Mapping[str, bytes], buffer: Moment | None, before: str | None
    ) -> int:
        files = {name: [len(data), checksum(data)] for name, data in contents.items()}
        written = 0
        for name, data in contents.items():
            written += self._write_synced(os.path.join(path, name), data)
        if buffer is not None:
            place = os.path.join(path, BUFFER)
            if before is not None:
                self._link(os.path.join(before, BUFFER), place)
            written += buffer.save(place, self.disk).bytes_written
        manifest = pack_manifest({**said, "checkpoint_format": FORMAT, "files": files, "buffer": buffer is not None})
        written += self._write_synced(os.path.join(path, _NEW), manifest)
        # All that the manifest stands for has to be there before it is.
        self.disk.sync_folder(path)
        self.disk.sync_folder(self.path)
        self.disk.replace(os.path.join(path, _NEW), os.path.join(path, MANIFEST))
        self.disk.sync_folder(path)
        return written

    def _write_synced(self, path: str, data: bytes) -> int:
        handle = self.disk.create(path)
        try:
            write_all(self.disk, handle, data)
            self.disk.sync(handle)
        finally:
            self.disk.close(handle)
        return len(data)

    def _link(self, old: str, new: str) -> None:
        """Give the files of a saved buffer another name; where that cannot be done, all is written anew."""
        try:
            names = self.disk.names_in(old)
        except OSError:
            return
        self.disk.make_folder(new)
        try:
            for name in names:
                self.disk.link(os.path.join(old, name), os.path.join(new, name))
        except OSError:
            self._remove_files(new)

    def _clear(self, path: str) -> None:
        """Remove a checkpoint, or whatever there is of it; from the first moment on, it is none any more."""
        for name in (MANIFEST, _NEW):
            with contextlib.suppress(FileNotFoundError):
                self.disk.remove(os.path.join(path, name))
        self.disk.sync_folder(path)
        names = self.disk.names_in(path)
        if BUFFER in names:
            self._remove_files(os.path.join(path, BUFFER))
            names.remove(BUFFER)
        for name in names:
            self.disk.remove(os.path.join(path, name))
        self.disk.remove_folder(path)

    def _remove_files(self, path: str) -> None:
        for name in self.disk.names_in(path):
            self.disk.remove(os.path.join(path, name))
        self.disk.remove_folder(path)


_OPEN: weakref.WeakSet[CheckpointFolder] = weakref.WeakSet()


def _leave_locks_to_the_parent() -> None:
    for folder in list(_OPEN):
        folder._leave()


if hasattr(os, "register_at_fork"):
    # A child that lives longer than its parent would hold the lock, and nobody could go on with the run.
    os.register_at_fork(after_in_child=_leave_locks_to_the_parent)
