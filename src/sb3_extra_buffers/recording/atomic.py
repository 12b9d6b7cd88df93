"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

_LONGEST_SUFFIX = 16  # bytes; whoever writes by the suffix knows none that is longer


@contextlib.contextmanager
def written_beside(path: str | os.PathLike[str]) -> Iterator[Path]:
    """
    Write a file beside its place; it takes its place when the context is left without an error, and else is removed.

    A file that is replaced keeps its mode, and a link still points at it. A new one gets the mode that ``open`` gives.

    :param path: Where the file is to be
    :return: Where to write it: an empty file that ends with the same suffix
    """
    target = Path(os.path.realpath(path))
    try:
        old = target.stat()
    except (FileNotFoundError, NotADirectoryError):
        old = None
    if old is not None and stat.S_ISDIR(old.st_mode):
        raise IsADirectoryError(f"{target} is a folder; give the name of a file")
    if old is not None and not stat.S_ISREG(old.st_mode):
        raise FileExistsError(f"{target} is a device or a pipe, which cannot be replaced; give the name of a file")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {target.parent}; create it first")
    # The name of the target may be as long as names can be.
    suffix = Path(path).suffix
    suffix = suffix if len(os.fsencode(suffix)) <= _LONGEST_SUFFIX else ""
    beside = target.with_name(f".sb3-extra-buffers-{secrets.token_hex(6)}{suffix}")
    try:
        # Nobody shall read in the new file what they could not read in the old one.
        os.close(os.open(beside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666 if old is None else 0o600))
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(target)) from error  # it is not about the name beside
    try:
        yield beside
        with open(beside, "rb+") as file:
            os.fsync(file.fileno())
        if old is not None:
            _make_alike(beside, old)
        os.replace(beside, target)
    finally:
        beside.unlink(missing_ok=True)
    if os.name == "posix":  # Windows does not open folders, and needs no such thing
        _sync_folder(target.parent)


def _make_alike(path: Path, old: os.stat_result) -> None:
    if os.name == "posix":
        new = path.stat()
        if (new.st_uid, new.st_gid) != (old.st_uid, old.st_gid):
            with contextlib.suppress(OSError):  # only root may give files away
                os.chown(path, old.st_uid, old.st_gid)
    path.chmod(stat.S_IMODE(old.st_mode))


def _sync_folder(folder: Path) -> None:
    # So that the new name survives a power cut, too. Some network file systems do not sync folders.
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
