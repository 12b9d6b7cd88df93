"""Every call that makes something durable, in one table: a simulated disk can stand in its place."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import stat
import weakref
from collections.abc import Callable
from typing import Any

from sb3_extra_buffers.storage._core import Mapping

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EBADF, errno.EINVAL, errno.ENOSYS}


class Handle:
    """
    An open file or folder, which is closed once nothing refers to it.

    Between two instructions there may be Ctrl-C. So a number is taken and noted in one call, and taken out and closed in one
    call: there is no instruction at which a file is open, and nothing knows its number.
    """

    def __init__(self) -> None:
        self._numbers: list[int] = []

    @classmethod
    def of(cls, path: str, flags: int) -> Handle:
        """Open a file."""
        handle = cls()
        handle.open(path, flags)
        return handle

    def open(self, path: str, flags: int) -> None:
        """Open a file."""
        self._numbers.extend(map(os.open, (path,), (flags,), (0o666,)))

    def fileno(self) -> int:
        """Tell what the system calls it."""
        return self._numbers[0]

    def close(self, close: Callable[[int], None] = os.close) -> None:
        """Close it, unless it is closed."""
        with contextlib.suppress(IndexError, AttributeError):  # it is closed, or was never made
            next(map(close, iter(self._numbers.pop, None)))

    __del__ = close


class Disk:
    """
    The file calls that durable things are made of. Names are paths.

    All of them raise ``OSError``, and none of them tries again.
    """

    def make_folder(self, path: str) -> None:
        """Make a folder in one that is there."""
        os.mkdir(path)

    def remove_folder(self, path: str) -> None:
        """Remove an empty folder."""
        os.rmdir(path)

    def identity(self, path: str) -> Any:
        """Tell a folder from one that takes its place later."""
        status = os.stat(path)
        return status.st_dev, status.st_ino

    def names_in(self, path: str) -> list[str]:
        """List a folder."""
        return os.listdir(path)

    def create(self, path: str) -> Handle:
        """Make a file where there is nothing, to be written."""
        return Handle.of(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FLAGS)

    def open(self, path: str) -> tuple[Handle, int]:
        """Open a file to be read. What is not a file, such as a link or a pipe, is refused."""
        handle = Handle.of(path, os.O_RDONLY | _FLAGS | getattr(os, "O_NONBLOCK", 0))
        status = os.fstat(handle.fileno())
        if not stat.S_ISREG(status.st_mode):
            handle.close()
            raise OSError(errno.EINVAL, "not a file", path)
        return handle, status.st_size

    def write(self, handle: Handle, data: Any) -> int:
        """Write some bytes."""
        return os.write(handle.fileno(), data)

    def read(self, handle: Handle, size: int) -> bytes:
        """Read some bytes."""
        return os.read(handle.fileno(), size)

    def map(self, handle: Handle, size: int) -> Any:
        """Map a file to memory."""
        return Mapping(handle.fileno(), size)

    def read_at(self, handle: Handle, offset: int, size: int) -> bytes:
        """Read some bytes from a place."""
        os.lseek(handle.fileno(), offset, os.SEEK_SET)
        return os.read(handle.fileno(), size)

    def open_counter(self, path: str) -> Any:
        """Have a number in a file that is there after the process has died, however that was. Nothing waits for the disk."""
        handle = Handle.of(path, os.O_RDWR | os.O_CREAT | _FLAGS)
        try:
            number = handle.fileno()
            status = os.fstat(number)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.EINVAL, "not a file", path)
            if status.st_size != 8:
                os.ftruncate(number, 0)
                os.write(number, b"\xff" * 8)
            return mmap.mmap(number, 8)
        finally:
            handle.close()

    def sync(self, handle: Handle) -> None:
        """Wait until all that was written to a file is on the disk."""
        if hasattr(fcntl, "F_FULLFSYNC"):  # macOS: fsync alone leaves it to the drive
            fcntl.fcntl(handle.fileno(), fcntl.F_FULLFSYNC)
        else:
            os.fsync(handle.fileno())

    def close(self, handle: Handle) -> None:
        """Close a file."""
        handle.close()

    def sync_folder(self, path: str) -> None:
        """Wait until the names in a folder are on the disk."""
        if os.name != "posix":
            return  # Windows does not open folders, and needs no such thing
        handle = Handle.of(path, os.O_RDONLY | _FOLDER_FLAGS)
        try:
            os.fsync(handle.fileno())
        except OSError as error:
            if error.errno != errno.EINVAL:  # some network file systems do not sync folders
                raise
        finally:
            handle.close()

    def replace(self, path: str, target: str) -> None:
        """Give a file another name, in place of what has that name."""
        os.replace(path, target)

    def link(self, path: str, other: str) -> None:
        """Give a file one more name."""
        os.link(path, other, follow_symlinks=False)

    def remove(self, path: str) -> None:
        """Remove a file."""
        os.unlink(path)

    def lock(self, path: str) -> Handle | None:
        """Be the only one to change a folder. A process that dies holds no lock."""
        if fcntl is None:
            return None
        handle = Handle()
        _locks.add(handle)
        try:
            handle.open(path, os.O_RDONLY | _FOLDER_FLAGS)
            fcntl.flock(handle.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            return handle
        except BaseException as error:  # a traceback would keep the handle
            handle.close()
            if isinstance(error, OSError) and error.errno in _NO_LOCKS:
                return None
            raise


_locks: weakref.WeakSet[Handle] = weakref.WeakSet()


def _leave_locks_to_parent() -> None:
    """In a forked child: a lock is held until the last handle of it is closed, and a child may outlive its parent."""
    for handle in list(_locks):
        with contextlib.suppress(OSError):
            handle.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_locks_to_parent)

_FLAGS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
_FOLDER_FLAGS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_DIRECTORY", 0)  # links to folders are followed

DISK = Disk()
"""The disk of this machine."""


def write_all(disk: Disk, handle: Handle, data: Any) -> None:
    """Write to a file, however little of it the system takes at a time."""
    rest = memoryview(data)
    while len(rest):
        with contextlib.suppress(InterruptedError):
            rest = rest[disk.write(handle, rest) :]


def folder_path(path: str | bytes | os.PathLike[Any]) -> str:
    """Take the path of a folder as the functions of ``os`` do."""
    name = os.fsdecode(path)
    if not name:
        raise ValueError("the path of the directory is empty; name one, such as 'buffer.sb3x'")
    return name


def read_whole(disk: Disk, path: str, most: int) -> bytes:
    """Read a file."""
    handle, size = disk.open(path)
    try:
        if size > most:
            raise OSError(errno.EFBIG, f"{size} bytes, but at most {most} are expected", path)
        return read_bytes(disk, handle, size)
    finally:
        disk.close(handle)


def read_bytes(disk: Disk, handle: Handle, size: int, offset: int | None = None) -> bytes:
    """Read from a file that is open."""
    parts: list[bytes] = []
    done = 0
    while done < size:
        try:
            rest = size - done
            part = disk.read(handle, rest) if offset is None else disk.read_at(handle, offset + done, rest)
        except InterruptedError:
            continue
        if not part:
            break
        parts.append(part)
        done += len(part)
    return b"".join(parts)
