"""Rings of a few hundred rows of small frames: no ``add`` may stall, however often the ring goes round."""

from __future__ import annotations

import gc
import time

import numpy as np
import pytest
from gymnasium import spaces
from observation_streams import METHODS, Stack, Stream, space_of

from sb3_extra_buffers.compressed import CompressedReplayBuffer

ROUNDS = 5
STALL = 8e6  # ns of processor time; an ``add`` takes a hundredth of that, storing all rows again twice as much and more


class SmallReplayBuffer(CompressedReplayBuffer):
    raw_below = 0


@pytest.mark.parametrize("method", [method for method in ("delta", "zstd-3") if method in METHODS])
@pytest.mark.parametrize(("rows", "n_envs"), [(400, 1), (600, 1), (1000, 1), (400, 4)])
def test_no_add_stalls(rows: int, n_envs: int, method: str) -> None:
    stream = Stream(0, n_envs, (1, 16, 16), np.uint8, "game", Stack(4, 0), done_rate=0.01)
    buffer = SmallReplayBuffer(rows * n_envs, space_of(stream), spaces.Discrete(3), "cpu", n_envs, compression_method=method)
    actions, rewards = np.zeros((n_envs, 1)), np.zeros(n_envs)
    times = []
    gc.disable()
    try:
        for _ in range((1 + ROUNDS) * rows):
            obs, next_obs, dones, infos = stream.step()
            start = time.thread_time_ns()
            buffer.add(obs, next_obs, actions, rewards, dones, infos)
            times.append(time.thread_time_ns() - start)
    finally:
        gc.enable()
    stalls = sum(took > STALL for took in times[rows:])
    assert stalls <= 1, f"{stalls} in {ROUNDS} rounds; one may be the machine's"
