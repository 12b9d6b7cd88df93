"""What kind of file it is, and what it says of itself."""

from __future__ import annotations

import argparse
import json
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sb3_extra_buffers.cli.errors import FAILED, OK, CommandError
from sb3_extra_buffers.cli.options import new_command


@dataclass(frozen=True)
class Description:
    """
    What a file says of itself.

    :param kind: What it is
    :param lines: What there is to say: pairs of a title and a text
    :param facts: The same for programs, with numbers as numbers
    :param foreign: Code that loading the file would run, beyond what a buffer needs
    """

    kind: str
    lines: list[tuple[str, str]]
    facts: dict[str, Any]
    foreign: list[str] = field(default_factory=list)


def add_command(commands: argparse._SubParsersAction[Any]) -> None:
    """
    Add the command.

    :param commands: Where commands are added
    """
    parser = new_command(
        commands,
        "inspect",
        "show what is in a recording or a saved buffer, without running any code from it",
        "Show what is in a recording, in a buffer saved with save_replay_buffer or pickle, or in a model saved by SB3. A "
        "pickle is a program that runs when it is loaded. Here it is only read: nothing it names is imported or called.",
        ["inspect play.rec", "inspect replay_buffer.pkl", "inspect replay_buffer.pkl --json"],
        "The exit code is 1 if loading the file would run code that a saved buffer does not need.",
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="a recording, a pickled buffer or a saved model")
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
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
    found = describe(path)
    code = FAILED if found.foreign else OK
    if options.json:
        facts = {"kind": found.kind, "file_bytes": path.stat().st_size, **found.facts, "foreign_code": found.foreign}
        print(json.dumps(facts, indent=2))
        return code
    print(f"{path}: {found.kind}")
    width = max(len(title) for title, _ in found.lines)
    for title, text in found.lines:
        print(f"  {title:<{width}}  {text}")
    if found.foreign:
        print("\nDo not load this file unless you trust where it came from. Loading it would also run:")
        for name in found.foreign[:50]:
            print(f"  {name}")
    return code


def describe(path: Path) -> Description:
    """
    Describe a file.

    :param path: The file
    :return: What it is, and what is in it
    """
    from sb3_extra_buffers.recording import is_recording

    if is_recording(path):
        return _recording(path)
    if zipfile.is_zipfile(path):
        return _zip_file(path)
    from sb3_extra_buffers.cli.inspect_file.describe import buffer_facts, describe_buffer, foreign_names, is_buffer
    from sb3_extra_buffers.cli.inspect_file.pickles import Made, PickleError, read_pickle

    try:
        contents = read_pickle(path)
    except PickleError as error:
        raise CommandError(f"{path} is not a recording, a pickle or a saved model, or it is damaged ({error})") from error
    foreign = foreign_names(contents)
    if is_buffer(contents):
        lines = describe_buffer(contents, path.stat().st_size)
        return Description("a pickled buffer", lines, buffer_facts(contents), foreign)
    root = contents.root
    what = str(root.kind or root.maker) if isinstance(root, Made) else type(root).__name__
    from sb3_extra_buffers.cli.formatting import format_bytes

    lines = [("holds", what[:200]), ("file", format_bytes(path.stat().st_size))]
    return Description("a pickle, but no buffer", lines, {"holds": what[:200]}, foreign)


def _recording(path: Path) -> Description:
    from sb3_extra_buffers.cli.formatting import counted, format_bytes
    from sb3_extra_buffers.recording import RecordingError, recording_info

    try:
        info = recording_info(path)
    except RecordingError as error:
        raise CommandError(str(error)) from error
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
    for key, value in info.metadata.items():
        if key == "frames":
            continue
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
        "metadata": info.metadata,
        "version": info.version,
    }
    return Description("a recording", lines, facts)


def _zip_file(path: Path) -> Description:
    from sb3_extra_buffers.cli.formatting import format_bytes

    with zipfile.ZipFile(path) as archive:
        parts = {entry.filename: entry.file_size for entry in archive.infolist()}
        lines = [("file", format_bytes(path.stat().st_size))]
        if "data" not in parts or "policy.pth" not in parts:
            return Description("a zip file", [*lines, ("holds", ", ".join(list(parts)[:10]))], {"holds": list(parts)[:10]})
        try:
            data = json.loads(archive.read("data"))
        except ValueError as error:
            raise CommandError(f"{path} looks like a model that SB3 saved, but is damaged: {error}") from error
    facts: dict[str, Any] = {}
    for key in ("policy_class", "observation_space", "action_space", "replay_buffer_class", "rollout_buffer_class"):
        entry = data.get(key)
        if isinstance(entry, dict):
            # The entry also holds a pickle, which stays unread; SB3 writes what it is beside it.
            text = str(entry.get("__module__") or entry.get(":type:")) if key.endswith("class") else str(entry.get(":type:"))
            shape = f" {entry['_shape']}" if "_shape" in entry else f" {entry['n']}" if "n" in entry else ""
            facts[key] = f"{text}{shape}"
            lines.append((key.replace("_", " "), facts[key]))
    for key in ("num_timesteps", "n_envs", "buffer_size", "learning_rate", "gamma", "seed"):
        if isinstance(data.get(key), int | float):
            facts[key] = data[key]
            lines.append((key, str(data[key])))
    lines.append(("note", "loading a model runs code that is saved in it; that code was not looked at"))
    return Description("a model that SB3 saved", lines, facts)
