"""What kind of file or directory it is, and what it says of itself."""

from __future__ import annotations

import argparse
import json
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sb3_extra_buffers.cli.errors import FAILED, OK, WRONG_USAGE, CommandError, UsageError
from sb3_extra_buffers.cli.options import new_command

_MOST_LINES = 100
_LONGEST_MESSAGE = 500


@dataclass(frozen=True)
class Description:
    """
    What a file says of itself.

    :param kind: What it is
    :param lines: What there is to say: pairs of a title and a text
    :param facts: The same for programs, with numbers as numbers
    :param foreign: Code that loading the file would run, beyond what a buffer needs
    :param damage: What of a directory is damaged
    :param advice: What to do about it
    """

    kind: str
    lines: list[tuple[str, str]]
    facts: dict[str, Any]
    foreign: list[str] = field(default_factory=list)
    damage: list[str] = field(default_factory=list)
    advice: str = ""


def add_command(commands: argparse._SubParsersAction[Any]) -> None:
    """
    Add the command.

    :param commands: Where commands are added
    """
    parser = new_command(
        commands,
        "inspect",
        "show what is in a recording, a saved buffer or a model, without running any code from it",
        "Show what is in a recording, in a buffer saved with save, save_replay_buffer or pickle, in a ring on disk, in the "
        "checkpoints of a run, or in a model saved by SB3. A pickle is a program that runs when it is loaded. Here it is only "
        "read: nothing it names is imported or called. Of a directory, every checksum is verified.",
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
    """
    Find out what kind of file or directory it is, and describe it.

    :param options: Parsed options
    :return: Exit code
    """
    from sb3_extra_buffers.cli.inspect_file.printing import as_json, printable

    path: Path = options.file
    try:
        found = _described(path)
    except CommandError as error:  # it may quote the file, or its name
        raise type(error)(printable(str(error), _LONGEST_MESSAGE)) from error
    except OSError as error:
        raise UsageError(printable(f"cannot read {path}: {error.strerror}")) from error
    except Exception as error:  # a file that nobody thought of, which is no reason to show a traceback
        message = f"{path} cannot be described ({type(error).__name__}: {error}); do not load it"
        raise UsageError(printable(message, _LONGEST_MESSAGE)) from error
    code = WRONG_USAGE if found.damage else FAILED if found.foreign else OK
    if options.json:
        facts = {"kind": found.kind, "file_bytes": path.stat().st_size, **found.facts, "foreign_code": found.foreign}
        print(as_json(facts | ({"damage": found.damage} if path.is_dir() else {})))
        return code
    print(f"{printable(str(path))}: {found.kind}")
    lines = [(printable(title, 60), printable(text)) for title, text in found.lines[:_MOST_LINES]]
    width = max(len(title) for title, _ in lines)
    for title, text in lines:
        print(f"  {title:<{width}}  {text}")
    if len(found.lines) > _MOST_LINES:
        print(f"  and {len(found.lines) - _MOST_LINES:,} more")
    if found.foreign:
        print("\nDo not load this file unless you trust where it came from. Loading it would also run or use:")
        _print_list(found.foreign)
    if found.damage:
        print("\nDamaged:")
        _print_list(found.damage)
        print(f"What to do: {found.advice}.")
    return code


def _print_list(texts: list[str]) -> None:
    from sb3_extra_buffers.cli.inspect_file.printing import printable

    for text in texts[:_MOST_LINES]:
        print(f"  {printable(text)}")
    if len(texts) > _MOST_LINES:
        print(f"  and {len(texts) - _MOST_LINES:,} more")


def _described(path: Path) -> Description:
    from sb3_extra_buffers.cli.checks import check_file

    if path.is_dir():
        from sb3_extra_buffers.cli.inspect_file.directories import describe_directory

        return describe_directory(path)
    check_file(path)
    if not path.is_file():
        raise UsageError(f"{path} is no file that could hold anything; give the name of a recording, a buffer or a model")
    return describe(path)


def describe(path: Path) -> Description:
    """
    Describe a file.

    :param path: The file
    :return: What it is, and what is in it
    """
    with open(path, "rb") as file:
        beginning = file.read(2)
    if not beginning:
        raise UsageError(f"{path} is empty")
    # What a file begins as decides, for pickles are read from their beginning and zip files from their end: one file can be
    # both. No pickle begins like this: it would ask for something outside of the file, and there is nobody to ask.
    return _zip_file(path) if beginning == b"PK" else _pickle(path)


def _pickle(path: Path) -> Description:
    from sb3_extra_buffers.cli.formatting import format_bytes
    from sb3_extra_buffers.cli.inspect_file.describe import buffer_facts, describe_buffer, is_buffer, what_it_holds
    from sb3_extra_buffers.cli.inspect_file.pickles import read_pickle

    contents = read_pickle(path)
    file_bytes = path.stat().st_size
    foreign = contents.foreign
    if contents.damage is not None:
        if not foreign:
            raise UsageError(f"{path} is not a recording, a pickle or a saved model, or it is damaged: {contents.damage}")
        lines = [("file", format_bytes(file_bytes)), ("damage", contents.damage)]
        return Description("a damaged pickle", lines, {"damage": contents.damage}, foreign)
    if contents.unread:
        foreign.append(f"{format_bytes(contents.unread)} after the end of the pickle, which were not looked at")
    root = contents.root
    if is_buffer(root):
        return Description("a pickled buffer", describe_buffer(root, file_bytes), buffer_facts(root), foreign)
    what = what_it_holds(root)
    lines = [("holds", what), ("file", format_bytes(file_bytes))]
    return Description("a pickle, but no buffer", lines, {"holds": what}, foreign)


def _recording(path: Path) -> Description:
    from sb3_extra_buffers.cli.formatting import counted, format_bytes
    from sb3_extra_buffers.cli.inspect_file.printing import for_json
    from sb3_extra_buffers.recording import RecordingError, recording_info

    try:
        info = recording_info(path)
    except RecordingError as error:
        raise UsageError(str(error)) from error
    except (TypeError, ValueError, ArithmeticError, RecursionError) as error:
        raise UsageError(f"{path}: its header is damaged: {error}") from error
    sort = {"render": ", as rendered", "observation": ", as the agent sees them"}.get(str(info.metadata.get("frames")), "")
    ratio = f" ({info.raw_bytes / info.file_bytes:,.0f}x smaller than uncompressed)" if info.file_bytes else ""
    lines = [
        ("file", f"{format_bytes(info.file_bytes)}{ratio}"),
        ("buffer", info.kind),
        ("steps", f"{info.steps:,} in {counted(info.episodes, 'episode')}"),
        ("frames", f"{info.frame_dtype} {info.frame_shape}{sort}" if info.frame_shape else "none"),
        ("actions", f"{info.action_dtype} {info.action_shape}" if info.action_shape else str(info.action_dtype)),
    ]
    if info.buffer_size is not None:
        lines.append(("ring of", f"{info.buffer_size:,} steps"))
    lines += [(f"feature {name}", f"{kind} {shape}") for name, (shape, kind) in info.features.items()]
    metadata = for_json(info.metadata)
    for key, value in metadata.items():
        if key != "frames":
            text = json.dumps(value)
            lines.append((key, text if len(text) <= 80 else f"{text[:77]}…"))
    lines.append(("written by", f"sb3-extra-buffers {info.version}"))
    facts: dict[str, Any] = {
        "buffer": info.kind,
        "steps": info.steps,
        "episodes": info.episodes,
        "raw_bytes": info.raw_bytes,
        "frame_shape": info.frame_shape,
        "frame_dtype": info.frame_dtype,
        "action_shape": info.action_shape,
        "action_dtype": info.action_dtype,
        "buffer_size": info.buffer_size,
        "features": {name: {"shape": shape, "dtype": kind} for name, (shape, kind) in info.features.items()},
        "metadata": metadata,
        "version": info.version,
    }
    return Description("a recording", lines, facts)


def _zip_file(path: Path) -> Description:
    from sb3_extra_buffers.cli.formatting import format_bytes
    from sb3_extra_buffers.cli.inspect_file.archives import DAMAGES, Archive, describe_archive

    try:
        zip_file = zipfile.ZipFile(path)
    except DAMAGES as error:
        raise UsageError(
            f"{path} begins like a recording or a saved model, but it is damaged, or its end is missing ({error}); copy or "
            "download it again"
        ) from error
    file_bytes = path.stat().st_size
    lines = [("file", format_bytes(file_bytes))]
    with zip_file:
        archive = Archive(zip_file, file_bytes)
        try:
            # Looked into whatever it is: what calls itself a recording could be loaded as a model, too.
            more, facts = describe_archive(archive)
        except DAMAGES as error:
            if not archive.foreign:
                raise UsageError(f"{path} looks like {archive.kind}, but is damaged: {error}") from error
            more, facts = [("damage", str(error))], {"damage": str(error)}
    if "header.json" in archive.names and not archive.foreign:
        return _recording(path)
    return Description(archive.kind, lines + more, facts, list(archive.foreign))
