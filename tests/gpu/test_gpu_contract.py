"""The public contract suite and the oracle over all buffers, methods and devices: SB3's samples, bit for bit."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch as th
from gpu_kit import DEVICES, METHODS, ON_DEVICE, Pair, rollout_pair
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from observation_streams import CONTENTS, PRESENTATIONS, DictStream, SpaceStream, Stack, Stream, present, scribble
from stable_baselines3.common.buffers import DictReplayBuffer, DictRolloutBuffer, ReplayBuffer, RolloutBuffer

from sb3_extra_buffers.gpu_buffers import GpuDictReplayBuffer, GpuDictRolloutBuffer, GpuReplayBuffer, GpuRolloutBuffer
from sb3_extra_buffers.testing import assert_same, check_replay_buffer, check_rollout_buffer

ODD_SPACES = {
    "odd bytes": spaces.Box(0, 255, (3, 13, 17), np.uint8),
    "float32": spaces.Box(-1, 1, (2, 12, 11), np.float32),
    "float64": spaces.Box(-1, 1, (4, 9, 9), np.float64),
    "int16": spaces.Box(-9, 9, (700,), np.int16),
    "bool": spaces.MultiBinary([4, 13, 11]),
    "channels last": spaces.Box(0, 255, (12, 10, 8), np.uint8),
    "Discrete": spaces.Discrete(5),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("ours", "theirs"), [(GpuReplayBuffer, ReplayBuffer), (GpuDictReplayBuffer, DictReplayBuffer)])
def test_replay_contract(ours: Any, theirs: Any, method: str, device: str) -> None:
    check_replay_buffer(ours, theirs, buffer_kwargs={"compression_method": method, "buffer_device": device})


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("ours", "theirs"), [(GpuRolloutBuffer, RolloutBuffer), (GpuDictRolloutBuffer, DictRolloutBuffer)])
def test_rollout_contract(ours: Any, theirs: Any, method: str, device: str) -> None:
    check_rollout_buffer(ours, theirs, buffer_kwargs={"compression_method": method, "buffer_device": device})


@pytest.mark.parametrize("method", [*ON_DEVICE, "gzip1"])
@pytest.mark.parametrize("space", ODD_SPACES)
def test_odd_observations(space: str, method: str) -> None:
    kwargs = {"compression_method": method, "buffer_device": "cpu"}
    check_replay_buffer(GpuReplayBuffer, ReplayBuffer, observation_space=ODD_SPACES[space], n_envs=1, buffer_kwargs=kwargs)
    check_rollout_buffer(GpuRolloutBuffer, RolloutBuffer, observation_space=ODD_SPACES[space], buffer_kwargs=kwargs)


FRAMES = [((1, 5, 9), 0), ((6, 8, 1), 2), ((3, 4, 8), 0), ((5, 8, 3), 2), ((5, 7), None), ((8, 8), 1), ((37,), None)]


@st.composite
def streams(draw: Any) -> Stream:
    shape, axis = draw(st.sampled_from(FRAMES))
    stack = None if axis is None else Stack(draw(st.sampled_from([2, 3, 4])), axis, draw(st.sampled_from(["zeros", "repeat"])))
    dtype = draw(st.sampled_from([np.uint8, np.float32, np.int16]))
    args = (draw(st.integers(0, 999)), draw(st.integers(1, 4)), shape, dtype, draw(st.sampled_from(CONTENTS)), stack)
    return Stream(*args, draw(st.sampled_from([0.0, 0.1, 0.5])))


TWINS = {
    "pickle": lambda buffer: pickle.loads(pickle.dumps(buffer)),
    "cloudpickle": lambda buffer: pickle.loads(cloudpickle.dumps(buffer)),
    "deepcopy": copy.deepcopy,
}
steps = st.lists(st.one_of(st.integers(1, 9), st.sampled_from([*TWINS, "reset", "compact", "check"])), min_size=3, max_size=12)


@given(
    stream=streams(),
    method=st.sampled_from(METHODS),
    rows=st.integers(1, 12),
    steps=steps,
    ways=st.lists(st.sampled_from(sorted(PRESENTATIONS)), min_size=1, max_size=3),
)
def test_replay_oracle(stream: Stream, method: str, rows: int, steps: list[Any], ways: list[str]) -> None:
    """Any data, in any memory layout; what was handed over is overwritten afterwards."""
    pair = Pair(stream, rows, compression_method=method)
    for step in steps:
        if isinstance(step, int):
            for _ in range(step):
                obs, next_obs, *rest = pair.draw()
                pair.theirs.add(obs, next_obs, *rest)
                handed = [present(given, ways[pair.rng.integers(len(ways))]) for given in (obs, next_obs)]
                pair.ours.add(*handed, *rest)
                for given_away in handed:
                    scribble(given_away)
        elif step in TWINS:
            before, pair.ours = pair.ours, TWINS[step](pair.ours)
            for _ in range(3 if pair.theirs.size() else 0):
                before.add(*pair.draw())  # what happens to the original does not matter to the twin
        elif step == "reset":
            pair.ours.reset()
            pair.theirs.reset()
        elif step == "compact":
            pair.ours.compact()
        else:
            pair.check()
    pair.check()


@given(stream=streams(), method=st.sampled_from(METHODS), rows=st.integers(1, 9))
def test_rollout_oracle(stream: Stream, method: str, rows: int) -> None:
    ours, theirs = rollout_pair(stream, rows, compression_method=method)
    rng = np.random.default_rng(0)
    for seed in range(2):
        for _ in range(rows):
            obs, _, dones, _ = stream.step()
            numbers = rng.standard_normal((3, stream.n_envs)).astype(np.float32)
            value, log_prob = th.as_tensor(numbers[1]), th.as_tensor(numbers[2])
            for buffer in (ours, theirs):
                handed = obs.copy()
                buffer.add(handed, np.zeros(stream.n_envs), numbers[0], dones, value, log_prob)
                scribble(handed)
        batches = []
        for buffer in (ours, theirs):
            np.random.seed(seed)
            batches.append([*buffer.get(4), *buffer.get()])
            buffer.reset()
        assert_same(batches[0], batches[1])


def test_dict_observations_of_every_kind() -> None:
    stream = DictStream(
        {
            "image": Stream(0, 2, (1, 12, 12), np.uint8, "game", Stack(4, 0)),
            "noise": Stream(1, 2, (24, 24), np.uint8, "noise"),
            "vector": Stream(2, 2, (3,), np.float32, "noise"),
            "choice": SpaceStream(3, 2, spaces.Discrete(5)),
        }
    )
    pair = Pair(stream, 10)
    for _ in range(6):
        pair.add(7)
        pair.check()


def test_training_code_may_move_samples() -> None:
    """The default device of a buffer is that of its samples, and those own their memory."""
    buffer = GpuReplayBuffer(20, ODD_SPACES["odd bytes"], spaces.Discrete(2), "cpu")
    assert buffer.buffer_device.type == "cpu"
    obs = np.ones((1, 3, 13, 17), np.uint8)
    buffer.add(obs, obs, np.zeros(1), np.zeros(1), np.zeros(1), [{}])
    first = buffer.sample(2)
    first.observations.zero_()
    assert buffer.sample(2).observations.min() == 1 and first.next_observations.min() == 1
