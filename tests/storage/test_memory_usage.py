"""What ``memory_usage()`` says."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer

from sb3_extra_buffers.compressed import CompressedReplayBuffer


def test_an_empty_buffer_does_not_claim_to_be_smaller() -> None:
    space = spaces.Box(0, 255, (36, 36, 1), np.uint8)
    buffer = CompressedReplayBuffer(10, space, spaces.Discrete(2), "cpu")
    assert str(buffer.memory_usage()) == "no observations yet"
    obs = np.zeros((1, 36, 36, 1), np.uint8)
    buffer.add(obs, obs, np.zeros((1, 1)), np.zeros(1), np.zeros(1), [{}])
    assert "x smaller" in str(buffer.memory_usage())


class GridWorld:
    """
    What an agent sees of a world of tiles, its own direction upwards, in RGB: whenever it turns, nearly all of a picture
    changes. Half of the steps change nothing. An episode ends after 100 steps.

    :param n_envs: Number of environments
    """

    _SEEN, _TILE, _STEPS = 7, 12, 100
    shape = (3, _SEEN * _TILE, _SEEN * _TILE)

    def __init__(self, n_envs: int) -> None:
        self._rng = np.random.default_rng(0)
        tiles = self._rng.integers(0, 256, (8, 3, 1, 1)) * (self._rng.random((8, 3, self._TILE, self._TILE)) < 0.7)
        self._tiles = tiles.astype(np.uint8)
        self._maps = self._rng.integers(0, len(tiles), (n_envs, 24, 24))
        self._places = np.full((n_envs, 3), (8, 8, 0))
        self._step = 0
        self._obs = self._look()

    def _look(self) -> Any:
        seen = []
        for tiles, (y, x, turns) in zip(self._maps, self._places, strict=True):
            part = np.rot90(tiles[y : y + self._SEEN, x : x + self._SEEN], turns)
            seen.append(self._tiles[part].transpose(2, 0, 3, 1, 4).reshape(self.shape))
        return np.stack(seen)

    def step(self) -> tuple[Any, ...]:
        """
        Play a step.

        :return: What a replay buffer is given
        """
        n_envs, obs = len(self._maps), self._obs
        for place, what in zip(self._places, self._rng.integers(0, 8, n_envs), strict=True):
            if what < 3:
                place[2] = (place[2] + (1, -1, 2)[what]) % 4
            elif what == 3:
                place[:2] = np.clip(place[:2] + self._rng.integers(-1, 2, 2), 0, 16)
        next_obs = self._obs = self._look()
        self._step += 1
        done = np.full(n_envs, self._step % self._STEPS == 0)
        if done.all():
            self._places = np.full((n_envs, 3), (8, 8, 0))
            self._obs = self._look()
        return obs, next_obs, np.zeros((n_envs, 1)), np.zeros(n_envs), done, [{}] * n_envs


@pytest.mark.parametrize("n_envs", [1, 4])
def test_what_a_grid_world_shows_again_costs_next_to_nothing(n_envs: int) -> None:
    args = (2_000, spaces.Box(0, 255, GridWorld.shape, np.uint8), spaces.Discrete(2), "cpu")
    ours, theirs = CompressedReplayBuffer(*args, n_envs=n_envs), ReplayBuffer(*args, n_envs=n_envs)
    world = GridWorld(n_envs)
    steps = [world.step() for _ in range(2_000 // n_envs)]
    for step in steps:
        ours.add(*step)
        theirs.add(*step)
    # Of 2,000 frames, some 950 differ from the one before, and 220 to 350 were never seen before.
    assert ours.memory_usage().stored_bytes < 2_000 * 1_200
    assert (np.asarray(ours.observations) == theirs.observations).all()
    assert (np.asarray(ours.next_observations) == theirs.next_observations).all()


@pytest.mark.parametrize("method", ["delta", "gzip1"])
def test_frames_that_recur_are_stored_once_a_chunk(method: str) -> None:
    frames = np.random.default_rng(0).integers(0, 256, (4, 3, 40, 40), np.uint8)
    order = np.random.default_rng(1).integers(0, len(frames), 2_001)
    space = spaces.Box(0, 255, frames.shape[1:], np.uint8)
    buffer = CompressedReplayBuffer(2_000, space, spaces.Discrete(2), "cpu", compression_method=method)
    for obs, next_obs in pairwise(order):
        buffer.add(frames[obs, None], frames[next_obs, None], np.zeros((1, 1)), np.zeros(1), np.zeros(1), [{}])
    # Noise that comes for the first time takes 4,800 bytes.
    assert buffer.memory_usage().stored_bytes < 2_000 * 200
    assert (buffer.observations[:, 0] == frames[order[:-1]]).all()
    assert (buffer.next_observations[:, 0] == frames[order[1:]]).all()
