"""``sb3-extra-buffers export``: a recording as video, picture or dataset."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from sb3_extra_buffers.cli.errors import OK, UsageError
from sb3_extra_buffers.cli.options import new_command, whole_number

_SUFFIXES = (".mp4", ".gif", ".png")


def add_command(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command."""
    parser = new_command(
        commands,
        "export",
        "turn a recording into an mp4, a gif, a PNG contact sheet or a Minari dataset",
        "Turn an episode of a recording into a video or a picture, or a whole recording into a Minari dataset. What comes "
        "out depends on the name: .mp4 and .gif are videos, .png is a contact sheet.",
        [
            "export play.rec play.mp4",
            "export play.rec best.gif --episode -1 --fps 15",
            "export play.rec sheet.png",
            "export play.rec --minari atari/pong-v0",
        ],
        "Files are written whole or not at all.",
    )
    parser.add_argument("recording", type=Path, metavar="FILE", help="the recording")
    parser.add_argument("output", type=Path, nargs="?", metavar="OUTPUT", help="what to write: .mp4, .gif or .png")
    parser.add_argument("--minari", metavar="DATASET_ID", help="make a Minari dataset of this id, for example atari/pong-v0")
    parser.add_argument("--episode", type=int, default=0, metavar="N", help="which episode, negative counts from the end")
    parser.add_argument(
        "--fps", type=whole_number(1, 240), metavar="N", help="frames per second (default: as recorded, or 30)"
    )
    parser.add_argument("--force", action="store_true", help="replace an existing file or Minari dataset")
    parser.set_defaults(run=run)


def load(path: Path) -> Any:
    """Load a recording."""
    from sb3_extra_buffers.cli.errors import check_file
    from sb3_extra_buffers.recording import RecordingError, load_recording

    check_file(path)
    try:
        return load_recording(path, progress=True)
    except RecordingError as error:
        raise UsageError(str(error)) from error


def run(options: argparse.Namespace) -> int:
    """Export."""
    from sb3_extra_buffers._support import counted, format_bytes
    from sb3_extra_buffers.cli.errors import check_new_file
    from sb3_extra_buffers.recording import export_contact_sheet, export_minari, export_video

    output: Path | None = options.output
    if (output is None) == (options.minari is None):
        raise UsageError("say what to make: the name of a file that ends with .mp4, .gif or .png, or --minari DATASET_ID")
    if output is not None:
        check_new_file(output, _SUFFIXES, [options.recording], options.force)
    recording = load(options.recording)
    try:
        if output is None:
            dataset = export_minari(recording, options.minari, overwrite=options.force, progress=True)
            print(
                f"Made the Minari dataset {options.minari}: {counted(int(dataset.total_episodes), 'episode')}, "
                f"{counted(int(dataset.total_steps), 'step')}"
            )
            return OK
        if output.suffix.lower() == ".png":
            export_contact_sheet(recording, output, episode=options.episode)
        else:
            export_video(recording, output, episode=options.episode, fps=options.fps, progress=True)
    except (ImportError, IndexError, ValueError, OSError) as error:
        raise UsageError(str(error).replace("overwrite=True", "--force")) from error
    print(f"Written: {output}, {format_bytes(output.stat().st_size)}")
    return OK
