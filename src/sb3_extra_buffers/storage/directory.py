"""A directory that is replaced as a whole: files that never change, and a manifest that says which of them count."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from sb3_extra_buffers.storage._core import checksum
from sb3_extra_buffers.storage.disk import DISK, Disk, read_bytes, read_whole, write_whole
from sb3_extra_buffers.storage.errors import StorageError

FORMAT = 1
"""Version of the directory; chunks have their own."""
MANIFEST = "manifest.json"

_MAGIC = "sb3-extra-buffers"
_NEW, _OLD = "manifest.new", "manifest.old"
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,99}\.(chunk|rows|infos)")
_END = re.compile(rb',"checksum":"([0-9a-f]{8})"\}\n')
_END_BYTES = len(b',"checksum":"00000000"}\n')
_MOST_MANIFEST = 1 << 28
_HANDLES = 64  # files that wait to be synced


class SavedFile(NamedTuple):
    """What a manifest says of a file."""

    size: int
    sum: int


class DamagedFileError(StorageError):
    """A file is not what its manifest says."""


def pack_manifest(body: Mapping[str, Any]) -> bytes:
    """
    Write a manifest.

    :param body: What it says, as JSON can hold it
    :return: JSON, whose last member is the checksum of all before it
    """
    said = {"magic": _MAGIC, "format": FORMAT, **body}
    text = json.dumps(said, separators=(",", ":"), allow_nan=False).encode()[:-1]
    return text + b',"checksum":"%08x"}\n' % checksum(text)


def unpack_manifest(data: bytes, where: str) -> dict[str, Any]:
    """
    Read a manifest.

    :param data: Its bytes
    :param where: Where they are from, for the message
    :return: What it says; magic, version and checksum are right, the rest may be anything
    """
    if b'"magic":"%s"' % _MAGIC.encode() not in data[:64]:
        raise StorageError(f"{where} is not the manifest of a saved buffer, or is damaged; load another copy of the directory")
    end = _END.fullmatch(data[-_END_BYTES:])
    if end is None or int(end[1], 16) != checksum(data[:-_END_BYTES]):
        raise StorageError(f"{where} is damaged: its checksum is wrong; load another copy of the directory")
    try:
        said: Any = json.loads(data, object_pairs_hook=_each_once, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise StorageError(f"{where} is damaged: {error}; load another copy of the directory") from error
    if said.get("format") != FORMAT:
        raise StorageError(
            f"{where} was written by version {said.get('version')} of sb3-extra-buffers, in format {said.get('format')}; this "
            f"version reads format {FORMAT}: install a newer one"
        )
    return dict(said)


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name is there twice")
    return found


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number")


class SavedDirectory:
    """
    A directory that was saved, to be read.

    :param path: The directory
    :param disk: The disk that it is on
    """

    def __init__(self, path: str | os.PathLike[str], disk: Disk = DISK) -> None:
        self.path, self.disk = os.fspath(path), disk
        where = os.path.join(self.path, MANIFEST)
        try:
            data = read_whole(disk, where, _MOST_MANIFEST)
        except NotADirectoryError:
            raise StorageError(
                f"{self.path} is a file, and save() makes a directory; what save_replay_buffer() or pickle has written is "
                "loaded by load_replay_buffer() or pickle"
            ) from None
        except FileNotFoundError:
            try:
                disk.names_in(self.path)
            except FileNotFoundError:
                raise FileNotFoundError(f"there is no directory {self.path}; nothing was saved there") from None
            raise StorageError(
                f"{self.path} has no {MANIFEST}: it is not a saved buffer, or the first save to it was never finished"
            ) from None
        self.body = unpack_manifest(data, where)
        self.files = _check_files(self.body.get("files"), where)
        self._data = data

    def has_changed(self) -> bool:
        """
        Find out whether another state has been saved since this one was opened.

        :return: Whether there is another manifest
        """
        try:
            return read_whole(self.disk, os.path.join(self.path, MANIFEST), _MOST_MANIFEST) != self._data
        except OSError:
            return True

    def map(self, name: Any) -> Any:
        """
        Map a file to memory, and check it.

        :param name: Its name
        :return: Read-only memory
        """
        return self._checked(name, maps=True)

    def read(self, name: Any) -> bytes:
        """
        Read a file, and check it.

        :param name: Its name
        :return: Its bytes
        """
        data: bytes = self._checked(name, maps=False)
        return data

    def _checked(self, name: Any, maps: bool) -> Any:
        said = self.files.get(name) if isinstance(name, str) else None
        if said is None:
            raise StorageError(f"{self.path} is damaged: its {MANIFEST} does not list {name!r}; load another copy")
        path = os.path.join(self.path, name)
        try:
            data = self._bytes_of(path, said.size, maps)
        except FileNotFoundError:
            raise DamagedFileError(f"{path} is missing; {_REPAIR}") from None
        except OSError as error:
            raise DamagedFileError(f"{path} cannot be read ({error.strerror or error}); {_REPAIR}") from error
        if checksum(data) != said.sum:
            raise DamagedFileError(f"{path} is damaged: its checksum is wrong; {_REPAIR}")
        return data

    def _bytes_of(self, path: str, wanted: int, maps: bool) -> Any:
        handle, size = self.disk.open(path)
        try:
            if size != wanted:
                raise DamagedFileError(f"{path} has {size} bytes, and {wanted} were saved; {_REPAIR}")
            if maps and size:
                with contextlib.suppress(OSError):  # there may be no mappings here, or too many
                    return self.disk.map(handle, size)
            return read_bytes(self.disk, handle, size)
        finally:
            self.disk.close(handle)


_REPAIR = "load another copy of the directory, or load this one with repair=True, which leaves out what is damaged"


def _check_files(said: Any, where: str) -> dict[str, SavedFile]:
    """Names lead nowhere but into the directory, and numbers are numbers."""
    if not isinstance(said, dict):
        raise StorageError(f"{where} is damaged: it lists no files; load another copy of the directory")
    found = {}
    for name, numbers in said.items():
        right = _NAME.fullmatch(name) and isinstance(numbers, list) and [type(number) for number in numbers] == [int, int]
        if not right or not (0 <= numbers[0] < 1 << 62 and 0 <= numbers[1] < 1 << 32):
            raise StorageError(f"{where} is damaged: {name!r} is no file that was saved; load another copy of the directory")
        found[name] = SavedFile(*numbers)
    return found


class Replacement:
    """
    A new state of a directory, on its way. The old one counts until ``commit``, and after a failure.

    Files are written and synced before the manifest that names them, and the manifest before it takes the place of the old
    one; what no manifest names any more is removed after that. So whenever a process or a machine stops, one of the two states
    is there. A file that the old state has under the same name is the same, and is not written again.

    :param path: The directory; it is made if it is not there
    :param disk: The disk that it is on
    """

    def __init__(self, path: str | os.PathLike[str], disk: Disk = DISK) -> None:
        self.path, self.disk = os.fspath(path), disk
        self.bytes_written = 0
        """How many bytes were new."""
        self.on_put: Callable[[int], Any] = lambda size: None
        """Called with the bytes of each file that is in the new state."""
        self._files: dict[str, SavedFile] = {}
        self._old: dict[str, SavedFile] = {}
        self._has_old = self._made_folder = self._replacing = False
        self._written: list[str] = []
        self._unsynced: list[int] = []
        self._lock: int | None = None

    def __enter__(self) -> Replacement:
        try:
            self._open()
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return self

    def _open(self) -> None:
        try:
            self.disk.make_folder(self.path)
            self._made_folder = True
        except FileExistsError:
            pass
        try:
            self._lock = self.disk.lock(self.path)
        except NotADirectoryError:
            raise FileExistsError(f"{self.path} is not a directory; save to another path") from None
        except BlockingIOError:
            raise BlockingIOError(f"{self.path} is being written by another process or thread; wait for it") from None
        names = self.disk.names_in(self.path)
        self._has_old = MANIFEST in names
        if self._has_old:
            self._old = self._known_files(names)
        elif strange := sorted(name for name in names if not _is_ours(name)):
            raise FileExistsError(
                f"{self.path} is not a saved buffer, and holds {strange[0]!r}; save to another path, or to an empty directory"
            )
        self._there = set(names)

    def _known_files(self, names: Iterable[str]) -> dict[str, SavedFile]:
        """Files of the old state; none where it is damaged, as nothing of it can be trusted then."""
        where = os.path.join(self.path, MANIFEST)
        try:
            data = read_whole(self.disk, where, _MOST_MANIFEST)
            old = _check_files(unpack_manifest(data, where).get("files"), where)
        except StorageError as error:
            if "install a newer one" in str(error):
                raise
            return {}
        return {name: old[name] for name in names if name in old}

    def put(self, name: str, data: Any) -> str:
        """
        Have a file in the new state.

        :param name: Its name, which no other content ever has
        :param data: Its bytes
        :return: Its name
        """
        size = memoryview(data).nbytes
        self.on_put(size)
        if name in self._files:
            return name
        if name in self._old and self._old[name].size == size == self._size_of(name):
            self._files[name] = self._old[name]
            return name
        path = os.path.join(self.path, name)
        if name in self._there:  # left behind by a save that was cut short, or damaged
            self.disk.remove(path)
        self._unsynced.append(write_whole(self.disk, path, [data]))
        self._written.append(name)
        self._files[name] = SavedFile(size, checksum(data))
        self.bytes_written += size
        if len(self._unsynced) == _HANDLES:
            self._sync_files()
        return name

    def _size_of(self, name: str) -> int:
        try:
            handle, size = self.disk.open(os.path.join(self.path, name))
        except OSError:
            return -1
        self.disk.close(handle)
        return size

    def _sync_files(self) -> None:
        while self._unsynced:
            self.disk.sync(self._unsynced[-1])
            self.disk.close(self._unsynced.pop())

    def commit(self, body: Mapping[str, Any]) -> None:
        """
        Make this the state of the directory.

        :param body: What the manifest says, besides the files
        """
        new, old, manifest = (os.path.join(self.path, name) for name in (_NEW, _OLD, MANIFEST))
        data = pack_manifest({**body, "files": self._files})
        self._sync_files()
        for name in {_NEW, _OLD} & self._there:
            self.disk.remove(os.path.join(self.path, name))
        self._written.append(_NEW)
        self._unsynced.append(write_whole(self.disk, new, [data]))
        self.bytes_written += len(data)
        self._sync_files()
        if self._made_folder:
            self.disk.sync_folder(os.path.dirname(os.path.abspath(self.path)))
        if self._has_old:
            with contextlib.suppress(OSError):  # where there are no links, the old state cannot be put back below
                self.disk.link(manifest, old)
        self.disk.sync_folder(self.path)
        self._replacing = True
        self.disk.replace(new, manifest)
        self.disk.sync_folder(self.path)
        self._replacing = self._made_folder = False
        self._written = []
        self._remove([name for name in self.disk.names_in(self.path) if _is_ours(name) and name not in self._files])

    def __exit__(self, kind: Any, error: BaseException | None, _: Any) -> None:
        for handle in self._unsynced:
            with contextlib.suppress(OSError):
                self.disk.close(handle)
        if self._replacing:
            # Nobody knows which manifest is on the disk, so the files of both stay. What can be seen is the old one.
            with contextlib.suppress(OSError):
                if self._has_old:
                    self.disk.replace(os.path.join(self.path, _OLD), os.path.join(self.path, MANIFEST))
                else:
                    self.disk.remove(os.path.join(self.path, MANIFEST))
        elif error is not None:
            self._remove([*self._written, *([_OLD] if self._written[-1:] == [_NEW] else [])])
            if self._made_folder:
                with contextlib.suppress(OSError):
                    self.disk.remove_folder(self.path)
        if self._lock is not None:
            self.disk.close(self._lock)
            self._lock = None
        if isinstance(error, OSError) and error.errno is not None:
            stays = "what was saved there before is still there" if self._has_old else "nothing was left behind"
            raise OSError(error.errno, f"saving failed: {error.strerror}; {stays}", self.path) from error

    def _remove(self, names: Iterable[str]) -> None:
        for name in names:
            with contextlib.suppress(OSError):
                self.disk.remove(os.path.join(self.path, name))


def _is_ours(name: str) -> bool:
    """Whether a file is one that a save may have left behind."""
    return name in (_NEW, _OLD) or _NAME.fullmatch(name) is not None
