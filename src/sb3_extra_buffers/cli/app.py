"""The parser with its commands, and what happens to their errors."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from sb3_extra_buffers import __version__
from sb3_extra_buffers.cli import bench, completion, convert, demo, export, inspect, recommend, record, view
from sb3_extra_buffers.cli.errors import FAILED, INTERRUPTED, WRONG_USAGE, CommandError
from sb3_extra_buffers.cli.options import PROGRAM, HelpFormatter, Parser

# A command is a module with `add_command`; it sets `run`, which takes the options and returns the exit code.
COMMANDS = (demo, bench, recommend, record, export, view, convert, inspect, completion)

_EPILOG = f"""examples:
  {PROGRAM} demo
  {PROGRAM} recommend MsPacman
  {PROGRAM} record Pong
  {PROGRAM} view Pong.rec

exit codes:
  0    all is well
  1    a comparison failed, nothing fits the budget, or a file is suspicious
  2    what you can fix: an option, a name, a file, or something that has to be installed first
  130  interrupted by Ctrl-C; files are written whole or not at all

`{PROGRAM} COMMAND --help` explains a command."""


def build_parser() -> argparse.ArgumentParser:
    """Build the parser of the whole command line."""
    parser = Parser(
        prog=PROGRAM,
        description="Stable-Baselines3 buffers that keep observations losslessly compressed.",
        epilog=_EPILOG,
        formatter_class=HelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for command in COMMANDS:
        command.add_command(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
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
    except BrokenPipeError:
        # The reader, `head` say, closed the pipe. The rest of the output would fail again when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except OSError as error:  # a full disk, say; the same in every command
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return WRONG_USAGE
