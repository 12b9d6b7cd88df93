"""Pictures as floats, or as 16 bits: as small as bytes, where they have no more than 256 values, and the bits that SB3 has."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from observation_streams import Stack, Stream, assert_same_samples, sampled
from stable_baselines3.common.buffers import ReplayBuffer, RolloutBuffer

from sb3_extra_buffers.compressed import CompressedReplayBuffer, CompressedRolloutBuffer

ROWS, ENVS = 60, 2
ACTIONS = spaces.Discrete(3)


def as_pictures(obs: np.ndarray, dtype: str) -> np.ndarray:
    """Gray levels as a type that is not theirs."""
    return obs.astype(dtype) if np.dtype(dtype).kind != "f" else (obs / np.float32(255)).astype(dtype)


def space_of(dtype: str, shape: tuple[int, ...]) -> spaces.Box:
    return spaces.Box(0, 1 if np.dtype(dtype).kind == "f" else 255, shape, np.dtype(dtype).type)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "uint16"])
def test_replay(dtype: str, turned: bool) -> None:
    stream = Stream(1, ENVS, (1, 20, 20), np.uint8, "game", Stack(4, 0), 0.05)
    args: Any = (ROWS * ENVS, space_of(dtype, stream.obs_shape), ACTIONS, "cpu")
    ours, theirs = CompressedReplayBuffer(*args, n_envs=ENVS), ReplayBuffer(*args, n_envs=ENVS)
    noise = np.random.default_rng(0)
    for step in range(3 * ROWS):
        obs, next_obs, dones, infos = stream.step()
        pair = [as_pictures(part, dtype) for part in (obs, next_obs)]
        if step == 2 * ROWS + 5:  # in one row, there are more values than a table holds
            pair[1] = noise.random(pair[1].shape).astype(dtype) if np.dtype(dtype).kind == "f" else pair[1] * 200 + obs
        if turned:
            pair = [np.ascontiguousarray(part.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2) for part in pair]
        for buffer in (ours, theirs):
            buffer.add(pair[0], pair[1], np.zeros((ENVS, 1), np.int64), np.ones(ENVS), dones, infos)
        if step % 20 == 19:
            assert_same_samples(sampled(ours, step, 40)[0], sampled(theirs, step, 40)[0])
        if step == 2 * ROWS:
            ours = pickle.loads(pickle.dumps(ours))
    assert_same_samples(sampled(ours, 0, 200)[0], sampled(theirs, 0, 200)[0])


@pytest.mark.parametrize("dtype", ["float32", "uint16"])
def test_rollout(dtype: str) -> None:
    stream = Stream(2, ENVS, (1, 20, 20), np.uint8, "game", Stack(4, 0), 0.05)
    args: Any = (ROWS, space_of(dtype, stream.obs_shape), ACTIONS, "cpu")
    ours, theirs = CompressedRolloutBuffer(*args, n_envs=ENVS), RolloutBuffer(*args, n_envs=ENVS)
    for lap in range(3):
        for buffer in (ours, theirs):
            buffer.reset()
        for _ in range(ROWS):
            obs = as_pictures(stream.step()[0], dtype)
            for buffer in (ours, theirs):
                buffer.add(obs, np.zeros((ENVS, 1)), np.ones(ENVS), np.zeros(ENVS), th.zeros(ENVS), th.zeros(ENVS))
        for mine, other in zip(*(list(_batches(buffer, lap)) for buffer in (ours, theirs)), strict=True):
            assert_same_samples(mine, other)


def _batches(buffer: Any, seed: int) -> Any:
    np.random.seed(seed)
    yield from buffer.get(32)


def test_they_take_what_bytes_take() -> None:
    """The default of a buffer, in payload: a table of values for each chunk is all there is to add."""
    taken = {}
    for dtype in ("uint8", "float32", "uint16"):
        stream = Stream(3, ENVS, (1, 40, 40), np.uint8, "game", Stack(4, 0), 0.02)
        buffer = CompressedReplayBuffer(400 * ENVS, space_of(dtype, stream.obs_shape), ACTIONS, "cpu", n_envs=ENVS)
        for _ in range(400):
            obs, next_obs, dones, infos = stream.step()
            pair = [as_pictures(part, dtype) if dtype != "uint8" else part for part in (obs, next_obs)]
            buffer.add(pair[0], pair[1], np.zeros((ENVS, 1), np.int64), np.ones(ENVS), dones, infos)
        taken[dtype] = buffer.memory_usage().stored_bytes
    assert taken["float32"] < 1.1 * taken["uint8"] and taken["uint16"] < 1.1 * taken["uint8"]
