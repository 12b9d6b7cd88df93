"""SB3's models with our buffers: the scripts of the documentation, saving and loading."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from observation_streams import assert_same_samples, contents_of, sampled
from stable_baselines3 import DQN, PPO, SAC
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.save_util import load_from_pkl, save_to_pkl
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack

from sb3_extra_buffers.compressed import (
    CompressedArray,
    CompressedDictReplayBuffer,
    CompressedDictRolloutBuffer,
    CompressedReplayBuffer,
    CompressedRolloutBuffer,
)


class Dots(gym.Env[Any, Any]):
    """
    A dot moves over an image; episodes end, and are cut off.

    :param as_dict: Whether the image comes in a dict, with a vector
    :param continuous: Whether actions are a Box
    """

    def __init__(self, as_dict: bool = False, continuous: bool = False) -> None:
        image = spaces.Box(0, 255, (36, 36, 1), np.uint8)
        self.as_dict = as_dict
        self.observation_space = image
        if as_dict:
            self.observation_space = spaces.Dict({"image": image, "place": spaces.Box(-1, 1, (2,), np.float32)})
        self.action_space = spaces.Box(-1, 1, (1,), np.float32) if continuous else spaces.Discrete(3)

    def _observe(self) -> Any:
        image = np.full((36, 36, 1), 90, np.uint8)
        row, column = self.place
        image[row : row + 3, column : column + 3] = 200
        return {"image": image, "place": np.array(self.place, np.float32) / 36} if self.as_dict else image

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        self.place = self.np_random.integers(0, 33, 2)
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        move = int(np.sign(np.asarray(action).ravel()[0] - 0.5)) if self.action_space.shape else int(action) - 1
        self.place = np.clip(np.add(self.place, (1, move)), 0, 33)
        ended = bool(self.place[0] >= 33)
        return self._observe(), float(move), ended, self.steps >= 20, {}


def envs(n_envs: int = 2, **options: Any) -> Any:
    env = DummyVecEnv([lambda: Dots(**options)] * n_envs)
    return VecFrameStack(env, 4)


SMALL: dict[str, Any] = {"seed": 1, "device": "cpu", "learning_starts": 40, "batch_size": 16, "buffer_size": 120}


def net(size_name: str = "features_dim") -> dict[str, Any]:
    """A small policy; made anew for each model, since SB3 changes what it is given."""
    return {"policy_kwargs": {"net_arch": [16], "features_extractor_kwargs": {size_name: 16}}}


def same_weights(one: Any, other: Any) -> bool:
    states = one.policy.state_dict(), other.policy.state_dict()
    return all(th.equal(states[0][name], states[1][name]) for name in states[1])


# -- the four classes in models ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimize", [False, True])
def test_dqn(optimize: bool) -> None:
    """``optimize_memory_usage`` of the model needs no further option and changes nothing."""
    theirs = DQN("CnnPolicy", envs(), **SMALL, **net()).learn(300)
    ours = DQN(
        "CnnPolicy", envs(), **SMALL, **net(), replay_buffer_class=CompressedReplayBuffer, optimize_memory_usage=optimize
    ).learn(300)
    assert type(ours.replay_buffer) is CompressedReplayBuffer
    assert same_weights(ours, theirs)


def test_sac_with_dict_observations() -> None:
    options = dict(SMALL, train_freq=4, gradient_steps=1)
    theirs = SAC("MultiInputPolicy", envs(as_dict=True, continuous=True), **options, **net("cnn_output_dim")).learn(160)
    ours = SAC(
        "MultiInputPolicy",
        envs(as_dict=True, continuous=True),
        **options,
        **net("cnn_output_dim"),
        replay_buffer_class=CompressedDictReplayBuffer,
        replay_buffer_kwargs={"compression_method": "gzip1"},
    ).learn(160)
    assert type(ours.replay_buffer) is CompressedDictReplayBuffer
    assert same_weights(ours, theirs)


def test_ppo_with_dict_observations() -> None:
    options: dict[str, Any] = {"n_steps": 64, "batch_size": 32, "n_epochs": 2, "seed": 1, "device": "cpu"}
    models = []
    for extra in ({}, {"rollout_buffer_class": CompressedDictRolloutBuffer}):
        models.append(PPO("MultiInputPolicy", envs(as_dict=True), **options, **extra, **net("cnn_output_dim")).learn(256))
    theirs, ours = models
    assert type(ours.rollout_buffer) is CompressedDictRolloutBuffer
    assert same_weights(ours, theirs)


def test_ppo_with_prefetch() -> None:
    """The next minibatch is decoded beside the training; the result is the same."""
    options = dict(n_steps=64, batch_size=32, n_epochs=2, seed=1, device="cpu", **net())
    theirs = PPO("CnnPolicy", envs(), **options).learn(256)
    ours = PPO(
        "CnnPolicy",
        envs(),
        **options,
        rollout_buffer_class=CompressedRolloutBuffer,
        rollout_buffer_kwargs={"prefetch": True},
    ).learn(256)
    assert same_weights(ours, theirs)


def test_normalized_images() -> None:
    """Images divided by the buffer, and not by the policy, train the same; up to how a division is rounded, to the bit."""
    options = dict(SMALL, **net())
    theirs = DQN("CnnPolicy", envs(), **options).learn(200)
    sample, _ = sampled(theirs.replay_buffer, 0, 8)
    ours = CompressedReplayBuffer(
        120, theirs.replay_buffer.observation_space, theirs.action_space, "cpu", 2, normalize_images=True
    )
    for name in ("actions", "rewards", "dones", "timeouts"):
        getattr(ours, name)[:] = getattr(theirs.replay_buffer, name)
    for name in ("observations", "next_observations"):
        getattr(ours, name)[:] = getattr(theirs.replay_buffer, name)
    ours.pos, ours.full = theirs.replay_buffer.pos, theirs.replay_buffer.full
    got, _ = sampled(ours, 0, 8)
    assert got.observations.dtype == th.float32
    assert th.equal(got.observations, sample.observations.float() / 255)


# -- saving and loading -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [None, "gzip1"])
def test_save_and_load(tmp_path: Path, method: str | None) -> None:
    """A model and its buffer, saved and loaded again, go on as if nothing had been; beside SB3's, which does the same."""
    models = []
    for cls, options in [(ReplayBuffer, {}), (CompressedReplayBuffer, {"compression_method": method})]:
        model = DQN("CnnPolicy", envs(), **SMALL, **net(), replay_buffer_class=cls, replay_buffer_kwargs=options).learn(200)
        model.save(tmp_path / cls.__name__)
        model.save_replay_buffer(tmp_path / f"{cls.__name__}.buffer")
        loaded = DQN.load(tmp_path / cls.__name__, env=envs(), device="cpu")
        assert loaded.replay_buffer_class is cls
        loaded.load_replay_buffer(tmp_path / f"{cls.__name__}.buffer")
        assert type(loaded.replay_buffer) is cls
        loaded.set_random_seed(9)
        loaded.learn(160, reset_num_timesteps=False)
        models.append(loaded)
    theirs, ours = models
    assert same_weights(ours, theirs)
    for name in ("observations", "next_observations"):
        np.testing.assert_array_equal(
            contents_of(getattr(ours.replay_buffer, name)), contents_of(getattr(theirs.replay_buffer, name))
        )
    files = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert files["CompressedReplayBuffer.buffer"] < files["ReplayBuffer.buffer"] / 3


