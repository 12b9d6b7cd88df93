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

LOGGER = logging.getLogger("sb3_extra_buffers")
LEVEL, GYM_LEVEL, THREADS = LOGGER.level, gym.logger.min_level, th.get_num_threads()


@pytest.fixture(autouse=True)
def loud_again() -> Iterator[None]:
    """
    Commands let only errors through in their process; here, the next test may wait for a warning.

    All is put back as it was before any test: a fixture of a whole module may have run a command before this one begins.
    """
    with warnings.catch_warnings():
        yield
    LOGGER.setLevel(LEVEL)
    gym.logger.min_level = GYM_LEVEL
    th.set_num_threads(THREADS)


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spares a test the start of processes."""

    def run(*calls: Call, in_turns: bool = False) -> list[Any]:
        return [call.task(*call.args, call.report) for call in calls]

    monkeypatch.setattr(children, "run_in_children", run)
