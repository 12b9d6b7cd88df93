"""What ``memory_usage()`` says."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces

from sb3_extra_buffers.compressed import CompressedReplayBuffer


def test_an_empty_buffer_does_not_claim_to_be_smaller() -> None:
    space = spaces.Box(0, 255, (36, 36, 1), np.uint8)
    buffer = CompressedReplayBuffer(10, space, spaces.Discrete(2), "cpu")
    assert str(buffer.memory_usage()) == "no observations yet"
    obs = np.zeros((1, 36, 36, 1), np.uint8)
    buffer.add(obs, obs, np.zeros((1, 1)), np.zeros(1), np.zeros(1), [{}])
    assert "x smaller" in str(buffer.memory_usage())
