"""``reset`` of a replay buffer goes back to row 0: old rows stay readable, as in SB3, and ``add`` takes no longer."""

from __future__ import annotations

import copy
import pickle
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from family_buffers import (
    SmallDictNStepReplayBuffer,
    SmallDictReplayBuffer,
    SmallHerReplayBuffer,
    SmallNStepReplayBuffer,
    SmallReplayBuffer,
)
from gymnasium import spaces
from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.vec_env import DummyVecEnv
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from sb3_extra_buffers.codecs import register_codec, registry
from sb3_extra_buffers.codecs.base import ByteArray
from sb3_extra_buffers.codecs.deflate import GzipCodec
from sb3_extra_buffers.compressed import (
    CompressedDictPrioritizedReplayBuffer,
    CompressedPrioritizedReplayBuffer,
    CompressedReplayBuffer,
    PrioritizedReplayBuffer,
)
from sb3_extra_buffers.testing import assert_same
from sb3_extra_buffers.testing.worlds import DEFAULT_DICT_SPACE, DEFAULT_SPACE, World, _Still, copied

ROWS, ENVS = 200, 2  # chunks of 32 rows
VECTORS = spaces.Box(-5, 5, (3,), np.float32)
GOALS = spaces.Dict({"observation": DEFAULT_SPACE, "achieved_goal": VECTORS, "desired_goal": VECTORS})


class Goals(_Still):
    def compute_reward(self, achieved: Any, desired: Any, infos: Any) -> np.ndarray:
        return np.abs(achieved - desired).mean(axis=1)


class SmallPrioritized(CompressedPrioritizedReplayBuffer):
    raw_below: ClassVar[int] = 0


class SmallDictPrioritized(CompressedDictPrioritizedReplayBuffer):
    raw_below: ClassVar[int] = 0


class RawDictPrioritized(CompressedDictPrioritizedReplayBuffer):
    raw_below: ClassVar[int] = sys.maxsize


class RawDictNStep(SmallDictNStepReplayBuffer):
    raw_below: ClassVar[int] = sys.maxsize


N_STEPS = {"n_steps": 3, "gamma": 0.9}
CASES: dict[str, tuple[Any, Any, Any, dict[str, Any]]] = {
    "replay": (SmallReplayBuffer, ReplayBuffer, DEFAULT_SPACE, {}),
    "n-step": (SmallNStepReplayBuffer, NStepReplayBuffer, DEFAULT_SPACE, N_STEPS),
    "dict": (SmallDictReplayBuffer, DictReplayBuffer, DEFAULT_DICT_SPACE, {}),
    "dict n-step": (SmallDictNStepReplayBuffer, RawDictNStep, DEFAULT_DICT_SPACE, N_STEPS),
    "prioritized": (SmallPrioritized, PrioritizedReplayBuffer, DEFAULT_SPACE, N_STEPS),
    "dict prioritized": (SmallDictPrioritized, RawDictPrioritized, DEFAULT_DICT_SPACE, {}),
    "HER": (SmallHerReplayBuffer, HerReplayBuffer, GOALS, {"copy_info_dict": True}),
}


class Walk:
    """Two buffers to which the same happens, and what happens to them."""

    def __init__(self, case: str, seed: int, rows: int = ROWS, **options: Any) -> None:
        ours, theirs, space, kwargs = CASES[case]
        self.world = World(space, spaces.Discrete(3), ENVS, seed)
        if case == "HER":
            kwargs = {**kwargs, "env": DummyVecEnv([lambda: Goals(self.world)])}
        args, kwargs = (rows * ENVS, space, self.world.action_space), {"device": "cpu", "n_envs": ENVS, **kwargs}
        self.ours = ours(*args, **kwargs, **options)
        self.theirs = theirs(*args, **kwargs)
        self.case, self.rows = case, rows

    def add(self, rows: int) -> None:
        for _ in range(rows):
            obs, next_obs, dones, infos = self.world.step()
            actions, rewards = self.world.actions(), self.world.rng.standard_normal(ENVS)
            for buffer in (self.ours, self.theirs):
                buffer.add(copied(obs), copied(next_obs), actions, rewards, dones, copy.deepcopy(infos))

    def reset(self) -> None:
        self.ours.reset()
        self.theirs.reset()

    def copy(self) -> None:
        self.ours = pickle.loads(pickle.dumps(self.ours))
        if self.case == "HER":
            self.ours.set_env(self.theirs.env)

    def check(self) -> None:
        """Whatever SB3 still has in its arrays, ours has, too; and samples are the same, or the error is."""
        for name in ("observations", "next_observations"):
            ours, theirs = getattr(self.ours, name), getattr(self.theirs, name)
            parts = [(ours[key], theirs[key], key) for key in theirs] if isinstance(theirs, dict) else [(ours, theirs, "")]
            for got, expected, key in parts:
                assert_same(np.asarray(got), np.asarray(expected), f"{self.case}: {name} {key}")
        assert (self.ours.pos, self.ours.full, self.ours.size()) == (self.theirs.pos, self.theirs.full, self.theirs.size())
        if self.theirs.size() or self.case == "HER":  # which goes on sampling episodes from before the reset
            for seed in range(2):
                assert_same(sampled(self.ours, seed), sampled(self.theirs, seed), f"{self.case}: sample")


