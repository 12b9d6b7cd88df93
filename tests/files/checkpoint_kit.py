"""Checkpoints that know their number, and what is found of them."""

from __future__ import annotations

import os
import random
from typing import Any

from file_kit import held, load

from sb3_extra_buffers.compressed.file_saving import take_moment
from sb3_extra_buffers.storage.disk import DISK, Disk
from sb3_extra_buffers.training_utils.resuming.folder import (
    BUFFER,
    MODEL,
    STATE,
    CheckpointFolder,
    checkpoints_in,
    read_file,
    read_manifest,
)

FOLDER = "/runs/pong"


def content_of(number: int, name: str) -> bytes:
    """Another one for each checkpoint and file."""
    return random.Random(f"{number} {name}").randbytes(3000 + 700 * (number % 8))


def write(folder: CheckpointFolder, number: int, buffer: Any) -> int:
    """A checkpoint that knows its number."""
    contents = {name: content_of(number, name) for name in (MODEL, STATE)}
    return folder.write({"run": "a", "num_timesteps": number}, contents, take_moment(buffer))


def found(disk: Disk = DISK, path: str = FOLDER) -> Any:
    """The newest checkpoint, with all that is in it; None if there is none. Whatever is damaged is an error."""
    states = []
    for checkpoint in checkpoints_in(path, disk):
        said = read_manifest(checkpoint, disk)
        for name in (MODEL, STATE):
            assert read_file(checkpoint, said, name, disk) == content_of(said["num_timesteps"], name)
        states.append((said["num_timesteps"], held(load(disk, os.path.join(checkpoint.path, BUFFER)))))
    assert [number for number, _ in states] == sorted([number for number, _ in states], reverse=True)
    return states[0] if states else None
