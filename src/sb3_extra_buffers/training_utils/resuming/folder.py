"""
A folder of checkpoints, each in a folder of its own. One is complete once its manifest is there, which is written last.

Until then its manifest has another name, under which it is made first: a folder without either was not begun here, and is
never touched. Files that the checkpoint before has as well are the same files under another name (hard links), so keeping
several of them takes little more room than keeping one.
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
from sb3_extra_buffers.storage.errors import OtherFormatError
from sb3_extra_buffers.storage.manifests import NotAManifestError, pack_manifest, unpack_manifest

MODEL, STATE, BUFFER = "model.zip", "state.pkl", "buffer.sb3x"
FORMAT = 2
"""Version of a checkpoint; the buffer in it has its own."""

MANIFEST, _UNFINISHED = "checkpoint.json", "checkpoint.new"
_NAME = re.compile(r"checkpoint-(\d{6,12})")
_MOST_BYTES = 1 << 40


class Checkpoint(NamedTuple):
    """A checkpoint in a folder."""

    path: str
    number: int


def checkpoints_in(path: str, disk: Disk = DISK) -> list[Checkpoint]:
    """List the complete checkpoints of a folder, the newest one first."""
    found = []
    for checkpoint in _all_in(path, disk):
        with contextlib.suppress(OSError):  # another process is removing it, or it is no folder
            if MANIFEST in disk.names_in(checkpoint.path):
                found.append(checkpoint)
    return sorted(found, key=lambda checkpoint: -checkpoint.number)


def _all_in(path: str, disk: Disk) -> list[Checkpoint]:
    """Also those that were never finished, and whatever else has such a name."""
    try:
        names = disk.names_in(path)
    except (FileNotFoundError, NotADirectoryError):
        return []
    matches = [match for name in names if (match := _NAME.fullmatch(name))]
    return [Checkpoint(os.path.join(path, match[0]), int(match[1])) for match in matches]


@contextlib.contextmanager
def reading(where: str) -> Iterator[None]:
    """Files that cannot be read count as damaged."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"{where} cannot be read: {error}") from error


def read_manifest(checkpoint: Checkpoint, disk: Disk = DISK) -> dict[str, Any]:
    """Read the manifest of a checkpoint."""
    where = os.path.join(checkpoint.path, MANIFEST)
    with reading(where):
        manifest = unpack_manifest(read_whole(disk, where, 1 << 24), where)
    found = manifest.get("checkpoint_format")
    if found != FORMAT:
        is_old = isinstance(found, int) and found < FORMAT
        raise OtherFormatError(
            f"{where} was written by version {manifest.get('version')} of sb3-extra-buffers, in format {found}; this version "
            f"reads format {FORMAT}: "
            + ("go on with the version that wrote it, or start the run anew" if is_old else "install a newer one")
        )
    return manifest


def read_file(checkpoint: Checkpoint, manifest: Mapping[str, Any], name: str, disk: Disk = DISK) -> bytes:
    """Read a file of a checkpoint, and check it against the manifest."""
    where = os.path.join(checkpoint.path, name)
    with reading(where):
        data = read_whole(disk, where, _MOST_BYTES)
    if manifest["files"].get(name) != [len(data), checksum(data)]:
        raise StorageError(f"{where} is damaged: its size or its checksum is wrong")
    return data


