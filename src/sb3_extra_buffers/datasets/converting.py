"""From one form of transitions to another, by their names."""

from __future__ import annotations

import os
from typing import Any

from sb3_extra_buffers.compressed.files import Path
from sb3_extra_buffers.datasets.blocks import copy_of
from sb3_extra_buffers.datasets.dataset import OfflineDataset, open_dataset
from sb3_extra_buffers.datasets.npz_files import export_npz, replay_from_npz
from sb3_extra_buffers.datasets.pickles import export_pickle, replay_from_pickle
from sb3_extra_buffers.datasets.played import replay_from_minari, replay_from_recording
from sb3_extra_buffers.recording import export_minari, is_recording

MINARI = "minari:"
_PICKLES = (".pkl", ".pickle")
_SUFFIX = ".sb3x"


def convert(source: Path, target: Path, *, allow_pickle: bool = False, overwrite: bool = False, progress: bool = False) -> int:
    """
    Convert transitions from one form to another.

    A source is a directory of ``save``, an ``.npz`` file, a Minari dataset (``"minari:ID"``), a recording, or a pickle of
    SB3's (``.pkl``). A target is a new directory, ``.npz``, ``"minari:ID"`` or ``.pkl``, by its name.

    :param source: Where from
    :param target: Where to
    :param allow_pickle: Whether to open a pickle, which can run any code; it is opened in a process of its own
    :param overwrite: Whether to replace what is there
    :param progress: Whether to show a progress bar (on a terminal)
    :return: How many transitions there are
    """
    goal = os.fspath(target)
    kind = _kind_of_target(goal)
    if kind in ("npz", "pickle"):
        _check_file(goal, overwrite)
    elif kind == "directory" and os.path.lexists(goal) and not overwrite:
        raise FileExistsError(f"{goal} already exists; name another directory, or say overwrite=True")
    if os.path.exists(goal) and os.path.exists(source) and os.path.samefile(source, goal):
        raise ValueError(f"{goal} is what is to be converted; name another target")
    given = _open(os.fspath(source), allow_pickle, progress)
    if kind == "npz":
        return export_npz(given, goal, progress=progress)
    if kind == "pickle":
        return export_pickle(given, goal, progress=progress)
    buffer = copy_of(given) if isinstance(given, OfflineDataset) else given
    if kind == "minari":
        export_minari(buffer, goal.removeprefix(MINARI), overwrite=overwrite, progress=progress)
    else:
        buffer.save(goal)
    return int(buffer.size() * buffer.n_envs)


def _kind_of_target(target: str) -> str:
    if target.startswith(MINARI):
        return "minari"
    suffix = os.path.splitext(target)[1].lower()
    if suffix == ".npz":
        return "npz"
    if suffix in _PICKLES:
        return "pickle"
    if suffix in ("", _SUFFIX):
        return "directory"
    raise ValueError(
        f"{target} ends with {suffix}; allowed: .npz, .pkl, minari:ID for a Minari dataset, and {_SUFFIX} or nothing for a "
        "directory"
    )


def _check_file(path: str, overwrite: bool) -> None:
    if os.path.lexists(path) and not overwrite:
        raise FileExistsError(f"{path} already exists; name another file, or say overwrite=True")
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"there is no folder {folder}; create it first")


def _open(source: str, allow_pickle: bool, progress: bool) -> Any:
    if source.startswith(MINARI):
        return replay_from_minari(source.removeprefix(MINARI), progress=progress)
    if not os.path.lexists(source):
        raise FileNotFoundError(f"there is no file or directory {source}")
    if os.path.isdir(source):
        return open_dataset(source)
    suffix = os.path.splitext(source)[1].lower()
    if suffix == ".npz":
        return replay_from_npz(source, progress=progress)
    if suffix in _PICKLES:
        return replay_from_pickle(source, allow_pickle=allow_pickle)
    if is_recording(source):
        return replay_from_recording(source, progress=progress)
    raise ValueError(
        f"{source} is none of these: a directory of save(), an .npz file, a recording, a pickle (.pkl), or minari:ID"
    )
