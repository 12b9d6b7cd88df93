"""Transitions to and from the pickles that SB3's ``save_replay_buffer`` writes."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from typing import Any

from gymnasium import spaces
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer
from stable_baselines3.common.save_util import load_from_pkl, save_to_pkl

from sb3_extra_buffers.compressed.file_loading import load_buffer
from sb3_extra_buffers.compressed.files import Path
from sb3_extra_buffers.datasets.blocks import Blocks, add_block, copy_of
from sb3_extra_buffers.datasets.dataset import OfflineDataset
from sb3_extra_buffers.recording.atomic import written_beside
from sb3_extra_buffers.recording.optional import with_progress
from sb3_extra_buffers.storage.errors import StorageError

RUNS_CODE = (
    "a pickle can run any code when it is opened, so open only files that you trust (`sb3-extra-buffers inspect FILE` looks "
    "at one without running it)"
)


def replay_from_pickle(path: Path, *, allow_pickle: bool = False) -> Any:
    """
    Read a replay buffer that ``save_replay_buffer`` or ``pickle`` has written, SB3's or one of this package.

    **A pickle can run any code when it is opened.** It is opened in a process of its own, which hands the transitions over as
    a directory without pickle; but that process may do whatever you may do.

    :param path: The file
    :param allow_pickle: Say that you trust it; else it is not opened
    :return: A compressed replay buffer
    """
    if not os.path.isfile(path):
        raise FileNotFoundError(f"there is no file {os.fspath(path)}")
    if not allow_pickle:
        raise ValueError(f"{os.fspath(path)} was not opened: {RUNS_CODE}. If you trust it, say allow_pickle=True")
    with tempfile.TemporaryDirectory() as folder:
        target = os.path.join(folder, "buffer.sb3x")
        command = [sys.executable, "-m", __name__, os.path.abspath(path), target]
        child = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
        if child.returncode:
            lines = child.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {child.returncode}"]
            raise StorageError(f"{os.fspath(path)} cannot be read: {lines[-1]}")
        return load_buffer(target, device="cpu")  # mapped, so it stays when the folder is gone


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
    blocks = Blocks(source)
    cls: Any = DictReplayBuffer if isinstance(blocks.observation_space, spaces.Dict) else ReplayBuffer
    size = max(blocks.rows, 1) * blocks.n_envs
    buffer = cls(size, blocks.observation_space, blocks.action_space, "cpu", blocks.n_envs)
    for block in with_progress(blocks.read(), -(-blocks.rows // 64), "copying", "block", progress):
        add_block(buffer, block)
    with written_beside(path) as beside, open(beside, "wb") as file:
        save_to_pkl(file, buffer)
    return blocks.rows * blocks.n_envs


def main(source: str, target: str) -> None:
    """
    Do the work of ``replay_from_pickle``, in a process of its own.

    :param source: The pickle
    :param target: The directory to write
    """
    loaded: Any = load_from_pkl(source)
    if not isinstance(loaded, ReplayBuffer):
        raise SystemExit(f"it holds a {type(loaded).__name__}, not a replay buffer")
    copy_of(loaded).save(target)


if __name__ == "__main__":
    main(*sys.argv[1:])
