"""``sb3-extra-buffers inspect``: what is in a recording, a saved buffer or a model, without running any code from it."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sb3_extra_buffers.cli.errors import FAILED, OK, WRONG_USAGE, CommandError, UsageError
from sb3_extra_buffers.cli.options import new_command

if TYPE_CHECKING:
    from sb3_extra_buffers.cli.inspect.text import Description

_MOST_LINES = 100
_LONGEST_MESSAGE = 500


def add_command(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command."""
    parser = new_command(
        commands,
        "inspect",
        "show what is in a recording, a saved buffer or a model, without running any code from it",
        "Show what is in a recording, in a buffer saved with save, save_replay_buffer or pickle, in a ring on disk, in the "
        "checkpoints of a run, in an npz file of transitions, or in a model saved by SB3. A pickle is a program that runs "
        "when it is loaded. Here it is only read: nothing it names is imported or called. Of a directory, every checksum is "
        "verified.",
        ["inspect play.rec", "inspect buffer.sb3x", "inspect replay_buffer.pkl", "inspect replay_buffer.pkl --json"],
        "The exit code is 1 if loading the file would or might run code that a saved buffer or model does not need, and 2 if "
        "the file cannot be read, or something in the directory is damaged.",
    )
    parser.add_argument(
        "file", type=Path, metavar="PATH", help="a recording, a saved buffer, a ring on disk, checkpoints or a model"
    )
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Find out what kind of file or directory it is, and describe it."""
    from sb3_extra_buffers.cli.inspect.text import as_json, printable

    path: Path = options.file
    try:
        found = _describe(path)
    except CommandError as error:  # it may quote the file, or its name
        raise type(error)(printable(str(error), _LONGEST_MESSAGE)) from error
    except OSError as error:
        raise UsageError(printable(f"cannot read {path}: {error.strerror}")) from error
    except Exception as error:  # a file that this does not expect, which is no reason to show a traceback
        message = f"{path} cannot be described ({type(error).__name__}: {error}); do not load it"
        raise UsageError(printable(message, _LONGEST_MESSAGE)) from error
    code = WRONG_USAGE if found.damage else FAILED if found.foreign else OK
    if options.json:
        facts = {"kind": found.kind, "file_bytes": path.stat().st_size, **found.facts, "foreign_code": found.foreign}
        print(as_json(facts | ({"damage": found.damage} if path.is_dir() else {})))
        return code
    print(f"{printable(str(path))}: {found.kind}")
    width = max(len(printable(title, 60)) for title, _ in found.lines[:_MOST_LINES])
    _print_list(found.lines, lambda line: f"{printable(line[0], 60):<{width}}  {printable(line[1])}")
    if found.foreign:
        print("\nDo not load this file unless you trust where it came from. Loading it would also run or use:")
        _print_list(found.foreign, printable)
    if found.damage:
        print("\nDamaged:")
        _print_list(found.damage, printable)
        print(f"What to do: {found.advice}.")
    return code


def _print_list(things: Sequence[Any], write: Callable[[Any], str]) -> None:
    for thing in things[:_MOST_LINES]:
        print(f"  {write(thing)}")
    if len(things) > _MOST_LINES:
        print(f"  and {len(things) - _MOST_LINES:,} more")


def _describe(path: Path) -> Description:
    from sb3_extra_buffers.cli.errors import check_file

    if path.is_dir():
        from sb3_extra_buffers.cli.inspect.directories import describe_directory

        return describe_directory(path)
    check_file(path)
    if not path.is_file():
        raise UsageError(f"{path} is no file that could hold anything; give the name of a recording, a buffer or a model")
    from sb3_extra_buffers.cli.inspect.files import describe_file

    return describe_file(path)
