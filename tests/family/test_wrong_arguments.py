"""The wrong buffer class, or a wrong option of the right one: refused when the algorithm is made, with what would be right."""

from __future__ import annotations

import re
import sys
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.buffers import ReplayBuffer, RolloutBuffer
from stable_baselines3.common.envs import SimpleMultiObsEnv
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize, VecTransposeImage

import sb3_extra_buffers
from sb3_extra_buffers import CompressedHerReplayBuffer, CompressedReplayBuffer, CompressedRolloutBuffer
from sb3_extra_buffers.storage import CompressedArray

pytest.importorskip("sb3_contrib")

BUFFERS = [name for name in sb3_extra_buffers.__all__ if name.endswith("Buffer") and "Record" not in name]
IMAGE = spaces.Box(0, 255, (4, 36, 36), np.uint8)
DICT = spaces.Dict({"image": IMAGE})


def make(algorithm: Any, observations: str, buffer_class: Any, **options: Any) -> Any:
    """An algorithm with a buffer."""
    env = SimpleMultiObsEnv() if observations == "dict" else "CartPole-v1"
    policy = "MultiInputPolicy" if observations == "dict" else "MlpPolicy"
    if algorithm is DQN:
        rest: dict[str, Any] = {"replay_buffer_class": buffer_class, "replay_buffer_kwargs": options, "buffer_size": 50}
    else:
        rest = {"rollout_buffer_class": buffer_class, "rollout_buffer_kwargs": options, "n_steps": 8, "batch_size": 8}
    return algorithm(policy, env, device="cpu", **rest)


@pytest.mark.parametrize("observations", ["plain", "dict"])
@pytest.mark.parametrize("algorithm", [DQN, PPO])
@pytest.mark.parametrize("name", BUFFERS)
def test_a_class_that_does_not_fit(name: str, algorithm: Any, observations: str) -> None:
    buffer_class = getattr(sb3_extra_buffers, name)
    needed, dict_space = (ReplayBuffer if algorithm is DQN else RolloutBuffer), observations == "dict"
    prefix = "Gpu" if name.startswith("Gpu") else "Compressed"
    if not issubclass(buffer_class, needed):
        right = f"{prefix}{'Dict' if dict_space else ''}{needed.__name__}"
        error, words = TypeError, [name, f"use {right}", "compressed_kwargs"]
    elif "Recurrent" in name:
        error, words = TypeError, [name, "hidden_state_shape", "CompressedRecurrentPPO"]
    elif "Mixed" in name:
        error, words = TypeError, [name, "needs dataset", "replay_buffer_kwargs=dict(dataset=...)"]
    elif "Her" in name:
        error, words = ValueError, ["HER", "achieved_goal", "Dict('img'" if dict_space else "Box("]
    elif ("Dict" in name) != dict_space:
        twin = name.replace("Dict", "") if "Dict" in name else re.sub(r"^(Gpu|Compressed(?:Maskable)?)", r"\1Dict", name)
        space = "Dict('img'" if dict_space else "Box("
        error, words = ValueError, [name, space, "compressed_kwargs"]
        if name != "PrioritizedReplayBuffer":
            words.append(f"use {twin}")
            assert hasattr(sb3_extra_buffers, twin)
    else:
        buffer = make(algorithm, observations, buffer_class)
        assert type(getattr(buffer, "replay_buffer" if algorithm is DQN else "rollout_buffer")) is buffer_class
        return
    with pytest.raises(error) as caught:
        make(algorithm, observations, buffer_class)
    for word in words:
        assert word in str(caught.value), str(caught.value)


@pytest.mark.parametrize("name", [name for name in BUFFERS if not re.search(r"Dict|Her|Recurrent", name)])
def test_a_typo_in_an_option(name: str) -> None:
    buffer_class = getattr(sb3_extra_buffers, name)
    algorithm = DQN if issubclass(buffer_class, ReplayBuffer) else PPO
    typo, meant = ("alfa", "alpha") if name == "PrioritizedReplayBuffer" else ("compresion_method", "compression_method")
    with pytest.raises(TypeError) as caught:
        make(algorithm, "plain", buffer_class, **{typo: "rle"})
    said = str(caught.value)
    assert said.startswith(f"{name} has no option '{typo}' here (did you mean '{meant}'?); it has: ")
    listed = said.partition("it has: ")[2].split(", ")
    assert meant in listed and listed == sorted(listed) and not {"device", "n_envs", "buffer_size"} & set(listed)


