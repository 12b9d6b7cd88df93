"""What tests of commands share."""

import logging
import warnings
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import pytest
import torch as th

from sb3_extra_buffers.cli import children
from sb3_extra_buffers.cli.children import Call


@pytest.fixture(autouse=True)
def loud_again() -> Iterator[None]:
    """Commands let only errors through in their process; here, the next test may wait for a warning."""
    logger, threads, gym_level = logging.getLogger("sb3_extra_buffers"), th.get_num_threads(), gym.logger.min_level
    level = logger.level
    with warnings.catch_warnings():
        yield
    logger.setLevel(level)
    th.set_num_threads(threads)
    gym.logger.min_level = gym_level


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spares a test the start of processes."""

    def run(*calls: Call, in_turns: bool = False) -> list[Any]:
        return [call.task(*call.args, call.report) for call in calls]

    monkeypatch.setattr(children, "run_in_children", run)
