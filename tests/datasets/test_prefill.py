"""Replay buffers are filled from data sets, and mix their samples with those of one; SB3's buffers are the oracle."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from buffer_contents import contents
from dataset_kit import ACTIONS, SPACES, Play, assert_same, in_order, observation, pair
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from stable_baselines3 import DQN, SAC
from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer, RolloutBuffer

from sb3_extra_buffers import MixedDictReplayBuffer, MixedReplayBuffer, load_buffer, open_dataset, prefill
from sb3_extra_buffers.compressed import (
    CompressedNStepReplayBuffer,
    CompressedReplayBuffer,
    StorageError,
)
from sb3_extra_buffers.compressed.file_saving import save_buffer
from sb3_extra_buffers.datasets import OfflineDataset


@pytest.mark.parametrize("steps", [30, 100])
@pytest.mark.parametrize("kind", SPACES)
def test_a_buffer_of_the_same_form_becomes_the_same(kind: str, steps: int, tmp_path: Path) -> None:
    ours, theirs, play = pair(kind, 40, 2, steps)
    ours.save(tmp_path / "buffer")
    for cls in (type(ours), type(theirs)):
        filled = cls(40 * 2, theirs.observation_space, theirs.action_space, "cpu", 2)
        assert prefill(filled, tmp_path / "buffer") == filled.size() * 2 == theirs.size() * 2
        rows, theirs_in_order = in_order(filled), in_order(theirs)
        for name in ("actions", "rewards"):
            assert np.array_equal(getattr(filled, name)[rows], getattr(theirs, name)[theirs_in_order])
        final = filled.dones * (1 - filled.timeouts)
        assert np.array_equal(final[rows], (theirs.dones * (1 - theirs.timeouts))[theirs_in_order])
        assert (filled.dones[rows[-1]] == 1).all(), "what comes next is of another episode"
        assert np.array_equal(filled.dones[rows[:-1]], theirs.dones[theirs_in_order[:-1]])
        for name in ("observations", "next_observations"):
            mine, other = getattr(filled, name), getattr(theirs, name)
            for key in mine if isinstance(mine, dict) else [None]:
                a, b = (mine, other) if key is None else (mine[key], other[key])
                assert np.array_equal(np.asarray(a[rows]), b[theirs_in_order])
        play.step(filled)  # and it goes on


@settings(max_examples=25, deadline=None)
@given(
    rows=st.integers(1, 40),
    n_envs=st.integers(1, 4),
    steps=st.integers(0, 90),
    lanes=st.integers(1, 5),
    size=st.integers(1, 60),
    limit=st.none() | st.integers(0, 100),
)
def test_any_number_of_environments(rows: int, n_envs: int, steps: int, lanes: int, size: int, limit: int | None) -> None:
    from disk_simulator import SimulatedDisk

    ours, _, play = pair("vectors", rows, n_envs, steps)
    disk = SimulatedDisk()
    save_buffer(ours, "/buffer", disk)
    buffer = ReplayBuffer(size * lanes, SPACES["vectors"], ACTIONS["discrete"], "cpu", lanes)
    used = min(rows, steps)
    added = prefill(buffer, OfflineDataset("/buffer", disk=disk), limit=limit)
    most = min(used * n_envs, size * lanes, used * n_envs if limit is None else limit)
    assert most - lanes < added <= most and added % lanes == 0 and buffer.size() * lanes == added
    numbers = np.rint(buffer.rewards[: buffer.size()] * 8).astype(int)
    held = {number: (env, step) for env, played in enumerate(play.played) for step, number in enumerate(played.numbers)}
    assert len(set(numbers.flat)) == added, "none twice"
    oldest = min([held[number][1] for number in numbers.flat], default=steps)
    assert oldest >= steps - -(-added // n_envs), "the newest ones"
    for lane in range(lanes):
        for row in range(buffer.size()):
            number = numbers[row, lane]
            assert np.array_equal(buffer.observations[row, lane], observation(SPACES["vectors"], number))
            assert np.array_equal(buffer.next_observations[row, lane], observation(SPACES["vectors"], number + 1))
            env, step = held[number]
            end = play.played[env].ends[step]
            final = buffer.dones[row, lane] * (1 - buffer.timeouts[row, lane])
            assert final == (end == "done")
            if row + 1 < buffer.size() and not buffer.dones[row, lane]:
                assert held[numbers[row + 1, lane]] == (env, step + 1), "runs are cut at the end of an episode only"


def test_returns_over_steps_stop_where_the_data_set_ends(tmp_path: Path) -> None:
    ours, _, play = pair("vectors", 40, 1, 20)
    ours.save(tmp_path / "buffer")
    rest = (SPACES["vectors"], ACTIONS["discrete"], "cpu", 1)
    filled = [NStepReplayBuffer(40, *rest, n_steps=3), CompressedNStepReplayBuffer(40, *rest, n_steps=3)]
    for buffer in filled:
        prefill(buffer, tmp_path / "buffer")
    play.numbers = [5000]
    for _ in range(10):
        play.step(*filled)
    for buffer in filled:
        samples = buffer._get_samples(np.arange(17, 20))
        assert samples.next_observations[:, 0].max() < 5000
        assert samples.rewards.max() < 3 * 5000 / 8
    np.random.seed(0)
    mine = filled[1].sample(32)
    np.random.seed(0)
    assert_same(mine, filled[0].sample(32))


def test_what_does_not_fit_is_refused_before_the_first_row(tmp_path: Path) -> None:
    ours, _, _ = pair("images", 40, 2, 30)
    ours.save(tmp_path / "buffer")
    channels_last = spaces.Box(0, 255, (16, 16, 2), np.uint8)
    for space, actions, message in (
        (channels_last, ACTIONS["discrete"], "observations of.*takes.*same keys, shapes and types"),
        (spaces.Box(0, 255, (2, 16, 16), np.float32), ACTIONS["discrete"], "observations of"),
        (SPACES["images"], spaces.Discrete(8), "actions of Discrete.7..*takes Discrete.8."),
        (SPACES["images"], ACTIONS["box"], "actions of"),
    ):
        buffer = ReplayBuffer(40, space, actions, "cpu", 2)
        with pytest.raises(ValueError, match=message):
            prefill(buffer, tmp_path / "buffer")
        assert buffer.pos == 0 and not buffer.full
        with pytest.raises(ValueError, match=message):
            MixedReplayBuffer(40, space, actions, "cpu", 2, dataset=tmp_path / "buffer")
    with pytest.raises(TypeError, match=r"expected a replay buffer.*not RolloutBuffer"):
        prefill(RolloutBuffer(4, SPACES["images"], ACTIONS["discrete"], "cpu"), tmp_path / "buffer")  # type: ignore[arg-type]
    for wrong in (-1, 1.5, True):
        with pytest.raises(ValueError, match="limit is"):
            prefill(ours, tmp_path / "buffer", limit=wrong)  # type: ignore[arg-type]
    for ratio in (-0.1, 1.1, float("nan"), True, "half"):
        with pytest.raises(ValueError, match="ratio is"):
            MixedReplayBuffer(40, SPACES["images"], ACTIONS["discrete"], dataset=tmp_path / "buffer", ratio=ratio)  # type: ignore[arg-type]
    CompressedReplayBuffer(4, SPACES["images"], ACTIONS["discrete"], "cpu").save(tmp_path / "nothing")
    with pytest.raises(ValueError, match="holds no transitions yet"):
        MixedReplayBuffer(40, SPACES["images"], ACTIONS["discrete"], dataset=tmp_path / "nothing")
    with pytest.raises(TypeError, match="dataset"):
        MixedReplayBuffer(40, SPACES["images"], ACTIONS["discrete"])  # type: ignore[call-arg]


@pytest.mark.parametrize("kind", ["images", "dict"])
def test_a_batch_is_mixed_by_the_ratio(kind: str, tmp_path: Path) -> None:
    offline, offline_theirs, _ = pair(kind, 40, 1, 30, seed=1)
    offline.save(tmp_path / "offline")
    space, actions = SPACES[kind], ACTIONS["discrete"]
    mixed_class, their_class = (
        (MixedDictReplayBuffer, DictReplayBuffer) if kind == "dict" else (MixedReplayBuffer, ReplayBuffer)
    )
    for ratio, from_there in ((0.0, 0), (0.25, 8), (0.5, 16), (1.0, 32)):
        buffer = mixed_class(40 * 2, space, actions, "cpu", 2, dataset=str(tmp_path / "offline"), ratio=ratio)
        theirs = their_class(40 * 2, space, actions, "cpu", 2)
        np.random.seed(0)
        first = buffer.sample(8)
        np.random.seed(0)
        assert_same(first, offline_theirs.sample(8))
        play = Play(space, actions, 2, seed=2)
        for _ in range(60):
            play.step(buffer, theirs)
        np.random.seed(3)
        samples = buffer.sample(32)
        np.random.seed(3)
        parts = [theirs.sample(32 - from_there)] if from_there < 32 else []
        parts += [offline_theirs.sample(from_there)] if from_there else []

        def join(values: Any) -> Any:
            if values[0] is None:
                return None
            if isinstance(values[0], dict):
                return {key: th.cat([value[key] for value in values]) for key in values[0]}
            return th.cat(values)

        assert_same(samples, type(parts[0])(*[join(values) for values in zip(*parts, strict=True)]))


def test_it_is_saved_and_loaded(tmp_path: Path) -> None:
    offline, _, _ = pair("images", 40, 1, 30, seed=1)
    offline.save(tmp_path / "offline")
    dataset = open_dataset(tmp_path / "offline")
    rest = (SPACES["images"], ACTIONS["discrete"], "cpu", 2)
    buffer = MixedReplayBuffer(80, *rest, dataset=dataset, ratio=0.25)
    assert buffer.dataset is dataset
    play = Play(*rest[:2], 2, seed=2)
    for _ in range(60):
        play.step(buffer)
    buffer.save(tmp_path / "buffer")
    for twin in (pickle.loads(pickle.dumps(buffer)), MixedReplayBuffer.load(tmp_path / "buffer", device="cpu")):
        assert contents(twin) == contents(buffer)
        np.random.seed(0)
        mine = buffer.sample(16)
        np.random.seed(0)
        assert_same(mine, twin.sample(16))
    with pytest.raises(StorageError, match=r"MixedReplayBuffer.load\(path\)"):
        load_buffer(tmp_path / "buffer")
    assert len(open_dataset(tmp_path / "buffer")) == 80, "what it holds is a data set itself"
    ring = MixedReplayBuffer(80, *rest, dataset=dataset, ratio=0.25, storage_dir=str(tmp_path / "ring"))
    play.step(ring)
    ring.close()
    again = MixedReplayBuffer(80, *rest, dataset=dataset, ratio=0.75, storage_dir=str(tmp_path / "ring"))
    assert again.size() == 1 and again.ratio == 0.75
    again.close()


class Counting(gym.Env[Any, Any]):
    """A small task, with actions of either kind."""

    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)

    def __init__(self, action_space: spaces.Space[Any]) -> None:
        self.action_space = action_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.step_count = 0
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> Any:
        self.step_count += 1
        obs = np.full(3, self.step_count, np.float32)
        return obs, float(np.sum(action)), False, self.step_count == 5, {}


@pytest.mark.parametrize("algorithm", [DQN, SAC])
def test_algorithms_learn_with_it(algorithm: Any, tmp_path: Path) -> None:
    actions = ACTIONS["discrete" if algorithm is DQN else "wide"]
    env = Counting(actions)
    options: dict[str, Any] = {
        "buffer_size": 200,
        "learning_starts": 20,
        "train_freq": 4,
        "policy_kwargs": {"net_arch": [8]},
        "seed": 0,
    }
    first = algorithm("MlpPolicy", env, replay_buffer_class=CompressedReplayBuffer, **options)
    first.learn(60)
    first.replay_buffer.save(tmp_path / "offline")
    kwargs = {"dataset": str(tmp_path / "offline"), "ratio": 0.5}
    model = algorithm("MlpPolicy", env, replay_buffer_class=MixedReplayBuffer, replay_buffer_kwargs=kwargs, **options)
    model.learn(60)
    model.save(tmp_path / "model")
    model.save_replay_buffer(tmp_path / "replay")
    again = algorithm.load(tmp_path / "model", env=env)
    assert isinstance(again.replay_buffer, MixedReplayBuffer) and again.replay_buffer.ratio == 0.5
    again.load_replay_buffer(tmp_path / "replay")
    again.learn(20, reset_num_timesteps=False)
    prefilled = algorithm("MlpPolicy", env, **options)
    assert prefill(prefilled.replay_buffer, tmp_path / "offline") == 60
    prefilled.learn(20)