@pytest.mark.parametrize(
    ("algorithm", "observations", "name", "option", "words"),
    [
        (DQN, "plain", "CompressedReplayBuffer", {"n_steps": 3}, "'n_steps' is an option of CompressedNStepReplayBuffer"),
        (DQN, "dict", "CompressedDictReplayBuffer", {"n_steps": 3}, "an option of CompressedDictNStepReplayBuffer"),
        (DQN, "plain", "GpuReplayBuffer", {"gamma": 0.9}, "'gamma' is an option of CompressedNStepReplayBuffer"),
        (DQN, "plain", "CompressedReplayBuffer", {"alpha": 1}, "'alpha' is an option of CompressedPrioritizedReplayBuffer"),
        (DQN, "dict", "CompressedDictReplayBuffer", {"n_sampled_goal": 4}, "an option of CompressedHerReplayBuffer"),
        (DQN, "plain", "CompressedReplayBuffer", {"prefetch": True}, "no option 'prefetch' here; it has: compression_kwargs"),
        (
            DQN,
            "plain",
            "CompressedReplayBuffer",
            {"buffer_device": "cpu"},
            "kwargs(algorithm_class, env, buffer_device=",
        ),
        (PPO, "plain", "CompressedRolloutBuffer", {"prefetsh": True}, "did you mean 'prefetch'?"),
        (PPO, "plain", "GpuRolloutBuffer", {"prefetch": True}, "'prefetch' is an option of CompressedRolloutBuffer"),
        (DQN, "plain", "CompressedReplayBuffer", {"dtypes": "uint8"}, "dtypes must be a dict, not 'uint8'"),
        (DQN, "plain", "GpuReplayBuffer", {"compression_kwargs": 5}, "compression_kwargs must be a dict, not 5"),
        (PPO, "plain", "CompressedRolloutBuffer", {"decompression_kwargs": 5}, "decompression_kwargs must be a dict, not 5"),
    ],
)
def test_an_option_of_another_class(algorithm: Any, observations: str, name: str, option: Any, words: str) -> None:
    with pytest.raises(TypeError) as caught:
        make(algorithm, observations, getattr(sb3_extra_buffers, name), **option)
    assert words in str(caught.value)


def test_two_wrong_options_at_once() -> None:
    with pytest.raises(TypeError, match=r"no option 'compresion_method', 'n_steps' here .*'compression_method'\?.*NStep"):
        CompressedReplayBuffer(9, IMAGE, spaces.Discrete(2), compresion_method="rle", n_steps=3)


@pytest.mark.parametrize(
    ("buffer_class", "words"),
    [
        (CompressedReplayBuffer, "CompressedReplayBuffer is not a rollout buffer, .* use CompressedRolloutBuffer"),
        (CompressedRolloutBuffer, "no room for the states of an LSTM, .* use CompressedRecurrentRolloutBuffer"),
    ],
)
def test_recurrent_ppo_needs_a_buffer_for_its_states(buffer_class: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        sb3_extra_buffers.CompressedRecurrentPPO(
            "MlpLstmPolicy", "CartPole-v1", rollout_buffer_class=buffer_class, device="cpu"
        )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "missing 3 required positional arguments: 'buffer_size', 'observation_space', and 'action_space'"),
        (
            (9,),
            "CompressedReplayBuffer: missing a required argument: 'observation_space'; it takes buffer_size",
        ),
        ((9, (4, 36, 36), spaces.Discrete(2)), r"observation_space must be a space of Gymnasium, not \(4, 36, 36\)"),
        (
            (9, IMAGE, spaces.Discrete(2), "cpu", 1, False, True, "rle"),
            "too many positional arguments; it takes ",
        ),
    ],
)
def test_arguments_that_are_missing_or_of_another_kind(arguments: tuple[Any, ...], words: str) -> None:
    with pytest.raises(TypeError, match=words):
        CompressedReplayBuffer(*arguments)


def test_goals_are_needed_for_her_only() -> None:
    with pytest.raises(ValueError, match="HER needs Dict observations with 'achieved_goal' and 'desired_goal', not Dict"):
        CompressedHerReplayBuffer(9, DICT, spaces.Discrete(2), env=None)


class CompressedTheirs(CompressedReplayBuffer):
    """Somebody else's buffer, that takes Dict observations although no parent of it does."""

    def __init__(self, buffer_size: int, observation_space: Any, *args: Any, **options: Any) -> None:
        super().__init__(buffer_size, observation_space, *args, **options)


class Smaller(sb3_extra_buffers.PrioritizedReplayBuffer):
    """A buffer whose constructor takes less than ours."""

    def __init__(self, space: Any, **kwargs: Any) -> None:
        super().__init__(9, space, spaces.Discrete(2), **kwargs)


def test_what_others_make_of_our_buffers_is_theirs_to_say() -> None:
    buffer = CompressedTheirs(9, DICT, spaces.Discrete(2), "cpu", compression_method="rle")
    assert set(buffer.observations) == {"image"} and type(buffer.observations["image"]) is CompressedArray
    assert Smaller(IMAGE, alpha=0.5).alpha == 0.5
    with pytest.raises(TypeError, match="did you mean 'alpha'"):
        Smaller(IMAGE, alfa=0.5)


def replay(space: Any = IMAGE, size: Any = 20, **options: Any) -> CompressedReplayBuffer:
    return CompressedReplayBuffer(size, space, spaces.Discrete(2), "cpu", **options)


@pytest.mark.parametrize("size", [0, -5])
@pytest.mark.parametrize("buffer_class", [CompressedReplayBuffer, CompressedRolloutBuffer])
def test_a_size_that_is_none(buffer_class: Any, size: int) -> None:
    with pytest.raises(ValueError, match=f"buffer_size must be at least 1, got {size}"):
        buffer_class(size, IMAGE, spaces.Discrete(2), "cpu")


