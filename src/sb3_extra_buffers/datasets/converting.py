"""Convert transitions from one form to another, by their names; and SB3's pickles, which run code."""

from __future__ import annotations

import os
from typing import Any

from gymnasium import spaces
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer
from stable_baselines3.common.save_util import load_from_pkl, save_to_pkl

from sb3_extra_buffers._support import atomic_write, with_progress
from sb3_extra_buffers.compressed.files import Path
from sb3_extra_buffers.datasets.dataset import OfflineDataset, open_dataset
from sb3_extra_buffers.datasets.filling import add_block, copy_of, rows_of
from sb3_extra_buffers.datasets.npz_files import export_npz, replay_from_npz
from sb3_extra_buffers.datasets.played import replay_from_minari, replay_from_recording
from sb3_extra_buffers.recording import is_recording
from sb3_extra_buffers.recording.minari import export_rows
from sb3_extra_buffers.storage.errors import StorageError

MINARI = "minari:"
_PICKLES = (".pkl", ".pickle")
_SUFFIX = ".sb3x"
_RUNS_CODE = (
    "a pickle can run any code when it is opened, so open only your own (`sb3-extra-buffers inspect FILE` looks "
    "at one without running it)"
)


def convert(source: Path, target: Path, *, allow_pickle: bool = False, overwrite: bool = False, progress: bool = False) -> int:
    """
    Convert transitions from one form to another.

    A source is a directory of ``save``, an ``.npz`` file, a Minari dataset (``"minari:ID"``), a recording, or a pickle of
    SB3's (``.pkl``). A target is a new directory, ``.npz``, ``"minari:ID"`` or ``.pkl``, by its name.

    :param source: Where from
    :param target: Where to
    :param allow_pickle: Whether to open a pickle, which can run any code: open only your own
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
    if kind == "minari":
        rows = rows_of(given)
        export_rows(rows, goal.removeprefix(MINARI), overwrite, progress, {})
        return rows.used * rows.n_envs
    buffer = copy_of(given) if isinstance(given, OfflineDataset) else given
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


def replay_from_pickle(path: Path, *, allow_pickle: bool = False) -> Any:
    """
    Read a replay buffer that ``save_replay_buffer`` or ``pickle`` has written, SB3's or one of this package.

    **A pickle can run any code when it is opened**, in this process and with all that you may do. Open only your own.

    :param path: The file
    :param allow_pickle: Say that you trust it; else it is not opened
    :return: A compressed replay buffer
    """
    if not os.path.isfile(path):
        raise FileNotFoundError(f"there is no file {os.fspath(path)}")
    if not allow_pickle:
        raise ValueError(f"{os.fspath(path)} was not opened: {_RUNS_CODE}. If it is yours, say allow_pickle=True")
    try:
        loaded: Any = load_from_pkl(os.fspath(path))
    except Exception as error:  # a pickle raises what it likes
        raise StorageError(f"{os.fspath(path)} cannot be read: {error!r}") from error
    if not isinstance(loaded, ReplayBuffer):
        raise StorageError(f"{os.fspath(path)} holds a {type(loaded).__name__}, not a replay buffer")
    return copy_of(loaded)


def export_pickle(source: ReplayBuffer | OfflineDataset | Path, path: Path, *, progress: bool = False) -> int:
    """
    Write transitions as SB3's own ``ReplayBuffer``, which ``load_replay_buffer`` reads, also where this package is not
    installed.

    SB3's buffer holds them uncompressed, so this needs as much memory as they take there.

    :param source: A replay buffer of SB3 or of this package, a data set, or its directory
    :param path: The file
    :param progress: Whether to show a progress bar (on a terminal)
    :return: How many transitions were written
    """
    rows = rows_of(source)
    cls: Any = DictReplayBuffer if isinstance(rows.observation_space, spaces.Dict) else ReplayBuffer
    buffer = cls(max(rows.used, 1) * rows.n_envs, rows.observation_space, rows.action_space, "cpu", rows.n_envs)
    for block in with_progress(rows.blocks(), -(-rows.used // 64), "copying", "block", progress):
        add_block(buffer, block)
    with atomic_write(path) as beside, open(beside, "wb") as file:
        save_to_pkl(file, buffer)
    return rows.used * rows.n_envs
