"""Training on Pong with observations on a device ends with the weights that SB3's own buffers lead to, to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from gpu_kit import DEVICES
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from sb3_extra_buffers.compressed import compressed_kwargs
from sb3_extra_buffers.gpu_buffers import GpuReplayBuffer, GpuRolloutBuffer
from sb3_extra_buffers.testing import assert_same

pytest.importorskip("ale_py")
pytest.importorskip("cv2")

STEPS = 600
pytestmark = pytest.mark.usefixtures("one_thread")


def play() -> VecEnv:
    from sb3_extra_buffers.training_utils.atari import make_env

    return make_env("PongNoFrameskip-v4", 2, vec_env_cls=DummyVecEnv, framestack=4, seed=3)


def train_dqn(**options: Any) -> DQN:
    """The ring goes round twice."""
    arguments = {"buffer_size": 280, "learning_starts": 200, "train_freq": 8, "batch_size": 16, "seed": 5, "device": "cpu"}
    return DQN("CnnPolicy", play(), **arguments, **options).learn(STEPS)


def train_ppo(**options: Any) -> PPO:
    arguments = {"n_steps": 100, "batch_size": 50, "n_epochs": 1, "seed": 5, "device": "cpu"}
    return PPO("CnnPolicy", play(), **arguments, **options).learn(STEPS)


def weights(model: Any) -> dict[str, th.Tensor]:
    return dict(model.policy.state_dict())


@pytest.mark.parametrize("device", DEVICES)
def test_dqn(device: str, tmp_path: Path) -> None:
    model = train_dqn(**compressed_kwargs(DQN, play(), buffer_device=device))
    buffer = model.replay_buffer
    assert isinstance(buffer, GpuReplayBuffer) and buffer.full
    assert buffer.memory_usage().ratio > 20, "this is not what was trained with"
    assert_same(weights(model), weights(train_dqn()))

    model.save(tmp_path / "model")
    model.save_replay_buffer(tmp_path / "buffer")
    assert (tmp_path / "buffer.pkl").stat().st_size < 280 * 2 * 28224 / 20
    again = DQN.load(tmp_path / "model", env=play(), device="cpu")
    again.load_replay_buffer(tmp_path / "buffer")
    samples = []
    for one in (model, again):
        np.random.seed(0)
        samples.append(one.replay_buffer.sample(20))
    assert_same(samples[1], samples[0])
    again.learn(20)


@pytest.mark.parametrize("device", DEVICES)
def test_ppo(device: str) -> None:
    model = train_ppo(**compressed_kwargs(PPO, play(), buffer_device=device))
    assert isinstance(model.rollout_buffer, GpuRolloutBuffer)
    assert model.rollout_buffer.memory_usage().ratio > 10, "this is not what was trained with"
    assert_same(weights(model), weights(train_ppo()))
