"""What SB3 stores is stored as SB3 does; what it refuses is refused, and leaves the buffer as it was."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from buffer_contents import contents
from gymnasium import spaces
from observation_streams import assert_same_samples
from sb3_contrib.common.maskable.buffers import MaskableDictRolloutBuffer, MaskableRolloutBuffer
from sb3_contrib.common.recurrent.buffers import RecurrentDictRolloutBuffer, RecurrentRolloutBuffer
from sb3_contrib.common.recurrent.type_aliases import RNNStates
from stable_baselines3.common.buffers import (
    DictReplayBuffer,
    DictRolloutBuffer,
    NStepReplayBuffer,
    ReplayBuffer,
    RolloutBuffer,
)
from stable_baselines3.common.vec_env import DummyVecEnv
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from sb3_extra_buffers import compressed
from sb3_extra_buffers.storage._core import refuse_allocation

ROWS = 6
IMAGE = spaces.Box(0, 255, (1, 24, 24), np.uint8)
VECTOR = spaces.Box(-9, 9, (3,), np.float32)
DICT = spaces.Dict({"vector": VECTOR, "image": IMAGE, "place": spaces.Discrete(7), "other": IMAGE})
GOALS = spaces.Dict({"observation": IMAGE, "achieved_goal": VECTOR, "desired_goal": VECTOR})
ACTIONS = spaces.Discrete(4)


class Goals(gym.Env[Any, Any]):
    observation_space, action_space = GOALS, ACTIONS

    def compute_reward(self, achieved: Any, desired: Any, _: Any) -> Any:
        return achieved[:, 0] + desired[:, 1]


def goal_buffers(cls: Any, **options: Any) -> Any:
    return lambda envs: cls(ROWS * envs, GOALS, ACTIONS, DummyVecEnv([Goals] * envs), "cpu", envs, **options)


def replay(cls: Any, space: Any, **options: Any) -> Any:
    return lambda envs: cls(ROWS * envs, space, ACTIONS, "cpu", envs, **options)


class Doubled(ReplayBuffer):
    """Somebody else's buffer, of whose ``add`` nothing is known."""

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, *args: Any, **kwargs: Any) -> None:
        super().add(obs, next_obs, action, np.asarray(reward) * 2, *args, **kwargs)
        if np.any(np.asarray(reward) == 1.5):
            raise ArithmeticError("this one is never liked")


class CompressedDoubled(Doubled, compressed.CompressedReplayBuffer):
    """The same, compressed."""


N_STEP = {"n_steps": 3, "gamma": 0.5}
# What makes ours, and what makes the one of SB3 that it stands for, or that takes the same arguments.
REPLAYS: dict[str, tuple[Any, Any, Any]] = {
    "image": (IMAGE, replay(compressed.CompressedReplayBuffer, IMAGE), replay(ReplayBuffer, IMAGE)),
    "vector": (VECTOR, replay(compressed.CompressedReplayBuffer, VECTOR), replay(ReplayBuffer, VECTOR)),
    "no time-outs": (
        IMAGE,
        replay(compressed.CompressedReplayBuffer, IMAGE, handle_timeout_termination=False),
        replay(ReplayBuffer, IMAGE, handle_timeout_termination=False),
    ),
    "dict": (DICT, replay(compressed.CompressedDictReplayBuffer, DICT), replay(DictReplayBuffer, DICT)),
    "n-step": (
        IMAGE,
        replay(compressed.CompressedNStepReplayBuffer, IMAGE, **N_STEP),
        replay(NStepReplayBuffer, IMAGE, **N_STEP),
    ),
    "dict n-step": (DICT, replay(compressed.CompressedDictNStepReplayBuffer, DICT, **N_STEP), replay(DictReplayBuffer, DICT)),
    "prioritized": (IMAGE, replay(compressed.CompressedPrioritizedReplayBuffer, IMAGE), replay(ReplayBuffer, IMAGE)),
    "dict prioritized": (
        DICT,
        replay(compressed.CompressedDictPrioritizedReplayBuffer, DICT),
        replay(DictReplayBuffer, DICT),
    ),
    "her": (GOALS, goal_buffers(compressed.CompressedHerReplayBuffer), goal_buffers(HerReplayBuffer)),
    "her with infos": (
        GOALS,
        goal_buffers(compressed.CompressedHerReplayBuffer, copy_info_dict=True),
        goal_buffers(HerReplayBuffer, copy_info_dict=True),
    ),
    "somebody else's": (IMAGE, replay(CompressedDoubled, IMAGE), replay(Doubled, IMAGE)),
}
OTHERS = ("dict n-step", "prioritized", "dict prioritized")  # of which SB3 has none

