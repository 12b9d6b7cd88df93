"""
A disk in memory that writes down every call, and rebuilds what a real one could hold after the power has failed.

Nothing is on the disk before it is synced. Until then each piece of a file, of 512 bytes or of 4 KB, may be there or not, or
be half there, in whatever order they were written; a file may have its new length or its old one; and each name that was made,
moved or removed since its folder was synced may be there or not. Renaming is one step, as POSIX has it.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Sequence
from typing import Any

from sb3_extra_buffers.storage.disk import Disk

Call = tuple[Any, ...]


class SimulatedDisk(Disk):
    """An empty disk with one folder, ``/``."""

    def __init__(self) -> None:
        self.files: list[bytearray] = []
        self.folders: dict[str, dict[str, int]] = {"/": {}}
        self.calls: list[Call] = []
        self._handles: dict[int, list[int]] = {}
        self._locked: set[str] = set()
        self._locks: dict[int, str] = {}
        self._last = 2
        self.before_call: Callable[[str], None] = lambda name: None

    # -- what changes something -------------------------------------------------------------------------------------------

    def make_folder(self, path: str) -> None:
        self.before_call("make_folder")
        if path in self.folders or self._find(path) is not None:
            raise FileExistsError(errno.EEXIST, "exists", path)
        if os.path.dirname(path) not in self.folders:
            raise FileNotFoundError(errno.ENOENT, "no such folder", path)
        self._do("make_folder", path)

    def remove_folder(self, path: str) -> None:
        self.before_call("remove_folder")
        if self.folders[path]:
            raise OSError(errno.ENOTEMPTY, "not empty", path)
        self._do("remove_folder", path)

    def create(self, path: str) -> int:
        self.before_call("create")
        if self._find(path) is not None:
            raise FileExistsError(errno.EEXIST, "exists", path)
        self._do("create", path, len(self.files))
        return self._handle(len(self.files) - 1)

    def write(self, handle: int, data: Any) -> int:
        self.before_call("write")
        file, at = self._handles[handle]
        self._do("write", file, at, bytes(data))
        self._handles[handle][1] += len(bytes(data))
        return len(bytes(data))

    def sync(self, handle: int) -> None:
        self.before_call("sync")
        self._do("sync", self._handles[handle][0])

    def sync_folder(self, path: str) -> None:
        self.before_call("sync_folder")
        self._do("sync_folder", path)

    def replace(self, path: str, target: str) -> None:
        self.before_call("replace")
        self._file(path)
        self._do("replace", path, target)

    def link(self, path: str, other: str) -> None:
        self.before_call("link")
        if self._find(other) is not None:
            raise FileExistsError(errno.EEXIST, "exists", other)
        self._file(path)
        self._do("link", path, other)

    def remove(self, path: str) -> None:
        self.before_call("remove")
        self._file(path)
        self._do("remove", path)

    # -- what does not ----------------------------------------------------------------------------------------------------

    def identity(self, path: str) -> Any:
        if path not in self.folders:
            raise FileNotFoundError(errno.ENOENT, "no such folder", path)
        return path

    def names_in(self, path: str) -> list[str]:
        self.before_call("names_in")
        if path not in self.folders:
            raise FileNotFoundError(errno.ENOENT, "no such folder", path)
        return list(self.folders[path])

    def open(self, path: str) -> tuple[int, int]:
        self.before_call("open")
        file = self._file(path)
        return self._handle(file), len(self.files[file])

    def read(self, handle: int, size: int) -> bytes:
        self.before_call("read")
        file, at = self._handles[handle]
        data = bytes(self.files[file][at : at + size])
        self._handles[handle][1] += len(data)
        return data

    def read_at(self, handle: int, offset: int, size: int) -> bytes:
        self.before_call("read")
        return bytes(self.files[self._handles[handle][0]][offset : offset + size])

    def open_counter(self, path: str) -> Any:
        return bytearray(b"\xff" * 8)

    def map(self, handle: int, size: int) -> Any:
        self.before_call("map")
        return bytes(self.files[self._handles[handle][0]][:size])

    def close(self, handle: int) -> None:
        self.before_call("close")
        self._handles.pop(handle, None)
        self._locked.discard(self._locks.pop(handle, ""))

    def lock(self, path: str) -> int | None:
        self.before_call("lock")
        if path in self._locked:
            raise BlockingIOError(errno.EAGAIN, "locked", path)
        handle = self._handle(-1)
        self._locks[handle] = path
        self._locked.add(path)
        return handle

    @property
    def open_handles(self) -> int:
        """How many files are still open."""
        return len(self._handles)

    def _handle(self, file: int) -> int:
        self._last += 1
        self._handles[self._last] = [file, 0]
        return self._last

    def _find(self, path: str) -> int | None:
        folder, name = os.path.split(path)
        return self.folders.get(folder, {}).get(name)

    def _file(self, path: str) -> int:
        file = self._find(path)
        if file is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        if file < 0:
            raise IsADirectoryError(errno.EISDIR, "a folder", path)
        return file

    def _do(self, *call: Any) -> None:
        self.calls.append(call)
        apply(call, self.files, self.folders)

    def content_of(self, path: str) -> bytes:
        """The bytes of a file."""
        return bytes(self.files[self._file(path)])

    def set_content(self, path: str, data: bytes) -> None:
        """Damage a file."""
        self.files[self._file(path)] = bytearray(data)

    def copy(self) -> SimulatedDisk:
        """The same disk, as another process finds it that nobody has disturbed."""
        other = SimulatedDisk()
        other.files = [bytearray(file) for file in self.files]
        other.folders = {path: dict(names) for path, names in self.folders.items()}
        return other


def apply(call: Call, files: list[bytearray], folders: dict[str, dict[str, int]]) -> None:
    """Have a call take place."""
    name, *given = call
    if name == "make_folder":
        name_again(call, folders)
    elif name == "remove_folder":
        name_again(call, folders)
        folders.pop(given[0], None)
    elif name == "create":
        files.append(bytearray())
        names_around(given[0], folders)[os.path.basename(given[0])] = given[1]
    elif name == "write":
        file, at, data = given
        files[file].extend(bytes(max(0, at + len(data) - len(files[file]))))
        files[file][at : at + len(data)] = data
    elif name in ("replace", "link", "remove"):
        move(call, folders)


def move(call: Call, folders: dict[str, dict[str, int]]) -> None:
    """Change names, where the file is there."""
    name, path, *target = call
    around = names_around(path, folders)
    file = around.get(os.path.basename(path))
    if file is None:
        return
    if name != "link":
        del around[os.path.basename(path)]
    if name != "remove":
        names_around(target[0], folders)[os.path.basename(target[0])] = file


def names_around(path: str, folders: dict[str, dict[str, int]]) -> dict[str, int]:
    return folders.setdefault(os.path.dirname(path), {})


def after_crash(calls: Sequence[Call], rng: random.Random) -> SimulatedDisk:
    """
    Rebuild what the disk could hold if the power had failed after these calls.

    :param calls: All calls up to then
    :param rng: Decides what of that was on the disk
    :return: The disk
    """
    durable: list[bytearray] = []
    waiting: list[list[tuple[int, bytes]]] = []
    folders: dict[str, dict[str, int]] = {"/": {}}
    moved: list[Call] = []
    keeps = rng.choice([0.0, 0.1, 0.5, 0.9, 1.0])
    for call in calls:
        name, *given = call
        if name == "create":
            durable.append(bytearray())
            waiting.append([])
        if name == "write":
            waiting[given[0]].append((given[1], given[2]))
        elif name == "sync":
            write_pieces(durable[given[0]], waiting[given[0]], lambda: True, rng)
            waiting[given[0]] = []
        elif name == "sync_folder":
            for earlier in [one for one in moved if touches(one, given[0])]:
                name_again(earlier, folders)
                moved.remove(earlier)
        else:
            moved.append(call)
    for pieces, file in zip(waiting, durable, strict=True):
        write_pieces(file, pieces, lambda: rng.random() < keeps, rng)
    for call in moved if rng.random() < 0.7 else rng.sample(moved, len(moved)):
        if rng.random() < keeps:
            name_again(call, folders)
    disk = SimulatedDisk()
    disk.files, disk.folders = (
        durable,
        {path: names for path, names in folders.items() if path == "/" or is_there(path, folders)},
    )
    return disk


def is_there(path: str, folders: dict[str, dict[str, int]]) -> bool:
    around = os.path.dirname(path)
    return os.path.basename(path) in folders.get(around, {}) and (around == "/" or is_there(around, folders))


def touches(call: Call, folder: str) -> bool:
    """Whether syncing a folder makes a change of names durable."""
    return any(os.path.dirname(path) == folder for path in call[1:] if isinstance(path, str))


def name_again(call: Call, folders: dict[str, dict[str, int]]) -> None:
    name, path, *rest = call
    if name == "make_folder":
        names_around(path, folders)[os.path.basename(path)] = -1
        folders.setdefault(path, {})
    elif name == "remove_folder":
        names_around(path, folders).pop(os.path.basename(path), None)
    elif name == "create":
        names_around(path, folders)[os.path.basename(path)] = rest[0]
    else:
        move(call, folders)


def write_pieces(file: bytearray, writes: Sequence[tuple[int, bytes]], keep: Callable[[], bool], rng: random.Random) -> None:
    """Write to a file what reaches it; of each piece all, nothing or a part."""
    size = max([len(file), *(at + len(data) for at, data in writes)])
    grows = keep()
    step = rng.choice([512, 4096])
    for at, data in writes:
        for first in range(0, len(data), step):
            if not keep():
                continue
            piece = data[first : first + step]
            if not keep():
                piece = piece[: rng.randrange(len(piece) + 1)]  # torn
            file.extend(bytes(max(0, at + first + len(piece) - len(file))))
            file[at + first : at + first + len(piece)] = piece
    if grows:
        file.extend(bytes(size - len(file)))
