"""Checkpoints are written by a thread: what happens if it fails, if the process forks, and if it ends."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from resuming_kit import assert_same, everything, walks
from stable_baselines3 import DQN

from sb3_extra_buffers import CompressedReplayBuffer, ResumableCheckpoint, resume
from sb3_extra_buffers.storage.disk import Disk
from sb3_extra_buffers.training_utils.resuming.callback import in_background
from sb3_extra_buffers.training_utils.resuming.folder import CheckpointFolder, checkpoints_in


class FullDisk(Disk):
    """Has room for a while."""

    room = 10**9

    def write(self, handle: int, data: Any) -> int:
        self.room -= len(data)
        if self.room < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(handle, data)


def model() -> Any:
    """A model that has learned nothing yet."""
    options: Any = {"replay_buffer_class": CompressedReplayBuffer, "policy_kwargs": {"net_arch": [8]}}
    options |= {"exploration_initial_eps": 0.2, "exploration_final_eps": 0.2}  # whatever the number of steps
    return DQN("MlpPolicy", walks(), buffer_size=200, learning_starts=10, batch_size=4, seed=1, device="cpu", **options)


def test_an_error_is_raised_when_the_next_rollout_starts_and_nothing_is_lost(tmp_path: Path) -> None:
    checkpoint = ResumableCheckpoint(tmp_path, every=20)
    checkpoint._disk = disk = FullDisk()
    ours = model()
    ours.learn(20, callback=checkpoint)
    disk.room = 5000
    with pytest.raises(OSError, match=r"a checkpoint could not be written: .*; those before it are complete") as raised:
        ours.learn(10**6, callback=checkpoint, reset_num_timesteps=False)
    assert raised.value.errno == errno.ENOSPC
    assert len(checkpoints_in(str(tmp_path))) == 1 == len(os.listdir(tmp_path)), "no litter"
    # Training can go on: its state is that of a run that nobody has disturbed.
    disk.room = 10**9
    steps = ours.num_timesteps
    ours.learn(20, callback=checkpoint, reset_num_timesteps=False)
    found = everything(ours)
    theirs = model()
    theirs.learn(20)
    theirs.learn(steps - theirs.num_timesteps, reset_num_timesteps=False)
    theirs.learn(20, reset_num_timesteps=False)
    assert_same(found, everything(theirs))
    assert resume(tmp_path, env=walks()).num_timesteps == ours.num_timesteps > steps


def test_an_error_when_training_ends(tmp_path: Path) -> None:
    checkpoint = ResumableCheckpoint(tmp_path, every=10**6)
    checkpoint._disk = disk = FullDisk()
    disk.room = 100
    with pytest.raises(OSError, match="could not be written"):
        model().learn(20, callback=checkpoint)
    assert os.listdir(tmp_path) == []
    folder = CheckpointFolder(str(tmp_path), 1)
    folder.open()  # nobody holds the lock any more
    folder.close()


class SlowDisk(Disk):
    """Waits until it may go on."""

    def __init__(self) -> None:
        self.go = threading.Event()

    def sync(self, handle: int) -> None:
        self.go.wait(30)
        super().sync(handle)


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path: Path) -> None:
    """And the next one is not begun before the last one is done."""
    checkpoint = ResumableCheckpoint(tmp_path, every=20)
    checkpoint._disk = disk = SlowDisk()
    taken = []

    class Watch(ResumableCheckpoint):
        def _on_step(self) -> bool:
            taken.append((self.num_timesteps, checkpoint._is_writing))
            if self.num_timesteps >= 100:
                disk.go.set()
            return True

    watch = Watch(tmp_path / "other", every=10**6)
    model().learn(120, callback=[checkpoint, watch])
    busy = [step for step, is_busy in taken if is_busy]
    assert busy and max(busy) - min(busy) >= 60 and checkpoint._last_step == 120
    assert resume(tmp_path, env=walks()).num_timesteps == 120


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_child_closes_no_file_of_somebody_else(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = CheckpointFolder(str(tmp_path / "run"), keep=2)
    folder.open()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            files = [os.open(tmp_path / str(number), os.O_WRONLY | os.O_CREAT) for number in range(20)]
            folder.close()
            for file in files:
                os.write(file, b"x")
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert capfd.readouterr().err == ""
    folder.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_waits_for_the_thread_and_the_child_holds_no_lock(tmp_path: Path) -> None:
    done: list[int] = []
    folder = CheckpointFolder(str(tmp_path), 1)
    folder.open()
    work = in_background(lambda: (time.sleep(0.3), done.append(1)))  # type: ignore[arg-type,func-returns-value]
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        ok = done == [1] and work.done()
        ours.close()
        theirs.send(b"!")
        theirs.recv(1)  # lives until the other end is closed
        os._exit(0 if ok else 1)
    theirs.close()
    ours.recv(1)
    assert done == [1]
    folder.close()
    folder.open()  # although the child is still there
    folder.close()
    ours.close()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


PROGRAM = """
import time
from sb3_extra_buffers.training_utils.resuming.callback import in_background

def write():
    time.sleep(0.3)
    print("written", flush=True)

def fail():
    raise OSError("no room")

futures = in_background(write), in_background(fail)
"""


def test_a_process_that_ends_waits_and_tells() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout == "written\n" and "the last checkpoint was not written: OSError('no room')" in done.stderr