def test_a_size_that_is_no_integer() -> None:
    with pytest.raises(TypeError, match=r"buffer_size must be an integer, got 1000000.0: write 1000000"):
        replay(size=1e6)
    assert replay(size=np.int64(20)).buffer_size == 20


@pytest.mark.parametrize("size", [10**15, 10**18, 10**30])
def test_a_size_for_which_there_is_no_memory(size: int) -> None:
    with pytest.raises(MemoryError, match=f"buffer_size={size:,} needs more memory than there is"):
        replay(size=size)


def test_a_level_for_delta() -> None:
    with pytest.raises(ValueError, match="'delta' takes no level; its only option is 'fallback'"):
        replay(compression_method="delta5")


def test_a_method_that_is_like_no_other() -> None:
    with pytest.raises(ValueError, match=r"unknown compression method 'png'\. Methods: ") as caught:
        replay(compression_method="png")
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize("given", [None, {"elem_type": np.uint8}])
def test_a_value_that_the_space_has_not(given: Any) -> None:
    """Without ``dtypes`` nobody is told to leave them out."""
    space = IMAGE if given is None else spaces.Box(0, 255, IMAGE.shape, np.int64)
    buffer = replay(space, dtypes=given)
    with pytest.raises(ValueError, match="the value -1") as caught:
        buffer.add(np.full((1, *IMAGE.shape), -1), np.zeros((1, *IMAGE.shape), np.int64), *np.zeros((3, 1)), [{}])
    assert ("leave `dtypes` out" in str(caught.value)) == (given is not None)
    assert ("observation space" in str(caught.value)) == (given is None)


def test_a_type_that_holds_too_little() -> None:
    with pytest.raises(ValueError, match="elem_type int8 holds -128 to 127, but observations are 0 to 255"):
        replay(dtypes={"elem_type": np.int8})
    for small in (spaces.Box(0, 100, IMAGE.shape, np.uint8), spaces.Box(-1, 1, IMAGE.shape, np.int64)):
        assert replay(small, dtypes={"elem_type": np.int8}).observations.stored_dtype == np.int8


GOALS = spaces.Dict({key: spaces.Box(0, 255, (30, 30), np.uint8) for key in ("observation", "achieved_goal", "desired_goal")})


@pytest.mark.parametrize("strategy", ["futur", 3])
def test_a_goal_strategy_with_a_typo(strategy: Any) -> None:
    with pytest.raises(ValueError, match="must be one of 'future', 'final', 'episode', got " + repr(strategy)):
        CompressedHerReplayBuffer(9, GOALS, spaces.Discrete(2), env=None, goal_selection_strategy=strategy)


def test_a_loaded_buffer_of_another_goal_environment() -> None:
    """SB3's ``load_replay_buffer`` hands the environment to it."""
    buffer = CompressedHerReplayBuffer(9, GOALS, spaces.Discrete(2), env=None)
    other = spaces.Dict({**GOALS.spaces, "observation": spaces.Box(0, 255, (31, 30), np.uint8)})
    with pytest.raises(ValueError, match=r"buffer holds observations of .*but the environment has .*31"):
        buffer.set_env(DummyVecEnv([lambda: Blank(other)]))
    buffer.set_env(DummyVecEnv([lambda: Blank(GOALS)]))


class Blank(gym.Env[Any, Any]):
    """An environment of some space, in which nothing happens."""

    def __init__(self, space: Any) -> None:
        self.observation_space, self.action_space = space, spaces.Discrete(2)

    def reset(self, **kwargs: Any) -> Any:
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        return self.observation_space.sample(), 0.0, False, False, {}


def test_images_with_channels_last_under_vec_normalize() -> None:
    """SB3's own trap: it turns images outside of ``VecNormalize``, but hands over what that was given."""
    image = spaces.Box(0, 255, (40, 40, 3), np.uint8)
    options = {"buffer_size": 50, "learning_starts": 5, "device": "cpu", "policy_kwargs": {"net_arch": [4]}}
    env = VecNormalize(DummyVecEnv([lambda: Blank(image)]), norm_obs=False)
    with pytest.raises(
        ValueError, match=r"channels are last; with VecNormalize, use VecNormalize\(VecTransposeImage\(env\)\)"
    ):
        DQN("CnnPolicy", env, replay_buffer_class=CompressedReplayBuffer, **options).learn(10)
    env = VecNormalize(VecTransposeImage(DummyVecEnv([lambda: Blank(image)])), norm_obs=False)
    DQN("CnnPolicy", env, replay_buffer_class=CompressedReplayBuffer, **options).learn(10)


@pytest.mark.parametrize("method", ["delta", "igzip", "rle-jit"])
def test_what_is_missing_is_warned_of_once(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "isal", None)
    monkeypatch.setitem(sys.modules, "numba", None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        replay(compression_method=method)
    assert len(caught) == (method != "delta"), [str(warning.message) for warning in caught]