def test_save_to_pkl(tmp_path: Path) -> None:
    model = DQN("CnnPolicy", envs(), **SMALL, **net(), replay_buffer_class=CompressedReplayBuffer).learn(150)
    save_to_pkl(tmp_path / "buffer", model.replay_buffer)
    loaded = load_from_pkl(tmp_path / "buffer")
    assert_same_samples(sampled(loaded, 0, 32)[0], sampled(model.replay_buffer, 0, 32)[0])
    twin = copy.deepcopy(model.replay_buffer)
    assert_same_samples(sampled(twin, 0, 32)[0], sampled(model.replay_buffer, 0, 32)[0])


def test_rollout_model_is_saved(tmp_path: Path) -> None:
    model = PPO(
        "CnnPolicy",
        envs(),
        n_steps=32,
        batch_size=16,
        n_epochs=1,
        device="cpu",
        seed=0,
        **net(),
        rollout_buffer_class=CompressedRolloutBuffer,
        rollout_buffer_kwargs={"compression_method": "gzip1"},
    ).learn(64)
    model.save(tmp_path / "model")
    loaded = PPO.load(tmp_path / "model", env=envs(), device="cpu")
    assert type(loaded.rollout_buffer) is CompressedRolloutBuffer
    assert loaded.rollout_buffer.observations.compression_method == "gzip1"
    loaded.learn(64)
    assert not same_weights(loaded, model)


