"""``sb3-extra-buffers convert``: transitions from one form to another."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from sb3_extra_buffers._support import format_bytes
from sb3_extra_buffers.cli.errors import OK, UsageError
from sb3_extra_buffers.cli.options import new_command


def add_command(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command."""
    parser = new_command(
        commands,
        "convert",
        "turn transitions from one form into another: saved buffers, npz, Minari, recordings, SB3's pickles",
        "Turn the transitions of a saved buffer, an npz file, a Minari dataset, a recording or a pickle of SB3's into a data "
        "set that open_dataset reads, or into an npz file, a Minari dataset or a pickle that SB3 loads. The name says what "
        "comes out: .npz and .pkl are files, minari:ID is a Minari dataset, and .sb3x, or no suffix, is a directory.",
        [
            "convert play.rec play.sb3x",
            "convert minari:atari/pong-v0 pong.sb3x",
            "convert buffer.sb3x buffer.npz",
            "convert replay_buffer.pkl buffer.sb3x --allow-pickle",
        ],
        "A pickle can run any code when it is opened: open only your own. `inspect` looks at one without running it.",
    )
    parser.add_argument("source", metavar="SOURCE", help="a directory, a file, or minari:ID")
    parser.add_argument("target", metavar="TARGET", help="a new directory, .npz, .pkl, or minari:ID")
    parser.add_argument(
        "--allow-pickle", action="store_true", help="open a pickle: only if you trust it, as it can run any code"
    )
    parser.add_argument("--force", action="store_true", help="replace what is there")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Convert."""
    from sb3_extra_buffers.datasets import convert
    from sb3_extra_buffers.recording import RecordingError
    from sb3_extra_buffers.storage import StorageError

    if options.allow_pickle and Path(options.source).suffix.lower() in (".pkl", ".pickle"):
        print("opening a pickle, which can run any code", file=sys.stderr)
    try:
        total = convert(
            options.source, options.target, allow_pickle=options.allow_pickle, overwrite=options.force, progress=True
        )
    except (RecordingError, StorageError, OSError, ValueError, TypeError, ImportError) as error:
        message = str(error).replace("overwrite=True", "--force").replace("allow_pickle=True", "--allow-pickle")
        raise UsageError(message) from error
    size = _bytes_of(Path(options.target))
    print(f"{options.target}: {total:,} transitions" + (f", {format_bytes(size)}" if size else ""))
    return OK


def _bytes_of(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())
