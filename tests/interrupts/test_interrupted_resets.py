"""A ``reset`` that is cut short leaves a buffer that the next reset puts right, as SB3's own does."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch as th
from family_buffers import ORACLES
from gymnasium import spaces
from interrupt_kit import Cut, between, cut
from observation_streams import DictStream, Stack, Stream, assert_same_samples, space_of
from sb3_contrib.common.recurrent.type_aliases import RNNStates
from stable_baselines3.common.buffers import RolloutBuffer

from sb3_extra_buffers.compressed import CompressedPrioritizedReplayBuffer

ROLLOUTS = [ours for ours, theirs in ORACLES.items() if issubclass(theirs, RolloutBuffer)]
STEPS, ENVS = 6, 2
ACTIONS = spaces.Discrete(3)


def world(seed: int, is_dict: bool) -> Any:
    image = Stream(seed, ENVS, (1, 12, 12), np.uint8, "game", Stack(3, 0))
    return DictStream({"image": image, "vector": Stream(seed, ENVS, (3,), np.float32, "noise")}) if is_dict else image


def make(cls: type[Any], space: spaces.Space[Any]) -> Any:
    recurrent = {"hidden_state_shape": (STEPS, 1, ENVS, 4)} if "Recurrent" in cls.__name__ else {}
    return cls(STEPS, space, ACTIONS, device="cpu", n_envs=ENVS, **recurrent)


def fill(stream: Any, buffer: Any) -> None:
    rng = np.random.default_rng(0)
    for _ in range(STEPS):
        obs, _, dones, _ = stream.step()
        action, reward = rng.integers(0, 3, (ENVS, 1)), rng.standard_normal(ENVS)
        value, log_prob = th.zeros(ENVS, 1), th.zeros(ENVS)
        states = [(th.as_tensor(rng.standard_normal((1, ENVS, 4)), dtype=th.float32),) * 2 for _ in range(2)]
        extra: dict[str, Any] = {}
        if "Recurrent" in type(buffer).__name__:
            extra["lstm_states"] = RNNStates(*states)
        if "Maskable" in type(buffer).__name__:
            extra["action_masks"] = rng.integers(0, 2, (ENVS, 3))
        buffer.add(obs, action, reward, dones, value, log_prob, **extra)


def batches(buffer: Any) -> list[Any]:
    np.random.seed(0)
    return list(buffer.get(5))


def no_memory() -> None:
    raise MemoryError


@pytest.mark.parametrize(("action", "error"), [(cut, Cut), (no_memory, MemoryError)], ids=["Ctrl-C", "MemoryError"])
@pytest.mark.parametrize("ours", ROLLOUTS, ids=lambda cls: cls.__name__)
def test_a_reset_that_is_cut_short(ours: type[Any], action: Callable[[], None], error: type[BaseException]) -> None:
    is_dict = "Dict" in ours.__name__
    buffer = make(ours, space_of(world(0, is_dict)))
    fill(world(0, is_dict), buffer)
    batches(buffer)
    instructions = between(copy.deepcopy(buffer).reset, 1 << 30, lambda: None)
    assert instructions > 50
    for at in range(0, instructions, 1 + instructions // (60 if error is Cut else 15)):
        spoiled = copy.deepcopy(buffer)
        with pytest.raises(error):
            between(spoiled.reset, at, action)
        for name in ("buffer_size", "observation_space", "obs_shape", "action_space", "mask_dims", "hidden_state_shape"):
            assert getattr(spoiled, name, None) == getattr(buffer, name, None), f"{name} after {at} instructions"
        spoiled.reset()
        theirs = make(ORACLES[ours], space_of(world(1, is_dict)))
        theirs.reset()
        stream, again = world(1, is_dict), world(1, is_dict)
        fill(stream, spoiled)
        fill(again, theirs)
        for mine, other in zip(batches(spoiled), batches(theirs), strict=True):
            assert_same_samples(mine, other)


def test_a_replay_buffer_with_priorities() -> None:
    """Either nothing is forgotten, or everything is: no transition without its priority."""
    stream = world(0, False)
    buffer = CompressedPrioritizedReplayBuffer(40, space_of(stream), ACTIONS, "cpu", ENVS)
    for _ in range(9):
        obs, next_obs, dones, infos = stream.step()
        buffer.add(obs, next_obs, np.zeros((ENVS, 1)), np.zeros(ENVS), dones, infos)
    instructions = between(copy.deepcopy(buffer).reset, 1 << 30, lambda: None)
    for at in range(0, instructions, 5):
        spoiled = copy.deepcopy(buffer)
        with pytest.raises(Cut):
            between(spoiled.reset, at, cut)
        assert np.count_nonzero(spoiled.priorities) == spoiled.size() * ENVS
