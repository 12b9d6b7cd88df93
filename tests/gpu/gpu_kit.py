"""What the tests of buffers on a device share: devices, methods, small buffers, and pairs of ours and SB3's."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from observation_streams import DictStream, Stack, Stream, assert_same_bits, sampled, scribble, space_of
from stable_baselines3.common.buffers import DictReplayBuffer, DictRolloutBuffer, ReplayBuffer, RolloutBuffer

from sb3_extra_buffers.codecs import has_igzip, has_lz4, has_numba, has_zstd
from sb3_extra_buffers.gpu_buffers import GpuDictReplayBuffer, GpuDictRolloutBuffer, GpuReplayBuffer, GpuRolloutBuffer

DEVICES = [
    "cpu",
    *(["cuda"] if th.cuda.is_available() else []),
    *(["mps"] if th.backends.mps.is_available() else []),
]

METHODS = [
    "delta",
    "rle",
    "none",
    "gzip1",
    *(["zstd", "zstd-5"] if has_zstd() else []),
    *(["lz4-frame/1", "lz4-block/1"] if has_lz4() else []),
    *(["igzip1"] if has_igzip() else []),
    *(["rle-jit"] if has_numba() else []),
]
ON_DEVICE = ["delta", "rle", "none"]


# Observations of a few bytes would be kept dense; here they are compressed, too.
class SmallReplay(GpuReplayBuffer):
    raw_below = 0


class SmallRollout(GpuRolloutBuffer):
    raw_below = 0


class SmallDictReplay(GpuDictReplayBuffer):
    raw_below = 0


class SmallDictRollout(GpuDictRolloutBuffer):
    raw_below = 0


class Pair:
    """
    Our replay buffer and SB3's, which get the same transitions.

    :param stream: Where these come from
    :param rows: Rows of the buffers
    :param options: Options of ours
    """

    def __init__(self, stream: Stream | DictStream, rows: int, **options: Any) -> None:
        self.stream, self.rng = stream, np.random.default_rng(0)
        is_dict = isinstance(stream, DictStream)
        args = (rows * stream.n_envs, space_of(stream), spaces.Discrete(4), "cpu")
        self.theirs: Any = (DictReplayBuffer if is_dict else ReplayBuffer)(*args, n_envs=stream.n_envs)
        self.ours: Any = (SmallDictReplay if is_dict else SmallReplay)(*args, n_envs=stream.n_envs, **options)

    def draw(self) -> tuple[Any, ...]:
        """The arguments of the next ``add``."""
        obs, next_obs, dones, infos = self.stream.step()
        return obs, next_obs, self.rng.integers(0, 4, self.stream.n_envs), self.rng.standard_normal(len(dones)), dones, infos

    def add(self, count: int = 1) -> None:
        """Add transitions to both."""
        for _ in range(count):
            given = self.draw()
            self.theirs.add(*given)
            self.ours.add(*given)

    def check(self) -> None:
        """Compare every row of both, and a sample."""
        assert (self.ours.pos, self.ours.full) == (self.theirs.pos, self.theirs.full)
        for name in ("observations", "next_observations"):
            mine, other = getattr(self.ours, name), getattr(self.theirs, name)
            if not isinstance(other, dict):
                mine, other = {None: mine}, {None: other}
            for key in other:
                assert_same_bits(np.asarray(mine[key]), other[key], f"{name} {key}")
        for name in ("actions", "rewards", "dones", "timeouts"):
            assert_same_bits(getattr(self.ours, name), getattr(self.theirs, name), name)
        if self.theirs.size():
            (got, state), (expected, their_state) = (sampled(buffer, 1, 9) for buffer in (self.ours, self.theirs))
            assert_same_bits(got.observations, expected.observations)
            assert_same_bits(got.next_observations, expected.next_observations)
            assert state[2] == their_state[2]
            scribble(got.observations)


def rollout_pair(stream: Stream | DictStream, rows: int, **options: Any) -> tuple[Any, Any]:
    """Our rollout buffer and SB3's."""
    is_dict = isinstance(stream, DictStream)
    args = (rows, space_of(stream), spaces.Discrete(4), "cpu")
    theirs = (DictRolloutBuffer if is_dict else RolloutBuffer)(*args, n_envs=stream.n_envs)
    return (SmallDictRollout if is_dict else SmallRollout)(*args, n_envs=stream.n_envs, **options), theirs


def image(seed: int, content: str = "mixed", depth: int = 3) -> Stream:
    """Small images of two environments, in stacks unless ``depth`` is 1."""
    return Stream(seed, 2, (1, 8, 8), np.uint8, content, Stack(depth, 0) if depth > 1 else None, 0.15)
