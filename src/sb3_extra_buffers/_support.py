"""Small helpers that several packages need. The lowest layer: it imports nothing of this package."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import secrets
import stat
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

_LONGEST_SUFFIX = 16  # bytes; writers that choose a format by the suffix know none that is longer
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def parse_bytes(text: str) -> int:
    """
    Read an amount of memory: ``"2GB"`` is 2 * 10^9 bytes, ``"2GiB"`` is 2 * 2^30. Also ``"500 MB"``, ``"1.5G"`` or ``"100"``.

    Raises ``ValueError`` for anything else.
    """
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([kmgt]i?)?b?\s*", text.lower())
    if match is None:
        raise ValueError(f"{text!r} is not an amount of memory; write something like 500MB, 4GB or 1.5GiB")
    return int(float(match[1]) * _UNITS[match[2] or ""])


def install_hint(extra: str) -> str:
    """
    Say how to install an extra of this package.

    From a clone, never by our name: the package that has it on PyPI is another one, and pip would fetch that.
    """
    return f'pip install ".[{extra}]" in a clone of the sb3-extra-buffers repository'


def need(module: str, extra: str, purpose: str) -> Any:
    """Import an optional library, or raise an ``ImportError`` that names the extra which brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"{purpose} needs {module.partition('.')[0]}: {install_hint(extra)}") from error


def with_progress(steps: Iterable[T], total: int, title: str, unit: str, show: bool) -> Iterator[T]:
    """Go through ``steps`` with a progress bar on standard error, if that is a terminal and tqdm is installed."""
    if show and sys.stderr.isatty():
        with contextlib.suppress(ImportError):
            from tqdm import tqdm

            steps = tqdm(steps, total=total, desc=title, unit=unit)
    return iter(steps)


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[Path]:
    """
    Yield an empty temporary file beside ``path``, with the same suffix. It replaces ``path`` if the context ends without an
    error, and is removed otherwise.

    A file that is replaced keeps its mode and owner, and a link still points at it. A new file gets the mode that ``open``
    gives.
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
    # Not made from the name of the target, which may be as long as names can be.
    suffix = Path(path).suffix
    suffix = suffix if len(os.fsencode(suffix)) <= _LONGEST_SUFFIX else ""
    beside = target.with_name(f".sb3-extra-buffers-{secrets.token_hex(6)}{suffix}")
    try:
        # Never more readable than the file that it replaces.
        os.close(os.open(beside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666 if old is None else 0o600))
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(target)) from error  # not about the temporary name
    try:
        yield beside
        with open(beside, "rb+") as file:  # Windows syncs only what is open for writing
            os.fsync(file.fileno())
        if old is not None:
            _copy_owner_and_mode(old, beside)
        os.replace(beside, target)
    finally:
        beside.unlink(missing_ok=True)
    if os.name == "posix":  # Windows does not open folders
        _sync_folder(target.parent)


def _copy_owner_and_mode(old: os.stat_result, path: Path) -> None:
    if os.name == "posix":
        new = path.stat()
        if (new.st_uid, new.st_gid) != (old.st_uid, old.st_gid):
            with contextlib.suppress(OSError):  # only root may give files away
                os.chown(path, old.st_uid, old.st_gid)
    path.chmod(stat.S_IMODE(old.st_mode))


def _sync_folder(folder: Path) -> None:
    # So that the new name survives a power cut. Some network file systems do not sync folders.
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