ODD_NUMBERS: dict[str, Any] = {
    "one for all": 1.25,
    "one bool": True,
    "one of NumPy": np.float64(3),
    "no axes": np.array(2.5),
    "a list": [1, 0],
    "a tuple of one": (1,),
    "integers": np.array([0, 1]),
    "doubles": np.array([0.1, 1e30]),
    "objects": np.array([1, 0.5], dtype=object),
    "a tensor": th.tensor([1.0, 0.0]),
    "a column": np.ones((2, 1)),
    "a line": np.ones((1, 2), np.float32),
    "every second": np.arange(4.0)[::2],
    "too many": np.ones(3),
    "too many axes": np.ones((2, 2)),
    "nothing": np.zeros(0),
    "None": None,
    "a text": "much",
    "a number in a text": "1",
    "texts": np.array(["1", "many"]),
    "anything": np.array([object(), object()]),
    "ragged": [1, [2, 3]],
    "a dict": {},
    "a generator": "generator",
    "never liked": np.array([1.5, 0]),
}
TRUNCATED: list[Any] = [True, np.True_, 1, 0.5, None, "no", "1", [1, 2], {}, object()]


class OtherMapping:
    """What is no dict, but can be asked."""

    def get(self, key: str, default: Any) -> bool:
        return True

    def __repr__(self) -> str:
        return "another mapping"


ODD_INFOS: dict[str, Callable[[int], Any]] = {
    "None": lambda envs: None,
    "none": lambda envs: [],
    "too few": lambda envs: [{}] * (envs - 1),
    "one for all": lambda envs: [{"TimeLimit.truncated": True}],
    "too many": lambda envs: [{}] * (envs + 1),
    "a tuple": lambda envs: ({"TimeLimit.truncated": True},) * envs,
    "a generator": lambda envs: ({"TimeLimit.truncated": True} for _ in range(envs)),
    "an array": lambda envs: np.array([{"TimeLimit.truncated": True}] * envs, dtype=object),
    "a dict": lambda envs: {"TimeLimit.truncated": True},
    "no dicts": lambda envs: [None] * envs,
    "texts": lambda envs: ["TimeLimit.truncated"] * envs,
    "another mapping": lambda envs: [OtherMapping()] * envs,
    "an integer": lambda envs: 3,
} | {
    f"truncated is {type(value).__name__} {place}": lambda envs, value=value: (
        [{}] * (envs - 1) + [{"TimeLimit.truncated": value}]
    )
    for place, value in enumerate(TRUNCATED)
}


def observed(space: Any, envs: int, rng: np.random.Generator) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: observed(part, envs, rng) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Discrete):
        return rng.integers(0, space.n, envs)
    return rng.integers(0, 200 if space.dtype == np.uint8 else 9, (envs, *space.shape)).astype(space.dtype)


def transition(space: Any, envs: int, rng: np.random.Generator) -> dict[str, Any]:
    return {
        "obs": observed(space, envs, rng),
        "next_obs": observed(space, envs, rng),
        "action": rng.integers(0, 4, (envs, 1)),
        "reward": rng.random(envs).astype(np.float32),
        "done": rng.random(envs) < 0.3,
        "infos": [{"number": int(rng.integers(100))} for _ in range(envs)],
    }


def odd_values(name: str, envs: int, kind: str = "") -> Any:
    if name == "infos":
        # A generator SB3's HER keeps as it is, when it has been read.
        unequal = "a generator" if kind == "her with infos" else None
        return [(label, lambda make=make: make(envs)) for label, make in ODD_INFOS.items() if label != unequal]
    values = []
    for label, value in ODD_NUMBERS.items():
        if isinstance(value, np.ndarray) and len(value.shape) and len(value) == 2 and envs == 1:
            value = value[:1]
        make = (lambda: (float(number) for number in range(envs))) if label == "a generator" else (lambda value=value: value)
        values.append((label, make))
    return values


