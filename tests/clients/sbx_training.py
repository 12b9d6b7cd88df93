"""
Train an algorithm of SBX with SB3's buffer and with ours, and compare the parameters.

Run by test_sbx.py in a process of its own: JAX has threads, and what has threads must not fork, which other tests do.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import sbx
from stable_baselines3 import HerReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.vec_env import DummyVecEnv

from sb3_extra_buffers import compressed
from sb3_extra_buffers.compressed import compressed_kwargs
from sb3_extra_buffers.testing import assert_same
from sb3_extra_buffers.training_utils.atari import make_env
from sb3_extra_buffers.training_utils.callbacks import CompressRollouts

sys.path.insert(0, str(Path(__file__).parents[1] / "family"))
from family_envs import image_envs

REPLAY: dict[str, Any] = {"buffer_size": 120, "learning_starts": 40, "batch_size": 16, "train_freq": 4, "gradient_steps": 2}
ROLLOUT: dict[str, Any] = {"n_steps": 32, "batch_size": 32, "n_epochs": 2}
SMALL = {"policy_kwargs": {"net_arch": [16]}}
HER = {"n_sampled_goal": 3, "goal_selection_strategy": "future"}

atari = partial(make_env, "BreakoutNoFrameskip-v4", n_envs=2, vec_env_cls=DummyVecEnv, seed=0)
# SBX has no CnnPolicy for continuous actions. Its MlpPolicy flattens images.
images = partial(image_envs, continuous=True)
vectors = partial(make_vec_env, "Pendulum-v1", n_envs=2, seed=0)
# And its MultiInputPolicy takes no images at all.
bits = partial(make_vec_env, partial(BitFlippingEnv, n_bits=8, continuous=True), n_envs=2, seed=0)


def parameters_of(model: Any) -> dict[str, np.ndarray]:
    """Every array of every network of a model: its parameters, target parameters and the state of its optimizer."""
    states = {
        name: state
        for owner in (model, model.policy)
        for name, state in vars(owner).items()
        if hasattr(state, "params")  # a TrainState of Flax
    }
    assert states
    return {
        name + jax.tree_util.keystr(path): np.asarray(leaf)
        for name, state in states.items()
        for path, leaf in jax.tree_util.tree_leaves_with_path(state)
    }


def check(
    algorithm: Any,
    policy: str,
    make: Any,
    expected_class: type,
    steps: int = 180,
    options: dict[str, Any] | None = None,
    theirs: dict[str, Any] | None = None,
    callback: CompressRollouts | None = None,
    **kwargs: Any,
) -> None:
    """Train both from one seed."""
    ours = {} if callback else compressed_kwargs(algorithm, make(), **(options or {}))
    kwargs["seed"] = 3
    before, expected = (algorithm(policy, make(), **(theirs or {}), **kwargs) for _ in range(2))
    expected.learn(steps)
    model = algorithm(policy, make(), **ours, **kwargs).learn(steps, callback=callback)
    assert model._n_updates == expected._n_updates > 5, model._n_updates
    assert_same(parameters_of(model), parameters_of(expected), f"{algorithm.__name__}: parameters")
    start = parameters_of(before)
    assert any(not np.array_equal(value, start[name]) for name, value in parameters_of(model).items()), "it learned nothing"
    buffer = getattr(model, "replay_buffer", None) or model.rollout_buffer
    assert type(buffer) is expected_class, type(buffer)
    assert (buffer.memory_usage().frames_stored > 0) == (make in (atari, images))


def continuous(algorithm: Any) -> Any:
    return partial(check, algorithm, "MlpPolicy", images, compressed.CompressedReplayBuffer, **SMALL, **REPLAY)


CASES: dict[str, Any] = {
    "DQN": partial(check, sbx.DQN, "CnnPolicy", atari, compressed.CompressedReplayBuffer, **REPLAY),
    "DQN of three steps": partial(
        check,
        sbx.DQN,
        "CnnPolicy",
        atari,
        compressed.CompressedNStepReplayBuffer,
        options={"n_steps": 3, "gamma": 0.9},
        theirs={"n_steps": 3, "gamma": 0.9},
        **REPLAY,
    ),
    "PPO": partial(check, sbx.PPO, "CnnPolicy", atari, compressed.CompressedRolloutBuffer, **ROLLOUT),
    "PPO by callback": partial(
        check, sbx.PPO, "CnnPolicy", atari, compressed.CompressedRolloutBuffer, callback=CompressRollouts(), **ROLLOUT
    ),
    "SAC": continuous(sbx.SAC),
    "TQC": continuous(sbx.TQC),
    "CrossQ": continuous(sbx.CrossQ),
    "TD3": continuous(sbx.TD3),
    "DDPG": continuous(sbx.DDPG),
    "SAC of vectors": partial(check, sbx.SAC, "MlpPolicy", vectors, compressed.CompressedReplayBuffer, **SMALL, **REPLAY),
    "SAC with HER": partial(
        check,
        sbx.SAC,
        "MultiInputPolicy",
        bits,
        compressed.CompressedHerReplayBuffer,
        options=HER,
        theirs={"replay_buffer_class": HerReplayBuffer, "replay_buffer_kwargs": HER},
        **SMALL,
        **REPLAY,
    ),
}

if __name__ == "__main__":
    CASES[sys.argv[1]]()
