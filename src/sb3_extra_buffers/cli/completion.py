"""``sb3-extra-buffers completion``: a script that makes a shell complete commands, options and their values."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from sb3_extra_buffers.cli.errors import OK, require_extra
from sb3_extra_buffers.cli.options import new_command


def add_command(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command."""
    parser = new_command(
        commands,
        "completion",
        "print a script that makes your shell complete commands and options",
        "Print a script for a shell, which then completes commands, options and their values when you press Tab.",
        [
            "completion bash > ~/.local/share/bash-completion/completions/sb3-extra-buffers",
            'completion zsh > "${fpath[1]}/_sb3-extra-buffers"',
            "completion fish > ~/.config/fish/completions/sb3-extra-buffers.fish",
        ],
        'To try it in this shell only: eval "$(sb3-extra-buffers completion bash)"',
    )
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the script."""
    require_extra(["shtab"], "completion")
    import shtab

    from sb3_extra_buffers.cli.app import build_parser

    parser = build_parser()
    for command in next(action.choices for action in parser._actions if isinstance(action.choices, dict)).values():
        for action in command._actions:
            if action.type is Path or not (action.option_strings or action.choices):
                action.complete = shtab.FILE
    print(shtab.complete(parser, options.shell))
    return OK
