"""The public contract suite and the oracle over all buffers, methods and devices: SB3's samples, bit for bit."""

from __future__ import annotations

import copy
import inspect
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
from observation_streams import CONTENTS, PRESENTATIONS, Stack, Stream, present, scribble
from stable_baselines3.common.buffers import (
    DictReplayBuffer,
    DictRolloutBuffer,
    NStepReplayBuffer,
    ReplayBuffer,
    RolloutBuffer,
)

from sb3_extra_buffers.gpu_buffers import GpuDictReplayBuffer, GpuDictRolloutBuffer, GpuReplayBuffer, GpuRolloutBuffer
from sb3_extra_buffers.testing import __main__ as report
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


REPLAY = {"box": (GpuReplayBuffer, ReplayBuffer), "dict": (GpuDictReplayBuffer, DictReplayBuffer)}
ROLLOUT = {"box": (GpuRolloutBuffer, RolloutBuffer), "dict": (GpuDictRolloutBuffer, DictRolloutBuffer)}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", REPLAY)
@pytest.mark.parametrize("method", METHODS)
def test_contract(method: str, kind: str, device: str) -> None:
    kwargs = {"compression_method": method, "buffer_device": device}
    check_replay_buffer(*REPLAY[kind], buffer_kwargs=kwargs)
    check_rollout_buffer(*ROLLOUT[kind], buffer_kwargs=kwargs)


@pytest.mark.parametrize("space", ODD_SPACES)
def test_odd_observations(space: str) -> None:
    for method in (*ON_DEVICE, "gzip1"):
        kwargs: Any = {"observation_space": ODD_SPACES[space], "buffer_kwargs": {"compression_method": method}}
        check_replay_buffer(GpuReplayBuffer, ReplayBuffer, n_envs=1, **kwargs)
        check_rollout_buffer(GpuRolloutBuffer, RolloutBuffer, **kwargs)


def test_other_buffers_of_sb3_work_over_ours() -> None:
    """By two lines: SB3's own code reads the arrays that it finds."""

    class GpuNStep(NStepReplayBuffer, GpuReplayBuffer):
        raw_below = 0

    assert "n_steps" in inspect.signature(GpuNStep).parameters
    check_replay_buffer(GpuNStep, NStepReplayBuffer, kwargs={"n_steps": 3, "gamma": 0.9})


def test_the_report_for_a_device(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, one_thread: Any) -> None:
    monkeypatch.setattr(report, "METHODS", ("rle",))  # the others have tests of their own
    assert report.main(["--device", "cpu", "--rows", "12"]) == 0
    text = capsys.readouterr().out
    assert "## GPU buffers on cpu" in text and f"torch {th.__version__}" in text and "All checks passed." in text
    for line in ("| GpuDictRolloutBuffer rle | passed |", "| codec gzip | passed |", "| GPU, rle | ", "| SB3 | "):
        assert line in text, line
    monkeypatch.setattr(report, "available_methods", list)
    monkeypatch.setattr(GpuReplayBuffer, "to_torch", lambda self, array, copy=True: th.zeros(1))
    assert report.main(["--device", "cpu", "--rows", "2"]) == 1
    text = capsys.readouterr().out
    assert "| GpuReplayBuffer rle | **failed**: AssertionError: " in text and "Failed checks: 1" in text
    for name in ("cuda:63", "nonsense"):
        with pytest.raises(SystemExit, match=rf"--device {name} is not available.*\n.* has: cpu.*install the PyTorch build"):
            report.main(["--device", name])
    with pytest.raises(SystemExit):
        report.main(["--device", "cpu", "--rows", "0"])
    assert "--rows must be positive, got 0" in capsys.readouterr().err


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
