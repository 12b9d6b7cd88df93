"""The manifest of a checkpoint: written last, so that a checkpoint is complete or is the one before."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from sb3_extra_buffers.storage import StorageError
from sb3_extra_buffers.storage.directory import Replacement, SavedDirectory

KIND = "fleet"
_FOLDER = "fleet"
MODEL = "model.zip"
_SETTINGS = {"n_collectors", "envs_per_collector", "n_shards", "block_steps"}


class Manifest(NamedTuple):
    """What a checkpoint says."""

    run: bytes
    incarnation: int
    settings: dict[str, int]
    added: list[int]
    timesteps: int


def save_manifest(
    folder: str, run: bytes, incarnation: int, settings: dict[str, int], added: list[int], timesteps: int
) -> None:
    """
    Make a checkpoint count.

    :param folder: The directory of the checkpoint
    :param run: 16 bytes that are the run's own
    :param incarnation: The highest of all collectors
    :param settings: What a fleet has to be made with to go on
    :param added: Transitions that each shard counts
    :param timesteps: Transitions that the learner counts
    """
    with Replacement(os.path.join(folder, _FOLDER)) as files:
        clocks = {"incarnation": incarnation, "added": added, "timesteps": timesteps}
        files.commit({"kind": KIND, "run": run.hex(), "settings": settings, **clocks})


def load_manifest(folder: str | os.PathLike[str]) -> Manifest:
    """
    Read what a checkpoint says.

    :param folder: Its directory
    :return: What it says; ``StorageError`` where that makes no sense
    """
    said = SavedDirectory(os.path.join(folder, _FOLDER)).body
    try:
        numbers = said["incarnation"], said["timesteps"], *said["added"], *said["settings"].values()
        if said["kind"] != KIND or set(said["settings"]) != _SETTINGS or any(type(number) is not int for number in numbers):
            raise ValueError("it is not the manifest of a fleet")
        run = bytes.fromhex(said["run"])
        if len(run) != 16:
            raise ValueError("it names no run")
        return Manifest(run, said["incarnation"], dict(said["settings"]), list(said["added"]), said["timesteps"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise StorageError(f"{os.fspath(folder)} is not a checkpoint of a fleet: {error}") from error


def save_model(model: Any, folder: str) -> None:
    """
    Save a model, in one step.

    :param model: The model
    :param folder: The directory of the checkpoint
    """
    staged = os.path.join(folder, "new-" + MODEL)
    model.save(staged)
    with open(staged, "rb") as file:
        os.fsync(file.fileno())
    os.replace(staged, os.path.join(folder, MODEL))