# -- scripts of the documentation -------------------------------------------------------------------------------------


def run_script(code: str, tmp_path: Path) -> None:
    """Run a script as a user would: from a file, with the environments in worker processes."""
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(code), encoding="utf-8")
    paths = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, str(path)],
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=800,
    )
    assert done.returncode == 0, done.stdout + done.stderr


PPO_SCRIPT = """
from stable_baselines3 import PPO
from sb3_extra_buffers.compressed import CompressedRolloutBuffer, find_buffer_dtypes
from sb3_extra_buffers.training_utils.atari import make_env

if __name__ == "__main__":
    obs = make_env(env_id="MsPacmanNoFrameskip-v4", n_envs=1, framestack=4).observation_space
    buffer_dtypes = find_buffer_dtypes(obs_shape=obs.shape, elem_dtype=obs.dtype, compression_method="rle-jit")
    env = make_env(env_id="MsPacmanNoFrameskip-v4", n_envs=8, framestack=4)
    model = PPO("CnnPolicy", env, n_steps=128, batch_size=256, rollout_buffer_class=CompressedRolloutBuffer,
                rollout_buffer_kwargs=dict(dtypes=buffer_dtypes, compression_method="rle-jit"))
    model.learn(total_timesteps=2048, progress_bar=True)
    assert type(model.rollout_buffer) is CompressedRolloutBuffer and model.num_timesteps == 2048
"""


@pytest.mark.slow
def test_ppo_script_as_written(tmp_path: Path) -> None:
    pytest.importorskip("ale_py")
    run_script(PPO_SCRIPT, tmp_path)


def test_ppo_script_in_small(tmp_path: Path) -> None:
    """The same with two environments and shorter rollouts."""
    pytest.importorskip("ale_py")
    script = PPO_SCRIPT.replace("n_envs=8", "n_envs=2").replace("n_steps=128, batch_size=256", "n_steps=32, batch_size=64")
    run_script(script.replace("2048", "128"), tmp_path)


def test_dqn_with_nothing_more() -> None:
    """One line is changed: the class; the buffer has the default size of a large run."""
    pytest.importorskip("ale_py")
    from sb3_extra_buffers.training_utils.atari import make_env

    env = make_env("PongNoFrameskip-v4", 2, vec_env_cls=DummyVecEnv, seed=0)
    model = DQN("CnnPolicy", env, buffer_size=100_000, replay_buffer_class=CompressedReplayBuffer)
    model.learning_starts = 100
    model.learn(300)
    buffer = model.replay_buffer
    assert type(buffer.observations) is CompressedArray and 150 <= buffer.size() < 160
    assert buffer.memory_usage().frames_stored < 1.2 * 2 * buffer.size() + 20
    assert buffer.memory_usage().ratio > 10
