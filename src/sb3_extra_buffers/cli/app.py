"""The parser with its commands, and what happens to their errors."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from sb3_extra_buffers import __version__
from sb3_extra_buffers.cli import demo
from sb3_extra_buffers.cli.errors import INTERRUPTED, WRONG_USAGE, CommandError

PROGRAM = "sb3-extra-buffers"

# A command is a module with `add_command`; it sets `run`, which takes the options and returns the exit code.
COMMANDS = (demo,)


def build_parser() -> argparse.ArgumentParser:
    """
    Build the parser of the whole command line.

    :return: The parser
    """
    parser = argparse.ArgumentParser(
        prog=PROGRAM, description="Stable-Baselines3 buffers that keep observations losslessly compressed."
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for command in COMMANDS:
        command.add_command(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """
    Run the command line.

    :param argv: Arguments without the program's name; those of the process by default
    :return: Exit code: 0 all is well, 1 a comparison failed, 2 wrong usage or a missing library, 130 interrupted
    """
    parser = build_parser()
    options = parser.parse_args(argv)
    if "run" not in options:
        parser.print_help(sys.stderr)
        return WRONG_USAGE
    try:
        code: int = options.run(options)
        return code
    except CommandError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(f"{PROGRAM}: interrupted", file=sys.stderr)
        return INTERRUPTED
