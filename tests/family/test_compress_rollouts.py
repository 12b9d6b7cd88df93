"""``CompressRollouts``: the same training as with the buffer that it replaces, and as with the class given by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from family_envs import DictImageEnv, ImageEnv, image_envs, parameters_of, small_network
from sb3_contrib import TRPO, MaskablePPO, RecurrentPPO
from stable_baselines3 import A2C, DQN, PPO
from stable_baselines3.common.buffers import RolloutBuffer

from sb3_extra_buffers.compressed import CompressedRolloutBuffer, compressed_buffer_for
from sb3_extra_buffers.testing import assert_same
from sb3_extra_buffers.training_utils.callbacks import CompressRollouts

ALGORITHMS = [A2C, PPO, TRPO, MaskablePPO, RecurrentPPO]


def make_model(algorithm: Any, env_class: Any = ImageEnv, **kwargs: Any) -> Any:
    policy = {ImageEnv: "Cnn", DictImageEnv: "MultiInput"}[env_class] + ("Lstm" * (algorithm is RecurrentPPO)) + "Policy"
    network = small_network(lstm_hidden_size=12) if algorithm is RecurrentPPO else small_network()
    kwargs |= {} if algorithm is A2C else {"batch_size": 16}
    return algorithm(policy, image_envs(env_class), n_steps=16, policy_kwargs=network, device="cpu", seed=3, **kwargs)


@pytest.mark.parametrize("env_class", [ImageEnv, DictImageEnv])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_training_is_the_same(algorithm: Any, env_class: Any) -> None:
    theirs = make_model(algorithm, env_class).learn(160)
    ours = make_model(algorithm, env_class).learn(160, callback=CompressRollouts(compression_method="gzip1"))
    assert type(ours.rollout_buffer) is compressed_buffer_for(algorithm, ours.observation_space)[0]
    assert ours.rollout_buffer.memory_usage().frames_stored > 0
    assert ours._n_updates == theirs._n_updates > 0
    assert_same(parameters_of(ours), parameters_of(theirs), algorithm.__name__)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_buffer_is_as_the_algorithm_made_it(algorithm: Any) -> None:
    model = make_model(algorithm, gamma=0.7, gae_lambda=0.6)
    theirs = model.rollout_buffer
    model.learn(32, callback=CompressRollouts())
    for name in ("buffer_size", "n_envs", "gamma", "gae_lambda", "device", "observation_space", "action_space"):
        assert getattr(model.rollout_buffer, name) == getattr(theirs, name), name
    assert getattr(model.rollout_buffer, "hidden_state_shape", None) == getattr(theirs, "hidden_state_shape", None)


def test_a_saved_model_makes_its_compressed_buffer_itself(tmp_path: Path) -> None:
    model = make_model(PPO).learn(32, callback=CompressRollouts(compression_method="zstd-3"))
    model.save(tmp_path / "model")
    loaded = PPO.load(tmp_path / "model", env=image_envs(), device="cpu")
    assert type(loaded.rollout_buffer) is CompressedRolloutBuffer
    assert loaded.rollout_buffer_kwargs == {"compression_method": "zstd-3"}
    loaded.learn(32, callback=CompressRollouts(), reset_num_timesteps=False)
    assert type(loaded.rollout_buffer) is CompressedRolloutBuffer and loaded.rollout_buffer_kwargs == {}


class MyRolloutBuffer(RolloutBuffer):
    pass


@pytest.mark.parametrize(
    ("algorithm", "kwargs", "options", "message"),
    [
        (DQN, {"buffer_size": 100}, {}, "DQN collects no rollouts; give it a compressed buffer as replay_buffer_class"),
        (PPO, {"rollout_buffer_class": MyRolloutBuffer}, {}, "was given a MyRolloutBuffer"),
        (PPO, {}, {"compresion_method": "rle"}, "no option 'compresion_method'"),
    ],
)
def test_what_cannot_be_is_refused(algorithm: Any, kwargs: Any, options: Any, message: str) -> None:
    model = make_model(algorithm, **kwargs) if algorithm is PPO else algorithm("MlpPolicy", "CartPole-v1", **kwargs)
    with pytest.raises(TypeError, match=message):
        model.learn(32, callback=CompressRollouts(**options))
