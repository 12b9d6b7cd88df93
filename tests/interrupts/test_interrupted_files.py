"""Ctrl-C between any two instructions of saving, loading and checkpoints leaves neither a lock nor a handle behind."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from interrupt_kit import Cut, between

from sb3_extra_buffers.compressed import CompressedReplayBuffer
from sb3_extra_buffers.compressed.file_loading import load_buffer
from sb3_extra_buffers.compressed.file_saving import take_moment
from sb3_extra_buffers.storage.disk import DISK, Handle
from sb3_extra_buffers.training_utils.resuming.folder import CheckpointFolder

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs Linux")


def cut() -> None:
    """Ctrl-C, but not where Python would ignore it: in ``__del__``."""
    if sys._getframe(1).f_locals["frame"].f_code is not Handle.close.__code__:
        raise Cut


def make() -> Any:
    buffer = CompressedReplayBuffer(64, spaces.Box(0, 255, (1, 36, 36), np.uint8), spaces.Discrete(2), "cpu")
    for step in range(40):
        obs = np.full((1, 1, 36, 36), step, np.uint8)
        buffer.add(obs, obs, np.zeros((1, 1)), np.array([step]), np.zeros(1), [{}])
    return buffer


def save(path: Path, buffer: Any) -> None:
    buffer.save(path / "b")


def save_anew(path: Path, buffer: Any) -> None:
    for file in (path / "b").glob("*"):
        file.unlink()
    buffer.save(path / "b")


def load(path: Path, buffer: Any) -> None:
    load_buffer(path / "b")


def write_checkpoint(path: Path, buffer: Any) -> None:
    folder = CheckpointFolder(str(path / "run"), 2)
    folder.open()
    folder.write({"run": "a", "num_timesteps": 1}, {"model.zip": b"model"}, take_moment(buffer))
    folder.close()


def lock(path: Path, buffer: Any) -> None:
    handle = DISK.lock(str(path))
    assert handle is not None
    DISK.close(handle)


@pytest.mark.parametrize("call", [lock, save, save_anew, load, write_checkpoint])
def test_nothing_is_left_open(call: Callable[[Path, Any], None], tmp_path: Path, record_property: Any) -> None:
    buffer = make()
    save(tmp_path, buffer)
    call(tmp_path, buffer)
    gc.collect()
    before = sorted(os.listdir("/proc/self/fd"))
    total = between(lambda: call(tmp_path, buffer), 1 << 60, cut)
    step = max(1, total // 60)
    times = 0
    for at in range(0, total, step):
        try:
            between(lambda: call(tmp_path, buffer), at, cut)
        except Cut:
            times += 1
        assert sorted(os.listdir("/proc/self/fd")) == before, at
        call(tmp_path, buffer)
    assert times > 10
    record_property("times", times)


def test_the_next_callback_takes_over_what_a_traceback_holds(tmp_path: Path) -> None:
    buffer = make()
    total = between(lambda: write_checkpoint(tmp_path, buffer), 1 << 60, cut)
    held = []
    for at in range(0, total, max(1, total // 60)):
        try:
            between(lambda: write_checkpoint(tmp_path, buffer), at, cut)
        except Cut as error:
            held.append(error)
        write_checkpoint(tmp_path, buffer)
        del held[:-1]
    assert held
