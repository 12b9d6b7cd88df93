"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def written_beside(path: str | os.PathLike[str]) -> Iterator[Path]:
    """
    Write a file beside its place; it takes its place when the context is left without an error, and else is removed.

    :param path: Where the file is to be
    :return: Where to write it; it ends with the same suffix
    """
    target = Path(path)
    if target.is_dir():
        raise IsADirectoryError(f"{target} is a folder; give the name of a file")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {target.parent}; create it first")
    beside = target.with_name(f".{target.stem[:100]}-{secrets.token_hex(6)}{target.suffix}")
    try:
        yield beside
        with open(beside, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(beside, target)
    finally:
        beside.unlink(missing_ok=True)
    _sync_folder(target.parent)


def _sync_folder(folder: Path) -> None:
    # So that the new name survives a power cut, too. Windows does not open folders, and needs no such thing.
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError:  # some network file systems do not sync folders
        pass
    finally:
        os.close(handle)
