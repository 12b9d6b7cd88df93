"""Recordings of real games, made once."""

from __future__ import annotations

import pytest
from recording_kit import record_game

from sb3_extra_buffers.recording import RecordBuffer


@pytest.fixture(scope="session")
def pong() -> RecordBuffer:
    """Three short episodes of Pong, the last of which is still running."""
    return record_game("ALE/Pong-v5", 150, info_features=("lives", "frame_number"))
