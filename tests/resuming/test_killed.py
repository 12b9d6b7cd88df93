"""Runs that are killed at any moment, by ``kill -9``, and go on from their last complete checkpoint."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from killed_run import go, make
from resuming_kit import assert_same, everything

from sb3_extra_buffers.training_utils.resuming.folder import checkpoints_in, read_manifest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs fork and kill -9")

STEPS, EVERY = 416, 20  # a multiple of a rollout


@pytest.fixture(autouse=True, scope="module")
def everything_is_imported() -> None:
    """The first optimizer of a process imports a thousand modules; processes that are forked have them already."""
    make("DQN")


def start(path: Path, name: str, steps: int) -> Any:
    """A process that has all modules already."""
    process = multiprocessing.get_context("fork").Process(target=go, args=(path, name, steps, EVERY))
    process.start()
    return process


def kill_again_and_again(path: Path, name: str, kills: int, seed: int, steps: int = STEPS) -> int:
    """Whatever has been written when the process dies, the run reaches its end with the right number of steps."""
    chance = random.Random(seed)
    done, seen = 0, 0
    while done < kills:
        process = start(path, name, steps)
        # Not before there is something to lose, and then at any moment of writing, removing or training.
        newest = seen
        while process.is_alive() and newest <= seen:
            time.sleep(0.005)
            newest = max([checkpoint.number for checkpoint in checkpoints_in(str(path))], default=0)
        time.sleep(chance.random() * 0.08)
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        if process.exitcode == 0:
            break  # it was faster
        done += 1
        found = checkpoints_in(str(path))
        assert found and found[0].number >= newest, "a checkpoint that was complete is gone"
        read_manifest(found[0])
        seen = found[0].number
    process = start(path, name, steps)
    process.join()
    assert process.exitcode == 0
    said = read_manifest(checkpoints_in(str(path))[0])
    assert said["num_timesteps"] == steps and len(checkpoints_in(str(path))) <= 2
    assert sorted(os.listdir(path)) == sorted(Path(found.path).name for found in checkpoints_in(str(path)))
    return done


@pytest.mark.parametrize("name", ["DQN", "SAC", "PPO"])
def test_killed_three_times(name: str, tmp_path: Path, record_property: Any) -> None:
    record_property("times", kill_again_and_again(tmp_path / "run", name, 3, seed=len(name)))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["DQN", "SAC", "PPO"])
def test_killed_twenty_times(name: str, tmp_path: Path, record_property: Any) -> None:
    assert kill_again_and_again(tmp_path / "run", name, 20, seed=7, steps=20 * STEPS) == 20
    record_property("times", 20)


def test_a_run_that_was_killed_ends_as_one_that_was_not(tmp_path: Path, record_property: Any) -> None:
    """In processes of their own: nothing but the folder has come over."""
    record_property("times", kill_again_and_again(tmp_path / "killed", "DQN", 2, seed=3))
    wanted = everything(go(tmp_path / "whole", "DQN", STEPS, EVERY))
    model = go(tmp_path / "killed", "DQN", STEPS, EVERY)  # at its end already
    assert_same(wanted, everything(model))
