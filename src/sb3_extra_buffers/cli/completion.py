"""``sb3-extra-buffers completion``: what the shell can complete, found in the parser itself."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from sb3_extra_buffers.cli.errors import OK
from sb3_extra_buffers.cli.options import PROGRAM, new_command

_SHELLS = ("bash", "zsh", "fish")


@dataclass(frozen=True)
class _Command:
    """
    A command, as far as a shell has to know it.

    :param name: Its name
    :param summary: What it does
    :param options: Its options and what they do
    :param choices: What may follow some of the options
    :param words: What may stand in its first place
    """

    name: str
    summary: str
    options: dict[str, str]
    choices: dict[str, tuple[str, ...]]
    words: tuple[str, ...]


def add_command(commands: argparse._SubParsersAction[Any]) -> None:
    """
    Add the command.

    :param commands: Where commands are added
    """
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
    parser.add_argument("shell", choices=_SHELLS, help="the shell")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """
    Print the script.

    :param options: Parsed options
    :return: Exit code
    """
    from sb3_extra_buffers.cli.app import build_parser

    write = {"bash": _bash, "zsh": _zsh, "fish": _fish}[options.shell]
    print(write(_commands(build_parser())), end="")
    return OK


def _commands(parser: argparse.ArgumentParser) -> list[_Command]:
    (subparsers,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    summaries = {action.dest: action.help or "" for action in subparsers._choices_actions}
    found = []
    for name, command in subparsers.choices.items():
        options: dict[str, str] = {}
        choices: dict[str, tuple[str, ...]] = {}
        words: tuple[str, ...] = ()
        for action in command._actions:
            for option in action.option_strings:
                options[option] = (action.help or "").replace("%(default)s", str(action.default))
                if action.choices:
                    choices[option] = tuple(map(str, action.choices))
            if not action.option_strings and action.choices:
                words = tuple(map(str, action.choices))
        found.append(_Command(name, summaries.get(name, ""), options, choices, words))
    return found


def _bash(commands: list[_Command]) -> str:
    cases = []
    for command in commands:
        values = "".join(
            f'            {option}) COMPREPLY=($(compgen -W "{" ".join(words)}" -- "$word")); return ;;\n'
            for option, words in command.choices.items()
        )
        inner = f'        case "$before" in\n{values}        esac\n' if values else ""
        cases.append(
            f"    {command.name})\n{inner}"
            f'        words="{" ".join(command.options)}"\n'
            f'        plain="{" ".join(command.words)}"\n        ;;\n'
        )
    names = " ".join(command.name for command in commands)
    return f"""# bash completion for {PROGRAM}
_sb3_extra_buffers() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD - 1]}}" words="" plain=""
    COMPREPLY=()
    if [[ $COMP_CWORD -eq 1 ]]; then
        COMPREPLY=($(compgen -W "{names} --help --version" -- "$word"))
        return
    fi
    case "${{COMP_WORDS[1]}}" in
{"".join(cases)}    esac
    if [[ "$word" == -* ]]; then
        COMPREPLY=($(compgen -W "$words" -- "$word"))
    elif [[ -n "$plain" ]]; then
        COMPREPLY=($(compgen -W "$plain" -- "$word"))
    else
        COMPREPLY=($(compgen -f -- "$word"))
    fi
}}
complete -o filenames -F _sb3_extra_buffers {PROGRAM}
"""


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "'\\''")


def _zsh(commands: list[_Command]) -> str:
    def described(word: str, text: str) -> str:
        return "'" + _quoted(f"{word}:{text}".replace("%", "%%") if text else word) + "'"

    names = "\n".join(f"        {described(command.name, command.summary)}" for command in commands)
    cases = []
    for command in commands:
        values = "".join(
            f"                {option}) compadd -- {' '.join(words)}; return ;;\n" for option, words in command.choices.items()
        )
        inner = f'            case "$words[CURRENT-1]" in\n{values}            esac\n' if values else ""
        options = " ".join(described(option.replace(":", "\\:"), text) for option, text in command.options.items())
        plain = f"compadd -- {' '.join(command.words)}" if command.words else "_files"
        cases.append(
            f"        {command.name})\n{inner}            options=({options})\n"
            f'            if [[ "$PREFIX" == -* ]]; then _describe -o option options; else {plain}; fi\n            ;;\n'
        )
    return f"""#compdef {PROGRAM}
_sb3_extra_buffers() {{
    local -a commands options
    commands=(
{names}
    )
    if (( CURRENT == 2 )); then
        _describe command commands
        return
    fi
    case "$words[2]" in
{"".join(cases)}    esac
}}
if [[ "$funcstack[1]" == "_{PROGRAM}" ]]; then
    _sb3_extra_buffers "$@"
else
    compdef _sb3_extra_buffers {PROGRAM}
fi
"""


def _fish(commands: list[_Command]) -> str:
    def text_of(text: str) -> str:
        return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"

    lines = [f"# fish completion for {PROGRAM}"]
    for command in commands:
        lines.append(f"complete -c {PROGRAM} -n __fish_use_subcommand -f -a {command.name} -d {text_of(command.summary)}")
    for command in commands:
        where = f"complete -c {PROGRAM} -n '__fish_seen_subcommand_from {command.name}'"
        if command.words:
            lines.append(f"{where} -f -a '{' '.join(command.words)}'")
        for option, text in command.options.items():
            kind = f"-l {option[2:]}" if option.startswith("--") else f"-s {option[1:]}"
            values = f" -x -a '{' '.join(command.choices[option])}'" if option in command.choices else ""
            lines.append(f"{where} {kind}{values} -d {text_of(text)}")
    return "\n".join(lines) + "\n"
