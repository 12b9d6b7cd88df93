"""``PrioritizedDQN``: SB3's DQN where priorities play no part, and one that learns where they do."""

from __future__ import annotations

import copy
import sys
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3 import DQN
from stable_baselines3.common.envs import FakeImageEnv, IdentityEnv, SimpleMultiObsEnv
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.logger import configure
from stable_baselines3.common.vec_env import DummyVecEnv

from sb3_extra_buffers.compressed import CompressedReplayBuffer
from sb3_extra_buffers.compressed.choose import compressed_kwargs
from sb3_extra_buffers.compressed.prioritized import (
    CompressedDictPrioritizedReplayBuffer,
    CompressedPrioritizedReplayBuffer,
    PrioritizedReplayBufferSamples,
)
from sb3_extra_buffers.training_utils.prioritized_dqn import PrioritizedDQN

SMALL: dict[str, Any] = {"buffer_size": 300, "learning_starts": 20, "seed": 0, "device": "cpu"}


def image_env() -> gym.Env[Any, Any]:
    return FakeImageEnv(action_dim=3, screen_height=40, screen_width=40, n_channels=1, discrete=True)


def assert_same_parameters(one: DQN, other: DQN) -> None:
    mine, theirs = one.policy.state_dict(), other.policy.state_dict()
    assert mine.keys() == theirs.keys()
    for name in mine:
        assert th.equal(mine[name], theirs[name]), name


