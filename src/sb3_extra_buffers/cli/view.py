"""``sb3-extra-buffers view``: look at a recording in the browser."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from sb3_extra_buffers.cli.errors import OK, UsageError
from sb3_extra_buffers.cli.options import new_command


def _places(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} names no episodes; write for example 0,2 or -1") from None


def add_command(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command."""
    parser = new_command(
        commands,
        "view",
        "look at a recording in your browser",
        "Write a recording as a single HTML file that shows frames, rewards and actions without a network, and open it "
        "in your browser.",
        ["view play.rec", "view play.rec --episodes 0,-1 --output episodes.html --no-open"],
    )
    parser.add_argument("recording", type=Path, metavar="FILE", help="the recording")
    parser.add_argument("-o", "--output", type=Path, metavar="HTML", help="what to write (default: the name with .html)")
    parser.add_argument(
        "--episodes", type=_places, metavar="A,B", help="which episodes, negative counts from the end (default: all)"
    )
    parser.add_argument("--force", action="store_true", help="replace an existing page")
    parser.add_argument("--no-open", action="store_true", help="only write the file")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Write the page and open it."""
    from sb3_extra_buffers._support import format_bytes
    from sb3_extra_buffers.cli.errors import check_new_file
    from sb3_extra_buffers.cli.export import load
    from sb3_extra_buffers.recording import write_viewer

    output: Path = options.output or options.recording.with_suffix(".html")
    check_new_file(output, (".html", ".htm"), [options.recording], options.force)
    recording = load(options.recording)
    try:
        write_viewer(recording, output, episodes=options.episodes, progress=True)
    except (ImportError, IndexError, ValueError, OSError) as error:
        raise UsageError(str(error)) from error
    print(f"Written: {output}, {format_bytes(output.stat().st_size)}")
    if not options.no_open and not _open(output):
        print(f"No browser could be started; open {output.resolve().as_uri()} in one", file=sys.stderr)
    return OK


def _open(path: Path) -> bool:
    import webbrowser

    return webbrowser.open(path.resolve().as_uri())
