"""What SB3 takes and what memory allows: observations without an axis of environments, and the end of memory."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from observation_streams import METHODS, Stack, Stream, assert_same_samples, sampled, space_of
from stable_baselines3.common.buffers import DictReplayBuffer, DictRolloutBuffer, ReplayBuffer, RolloutBuffer

from sb3_extra_buffers.compressed import (
    CompressedDictReplayBuffer,
    CompressedDictRolloutBuffer,
    CompressedReplayBuffer,
    CompressedRolloutBuffer,
)

ACTIONS = spaces.Discrete(3)


@pytest.mark.parametrize("method", [None, "rle"] if None in METHODS else ["rle"])
def test_extend_over_arrays(method: str | None) -> None:
    """SB3's ``extend`` hands over one observation at a time, without the axis of its only environment."""
    stream = Stream(0, 1, (1, 30, 30), np.uint8, "game", Stack(4, 0))
    steps = [stream.step() for _ in range(25)]
    columns = [np.concatenate([step[part] for step in steps]) for part in range(3)]
    buffers = [
        cls(20, space_of(stream), ACTIONS, "cpu", 1, **kwargs)
        for cls, kwargs in ((CompressedReplayBuffer, {"compression_method": method}), (ReplayBuffer, {}))
    ]
    for buffer in buffers:
        buffer.extend(*columns[:2], np.zeros((25, 1)), np.arange(25.0), columns[2], [step[3] for step in steps])
    assert_same_samples(sampled(buffers[0], 0, 16)[0], sampled(buffers[1], 0, 16)[0])
    np.testing.assert_array_equal(np.asarray(buffers[0].observations), buffers[1].observations)


def test_one_environment_of_dicts() -> None:
    space = spaces.Dict({"image": spaces.Box(0, 255, (1, 30, 30), np.uint8), "joints": spaces.Box(-1, 1, (3,), np.float32)})
    ours, theirs = (cls(9, space, ACTIONS, "cpu", 1) for cls in (CompressedDictReplayBuffer, DictReplayBuffer))
    space.seed(0)
    for step in range(12):
        obs, next_obs = space.sample(), space.sample()
        for buffer in (ours, theirs):
            buffer.add(obs, next_obs, np.zeros(1), np.array([float(step)]), np.zeros(1), [{}])
    assert_same_samples(sampled(ours, 0, 16)[0], sampled(theirs, 0, 16)[0])


@pytest.mark.parametrize(
    ("ours", "theirs"), [(CompressedRolloutBuffer, RolloutBuffer), (CompressedDictRolloutBuffer, DictRolloutBuffer)]
)
def test_a_rollout_of_one_environment(ours: type[Any], theirs: type[Any]) -> None:
    image = spaces.Box(0, 255, (1, 30, 30), np.uint8)
    space = spaces.Dict({"image": image}) if theirs is DictRolloutBuffer else image
    buffers = [cls(8, space, ACTIONS, "cpu", n_envs=1) for cls in (ours, theirs)]
    space.seed(0)
    for _ in range(8):
        obs = space.sample()
        for buffer in buffers:
            buffer.add(obs, np.zeros(1), np.zeros(1), np.zeros(1), th.zeros(1), th.zeros(1))
    for mine, other in zip(*(_batches(buffer) for buffer in buffers), strict=True):
        assert_same_samples(mine, other)


def _batches(buffer: Any) -> list[Any]:
    np.random.seed(0)
    return list(buffer.get(3))


def test_with_several_environments_the_axis_is_needed() -> None:
    stream = Stream(0, 2, (1, 30, 30), np.uint8, "game")
    buffer = CompressedReplayBuffer(20, space_of(stream), ACTIONS, "cpu", 2)
    obs = stream.step()[0]
    with pytest.raises(ValueError, match=r"shape \(1, 30, 30\)"):
        buffer.add(obs[0], obs, np.zeros((2, 1)), np.zeros(2), np.zeros(2), [{}, {}])
    assert buffer.size() == 0


OUT_OF_MEMORY = """
import resource
import numpy as np
from gymnasium import spaces
from sb3_extra_buffers.compressed import CompressedReplayBuffer

space = spaces.Box(0, 255, (1, 256, 256), np.uint8)
buffer = CompressedReplayBuffer(40_000, space, spaces.Discrete(3), "cpu", 1, compression_method=METHOD)

def frame(number):  # made again when it is compared, so that it is the buffer that needs memory
    return np.random.default_rng(number).integers(0, 256, (1, 1, 256, 256), np.uint8)

def add(obs):
    buffer.add(obs, obs, np.zeros((1, 1)), np.zeros(1), np.zeros(1), [{}])

for number in range(20):
    add(frame(number))
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (96 << 20), resource.RLIM_INFINITY))
added = 20
try:
    while True:
        add(frame(added))
        added += 1
except MemoryError as error:
    message = str(error)
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert buffer.pos == added > 500, added
for row in range(added):
    assert np.array_equal(buffer.observations[row], frame(row)[0][None]), row
add(frame(0))
assert np.array_equal(buffer.observations[buffer.pos - 1], frame(0)[0][None])
assert buffer.pos == added + 1
print(message)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux to limit the memory of a process")
@pytest.mark.parametrize("method", [method for method in ("delta", "none") if method in METHODS])
def test_the_end_of_memory_is_a_memory_error(method: str) -> None:
    """It says what was asked for. Everything stored stays, and with memory there again, so does the buffer."""
    program = f"METHOD = {method!r}\n{OUT_OF_MEMORY}"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    asked_for = re.search(r"([\d,]+) bytes", run.stdout)
    assert asked_for is not None, run.stdout
    assert int(asked_for[1].replace(",", "")) >= 256 * 256, "no less than a frame"


def test_observations_of_many_axes() -> None:
    """NumPy has 64 of them; two are rows and environments."""
    for axes in (29, 31, 40, 62) if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else (29, 30):
        space = spaces.Box(0, 255, (2, 3, *[1] * (axes - 2)), np.uint8)
        pair = [cls(12, space, ACTIONS, "cpu", 2) for cls in (CompressedReplayBuffer, ReplayBuffer)]
        rng = np.random.default_rng(0)
        for _ in range(8):
            obs = rng.integers(0, 255, (2, 2, *space.shape), np.uint8)
            for buffer in pair:
                buffer.add(*obs, np.zeros((2, 1)), np.zeros(2), np.zeros(2), [{}, {}])
        assert_same_samples(*[sampled(buffer, 0, 16)[0] for buffer in pair])
