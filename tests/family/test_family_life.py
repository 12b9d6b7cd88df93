"""What users do with a model beside training it once: as with SB3's own buffers, compared with them step by step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from family_envs import GoalImageEnv, ImageEnv, image_envs, parameters_of, small_network
from sb3_contrib import MaskablePPO, RecurrentPPO
from stable_baselines3 import DQN, PPO, SAC, HerReplayBuffer
from stable_baselines3.common.callbacks import CheckpointCallback

from sb3_extra_buffers.compressed import (
    CompressedHerReplayBuffer,
    CompressedRecurrentPPO,
    CompressedRecurrentRolloutBuffer,
    compressed_kwargs,
)
from sb3_extra_buffers.testing import assert_same

REPLAY = {"buffer_size": 120, "learning_starts": 48, "batch_size": 8, "train_freq": 2}
ROLLOUT = {"n_steps": 16, "batch_size": 16, "n_epochs": 2}


def off_policy(kind: str) -> tuple[Any, str, dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Algorithm, policy, environment, SB3's arguments and ours."""
    if kind == "her":
        her = {"goal_selection_strategy": "final", "copy_info_dict": True}
        theirs = {"replay_buffer_class": HerReplayBuffer, "replay_buffer_kwargs": her}
        goal_env = {"env_class": GoalImageEnv}
        return SAC, "MultiInputPolicy", goal_env, theirs, compressed_kwargs(SAC, image_envs(**goal_env), **her)
    options = {"n_steps": 3, "gamma": 0.9} if kind == "n-step" else {}
    return DQN, "CnnPolicy", {"env_class": ImageEnv}, options, compressed_kwargs(DQN, image_envs(), **options)


def live(model: Any, env: dict[str, Any], tmp_path: Path) -> list[Any]:
    """Do everything with a model; returns what is to be the same."""
    algorithm, seen = type(model), []
    model.learn(70)
    model.learn(30, reset_num_timesteps=False)
    callback = CheckpointCallback(10, str(tmp_path), save_replay_buffer=True)
    model.learn(40, callback=callback)
    seen.append(parameters_of(model))
    seen.append(sorted(path.name for path in tmp_path.iterdir()))
    model.save(tmp_path / "model")
    model.save_replay_buffer(tmp_path / "buffer")

    for file, truncate in (("buffer", True), ("buffer", False), ("rl_model_replay_buffer_40_steps", True)):
        loaded = algorithm.load(tmp_path / "model", env=image_envs(**env, seed=5), device="cpu")
        loaded.load_replay_buffer(tmp_path / f"{file}.pkl", truncate_last_traj=truncate)
        assert type(loaded.replay_buffer) is type(model.replay_buffer)
        seen.append((loaded.replay_buffer.pos, loaded.replay_buffer.full, loaded.replay_buffer.device))
        loaded.learn(40, reset_num_timesteps=False)
        seen.append(parameters_of(loaded))

    wider = algorithm.load(tmp_path / "model", env=image_envs(**env, n_envs=3, seed=6))
    seen.append((wider.n_envs, wider.replay_buffer.n_envs, wider.replay_buffer.buffer_size))
    seen.append(parameters_of(wider.learn(75)))
    model.set_env(image_envs(**env, seed=7))
    seen.append(parameters_of(model.learn(30)))
    seen.append(refusal(model, env))
    return seen


def refusal(model: Any, env: dict[str, Any]) -> str:
    with pytest.raises(AssertionError) as caught:
        model.set_env(image_envs(**env, n_envs=3))
    return str(caught.value).replace("Compressed", "")


@pytest.mark.filterwarnings("ignore:The last trajectory in the replay buffer will be truncated")
@pytest.mark.filterwarnings("ignore:`n_steps=3` is ignored")  # SB3 says so of its own class, when it loads a model
@pytest.mark.parametrize("kind", ["plain", "n-step", "her"])
def test_life_off_policy(kind: str, tmp_path: Path) -> None:
    algorithm, policy, env, theirs, ours = off_policy(kind)
    lives = []
    for name, arguments in (("ours", ours), ("theirs", theirs)):
        (tmp_path / name).mkdir()
        kwargs = {"policy_kwargs": small_network(), "seed": 2, "device": "cpu", **REPLAY}
        lives.append(live(algorithm(policy, image_envs(**env), **arguments, **kwargs), env, tmp_path / name))
    assert_same(lives[0], lives[1], "life")


