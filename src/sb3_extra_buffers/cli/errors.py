"""What a command can end with, and mistakes that can be found before minutes are spent."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from sb3_extra_buffers._support import importable, install_hint

OK = 0
FAILED = 1
WRONG_USAGE = 2
INTERRUPTED = 130


class CommandError(Exception):
    """The command cannot go on; its message is all the user gets to see."""

    exit_code = FAILED


class UsageError(CommandError):
    """The user can fix it: an option, or something to install."""

    exit_code = WRONG_USAGE


def require_extra(modules: Iterable[str], purpose: str, extra: str = "extra") -> None:
    """Check that optional libraries are there before the work starts. `purpose` is what needs them."""
    # Really imported: OpenCV can be installed and still lack a system library.
    missing = [module for module in modules if not importable(module)]
    if missing:
        raise UsageError(f"{purpose} needs {', '.join(missing)}: {install_hint(extra)}")


def check_method(method: str | None) -> str:
    """Check a compression method."""
    import numpy as np

    from sb3_extra_buffers.storage.methods import make_spec

    try:
        return make_spec(method, np.uint8, np.uint16).method
    except (ValueError, ImportError) as error:
        raise UsageError(str(error)) from error


def check_folder(folder: Path) -> None:
    """Make a folder that can be written into."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot create the folder {folder}: {error.strerror}") from error
    if not os.access(folder, os.W_OK):
        raise UsageError(f"cannot write into {folder}")


def check_not_an_input(path: Path, inputs: Iterable[Path | None]) -> None:
    """Check that a file to write is none of those that are read, under whatever name or link."""
    for source in inputs:
        if source is not None and path.exists() and source.exists() and os.path.samefile(path, source):
            raise UsageError(f"{path} is {source} itself, which is read here and must not be overwritten: name another output")


def check_new_file(
    path: Path, suffixes: tuple[str, ...] = (), inputs: Iterable[Path | None] = (), replace: bool = False
) -> None:
    """Check that a file can be written, and that nothing is lost by it."""
    if suffixes and path.suffix.lower() not in suffixes:
        raise UsageError(f"{path} must end with {' or '.join(suffixes)}")
    if path.is_dir():
        raise UsageError(f"{path} is a folder; give the name of a file")
    if not path.parent.is_dir():
        raise UsageError(f"there is no folder {path.parent}; create it first")
    if not os.access(path.parent, os.W_OK):
        raise UsageError(f"cannot write into {path.parent}")
    check_not_an_input(path, inputs)
    if path.exists() and not replace:
        raise UsageError(f"{path} already exists; --force replaces it, or name another output")


def check_file(path: Path) -> None:
    """Check that a file is there."""
    if path.is_dir():
        raise UsageError(f"{path} is a folder; give the name of a file")
    if not path.exists():
        raise UsageError(f"{path} does not exist")
    if not os.access(path, os.R_OK):
        raise UsageError(f"cannot read {path}")