@pytest.mark.parametrize("batch_size", [7, 32, 100])
def test_a_step_with_weights_of_one_is_sb3s_step(batch_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, ours = (
        cls("MlpPolicy", "CartPole-v1", policy_kwargs={"net_arch": [16]}, **SMALL).learn(25) for cls in (DQN, PrioritizedDQN)
    )
    assert theirs.replay_buffer is not None and ours.replay_buffer is not None
    ours.policy.load_state_dict(theirs.policy.state_dict())
    ours.policy.optimizer.load_state_dict(copy.deepcopy(theirs.policy.optimizer.state_dict()))
    np.random.seed(0)
    batches = [theirs.replay_buffer.sample(batch_size) for _ in range(5)]
    weighted = [
        PrioritizedReplayBufferSamples(
            **batch._asdict(), weights=th.ones(batch_size, 1), indices=np.zeros(batch_size, dtype=np.int64)
        )
        for batch in batches
    ]
    for model, each in ((theirs, batches), (ours, weighted)):
        following = iter(each)
        monkeypatch.setattr(model.replay_buffer, "sample", lambda *_, following=following, **__: next(following))
        model.train(gradient_steps=5, batch_size=batch_size)
    assert_same_parameters(theirs, ours)


@pytest.mark.parametrize("policy", ["CnnPolicy", "MultiInputPolicy"])
def test_training_without_priorities_is_sb3s(policy: str) -> None:
    """Both draw from the same buffer class. SB3's DQN never updates priorities, and with alpha = 0 there are none."""
    buffer = CompressedPrioritizedReplayBuffer if policy == "CnnPolicy" else CompressedDictPrioritizedReplayBuffer
    models = []
    for cls in (DQN, PrioritizedDQN):
        np.random.seed(0)  # what SimpleMultiObsEnv shows is drawn when it is made
        env = image_env() if policy == "CnnPolicy" else SimpleMultiObsEnv(random_start=False)
        env.reset(seed=0)
        env.action_space.seed(0)
        env.observation_space.seed(0)
        models.append(
            cls(
                policy,
                env,
                replay_buffer_class=buffer,
                replay_buffer_kwargs={"alpha": 0.0, "n_steps": 2},
                batch_size=8,
                target_update_interval=20,
                policy_kwargs={"net_arch": [8], "features_extractor_kwargs": {"cnn_output_dim": 8}}
                if policy == "MultiInputPolicy"
                else {"net_arch": [8], "features_extractor_kwargs": {"features_dim": 8}},
                **SMALL,
            ).learn(80)
        )
    assert models[0]._n_updates == models[1]._n_updates > 10
    assert_same_parameters(*models)


def test_weights_priorities_and_beta_are_used() -> None:
    model = PrioritizedDQN("MlpPolicy", "CartPole-v1", **SMALL)
    seen = []
    buffer: Any = model.replay_buffer
    update = buffer.update_priorities
    buffer.update_priorities = lambda indices, values: (seen.append((indices, values)), update(indices, values))
    model.learn(100)
    assert buffer.beta == pytest.approx(0.4 + 0.6 * 0.99, abs=0.02)
    assert len(seen) == model._n_updates == 20
    assert len(np.unique(buffer.priorities[:100])) > 30
    assert all((values >= 0).all() for _, values in seen)
    assert model.logger.name_to_value["train/beta"] == buffer.beta


def td_errors(model: DQN, batch: Any, double_q: bool) -> th.Tensor:
    with th.no_grad():
        following = model.q_net_target(batch.next_observations)
        chooser = model.q_net if double_q else model.q_net_target
        best = chooser(batch.next_observations).argmax(1)
        target = batch.rewards.ravel() + (1 - batch.dones.ravel()) * model.gamma * following[range(len(best)), best]
        return (target - model.q_net(batch.observations)[range(len(best)), batch.actions.ravel()]).abs()


@pytest.mark.parametrize("double_q", [False, True])
def test_priorities_are_td_errors(double_q: bool) -> None:
    model = PrioritizedDQN("MlpPolicy", "CartPole-v1", double_q=double_q, replay_buffer_kwargs={"alpha": 1.0}, **SMALL)
    model.learn(60)
    buffer: Any = model.replay_buffer
    for parameter in model.q_net.parameters():  # so that both networks differ in what they would choose
        parameter.data.mul_(-1.0)
    np.random.seed(0)
    batch = buffer.sample(16)
    expected = td_errors(model, batch, double_q)
    np.random.seed(0)
    model.train(1, batch_size=16)
    np.testing.assert_allclose(buffer.priorities.ravel()[batch.indices], expected.numpy() + 1e-6, rtol=1e-4)


def test_double_q_differs() -> None:
    model = PrioritizedDQN("MlpPolicy", "CartPole-v1", **SMALL).learn(60)
    for parameter in model.q_net.parameters():
        parameter.data.mul_(-1.0)
    assert model.replay_buffer is not None
    batch = model.replay_buffer.sample(16)
    assert not th.allclose(td_errors(model, batch, True), td_errors(model, batch, False))


def test_learns_the_identity() -> None:
    env = DummyVecEnv([lambda: IdentityEnv(4), lambda: IdentityEnv(4)])
    model = PrioritizedDQN(
        "MlpPolicy",
        env,
        learning_rate=1e-2,
        gamma=0.4,
        target_update_interval=50,
        exploration_fraction=0.4,
        double_q=True,
        policy_kwargs={"net_arch": [32]},
        n_steps=2,
        **(SMALL | {"buffer_size": 2000}),
    )
    model.learn(1500)
    assert evaluate_policy(model, model.get_env(), n_eval_episodes=4, warn=False)[0] > 90  # of 100


def test_save_and_load(tmp_path: Path) -> None:
    model = PrioritizedDQN(
        "MlpPolicy",
        "CartPole-v1",
        double_q=True,
        n_steps=3,
        gamma=0.9,
        replay_buffer_kwargs={"alpha": 0.5, "beta": lambda progress: 1 - progress},
        **SMALL,
    )
    model.learn(60)
    model.save(tmp_path / "model")
    model.save_replay_buffer(tmp_path / "buffer")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # above all SB3's, that n_steps is ignored
        loaded = PrioritizedDQN.load(tmp_path / "model", env=model.get_env(), device="cpu")
    assert loaded.double_q and loaded.n_steps == 3
    assert_same_parameters(model, loaded)
    loaded.load_replay_buffer(tmp_path / "buffer")
    ours: Any = loaded.replay_buffer
    theirs: Any = model.replay_buffer
    assert type(ours) is CompressedPrioritizedReplayBuffer
    assert (ours.alpha, ours.n_steps, ours.gamma, ours.beta) == (0.5, 3, 0.9, theirs.beta)
    np.testing.assert_array_equal(ours.priorities, theirs.priorities)
    for each in (model, loaded):
        each.set_logger(configure(format_strings=[]))
        np.random.seed(0)
        each.train(3, batch_size=16)
    assert_same_parameters(model, loaded)
    loaded.learn(30, reset_num_timesteps=False)


def test_picks_its_buffer() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = PrioritizedDQN("MultiInputPolicy", SimpleMultiObsEnv(), n_steps=3, **SMALL)
    assert type(model.replay_buffer) is CompressedDictPrioritizedReplayBuffer
    assert model.replay_buffer.n_steps == 3
    with pytest.raises(TypeError, match="needs a prioritized buffer, not CompressedReplayBuffer"):
        PrioritizedDQN("MlpPolicy", "CartPole-v1", replay_buffer_class=CompressedReplayBuffer, **SMALL)
    model.replay_buffer = CompressedReplayBuffer(10, spaces.Discrete(2), spaces.Discrete(2))
    with pytest.raises(TypeError, match="was given a CompressedReplayBuffer"):
        model.train(1)


@pytest.mark.parametrize("is_dict", [False, True])
def test_trains_with_what_compressed_kwargs_gives(is_dict: bool) -> None:
    """The same model as one that was given everything by hand."""

    def make_env() -> gym.Env[Any, Any]:
        np.random.seed(0)  # SimpleMultiObsEnv draws its pictures from there
        env = SimpleMultiObsEnv(random_start=False) if is_dict else FakeImageEnv(screen_height=40, screen_width=40)
        env.reset(seed=0)
        env.action_space.seed(0)
        env.observation_space.seed(0)
        return env

    policy = "MultiInputPolicy" if is_dict else "CnnPolicy"
    by_helper = compressed_kwargs(PrioritizedDQN, make_env(), n_steps=3, gamma=0.9, alpha=0.3, compression_method="gzip1")
    by_hand = {"n_steps": 3, "gamma": 0.9, "replay_buffer_kwargs": {"alpha": 0.3, "compression_method": "gzip1"}}
    models = [PrioritizedDQN(policy, make_env(), batch_size=8, **SMALL, **kwargs).learn(60) for kwargs in (by_helper, by_hand)]
    assert models[0]._n_updates == models[1]._n_updates > 5
    assert_same_parameters(*models)
    buffers = [model.replay_buffer for model in models]
    for buffer in buffers:
        assert type(buffer) is PrioritizedDQN.compressed_buffers[is_dict]
        assert (buffer.alpha, buffer.n_steps, buffer.gamma) == (0.3, 3, 0.9)
    np.testing.assert_array_equal(buffers[0].priorities, buffers[1].priorities)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_cliff_walk_takes_fewer_updates(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    import cliffwalk

    try:
        oracle, prioritized, uniform = (
            run(7, seed) for run in (cliffwalk.tabular_oracle, cliffwalk.tabular_prioritized, cliffwalk.tabular_uniform)
        )
    finally:
        del sys.modules["cliffwalk"]
    assert oracle < prioritized < uniform / 2