def attempt(buffer: Any, step: dict[str, Any]) -> type[Exception] | None:
    """Add; tells how that was refused."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            buffer.add(**{name: value() if callable(value) else copy.copy(value) for name, value in step.items()})
        except Exception as error:
            return type(error)
    return None


def same_contents(ours: Any, theirs: Any) -> None:
    mine, expected = contents(ours, theirs), contents(theirs)
    assert mine.keys() >= expected.keys()
    for name in expected:
        assert mine[name] == expected[name], name


def samples(buffer: Any) -> Any:
    np.random.seed(0)
    return buffer.sample(40)


@pytest.mark.parametrize("envs", [1, 2])
@pytest.mark.parametrize("steps", [3, ROWS + 2], ids=["filling", "full"])
@pytest.mark.parametrize("kind", REPLAYS)
def test_odd_transitions(kind: str, steps: int, envs: int) -> None:
    space, make, make_theirs = REPLAYS[kind]
    ours, theirs, rng = make(envs), make_theirs(envs), np.random.default_rng(0)
    for _ in range(steps):
        step = transition(space, envs, rng)
        assert attempt(ours, step) is attempt(theirs, step) is None
    refused = accepted = 0
    for name in ("reward", "done", "action", "infos"):
        for label, value in odd_values(name, envs, kind):
            if steps < ROWS and accepted + steps >= ROWS - 1:  # it would be full
                ours.reset(), theirs.reset()
                accepted = 0
            before = contents(ours)
            step = {**transition(space, envs, rng), name: value}
            trial = copy.deepcopy(theirs)  # SB3's own may be torn after that
            expected = attempt(trial, step)
            assert attempt(ours, step) is expected, (name, label)
            if expected in (None, ArithmeticError):  # somebody else's says so when it is stored, with SB3's as with ours
                accepted += 1
                if hasattr(theirs, "set_env"):
                    trial.set_env(theirs.env)
                theirs = trial
            else:
                refused += 1
                assert contents(ours) == before, (name, label)
            same_contents(ours, theirs)
            if steps > ROWS:
                usual = transition(space, envs, rng)
                assert attempt(ours, usual) is attempt(theirs, usual) is None, (name, label)
                same_contents(ours, theirs)
    assert refused > 15
    if steps > ROWS and kind not in OTHERS:
        last = {**transition(space, envs, rng), "done": np.ones(envs, bool)}
        assert attempt(ours, last) is attempt(theirs, last) is None
        assert_same_samples(samples(theirs), samples(ours))


def rollout(ours: Any, theirs: Any, space: Any) -> tuple[Any, Any, Any]:
    def maker(cls: Any) -> Any:
        def make(envs: int) -> Any:
            lstm = ((60, 1, envs, 3),) if issubclass(cls, RecurrentRolloutBuffer | RecurrentDictRolloutBuffer) else ()
            return cls(60, space, ACTIONS, *lstm, "cpu", n_envs=envs)

        return make

    return space, maker(ours), maker(theirs)


class Scaled(MaskableRolloutBuffer):
    """Somebody else's rollout."""

    def add(self, obs: Any, action: Any, reward: Any, *args: Any, **kwargs: Any) -> None:
        super().add(obs, action, np.asarray(reward) * 2, *args, **kwargs)


class CompressedScaled(Scaled, compressed.CompressedMaskableRolloutBuffer):  # type: ignore[misc]
    """The same, compressed."""


ROLLOUTS = {
    "image": rollout(compressed.CompressedRolloutBuffer, RolloutBuffer, IMAGE),
    "vector": rollout(compressed.CompressedRolloutBuffer, RolloutBuffer, VECTOR),
    "dict": rollout(compressed.CompressedDictRolloutBuffer, DictRolloutBuffer, DICT),
    "maskable": rollout(compressed.CompressedMaskableRolloutBuffer, MaskableRolloutBuffer, IMAGE),
    "maskable dict": rollout(compressed.CompressedMaskableDictRolloutBuffer, MaskableDictRolloutBuffer, DICT),
    "recurrent": rollout(compressed.CompressedRecurrentRolloutBuffer, RecurrentRolloutBuffer, IMAGE),
    "recurrent dict": rollout(compressed.CompressedRecurrentDictRolloutBuffer, RecurrentDictRolloutBuffer, DICT),
    "somebody else's": rollout(CompressedScaled, Scaled, IMAGE),
}


def states(envs: int, rng: np.random.Generator, shape: tuple[int, ...] | None = None) -> RNNStates:
    parts = [th.as_tensor(rng.random(shape or (1, envs, 3)).astype(np.float32)) for _ in range(4)]
    return RNNStates((parts[0], parts[1]), (parts[2], parts[3]))


def rollout_step(kind: str, space: Any, envs: int, rng: np.random.Generator) -> dict[str, Any]:
    step = transition(space, envs, rng)
    value = th.as_tensor(rng.random((envs, 1)).astype(np.float32))
    result = {name: step[name] for name in ("obs", "action", "reward")}
    result |= {"episode_start": step["done"], "value": value, "log_prob": value[:, 0] * 2}
    if "maskable" in kind or "else" in kind:
        result["action_masks"] = rng.random((envs, 4)) < 0.5
    if "recurrent" in kind:
        result["lstm_states"] = states(envs, rng)
    return result


