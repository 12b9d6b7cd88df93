"""Processes that are killed by ``kill -9`` while they write: nothing acknowledged is lost, and nothing opens wrong."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_kit import found as newest_checkpoint
from checkpoint_kit import write as write_checkpoint
from file_kit import held, load, make, save
from numbered_worlds import ENVS, ROWS, Feed, images

from sb3_extra_buffers import load_buffer
from sb3_extra_buffers.compressed import rings
from sb3_extra_buffers.training_utils.resuming.folder import CheckpointFolder, checkpoints_in

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
]
TIMES = [30, pytest.param(1000, marks=pytest.mark.slow)]
KINDS = ("plain", "dict", "prioritized")
STEPS = 7  # between two states
_LONGEST = 0.02  # seconds from when a process is ready until it is killed

Tell = Callable[[int], None]


def kill(work: Callable[[Tell], None], chance: random.Random) -> list[int]:
    """
    Have a process work, and kill it at some moment: half of the time, only once it has acknowledged something.

    :param work: What it does; it first tells that it is ready, and then what is acknowledged, and never ends
    :param chance: Decides when
    :return: What was acknowledged
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            os.close(reading)
            work(lambda number: os.write(writing, number.to_bytes(8, "little")) and None)
        os._exit(1)
    os.close(writing)
    told = [os.read(reading, 8) for _ in range(chance.choice((1, 2)))]
    time.sleep(chance.random() * _LONGEST)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    while data := os.read(reading, 8):
        told.append(data)
    os.close(reading)
    assert os.WIFSIGNALED(status) and b"" not in told, "it has ended by itself"
    return [int.from_bytes(data, "little") for data in told[1:]]


def make_at(kind: str, steps: int) -> tuple[Any, Feed]:
    """The buffer after so many steps; what was overwritten since is left out."""
    buffer, feed = make(kind, 0)
    feed.step = max(0, steps // ROWS - 1) * ROWS
    while feed.step < steps:
        feed.add()
    return buffer, feed


@cache
def held_at(kind: str, steps: int) -> Any:
    return held(make_at(kind, steps)[0])


@pytest.mark.parametrize("times", TIMES)
def test_killed_while_saving(times: int, tmp_path: Path, record_property: Any) -> None:
    """There is what was acknowledged, or what was being saved."""
    chance = random.Random(times)
    steps = dict.fromkeys(KINDS, 0)
    for number in range(times):
        kind = KINDS[number % len(KINDS)]

        def save_again_and_again(tell: Tell, kind: str = kind) -> None:
            buffer, feed = make_at(kind, steps[kind])
            tell(0)
            while True:
                for _ in range(STEPS):
                    feed.add()
                save(buffer, path=tmp_path / kind)
                tell(feed.step)

        last = max([steps[kind], *kill(save_again_and_again, chance)])
        if last or (tmp_path / kind / "manifest.json").exists():
            states = [held_at(kind, state) for state in (last, last + STEPS)]
            assert held(load(path=tmp_path / kind)) in states, "neither what was acknowledged nor the next"
        steps[kind] = last
    assert sum(steps.values()) // STEPS >= times // 4, "it gets on"
    record_property("times", times)
    record_property("acknowledged", sum(steps.values()) // STEPS)


def newest_step(buffer: Any) -> int:
    return int(buffer.rewards[(buffer.pos - 1) % ROWS].max()) // ENVS if buffer.size() else -1


def check_rows(buffer: Any) -> None:
    """All rows are those of steps one after the other."""
    rows, newest = buffer.size(), newest_step(buffer)
    order = [(buffer.pos - rows + place) % ROWS for place in range(rows)]
    steps = list(range(newest - rows + 1, newest + 1))
    assert [int(buffer.rewards[row, 0]) // ENVS for row in order] == steps
    observations, following = np.asarray(buffer.observations[:]), np.asarray(buffer.next_observations[:])
    for row, step in zip(order, steps, strict=True):
        assert np.array_equal(observations[row], images(step)) and np.array_equal(following[row], images(step + 1)), step


@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("durability", ["chunk", "full"])
def test_killed_while_writing_a_ring(durability: str, times: int, tmp_path: Path, record_property: Any) -> None:
    """What was flushed is there, and so is what was there before; all rows are right."""
    ring = str(tmp_path / "ring")
    chance = random.Random(times)
    newest, acknowledged = -1, 0
    for number in range(times):

        def add_and_flush(tell: Tell, between: int = 5 + number % 90) -> None:
            rings._SECONDS = 0.001  # so that there are many states in a short time
            buffer, feed = make("plain", 0, storage_dir=ring, durability=durability, max_memory=20_000)
            feed.step = newest_step(buffer) + 1
            tell(0)
            while True:
                for _ in range(between):
                    feed.add()
                buffer.flush()
                tell(feed.step - 1)

        told = kill(add_and_flush, chance)
        found = load_buffer(ring)
        check_rows(found)
        assert newest_step(found) >= max([newest, *told]), "something is lost"
        newest, acknowledged = newest_step(found), acknowledged + len(told)
    assert acknowledged >= times // 4, "it gets on"
    record_property("times", times)
    record_property("acknowledged", acknowledged)


@pytest.mark.parametrize("times", TIMES)
def test_killed_while_writing_checkpoints(times: int, tmp_path: Path, record_property: Any) -> None:
    """The newest checkpoint is what was acknowledged last, or the next one, and all that are there can be read."""
    path = str(tmp_path / "run")
    chance = random.Random(times)
    last = acknowledged = 0
    for _ in range(times):

        def write_again_and_again(tell: Tell, last: int = last) -> None:
            buffer, feed = make_at("plain", last * STEPS)
            tell(0)
            folder = CheckpointFolder(path, keep=2)
            folder.open()
            while True:
                for _ in range(STEPS):
                    feed.add()
                write_checkpoint(folder, feed.step // STEPS, buffer)
                tell(feed.step // STEPS)

        told = kill(write_again_and_again, chance)
        acknowledged += len(told)
        least = max([last, *told])
        found = newest_checkpoint(path=path)
        assert (found or (0, None))[0] in (least, least + 1), "neither what was acknowledged nor the next"
        if found is not None:
            last = found[0]
            assert found[1] == held_at("plain", last * STEPS)
    assert acknowledged >= times // 4, "it gets on"
    folder = CheckpointFolder(path, keep=2)
    folder.open()
    folder.close()
    assert len(os.listdir(path)) == len(checkpoints_in(path)) <= 3, "what was never finished is cleared away"
    record_property("times", times)
    record_property("acknowledged", acknowledged)