def sampled(buffer: Any, seed: int) -> Any:
    np.random.seed(seed)
    try:
        return buffer.sample(24), np.random.get_state()
    except (RuntimeError, ValueError) as error:  # HER without a complete episode, or with one that a reset has cut into two
        return type(error), str(error)


@pytest.mark.parametrize("case", CASES)
def test_rows_after_one_reset_and_more(case: str) -> None:
    """In a ring that is not full, after a lap, in the middle of one, soon after the last reset, in a fresh buffer."""
    walk = Walk(case, 0)
    for rows in (75, 50, 1, ROWS + 37, 100, 33, 5, 16, 0, 2 * ROWS, ROWS - 1, 3, 90):
        walk.add(rows)
        walk.check()
        walk.reset()
    walk.check()
    walk.add(ROWS + 10)
    walk.check()


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("case", CASES)
def test_resets_between_saves(case: str, seed: int, tmp_path: Path) -> None:
    """Old rows and new ones are told apart in copies and files, too, however often both happen."""
    rng = np.random.default_rng([seed, 7])
    walk = Walk(case, seed, int(rng.choice([20, 130, ROWS])))
    for number in range(12):
        walk.add(int(rng.choice([1, 15, 16, 17, 40, walk.rows - walk.ours.pos, walk.rows])))
        if rng.random() < 0.5:
            walk.reset()
        walk.check()
        if rng.random() < 0.5:
            walk.copy()
            walk.check()
        elif walk.ours.size() and case != "HER":  # a file has no rows from before a reset
            walk.ours.save(tmp_path / str(number))
            loaded = type(walk.ours).load(tmp_path / str(number), device="cpu")
            assert_same(sampled(loaded, 0), sampled(walk.theirs, 0), f"{case}: loaded")


@pytest.mark.parametrize("case", CASES)
def test_what_is_new_stays_new_in_a_copy_of_a_copy(case: str) -> None:
    """A ring that is copied when it is just full, goes on, and is reset: its rows are newer than what it was copied with."""
    walk = Walk(case, 3)
    walk.add(2 * ROWS)
    for rows in (10, 45):
        walk.copy()
        walk.add(rows)
        walk.reset()
        walk.add(3)
    for _ in range(2):
        walk.copy()
        walk.check()


@dataclass(frozen=True)
class CountingCodec(GzipCodec):
    """DEFLATE that counts what it is given."""

    name: ClassVar[str] = "counting"
    encoded: ClassVar[int] = 0

    def _encode_payload(self, data: ByteArray) -> bytes:
        CountingCodec.encoded += 1
        return super()._encode_payload(data)


@pytest.mark.parametrize("case", ["replay", "prioritized", "dict", "HER"])
@pytest.mark.parametrize("rows", [20, 75, ROWS, ROWS + 75])
def test_rows_are_coded_once_after_a_reset(case: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._codecs, "counting", CountingCodec)  # undone at the end of the test
    register_codec(CountingCodec)
    walk = Walk(case, 1, compression_method="counting")
    walk.add(rows)
    CountingCodec.encoded = 0
    fresh = Walk(case, 1, compression_method="counting")
    fresh.add(rows)
    once, CountingCodec.encoded = CountingCodec.encoded, 0
    for _ in range(3):
        walk.reset()
        walk.add(rows)
        walk.check()
    assert once > rows
    # What ends in the middle of a block of 16 rows is filled up to its end, and nothing else is coded twice.
    assert CountingCodec.encoded < 3 * (1.3 * once + 40 * ENVS)


def test_old_rows_are_given_back_as_they_are_written_over() -> None:
    """A full ring that is reset and filled again is no larger than before, at any time, but for one chunk."""
    rng, space = np.random.default_rng(0), spaces.Box(0, 255, (40, 40, 1), np.uint8)
    buffer = CompressedReplayBuffer(256, space, spaces.Discrete(2), "cpu")

    def add(rows: int) -> list[int]:
        sizes = []
        for _ in range(rows):
            obs = rng.integers(0, 256, (2, 1, *space.shape), np.uint8)
            buffer.add(obs[0], obs[1], np.zeros((1, 1)), np.zeros(1), np.zeros(1), [{}])
            sizes.append(buffer.memory_usage().total_bytes)
        return sizes

    add(256)
    full = max(add(256))
    for rows in (100, 170, 256):
        buffer.reset()
        assert max(add(rows)) < 1.2 * full
    assert buffer.memory_usage().total_bytes < 1.02 * full