def odd_steps(step: dict[str, Any], envs: int, rng: np.random.Generator) -> Any:
    for name in ("reward", "episode_start", "action"):
        yield from ((name, label, value) for label, value in odd_values(name, envs))
    for name in ("value", "log_prob"):
        for odd in (
            th.tensor(1.5),
            th.ones(3),
            th.ones(2, 2),
            th.ones(envs, 1),
            th.ones(0),
            np.ones(envs),
            [1.0] * envs,
            None,
        ):
            yield name, repr(odd), lambda odd=odd: odd
    if "action_masks" in step:
        for mask in (None, np.ones(4 * envs), np.zeros((4, envs)), np.ones(3), np.ones((envs + 1, 4)), [1] * 4 * envs, "mask"):
            yield "action_masks", repr(mask), lambda mask=mask: mask
    if "lstm_states" in step:
        good = states(envs, rng)
        wrong = [states(envs, rng, (1, envs + 2, 3)), states(envs, rng, (3, 3, 3)), states(envs, rng, (1, 1, 3)), None]
        wrong += [good._replace(vf=(good.vf[0], th.ones(5))), good._replace(pi=(th.ones(1, envs, 9), good.pi[1]))]
        wrong += [
            good._replace(vf=None),
            good._replace(pi=(*good.pi, good.pi[0]), vf=(*good.vf, None)),
            good._replace(vf=good.pi),
        ]
        for place, odd in enumerate(wrong):
            yield "lstm_states", str(place), lambda odd=odd: odd


@pytest.mark.parametrize("envs", [1, 2])
@pytest.mark.parametrize("kind", ROLLOUTS)
def test_odd_steps(kind: str, envs: int) -> None:
    space, make, make_theirs = ROLLOUTS[kind]
    ours, theirs, rng = make(envs), make_theirs(envs), np.random.default_rng(0)
    step = rollout_step(kind, space, envs, rng)
    assert attempt(ours, step) is attempt(theirs, step) is None
    refused = 0
    for name, label, value in odd_steps(step, envs, rng):
        before = contents(ours)
        step = {**rollout_step(kind, space, envs, rng), name: value}
        trial = copy.deepcopy(theirs)
        expected = attempt(trial, step)
        assert attempt(ours, step) is expected, (name, label)
        if expected is None:
            theirs = trial
        else:
            refused += 1
            assert contents(ours) == before, (name, label)
        same_contents(ours, theirs)
        if theirs.pos > 50:
            ours.reset(), theirs.reset()
        if "action_masks" in step and expected is not None:  # a row that is written without masks allows everything
            unmasked = {**rollout_step(kind, space, envs, rng), "action_masks": None}
            assert attempt(ours, unmasked) is attempt(theirs, unmasked) is None
            same_contents(ours, theirs)
    assert refused > 20
    while not theirs.full:
        step = rollout_step(kind, space, envs, rng)
        assert attempt(ours, step) is attempt(theirs, step) is None
    same_contents(ours, theirs)
    batches = []
    for buffer in (theirs, ours):
        np.random.seed(0)
        batches.append(list(buffer.get(16)))
    for one, other in zip(*batches, strict=True):
        assert_same_samples(one, other)


def test_a_refusal_says_what_was_given() -> None:
    rng = np.random.default_rng(0)
    buffer = REPLAYS["image"][1](2)
    with pytest.raises(
        ValueError, match=r"buffer is as it was: could not broadcast .* 2 environment.* reward of shape \(3,\)"
    ):
        buffer.add(**{**transition(IMAGE, 2, rng), "reward": np.ones(3)})
    with pytest.raises(AttributeError, match=r"no attribute 'get'.* infos as a list of 2"):
        buffer.add(**{**transition(IMAGE, 2, rng), "infos": [None, None]})
    steps = ROLLOUTS["image"][1](2)
    given = rollout_step("image", IMAGE, 2, rng)
    with pytest.raises(ValueError, match=r"2 environment.* value of shape \(5,\)"):
        steps.add(given["obs"], given["action"], given["reward"], given["episode_start"], th.ones(5), given["log_prob"])
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        steps.add(given["obs"], given["action"], given["reward"], given["episode_start"], given["value"])
    with pytest.raises(TypeError, match="positional argument"):
        buffer.add(*transition(IMAGE, 2, rng).values(), "one too many")
    assert buffer.pos == steps.pos == 0 and not np.asarray(buffer.observations).any()


@pytest.mark.parametrize("kind", [kind for kind in REPLAYS if kind not in ("vector", "no time-outs")])
def test_no_memory_for_observations(kind: str) -> None:
    """Also where there are two images, of which the first one was stored already."""
    space, make, _ = REPLAYS[kind]
    rng = np.random.default_rng(1)
    buffer, expected = make(2), make(2)
    failed = 0
    for number in range(60):
        step = transition(space, 2, rng)
        before = contents(buffer)
        refuse_allocation(number % 4)
        try:
            buffer.add(**step)
        except MemoryError:
            failed += 1
            assert contents(buffer) == before
            refuse_allocation(-1)
            buffer.add(**step)
        finally:
            refuse_allocation(-1)
        expected.add(**step)
        assert contents(buffer) == contents(expected)
    assert failed > 2
