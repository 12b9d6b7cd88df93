"""Whenever the power fails, the newest checkpoint is complete: the one that was last acknowledged, or the next."""

from __future__ import annotations

import errno
import os
import random
from functools import cache
from typing import Any

import numpy as np
import pytest
from checkpoint_kit import FOLDER, found, write
from disk_simulator import SimulatedDisk, after_crash
from file_kit import held, load, make
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from sb3_extra_buffers import CompressedReplayBuffer
from sb3_extra_buffers.training_utils.resuming.folder import BUFFER, CheckpointFolder, checkpoints_in

KEEP = 2
STEPS = (5, 3, 40, 17)


class History:
    """Some checkpoints of a run: the calls that took, and what each of them held."""

    def __init__(self) -> None:
        self.disk, self.states, self.acknowledged = SimulatedDisk(), [], []
        buffer, feed = make("plain", 0)
        folder = CheckpointFolder(FOLDER, KEEP, self.disk)
        folder.open()
        for number, steps in enumerate(STEPS):
            for _ in range(steps):
                feed.add()
            write(folder, number, buffer)
            self.states.append((number, held(buffer)))
            self.acknowledged.append(len(self.disk.calls))
        folder.close()
        assert len(checkpoints_in(FOLDER, self.disk)) == KEEP and self.disk.open_handles == 0

    def expected(self, calls: int) -> list[Any]:
        """What may be the newest one after so many calls."""
        done = sum(calls >= count for count in self.acknowledged)
        return [self.states[done - 1] if done else None, *self.states[done : done + 1]]


@cache
def history() -> History:
    return History()


def test_every_call_may_be_the_last(record_property: Any) -> None:
    past = history()
    assert found(past.disk) == past.states[-1]
    record_property("times", 2 * (len(past.disk.calls) + 1))
    for calls in range(len(past.disk.calls) + 1):
        for seed in range(2):
            disk = after_crash(past.disk.calls[:calls], random.Random(f"{calls} {seed}"))
            assert found(disk) in past.expected(calls), (calls, seed)


@given(st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_a_run_goes_on_after_a_crash(rng: random.Random) -> None:
    past = history()
    calls = rng.randrange(len(past.disk.calls) + 1)
    disk = after_crash(past.disk.calls[:calls], rng)
    assert found(disk) in past.expected(calls)
    buffer, _ = make("plain", 9)
    folder = CheckpointFolder(FOLDER, KEEP, disk)
    folder.open()
    write(folder, 10, buffer)
    folder.close()
    assert found(disk) == (10, held(buffer))
    complete = {os.path.basename(checkpoint.path) for checkpoint in checkpoints_in(FOLDER, disk)}
    assert set(disk.names_in(FOLDER)) == complete, "what was never finished is cleared away"


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
def test_every_call_may_fail(number: int, record_property: Any) -> None:
    """The checkpoints before stay, and the next one can be written."""
    buffer, feed = make("plain", 20)
    clean = SimulatedDisk()
    folder = CheckpointFolder(FOLDER, KEEP, clean)
    folder.open()
    write(folder, 0, buffer)
    write(folder, 1, buffer)
    old = found(clean)
    folder.close()
    for _ in range(9):
        feed.add()
    new = (2, held(buffer))
    for after in range(300):
        disk = clean.copy()
        left, failed = after, ""

        def before(name: str) -> None:
            nonlocal left, failed
            left -= 1
            if left < 0 and not failed:
                failed = name
                raise OSError(number, "made to fail")

        folder = CheckpointFolder(FOLDER, KEEP, disk)
        folder.open()
        disk.before_call = before
        raised = None
        try:
            write(folder, 2, buffer)
        except OSError as error:
            raised = error
        disk.before_call = lambda name: None
        assert raised is None or raised.errno == number
        assert found(disk) == (new if raised is None else old), failed
        disk._locked.clear()  # closing may have failed
        folder = CheckpointFolder(FOLDER, KEEP, disk)
        folder.open()
        write(folder, 3, buffer)
        assert found(disk) == (3, new[1]) and len(checkpoints_in(FOLDER, disk)) == KEEP
        if not failed:
            record_property("times", after)
            return
    pytest.fail("writing takes no end of calls")


def test_only_what_is_new_is_written() -> None:
    rng = np.random.default_rng(0)
    buffer = CompressedReplayBuffer(4096, spaces.Box(0, 255, (1, 36, 36), np.uint8), spaces.Discrete(3), "cpu")
    picture = rng.integers(0, 255, (1, 1, 36, 36), np.uint8)

    def add(steps: int) -> None:
        nonlocal picture
        for _ in range(steps):
            following = rng.integers(0, 255, picture.shape, np.uint8)
            buffer.add(picture, following, np.zeros((1, 1)), np.zeros(1), np.zeros(1), [{}])
            picture = following

    disk = SimulatedDisk()
    folder = CheckpointFolder(FOLDER, KEEP, disk)
    folder.open()
    add(3000)
    first = write(folder, 0, buffer)
    add(1)
    second = write(folder, 0, buffer)
    assert second < first / 8
    one, two = [set(names.values()) for path, names in disk.folders.items() if path.endswith(BUFFER)]
    assert one & two, "both have the same file"
    newest, _ = checkpoints_in(FOLDER, disk)
    assert held_images(load(disk, os.path.join(newest.path, BUFFER))) == held_images(buffer)


def held_images(buffer: Any) -> bytes:
    """All observations."""
    return bytes(buffer.observations[: buffer.pos].tobytes())


def test_one_writes_at_a_time() -> None:
    disk = SimulatedDisk()
    folder = CheckpointFolder(FOLDER, KEEP, disk)
    folder.open()
    folder.close()
    handle = disk.lock(FOLDER)  # as another process does
    with pytest.raises(BlockingIOError, match="another process writes checkpoints"):
        folder.open()
    assert handle is not None
    disk.close(handle)
    folder.open()
    # In the same process, the last one has it: the others belong to trainings that have ended with an error.
    buffer, _ = make("plain", 5)
    other = CheckpointFolder(FOLDER, KEEP, disk)
    other.open()
    write(other, 1, buffer)
    with pytest.raises(RuntimeError, match="another callback of this process has taken /runs/pong over"):
        write(folder, 2, buffer)
    assert found(disk) == (1, held(buffer))