@pytest.mark.parametrize("algorithm", [PPO, MaskablePPO, CompressedRecurrentPPO])
def test_life_on_policy(algorithm: Any, tmp_path: Path) -> None:
    recurrent = algorithm is CompressedRecurrentPPO
    env: dict[str, Any] = {"env_class": ImageEnv}
    lives = []
    for cls in (algorithm, RecurrentPPO if recurrent else algorithm):
        ours = not lives
        arguments = compressed_kwargs(algorithm, image_envs(**env), compression_method="gzip1") if ours else {}
        network = small_network(lstm_hidden_size=8) if recurrent else small_network()
        policy = "CnnLstmPolicy" if recurrent else "CnnPolicy"
        kwargs = {"policy_kwargs": network, "seed": 2, "device": "cpu", **ROLLOUT}
        model = cls(policy, image_envs(**env), **arguments, **kwargs)
        model.learn(64)
        model.learn(32, reset_num_timesteps=False)
        seen: list[Any] = [parameters_of(model)]
        model.save(tmp_path / "model")
        loaded = cls.load(tmp_path / "model", env=image_envs(**env, n_envs=3, seed=5), device="cpu")
        assert type(loaded.rollout_buffer) is type(model.rollout_buffer)
        if ours:
            assert loaded.rollout_buffer.observations.compression_method == "gzip1"
        seen += [loaded.rollout_buffer.n_envs, parameters_of(loaded.learn(48))]
        model.set_env(image_envs(**env, seed=7))
        seen += [parameters_of(model.learn(32)), refusal(model, env)]
        lives.append(seen)
    assert_same(lives[0], lives[1], "life")


def test_recurrent_ppo_takes_a_model_of_sb3_contrib_and_any_buffer_class(tmp_path: Path) -> None:
    class Mine(CompressedRecurrentRolloutBuffer):
        pass

    kwargs: dict[str, Any] = {"policy_kwargs": small_network(lstm_hidden_size=8), **ROLLOUT}
    RecurrentPPO("CnnLstmPolicy", image_envs(), **kwargs).save(tmp_path / "theirs")
    model = CompressedRecurrentPPO.load(tmp_path / "theirs", env=image_envs()).learn(32)
    assert type(model.rollout_buffer) is CompressedRecurrentRolloutBuffer
    model = CompressedRecurrentPPO("CnnLstmPolicy", image_envs(), rollout_buffer_class=Mine, **kwargs)
    assert type(model.rollout_buffer) is Mine and model.rollout_buffer.buffer_size == model.n_steps == 16


def test_device_can_be_set_after_loading(tmp_path: Path) -> None:
    env = image_envs()
    model = DQN("CnnPolicy", env, policy_kwargs=small_network(), **REPLAY, **compressed_kwargs(DQN, env))
    model.learn(20)
    model.save_replay_buffer(tmp_path / "buffer")
    model.load_replay_buffer(tmp_path / "buffer")
    assert model.replay_buffer.device == model.device
    model.replay_buffer.device = th.device("meta")  # stands for any other device
    assert all(part.device.type == "meta" for part in model.replay_buffer.sample(4) if part is not None)


def test_her_says_when_it_cannot_be_sampled() -> None:
    env = image_envs(GoalImageEnv)
    buffers = []
    for cls in (CompressedHerReplayBuffer, HerReplayBuffer):
        buffers.append(cls(20, env.observation_space, env.action_space, env, n_envs=2))
    obs, nothing = env.reset(), np.zeros(2)
    for buffer in buffers:
        buffer.add(obs, obs, np.zeros((2, 2)), nothing, nothing, [{}, {}])
    messages = []
    for buffer in buffers:
        with pytest.raises(RuntimeError) as caught:
            buffer.sample(4)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
