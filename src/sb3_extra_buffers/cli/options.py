"""What the options of all commands have in common: kinds of values, and help with examples."""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, NoReturn

from sb3_extra_buffers._support import nearest, parse_bytes

PROGRAM = "sb3-extra-buffers"

LEVELS = "a level follows the name: zstd/3 or zstd3 is level 3, but zstd-3 is level -3"
"""What help says about the names of methods."""


def invocation() -> str:
    """Tell how the program can be started again: its name need not be on the path."""
    if shutil.which(PROGRAM) is not None:
        return PROGRAM
    started = Path(sys.argv[0])
    return str(started) if started.name == PROGRAM else "python -m sb3_extra_buffers"


def whole_number(least: int, most: int | None = None) -> Callable[[str], int]:
    """Make a type of option."""

    def parse(text: str) -> int:
        try:
            value = int(text.replace(",", "").replace("_", ""))
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if value < least or (most is not None and value > most):
            limits = f"at least {least}" if most is None else f"from {least} to {most}"
            raise argparse.ArgumentTypeError(f"must be {limits}, not {value}")
        return value

    return parse


def byte_count(text: str) -> int:
    """Parse an amount of memory."""
    try:
        count = parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if count == 0:
        raise argparse.ArgumentTypeError("must be more than nothing; write something like 500MB, 4GB or 1.5GiB")
    return count


def times_as_long(text: str) -> float:
    """Parse a factor of time."""
    try:
        value = float(text.lower().removesuffix("x"))
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a factor; write 1.5, say, for at most 1.5 times SB3's time")
    return value


class Parser(argparse.ArgumentParser):
    """Suggests what may have been meant."""

    _given: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse; what is not known is an error of this command, not of the program as a whole."""
        # A list of numbers from the end, such as -1,2, is no option either.
        self._negative_number_matcher = re.compile(r"^-(\d+|\d*\.\d+|\d+(,-?\d+)+)$")
        self._given = list(sys.argv[1:] if args is None else args)
        options, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return options, unknown

    def error(self, message: str) -> NoReturn:
        """End with an error, and suggest options in place of those that do not exist."""
        known = self._option_string_actions
        # What follows a command is its own business, and what follows "--" are no options.
        ours = takewhile(lambda word: word != "--" and (self._subparsers is None or word.startswith("-")), self._given)
        for word in (word.partition("=")[0] for word in ours if word.startswith("--")):
            if not any(option.startswith(word) for option in known):
                message += _did_you_mean(word, known)
        super().error(message)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            error.message += _did_you_mean(str(value), map(str, action.choices or ()))
            raise


def _did_you_mean(word: str, known: Iterable[str]) -> str:
    meant = nearest(word, known)
    return f"; did you mean {meant[0]} instead of {word}?" if meant else ""


class HelpFormatter(argparse.HelpFormatter):
    """Wraps text, but leaves examples as they are; names the defaults that say something."""

    def __init__(self, prog: str, **options: Any) -> None:
        super().__init__(prog, **{"max_help_position": 28, **options})
        self._action_max_length = 14  # argparse forgets that commands are indented, and would break the line after a long one

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        parts = []
        for part in text.split("\n\n"):
            as_it_is = part.startswith("  ") or "\n  " in part
            parts.append(part if as_it_is else super()._fill_text(part, width, indent))
        return "\n\n".join(parts)

    def _get_help_string(self, action: argparse.Action) -> str | None:
        text = action.help
        silent = action.default is None or action.default is False or action.default == argparse.SUPPRESS
        is_named = silent or not action.option_strings or "default" in (text or "")
        return text if is_named or text is None else f"{text} (default: %(default)s)"


def new_command(
    commands: argparse._SubParsersAction[Any],
    name: str,
    summary: str,
    description: str,
    examples: Sequence[str],
    ending: str = "",
) -> argparse.ArgumentParser:
    """Add a command."""
    lines = "\n".join(f"  {PROGRAM} {example}" for example in examples)
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=description,
        epilog="\n\n".join(filter(None, [f"examples:\n{lines}", ending])),
        formatter_class=HelpFormatter,
    )
    return parser