class CheckpointFolder:
    """
    A folder that checkpoints are written to, by one process at a time; it is made if it is not there.

    ``damaged`` are checkpoints that cannot be read, as paths without links; they do not count as kept.
    """

    def __init__(self, path: str, keep: int, disk: Disk = DISK, damaged: frozenset[str] = frozenset()) -> None:
        self.path, self.keep, self.disk, self._damaged = path, keep, disk, damaged
        self._lock: Handle | None = None
        self._owner: int | None = None  # a process; a child of it holds no lock
        self._writing = threading.Lock()
        _FOLDERS.add(self)

    @property
    def is_open(self) -> bool:
        """Whether checkpoints may be written now."""
        return self._owner == os.getpid()

    def open(self) -> None:
        """Become the one that writes, and clear away what was begun and never finished."""
        self._make_folders(os.path.abspath(self.path))
        for other in list(_FOLDERS):  # of a training in this process that has ended with an error, and was left behind
            if other.disk is self.disk and os.path.realpath(other.path) == os.path.realpath(self.path):
                other.close()
        try:
            self._lock = self.disk.lock(self.path)
            self.disk.names_in(self.path)
            self._owner = os.getpid()
            for checkpoint in _all_in(self.path, self.disk):
                with contextlib.suppress(OSError):  # the next one tries again
                    names = self.disk.names_in(checkpoint.path)
                    if MANIFEST not in names and (_UNFINISHED in names or not names):
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
        self._owner = None
        if self._lock is not None:
            self.disk.close(self._lock)
            self._lock = None

    def write(self, manifest: Mapping[str, Any], contents: Mapping[str, bytes], buffer: Moment | None) -> int:
        """
        Write one more checkpoint, remove the oldest one if there are too many, and return how many bytes were written.

        ``manifest`` is what its manifest says besides, ``contents`` are its files by name.
        """
        with self._writing:
            if not self.is_open:
                raise RuntimeError(f"another callback of this process has taken {self.path} over")
            before = next((checkpoint.path for checkpoint, is_good in self._complete() if is_good), None)
            number = 1 + max([checkpoint.number for checkpoint in _all_in(self.path, self.disk)], default=0)
            path = os.path.join(self.path, f"checkpoint-{number:06d}")
            self.disk.make_folder(path)
            try:
                written = self._fill(path, manifest, contents, buffer, before)
            except BaseException:
                with contextlib.suppress(OSError):
                    self._clear(path)
                raise
            with contextlib.suppress(OSError):  # one too many does no harm, and the next one tries again
                self._remove_old()
            return written

    def _complete(self) -> list[tuple[Checkpoint, bool]]:
        """Complete ones, the newest one first, and whether they can be read as far as is known."""
        found = checkpoints_in(self.path, self.disk)
        return [(checkpoint, os.path.realpath(checkpoint.path) not in self._damaged) for checkpoint in found]

    def _remove_old(self) -> None:
        kept = 0
        for checkpoint, is_good in self._complete():
            if kept < self.keep:
                kept += is_good
                continue
            try:
                read_manifest(checkpoint, self.disk)
            except NotAManifestError:
                continue  # it is not ours
            except StorageError:
                pass
            with contextlib.suppress(OSError):  # something that is not ours is in it
                self._clear(checkpoint.path)

    def _fill(
        self, path: str, manifest: Mapping[str, Any], contents: Mapping[str, bytes], buffer: Moment | None, before: str | None
    ) -> int:
        unfinished = os.path.join(path, _UNFINISHED)
        handle = self.disk.create(unfinished)
        try:
            self.disk.sync_folder(path)  # whatever else will be here after a crash, it can be told that this is ours
            files = {name: [len(data), checksum(data)] for name, data in contents.items()}
            for name, data in contents.items():
                self._write_synced(os.path.join(path, name), data)
            written = sum(map(len, contents.values()))
            if buffer is not None:
                target = os.path.join(path, BUFFER)
                if before is not None:
                    self._link(os.path.join(before, BUFFER), target)
                written += buffer.save(target, self.disk).bytes_written
            packed = pack_manifest({**manifest, "checkpoint_format": FORMAT, "files": files, "buffer": buffer is not None})
            write_all(self.disk, handle, packed)
            self.disk.sync(handle)
        finally:
            self.disk.close(handle)
        # All that the manifest stands for has to be there before it is.
        self.disk.sync_folder(path)
        self.disk.sync_folder(self.path)
        self.disk.replace(unfinished, os.path.join(path, MANIFEST))
        self.disk.sync_folder(path)
        return written + len(packed)

    def _write_synced(self, path: str, data: bytes) -> None:
        handle = self.disk.create(path)
        try:
            write_all(self.disk, handle, data)
            self.disk.sync(handle)
        finally:
            self.disk.close(handle)

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
        """Remove a checkpoint of ours. It is unfinished before anything is removed, and until nothing else is left."""
        names, unfinished = self.disk.names_in(path), os.path.join(path, _UNFINISHED)
        if MANIFEST in names:
            self.disk.replace(os.path.join(path, MANIFEST), unfinished)
            self.disk.sync_folder(path)
        if BUFFER in names:
            self._remove_files(os.path.join(path, BUFFER))
        for name in {MODEL, STATE}.intersection(names):
            self.disk.remove(os.path.join(path, name))
        if names:
            self.disk.sync_folder(path)
            self.disk.remove(unfinished)
        self.disk.remove_folder(path)

    def _remove_files(self, path: str) -> None:
        for name in self.disk.names_in(path):
            self.disk.remove(os.path.join(path, name))
        self.disk.remove_folder(path)


_FOLDERS: weakref.WeakSet[CheckpointFolder] = weakref.WeakSet()
