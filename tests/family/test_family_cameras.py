"""Cameras in the whole family: n-step returns, hindsight and priorities over pictures that change all over."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from family_buffers import ORACLES, SmallDictNStepReplayBuffer, SmallHerReplayBuffer, SmallNStepReplayBuffer
from gymnasium import spaces
from observation_streams import DictStream, Stream, assert_same_bits, assert_same_samples, present, sampled, space_of
from picture_streams import PictureStream
from stable_baselines3.common.buffers import NStepReplayBuffer
from stable_baselines3.common.vec_env import DummyVecEnv
from test_family_oracle import _Goals

from sb3_extra_buffers.testing.worlds import World

N_ENVS, SHAPE, SIZE = 2, (24, 32, 3), 60
KINDS = ("255 colours", "shaded", "dusk")


def steps(stream: Any, count: int, seed: int) -> Any:
    """Steps as SB3 hands them over: pictures are views of memory that has channels last."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        obs, next_obs, dones, infos = stream.step()
        infos = [{"TimeLimit.truncated": False, **info} for info in infos]
        seen = [present(part, "channels last") for part in (obs, next_obs)]
        yield *seen, rng.integers(0, 3, N_ENVS), rng.standard_normal(N_ENVS), dones, infos


@pytest.mark.parametrize("kind", KINDS)
def test_n_step_returns(kind: str) -> None:
    stream = PictureStream(1, N_ENVS, SHAPE, kind, depth=4)
    kwargs: dict[str, Any] = {"n_envs": N_ENVS, "device": "cpu", "n_steps": 3, "gamma": 0.9}
    args = (SIZE * N_ENVS, space_of(stream), spaces.Discrete(3))
    ours, theirs = SmallNStepReplayBuffer(*args, **kwargs), NStepReplayBuffer(*args, **kwargs)
    for number, step in enumerate(steps(stream, 2 * SIZE, 1)):
        for buffer in (ours, theirs):
            buffer.add(*step)
        if number % 40 == 39:
            assert_same_samples(sampled(ours, number, 32)[0], sampled(theirs, number, 32)[0])


@pytest.mark.parametrize("kind", KINDS)
def test_n_step_returns_of_a_dict(kind: str) -> None:
    """SB3 has no such buffer: each key is compared with a buffer of its own."""
    stream = DictStream(
        {
            "camera": PictureStream(2, N_ENVS, SHAPE, kind),
            "depth": PictureStream(3, N_ENVS, (*SHAPE[:2], 1), kind, "uint16"),
            "joints": Stream(4, N_ENVS, (6,), np.float32, "noise"),
        }
    )
    space: Any = space_of(stream)
    kwargs: dict[str, Any] = {"n_envs": N_ENVS, "device": "cpu", "n_steps": 3, "gamma": 0.9}
    args = (spaces.Discrete(3),)
    ours = SmallDictNStepReplayBuffer(SIZE * N_ENVS, space, *args, **kwargs)
    theirs = {key: NStepReplayBuffer(SIZE * N_ENVS, part, *args, **kwargs) for key, part in space.spaces.items()}
    for number, (obs, next_obs, *rest) in enumerate(steps(stream, 2 * SIZE, 2)):
        ours.add(obs, next_obs, *rest)
        for key, buffer in theirs.items():
            buffer.add(obs[key], next_obs[key], *rest)
        if number % 40 == 39:
            got, _ = sampled(ours, number, 32)
            for key, buffer in theirs.items():
                expected, _ = sampled(buffer, number, 32)
                assert_same_bits(got.observations[key], expected.observations, key)
                assert_same_bits(got.next_observations[key], expected.next_observations, key)
                assert_same_bits(got.rewards, expected.rewards, "rewards")


@pytest.mark.parametrize("kind", KINDS)
def test_hindsight(kind: str) -> None:
    """Goals that are pictures, too, and come from other rows than the rest."""
    stream = DictStream(
        {
            "observation": PictureStream(5, N_ENVS, SHAPE, kind, done_rate=0.1),
            "achieved_goal": PictureStream(6, N_ENVS, SHAPE, kind),
            "desired_goal": PictureStream(7, N_ENVS, SHAPE, kind),
        }
    )
    space = space_of(stream)
    env = DummyVecEnv([lambda: _Goals(World(space, spaces.Discrete(3), 1, 0))])
    kwargs: dict[str, Any] = {"n_envs": N_ENVS, "device": "cpu", "env": env, "n_sampled_goal": 2}
    args = (SIZE * N_ENVS, space, spaces.Discrete(3))
    ours, theirs = SmallHerReplayBuffer(*args, **kwargs), ORACLES[SmallHerReplayBuffer](*args, **kwargs)
    for number, step in enumerate(steps(stream, 2 * SIZE, 3)):
        for buffer in (ours, theirs):
            buffer.add(*step)
        if number % 40 == 39:
            assert_same_samples(sampled(ours, number, 32)[0], sampled(theirs, number, 32)[0])
