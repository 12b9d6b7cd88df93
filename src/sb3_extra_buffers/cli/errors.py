"""What a command can end with, and the extras it may miss."""

from __future__ import annotations

import importlib
from collections.abc import Iterable

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
    """
    Check that optional libraries are there before the work starts.

    :param modules: Names to import
    :param purpose: Who needs them
    :param extra: The extra of this package that brings them
    """
    missing = []
    for module in modules:
        # Really imported: OpenCV can be installed and still lack a system library.
        try:
            importlib.import_module(module)
        except ImportError:
            missing.append(module)
    if missing:
        # Not above: `--help` imports no library at all.
        from sb3_extra_buffers.codecs._optional import install_hint

        raise UsageError(f"{purpose} needs {', '.join(missing)}: {install_hint(extra)}")
