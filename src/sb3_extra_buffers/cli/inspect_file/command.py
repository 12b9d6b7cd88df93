"""What kind of file it is, and what it says of itself."""

from __future__ import annotations

import argparse
import json
import zipfile
from pathlib import Path
from typing import Any

from sb3_extra_buffers.cli.errors import FAILED, OK, CommandError
from sb3_extra_buffers.cli.options import new_command


def add_command(commands: argparse._SubParsersAction[Any]) -> None:
    """
    Add the command.

    :param commands: Where commands are added
    """
    parser = new_command(
        commands,
        "inspect",
        "tell what is in a recording or a saved buffer, without running code from it",
        "Tell what is in a recording, a buffer that was saved with save_replay_buffer or pickle, or a model that SB3 saved. "
        "A pickle is a program that runs when it is loaded; here it is read, and nothing that it names is imported or called.",
        ["inspect play.rec", "inspect replay_buffer.pkl", "inspect replay_buffer.pkl --json"],
        "The exit code is 1 if loading the file would run code that a saved buffer has no need of.",
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="a recording, a pickled buffer or a saved model")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """
    Find out what kind of file it is, and describe it.

    :param options: Parsed options
    :return: Exit code
    """
    from sb3_extra_buffers.cli.checks import check_file

    path: Path = options.file
    check_file(path)
    kind, lines, foreign = describe(path)
    if options.json:
        print(json.dumps({"kind": kind, **dict(lines), "foreign_code": foreign}, indent=2))
        return FAILED if foreign else OK
    print(f"{path}: {kind}")
    width = max(len(title) for title, _ in lines)
    for title, text in lines:
        print(f"  {title:<{width}}  {text}")
    if foreign:
        print("\nDo not load this file unless you trust where it came from. Loading it would also run:")
        for name in foreign[:50]:
            print(f"  {name}")
    return FAILED if foreign else OK


def describe(path: Path) -> tuple[str, list[tuple[str, str]], list[str]]:
    """
    Describe a file.

    :param path: The file
    :return: What it is; pairs of a title and what there is to say; code that loading it would run beyond what it needs
    """
    from sb3_extra_buffers.recording import is_recording

    if is_recording(path):
        return "a recording", _recording(path), []
    if zipfile.is_zipfile(path):
        return "a zip file", _model(path), []
    from sb3_extra_buffers.cli.inspect_file.describe import describe_buffer, foreign_names, is_buffer
    from sb3_extra_buffers.cli.inspect_file.pickles import Made, PickleError, read_pickle

    try:
        contents = read_pickle(path)
    except PickleError as error:
        raise CommandError(f"{path} is neither a recording nor a pickle, or it is damaged ({error})") from error
    foreign = foreign_names(contents)
    if is_buffer(contents):
        return "a pickled buffer", describe_buffer(contents, path.stat().st_size), foreign
    root = contents.root
    what = str(root.kind or root.maker) if isinstance(root, Made) else type(root).__name__
    from sb3_extra_buffers.cli.formatting import format_bytes

    return "a pickle, but no buffer", [("holds", what[:200]), ("file", format_bytes(path.stat().st_size))], foreign


def _recording(path: Path) -> list[tuple[str, str]]:
    from sb3_extra_buffers.cli.formatting import counted, format_bytes
    from sb3_extra_buffers.recording import RecordingError, recording_info

    try:
        info = recording_info(path)
    except RecordingError as error:
        raise CommandError(str(error)) from error
    sort = {"render": ", as shown to people", "observation": ", as the agent sees them"}.get(
        str(info.metadata.get("frames")), ""
    )
    ratio = f" ({info.raw_bytes / info.file_bytes:,.0f}x smaller than uncompressed)" if info.file_bytes else ""
    lines = [
        ("file", f"{format_bytes(info.file_bytes)}{ratio}"),
        ("kind", info.kind),
        ("steps", f"{info.steps:,} in {counted(info.episodes, 'episode')}"),
        ("frames", f"{info.frame_dtype} {info.frame_shape}{sort}" if info.frame_shape else "none"),
        ("actions", f"{info.action_dtype} {info.action_shape}" if info.action_shape else str(info.action_dtype)),
    ]
    if info.buffer_size is not None:
        lines.append(("ring of", f"{info.buffer_size:,} steps"))
    lines += [(f"feature {name}", f"{kind} {shape}") for name, (shape, kind) in info.features.items()]
    for key, value in info.metadata.items():
        if key == "frames":
            continue
        text = json.dumps(value)
        lines.append((key, text if len(text) <= 80 else f"{text[:77]}…"))
    lines.append(("written by", f"sb3-extra-buffers {info.version}"))
    return lines


def _model(path: Path) -> list[tuple[str, str]]:
    from sb3_extra_buffers.cli.formatting import format_bytes

    with zipfile.ZipFile(path) as archive:
        parts = {entry.filename: entry.file_size for entry in archive.infolist()}
        lines = [("file", format_bytes(path.stat().st_size))]
        if "data" not in parts or "policy.pth" not in parts:
            return [*lines, ("holds", ", ".join(list(parts)[:10]))]
        try:
            data = json.loads(archive.read("data"))
        except ValueError as error:
            raise CommandError(f"{path} looks like a model that SB3 saved, but is damaged: {error}") from error
    lines.append(("holds", "a model that SB3 saved"))
    for key in ("policy_class", "observation_space", "action_space", "replay_buffer_class", "rollout_buffer_class"):
        entry = data.get(key)
        if isinstance(entry, dict):
            # The entry also holds a pickle, which stays unread; SB3 writes what it is beside it.
            text = str(entry.get("__module__") or entry.get(":type:")) if key.endswith("class") else str(entry.get(":type:"))
            shape = f" {entry['_shape']}" if "_shape" in entry else f" {entry['n']}" if "n" in entry else ""
            lines.append((key.replace("_", " "), f"{text}{shape}"))
    for key in ("num_timesteps", "n_envs", "buffer_size", "learning_rate", "gamma", "seed"):
        if isinstance(data.get(key), int | float):
            lines.append((key, str(data[key])))
    return lines
