"""``compressed_kwargs`` finds the class for every algorithm."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from family_envs import GoalImageEnv, image_envs
from gymnasium import spaces
from sb3_contrib import ARS, QRDQN, TQC, TRPO, CrossQ, MaskablePPO, RecurrentPPO
from stable_baselines3 import A2C, DDPG, DQN, PPO, SAC, TD3

from sb3_extra_buffers import compressed
from sb3_extra_buffers.compressed import CompressedRecurrentPPO, compressed_buffer_for, compressed_kwargs
from sb3_extra_buffers.training_utils.prioritized_dqn import PrioritizedDQN

IMAGE = spaces.Box(0, 255, (3, 24, 24), np.uint8)
DICT = spaces.Dict({"image": IMAGE})
GOALS = spaces.Dict({"observation": IMAGE, "achieved_goal": IMAGE, "desired_goal": IMAGE})
OFF_POLICY = [DQN, DDPG, TD3, SAC, QRDQN, TQC, CrossQ]
ROLLOUTS = {
    PPO: "",
    A2C: "",
    TRPO: "",
    MaskablePPO: "Maskable",
    RecurrentPPO: "Recurrent",
    CompressedRecurrentPPO: "Recurrent",
}


@pytest.mark.parametrize("algorithm", OFF_POLICY)
def test_replay_classes(algorithm: Any) -> None:
    class Mine(algorithm):
        pass

    for cls in (algorithm, Mine):
        assert compressed_buffer_for(cls, IMAGE) == (compressed.CompressedReplayBuffer, {})
        assert compressed_buffer_for(cls, DICT) == (compressed.CompressedDictReplayBuffer, {})
        n_step = {"n_steps": 3, "gamma": 0.99}
        assert compressed_buffer_for(cls, IMAGE, n_steps=3) == (compressed.CompressedNStepReplayBuffer, n_step)
        assert compressed_buffer_for(cls, DICT, n_steps=3) == (compressed.CompressedDictNStepReplayBuffer, n_step)
        assert compressed_buffer_for(cls, IMAGE, n_steps=1, gamma=0.9) == (compressed.CompressedReplayBuffer, {})
        assert compressed_buffer_for(cls, GOALS, her=True) == (compressed.CompressedHerReplayBuffer, {})
        assert compressed_buffer_for(cls, GOALS, her=False) == (compressed.CompressedDictReplayBuffer, {})


@pytest.mark.parametrize("algorithm", ROLLOUTS)
def test_rollout_classes(algorithm: Any) -> None:
    class Mine(algorithm):
        pass

    for cls in (algorithm, Mine):
        for kind, space in (("", IMAGE), ("Dict", DICT)):
            expected = getattr(compressed, f"Compressed{ROLLOUTS[algorithm]}{kind}RolloutBuffer")
            options = {"compression_method": "gzip1"}
            assert compressed_buffer_for(cls, space, **options) == (expected, options)


def test_kwargs_are_those_of_the_algorithm() -> None:
    env = image_envs()
    assert compressed_kwargs(PPO, env, compression_method="rle") == {
        "rollout_buffer_class": compressed.CompressedRolloutBuffer,
        "rollout_buffer_kwargs": {"compression_method": "rle"},
    }
    assert compressed_kwargs(DQN, env.observation_space, n_steps=5, gamma=0.9) == {
        "replay_buffer_class": compressed.CompressedNStepReplayBuffer,
        "replay_buffer_kwargs": {"n_steps": 5, "gamma": 0.9},
        "gamma": 0.9,
    }
    assert compressed_kwargs(DQN, env, n_steps=1, gamma=0.9) == {
        "replay_buffer_class": compressed.CompressedReplayBuffer,
        "replay_buffer_kwargs": {},
        "gamma": 0.9,
    }
    her = {"goal_selection_strategy": "final", "copy_info_dict": True}
    assert compressed_kwargs(SAC, GoalImageEnv(), **her) == {
        "replay_buffer_class": compressed.CompressedHerReplayBuffer,
        "replay_buffer_kwargs": her,
    }


def test_prioritized_classes() -> None:
    class Mine(PrioritizedDQN):
        pass

    priorities = {"alpha": 0.5, "beta": 1.0, "eps": 1e-3, "compression_method": "rle"}
    n_step = {"n_steps": 3, "gamma": 0.99}
    for cls in (PrioritizedDQN, Mine):
        for kind, space in (("", IMAGE), ("Dict", DICT)):
            expected = getattr(compressed, f"Compressed{kind}PrioritizedReplayBuffer")
            assert compressed_buffer_for(cls, space) == (expected, {})
            assert compressed_buffer_for(cls, space, **priorities) == (expected, priorities)
            assert compressed_buffer_for(cls, space, n_steps=3, **priorities) == (expected, n_step | priorities)
            assert compressed_buffer_for(cls, space, n_steps=1, gamma=0.9) == (expected, {})
        assert compressed_buffer_for(cls, GOALS, her=False)[0] is compressed.CompressedDictPrioritizedReplayBuffer


def test_gamma_is_the_default_of_the_class_that_has_one() -> None:
    class PassesOn(DQN):
        def __init__(self, *args: Any, extra: int = 0, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)

    class Changes(PassesOn):
        def __init__(self, *args: Any, gamma: float = 0.5, **kwargs: Any) -> None:
            super().__init__(*args, gamma=gamma, **kwargs)

    class Demands(PassesOn):
        def __init__(self, *args: Any, gamma: float, **kwargs: Any) -> None:
            super().__init__(*args, gamma=gamma, **kwargs)

    class Hides(PassesOn):
        def __init__(self, policy: str, env: Any) -> None:
            super().__init__(policy, env, gamma=0.1)

    assert compressed_kwargs(PassesOn, IMAGE, n_steps=3)["gamma"] == 0.99
    assert compressed_kwargs(Changes, IMAGE, n_steps=3)["gamma"] == 0.5
    for cls in (Demands, Hides):
        with pytest.raises(TypeError, match="need `gamma`, which it has no default for"):
            compressed_kwargs(cls, IMAGE, n_steps=3)


def test_gamma_cannot_be_given_twice() -> None:
    env = image_envs()
    with pytest.raises(TypeError, match="multiple values"):
        DQN("CnnPolicy", env, gamma=0.5, **compressed_kwargs(DQN, env, n_steps=3))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: compressed_kwargs(ARS, IMAGE), "ARS has no buffer"),
        (lambda: compressed_kwargs(RecurrentPPO, IMAGE), "CompressedRecurrentPPO"),
        (lambda: compressed_kwargs("DQN", IMAGE), "algorithm class"),
        (lambda: compressed_kwargs(DQN, "CartPole-v1"), "environment or its observation space"),
        (lambda: compressed_kwargs(DQN, IMAGE, compresion_method="rle"), "compression_method"),
        (lambda: compressed_kwargs(DQN, IMAGE, gamma=0.9), "no option 'gamma'"),
        (lambda: compressed_kwargs(PPO, IMAGE, gamma=0.9), "no option 'gamma'"),
        (lambda: compressed_kwargs(PPO, IMAGE, n_steps=3), "no option 'n_steps'"),
        (lambda: compressed_kwargs(PPO, GOALS, her=True), "no option 'her'"),
        (lambda: compressed_kwargs(DQN, IMAGE, buffer_size=9), "no option 'buffer_size'"),
        (lambda: compressed_kwargs(SAC, DICT, her=True), "achieved_goal"),
        (lambda: compressed_kwargs(SAC, GOALS, her=True, n_steps=3), "cannot be combined"),
        (lambda: compressed_kwargs(PrioritizedDQN, GOALS, her=True), "HER and PrioritizedDQN cannot be combined"),
        (lambda: compressed_kwargs(PrioritizedDQN, IMAGE, gamma=0.9), "no option 'gamma'"),
        (lambda: compressed_kwargs(PrioritizedDQN, IMAGE, alfa=0.9), "it has: alpha, beta, "),
        (
            lambda: compressed_kwargs(DQN, IMAGE, alpha=0.9, beta=1),
            "DQN uses no priorities, so it has no 'alpha', 'beta'; use",
        ),
        (lambda: compressed_kwargs(SAC, DICT, eps=0.1, n_steps=3), "SAC uses no priorities, so it has no 'eps'"),
        (lambda: compressed_kwargs(PPO, IMAGE, alpha=0.9), "no option 'alpha'"),
    ],
)
def test_what_cannot_be_is_refused(call: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        call()


PROBE = """
import sys
{block}
import sb3_extra_buffers.compressed as compressed
from stable_baselines3 import DQN, PPO
from gymnasium import spaces
import numpy as np
image = spaces.Box(0, 255, (3, 24, 24), np.uint8)
compressed.compressed_kwargs(PPO, image)
compressed.compressed_kwargs(DQN, image, n_steps=3)
assert "CompressedRecurrentPPO" in dir(compressed)
assert not any(name.split(".")[0] == "sb3_contrib" and sys.modules[name] for name in sys.modules)
{then}
"""


def run(block: str, then: str) -> None:
    subprocess.run([sys.executable, "-c", PROBE.format(block=block, then=then)], check=True, timeout=600)


def test_without_sb3_contrib_its_classes_name_the_extra() -> None:
    then = """
for name in ("CompressedMaskableRolloutBuffer", "CompressedRecurrentPPO"):
    try:
        getattr(compressed, name)
    except ImportError as error:
        assert name in str(error) and 'pip install ".[contrib]"' in str(error), error
    else:
        raise AssertionError(name)
assert not hasattr(compressed, "CompressedNothing")
"""
    run('sys.modules["sb3_contrib"] = None', then)


def test_sb3_contrib_is_imported_only_when_needed() -> None:
    run("", "compressed.CompressedMaskableRolloutBuffer; assert 'sb3_contrib' in sys.modules")


def test_all_names_are_there() -> None:
    assert set(compressed.__all__) <= set(dir(compressed))
    for name in compressed.__all__:
        assert getattr(compressed, name) is not None
