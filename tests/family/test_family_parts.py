"""The parts behind the classes: packed masks, the list of valid slots, states that are stored once; what they save."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch as th
from family_envs import GoalImageEnv, image_envs
from gymnasium import spaces
from sb3_contrib.common.recurrent.type_aliases import RNNStates
from stable_baselines3 import HerReplayBuffer

from sb3_extra_buffers.compressed import (
    CompressedDictNStepReplayBuffer,
    CompressedHerReplayBuffer,
    CompressedMaskableRolloutBuffer,
    CompressedRecurrentRolloutBuffer,
)
from sb3_extra_buffers.storage import valid_slots as module
from sb3_extra_buffers.storage.masks import PackedMasks
from sb3_extra_buffers.storage.valid_slots import ValidSlots

IMAGE = spaces.Box(0, 255, (1, 30, 30), np.uint8)


@pytest.mark.parametrize("width", [1, 7, 8, 9, 64])
def test_packed_masks_look_like_an_array(width: int) -> None:
    rng = np.random.default_rng(width)
    plain, packed = np.ones((5, 3, width), np.float32), PackedMasks((5, 3, width))
    for row in (0, 3, 4):
        plain[row] = rng.random((3, width)) < 0.5
        packed[row] = plain[row]
    assert (packed.shape, packed.dtype, packed.nbytes, len(packed)) == (plain.shape, plain.dtype, plain.nbytes, 5)
    for index in (2, -1, slice(1, 4), np.array([4, 0, 0]), (1, 2), (slice(None), 1, 0)):
        assert np.array_equal(packed[index], plain[index])
    flat, flat_plain = packed.swapaxes(0, 1).reshape(15, width), plain.swapaxes(0, 1).reshape(15, width)
    assert np.array_equal(np.asarray(flat), flat_plain) and np.array_equal(flat[np.arange(9)], flat_plain[:9])
    assert np.array_equal(np.asarray(pickle.loads(pickle.dumps(packed))), plain)
    assert np.asarray(packed, dtype=bool).dtype == bool


def test_packed_masks_refuse_what_is_no_mask() -> None:
    packed = PackedMasks((2, 1, 3))
    for wrong in ([[0.5, 1, 0]], [[2, 1, 0]], [[np.nan, 1, 0]]):
        with pytest.raises(ValueError, match="ones"):
            packed[0] = np.array(wrong)
    assert np.asarray(packed).all()
    with pytest.raises(ValueError, match="leading axes"):
        packed.swapaxes(1, 2)
    with pytest.raises(ValueError, match="leading axes"):
        packed.reshape(3, 2)


def test_masks_that_are_refused_leave_the_buffer_as_it_was() -> None:
    buffer = CompressedMaskableRolloutBuffer(4, IMAGE, spaces.Discrete(3))
    obs, one = np.zeros((1, *IMAGE.shape), np.uint8), np.ones(1)
    with pytest.raises(ValueError, match="action masks"):
        buffer.add(obs, one, one, one, th.ones(1), th.ones(1), action_masks=np.array([[0.5, 1, 1]]))
    assert buffer.pos == 0


def test_masks_take_a_thirty_second_and_are_never_there_as_floats() -> None:
    buffer = CompressedMaskableRolloutBuffer(64, IMAGE, spaces.Discrete(8000), n_envs=4)
    assert buffer.action_masks.packed_nbytes * 32 == buffer.action_masks.nbytes == 64 * 4 * 8000 * 4
    assert buffer.mask_dims == 8000 and buffer.action_space == spaces.Discrete(8000)


def _fill(buffer: Any, shared: bool) -> None:
    buffer.reset()
    for _ in range(buffer.buffer_size):
        h, c = th.randn(2, 1, 2, 16)
        states = RNNStates((h, c), (h.clone(), c.clone()) if shared else (h + 1, c + 1))
        obs = np.random.randint(0, 2, (2, *IMAGE.shape)).astype(np.uint8)
        one = np.ones(2)
        buffer.add(obs, one, one, one, th.ones(2), th.ones(2), lstm_states=states)


@pytest.mark.parametrize("shared", [True, False])
def test_states_are_stored_once_before_and_after_flattening(shared: bool) -> None:
    buffer = CompressedRecurrentRolloutBuffer(12, IMAGE, spaces.Discrete(3), (12, 1, 2, 16), n_envs=2)
    for _ in range(2):
        _fill(buffer, shared)
        for _ in range(2):
            assert np.shares_memory(buffer.hidden_states_pi, buffer.hidden_states_vf) == shared
            assert np.shares_memory(buffer.cell_states_pi, buffer.cell_states_vf) == shared
            assert buffer.hidden_states_vf.shape == buffer.hidden_states_pi.shape
            list(buffer.get(8))


@pytest.mark.parametrize("shape", [(1, 1), (50, 1), (33, 3), (16, 4)])
def test_valid_slots_are_those_that_a_scan_finds(shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK", 16)
    rng = np.random.default_rng(0)
    lengths = np.zeros(shape, dtype=np.int64)
    slots = ValidSlots(lengths)
    for _ in range(60):
        start = int(rng.integers(shape[0]))
        end = int(rng.integers(start, start + shape[0] + 1))  # perhaps past the end of the ring
        lengths[np.arange(start, end) % shape[0]] = rng.integers(0, 3)
        slots.mark_changed(start, end)
        expected = np.flatnonzero(lengths > 0)
        assert slots.count() == len(expected)
        assert np.array_equal(slots.take(np.arange(len(expected))), expected)


def test_her_makes_no_info_dicts_unless_it_keeps_them() -> None:
    env = image_envs(GoalImageEnv)
    space = env.observation_space
    theirs = HerReplayBuffer(40, space, env.action_space, env, n_envs=2)
    for copy_info_dict in (False, True):
        ours = CompressedHerReplayBuffer(40, space, env.action_space, env, n_envs=2, copy_info_dict=copy_info_dict)
        assert ("infos" in ours.__dict__) == copy_info_dict  # without it, they are made when somebody asks for them
        assert ours.infos.shape == theirs.infos.shape and (ours.infos == theirs.infos).all()
        again = pickle.loads(pickle.dumps(ours))
        assert again.env is None and (again.infos == theirs.infos).all()
    assert "infos" not in CompressedHerReplayBuffer(40, space, env.action_space, env).__getstate__()


def test_her_truncates_the_last_trajectory_as_sb3_does() -> None:
    env = image_envs(GoalImageEnv)
    pair = [
        cls(16, env.observation_space, env.action_space, env, n_envs=2) for cls in (CompressedHerReplayBuffer, HerReplayBuffer)
    ]
    obs, zeros = env.reset(), np.zeros(2)
    for step in range(13):
        done = np.array([step == 4, False])
        for buffer in pair:
            buffer.add(obs, obs, np.zeros((2, 2)), zeros + step, done, [{}, {}])
        if step % 6 == 5:
            for buffer in pair:
                with pytest.warns(UserWarning, match="truncated"):
                    buffer.truncate_last_trajectory()
        if step > 4:
            rewards = []
            for buffer in pair:
                np.random.seed(step)
                rewards.append(buffer.sample(40).rewards)
            assert th.equal(*rewards)


def test_dict_n_step_survives_pickling() -> None:
    env = image_envs(GoalImageEnv)
    buffer = CompressedDictNStepReplayBuffer(40, env.observation_space, env.action_space, n_envs=2, n_steps=2)
    obs = env.reset()
    for _ in range(6):
        buffer.add(obs, obs, np.zeros((2, 2)), np.ones(2), np.zeros(2), [{}, {}])
    again = pickle.loads(pickle.dumps(buffer))
    for each in (buffer, again):
        each.add(obs, obs, np.zeros((2, 2)), np.ones(2), np.zeros(2), [{}, {}])
    assert np.array_equal(again.observations["observation"][6], obs["observation"])
    assert again.sample(5).next_observations["observation"].shape == (5, *env.observation_space["observation"].shape)
    # What was loaded is a chunk of its own, and the next one begins with a stack again.
    assert again.memory_usage().frames_stored <= 2 * buffer.memory_usage().frames_stored
