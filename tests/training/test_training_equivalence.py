"""
Training on a real game with SB3's buffer and with ours ends with the same weights, to the bit.

SB3's own run is the reference; each worker process of pytest computes it once for each algorithm.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch as th
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv

from sb3_extra_buffers.compressed import CompressedReplayBuffer, CompressedRolloutBuffer

pytest.importorskip("ale_py")
pytest.importorskip("cv2")

METHODS = ["zstd-3", "lz4-frame/1", "rle-jit", None, "delta-zstd"]
STEPS = 2000


def play(
    env_id: str = "PongNoFrameskip-v4",
    n_envs: int = 2,
    seed: int = 3,
    vec_env_cls: Any = DummyVecEnv,
    framestack: int | None = 4,
) -> VecEnv:
    from sb3_extra_buffers.training_utils.atari import make_env

    return make_env(env_id, n_envs, vec_env_cls=vec_env_cls, framestack=framestack, seed=seed)


def make_dqn(env: VecEnv, **options: Any) -> DQN:
    """A small batch now and then: enough for every difference to show, and quick. The ring goes round twice."""
    return DQN(
        "CnnPolicy",
        env,
        buffer_size=1000,
        learning_starts=500,
        train_freq=8,
        target_update_interval=200,
        batch_size=16,
        seed=5,
        device="cpu",
        **options,
    )


def train_dqn(**options: Any) -> DQN:
    return make_dqn(play(), **options).learn(STEPS)


def train_ppo(**options: Any) -> PPO:
    model = PPO("CnnPolicy", play(), n_steps=250, batch_size=100, n_epochs=1, seed=5, device="cpu", **options)
    return model.learn(STEPS)


@functools.cache
def reference(algorithm: str) -> dict[str, th.Tensor]:
    """The weights that SB3's own buffer leads to."""
    return weights(train_dqn() if algorithm == "DQN" else train_ppo())


def weights(model: Any) -> dict[str, th.Tensor]:
    state = {name: tensor.clone() for name, tensor in model.policy.state_dict().items()}
    for group in model.policy.optimizer.state_dict()["state"].items():
        state |= {f"optimizer {group[0]} {name}": value for name, value in group[1].items()}
    return state


def assert_same_weights(model: Any, expected: dict[str, th.Tensor]) -> None:
    got = weights(model)
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        assert got[name].dtype == value.dtype, name
        assert got[name].numpy().tobytes() == value.numpy().tobytes(), name


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    """Sums over several threads need not come out the same twice."""
    before = th.get_num_threads()
    th.set_num_threads(1)
    yield
    th.set_num_threads(before)


@pytest.mark.parametrize("method", METHODS)
def test_dqn(method: str | None) -> None:
    options = {} if method is None else {"compression_method": method}
    model = train_dqn(replay_buffer_class=CompressedReplayBuffer, replay_buffer_kwargs=options)
    buffer = model.replay_buffer
    assert isinstance(buffer, CompressedReplayBuffer) and buffer.full
    assert buffer.memory_usage().ratio > 20, "this is not what was trained with"
    assert_same_weights(model, reference("DQN"))


@pytest.mark.parametrize("method", METHODS)
def test_ppo(method: str | None) -> None:
    options = {} if method is None else {"compression_method": method}
    model = train_ppo(rollout_buffer_class=CompressedRolloutBuffer, rollout_buffer_kwargs=options)
    assert isinstance(model.rollout_buffer, CompressedRolloutBuffer)
    assert model.rollout_buffer.memory_usage().ratio > 20, "this is not what was trained with"
    assert_same_weights(model, reference("PPO"))


def resume_dqn(folder: Path, **options: Any) -> DQN:
    """Train, save model and buffer, load both in place of them, train on."""
    model = make_dqn(play(), **options).learn(STEPS // 2)
    model.save(folder / "model.zip")
    model.save_replay_buffer(folder / "buffer.pkl")
    loaded = DQN.load(folder / "model.zip", env=play(), device="cpu")
    loaded.load_replay_buffer(folder / "buffer.pkl")
    loaded.set_random_seed(9)
    return loaded.learn(STEPS // 2)


def test_dqn_goes_on_after_loading(tmp_path: Path) -> None:
    """What was saved has other types than what is added to it, equal as they are."""
    for folder in ("ours", "theirs"):
        (tmp_path / folder).mkdir()
    model = resume_dqn(tmp_path / "ours", replay_buffer_class=CompressedReplayBuffer)
    assert isinstance(model.replay_buffer, CompressedReplayBuffer) and model.replay_buffer.full
    assert_same_weights(model, weights(resume_dqn(tmp_path / "theirs")))


def test_dqn_with_frames_from_other_processes() -> None:
    """Without a stack, observations come out of a pickle just as they are."""
    ends = []
    for options in ({"replay_buffer_class": CompressedReplayBuffer}, {}):
        env = play(vec_env_cls=SubprocVecEnv, framestack=None)
        try:
            ends.append(make_dqn(env, **options).learn(STEPS // 2))
        finally:
            env.close()
    assert isinstance(ends[0].replay_buffer, CompressedReplayBuffer)
    assert_same_weights(ends[0], weights(ends[1]))


def test_the_comparison_can_fail() -> None:
    """Weights that differ in one bit are noticed."""
    model = DQN("MlpPolicy", "CartPole-v1", device="cpu", seed=0)
    expected = weights(model)
    assert_same_weights(model, expected)
    name = next(iter(expected))
    expected[name].view(-1)[0] = th.nextafter(expected[name].view(-1)[0], th.tensor(9.0))
    with pytest.raises(AssertionError):
        assert_same_weights(model, expected)
