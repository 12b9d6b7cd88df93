"""From one seed, a model trained with our buffer has the parameters of one trained with SB3's, to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from family_envs import DictImageEnv, GoalImageEnv, ImageEnv, image_envs, parameters_of, small_network
from sb3_contrib import QRDQN, TQC, TRPO, CrossQ, MaskablePPO, RecurrentPPO
from stable_baselines3 import A2C, DDPG, DQN, PPO, SAC, TD3, HerReplayBuffer
from stable_baselines3.common.vec_env import VecNormalize

from sb3_extra_buffers.compressed import CompressedRecurrentPPO, compressed_kwargs
from sb3_extra_buffers.testing import assert_same

REPLAY = {"buffer_size": 200, "learning_starts": 40, "batch_size": 16, "train_freq": 2, "gradient_steps": 2}


def check_training(
    algorithm: Any, policy: str, make_env: Any, ours: dict[str, Any], theirs: dict[str, Any] | None = None, **kwargs: Any
) -> Any:
    """Train both, and return ours."""
    steps, network = kwargs.pop("steps", 360), kwargs.pop("policy_kwargs", small_network())
    kwargs |= {"device": "cpu", "seed": 3}
    oracle_class = RecurrentPPO if issubclass(algorithm, RecurrentPPO) else algorithm
    expected = oracle_class(policy, make_env(), policy_kwargs=dict(network), **(theirs or {}), **kwargs).learn(steps)
    model = algorithm(policy, make_env(), policy_kwargs=dict(network), **ours, **kwargs).learn(steps)
    assert model.logger.name_to_value.keys() == expected.logger.name_to_value.keys()
    assert model._n_updates == expected._n_updates
    assert_same(parameters_of(model), parameters_of(expected), f"{algorithm.__name__}: parameters")
    return model


def usage_of(model: Any) -> Any:
    buffer = getattr(model, "replay_buffer", None) or model.rollout_buffer
    return buffer.memory_usage()


@pytest.mark.parametrize("algorithm", [DQN, QRDQN, SAC, TD3, DDPG, TQC, CrossQ])
def test_off_policy(algorithm: Any) -> None:
    continuous = algorithm not in (DQN, QRDQN)

    def make_env() -> Any:
        return image_envs(ImageEnv, continuous=continuous)

    policy, kwargs = "CnnPolicy", {}
    if algorithm is CrossQ:  # has no policy for images yet; this one flattens them
        policy, kwargs = "MlpPolicy", {"policy_kwargs": {"net_arch": [16]}}
    model = check_training(algorithm, policy, make_env, compressed_kwargs(algorithm, make_env()), **REPLAY, **kwargs)
    assert model._n_updates >= 150 and model.replay_buffer.full
    assert usage_of(model).frames_stored > 0


@pytest.mark.parametrize(("algorithm", "n_epochs"), [(A2C, None), (PPO, 6), (TRPO, None)])
def test_on_policy(algorithm: Any, n_epochs: int | None) -> None:
    kwargs = {"n_steps": 5} if algorithm is A2C else {"n_steps": 32, "batch_size": 16}
    if n_epochs:
        kwargs["n_epochs"] = n_epochs
    ours = compressed_kwargs(algorithm, image_envs())
    model = check_training(algorithm, "CnnPolicy", image_envs, ours, steps=1200, **kwargs)
    assert usage_of(model).frames_stored > 0


@pytest.mark.parametrize("env_class", [ImageEnv, DictImageEnv])
def test_maskable_ppo(env_class: Any) -> None:
    policy = "CnnPolicy" if env_class is ImageEnv else "MultiInputPolicy"

    def make_env() -> Any:
        return image_envs(env_class)

    ours = compressed_kwargs(MaskablePPO, make_env())
    model = check_training(MaskablePPO, policy, make_env, ours, steps=600, n_steps=32, batch_size=16, n_epochs=5)
    masks = np.asarray(model.rollout_buffer.action_masks)
    assert 0 < masks.mean() < 1, "the environment masks some actions"


@pytest.mark.parametrize("lstm", ["own", "shared", "none"])
@pytest.mark.parametrize("env_class", [ImageEnv, DictImageEnv])
def test_recurrent_ppo(env_class: Any, lstm: str) -> None:
    policy = "CnnLstmPolicy" if env_class is ImageEnv else "MultiInputLstmPolicy"

    def make_env() -> Any:
        return image_envs(env_class, stack=1)

    sharing = {"shared_lstm": lstm == "shared", "enable_critic_lstm": lstm == "own"}
    ours = compressed_kwargs(CompressedRecurrentPPO, make_env(), compression_method="gzip1")
    model = check_training(
        CompressedRecurrentPPO,
        policy,
        make_env,
        ours,
        steps=400,
        n_steps=32,
        batch_size=32,
        n_epochs=4,
        policy_kwargs=small_network(lstm_hidden_size=12, **sharing),
    )
    buffer = model.rollout_buffer
    assert (buffer.hidden_states_vf is buffer.hidden_states_pi) == (lstm != "own")


@pytest.mark.parametrize("copy_info_dict", [False, True])
def test_sac_with_her_and_an_image(copy_info_dict: bool) -> None:
    def make_env() -> Any:
        return image_envs(GoalImageEnv)

    her = {"n_sampled_goal": 3, "goal_selection_strategy": "future", "copy_info_dict": copy_info_dict}
    theirs = {"replay_buffer_class": HerReplayBuffer, "replay_buffer_kwargs": her}
    model = check_training(SAC, "MultiInputPolicy", make_env, compressed_kwargs(SAC, make_env(), **her), theirs, **REPLAY)
    assert usage_of(model).frames_stored > 0


def test_dqn_with_three_steps() -> None:
    ours = compressed_kwargs(DQN, image_envs(), n_steps=3, gamma=0.9)
    theirs = {"n_steps": 3, "gamma": 0.9}  # SB3 makes its NStepReplayBuffer of that
    check_training(DQN, "CnnPolicy", image_envs, ours, theirs, **REPLAY)


def test_dqn_of_dict_observations_with_three_steps_learns() -> None:
    env = image_envs(DictImageEnv)
    model = DQN("MultiInputPolicy", env, **REPLAY, policy_kwargs=small_network(), **compressed_kwargs(DQN, env, n_steps=3))
    model.learn(200)
    assert model.replay_buffer.sample(4).discounts is not None


@pytest.mark.parametrize("algorithm", [DQN, PPO])
def test_with_normalized_dict_observations(algorithm: Any) -> None:
    def make_env() -> Any:
        return VecNormalize(image_envs(DictImageEnv), norm_obs_keys=["vector"])

    kwargs: dict[str, Any] = REPLAY if algorithm is DQN else {"n_steps": 32, "batch_size": 16, "n_epochs": 2}
    check_training(algorithm, "MultiInputPolicy", make_env, compressed_kwargs(algorithm, make_env()), **kwargs)
