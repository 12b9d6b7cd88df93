"""
A type that comes from a pickle, or from another process, is equal to NumPy's own but another object: it is as quick.

What is quick is told by what is called: the checks of an observation that is not taken as it is, and NumPy's assignments.
"""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.save_util import load_from_pkl, save_to_pkl

from sb3_extra_buffers.compressed import CompressedDictReplayBuffer, CompressedReplayBuffer, CompressedRolloutBuffer
from sb3_extra_buffers.compressed.fields import Field
from sb3_extra_buffers.storage._core import is_plain, set_step

ENVS = 3


def by_pickle(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


def by_sb3(value: Any) -> Any:
    file = io.BytesIO()
    save_to_pkl(file, value)
    file.seek(0)
    return load_from_pkl(file)


WAYS: dict[str, Callable[[Any], Any]] = {
    "pickle": by_pickle,
    "oldest pickle": lambda value: pickle.loads(pickle.dumps(value, protocol=2)),
    "deepcopy": copy.deepcopy,
    "pickle in Python": lambda value: pickle._loads(pickle._dumps(value)),  # what joblib and dill build upon
    "save_to_pkl": by_sb3,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["?", "i1", "u1", "i2", "i4", "i8", "q", "f2", "f4", "f8", "g", "c8", "M8[s]"])
def test_arrays_that_were_pickled_are_plain(name: str, way: str) -> None:
    dtype = np.dtype(name)
    array = np.zeros((2, 3), dtype)
    again, loaded = WAYS[way](array), WAYS[way](dtype)
    assert again.dtype == dtype == loaded
    for value in (array, again):
        for wanted in (dtype, loaded):
            assert is_plain(value, wanted, (2, 3))
            assert not is_plain(value, wanted, (3, 2))
    for other in ("?", "u1", "i2", ">i2", "f4", ">f4", "f8", "M8[ms]", "O", "V8", "S8"):
        if np.dtype(other) != dtype:
            assert not is_plain(again, np.dtype(other), (2, 3)), other


def test_the_order_of_bytes_counts() -> None:
    swapped = np.zeros(2, ">i4")
    assert is_plain(swapped, np.dtype(">i4"), (2,)) and not is_plain(swapped, np.dtype("<i4"), (2,))


def test_two_names_of_one_type() -> None:
    """C has several integers of 64 bits."""
    array = np.zeros(2, np.dtype("q"))
    assert is_plain(array, np.dtype(np.int64), (2,)) and is_plain(array, np.dtype("l"), (2,)) == (np.dtype("l").itemsize == 8)


class Assigned(np.ndarray):
    """An array that counts assignments by NumPy."""

    count = 0

    def __setitem__(self, index: Any, value: Any) -> None:
        Assigned.count += 1
        super().__setitem__(index, value)


@pytest.fixture
def assigned(monkeypatch: pytest.MonkeyPatch) -> type[Assigned]:
    monkeypatch.setattr(Assigned, "count", 0)
    return Assigned


@pytest.mark.parametrize("dtype", ["f4", "i8", "u1", "?"])
def test_rows_of_arrays_that_were_pickled_need_no_numpy(dtype: str, assigned: type[Assigned]) -> None:
    rng = np.random.default_rng(0)
    stored = [by_pickle(np.zeros((2, *shape), dtype)).view(assigned) for shape in ((ENVS, 2), (ENVS,), (ENVS,))]
    step = [rng.integers(0, 2, array.shape[1:]).astype(dtype) for array in stored]
    set_step(1, stored[0], step[0], stored[1], step[1], stored[2], step[2], None, [])
    assert assigned.count == 0
    for array, row in zip(stored, step, strict=True):
        assert np.asarray(array[1]).tobytes() == row.tobytes()
    set_step(0, stored[0], step[0], stored[1], step[1].tolist(), stored[2], step[2], None, [])
    assert assigned.count == 1, "the count cannot fail"


BOX = spaces.Box(0, 255, (2, 12, 12), np.uint8)
VECTOR = spaces.Box(-1, 1, (3,), np.float32)
SPACES: dict[str, spaces.Space[Any]] = {
    "images": BOX,
    "vectors": VECTOR,
    "dict": spaces.Dict({"image": BOX, "vector": VECTOR}),
}


def draw(space: spaces.Space[Any], rng: np.random.Generator) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: draw(part, rng) for key, part in space.spaces.items()}
    assert isinstance(space, spaces.Box)
    return rng.integers(0, 2, (ENVS, *space.shape)).astype(space.dtype)


@pytest.fixture
def accepted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The observations that were not taken as they are."""
    calls: list[str] = []
    accept = Field.accept

    def counted(self: Field, obs: Any, name: str) -> Any:
        calls.append(name)
        return accept(self, obs, name)

    monkeypatch.setattr(Field, "accept", counted)
    return calls


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", SPACES)
def test_a_loaded_replay_buffer_takes_observations_as_they_are(
    kind: str, way: str, accepted: list[str], assigned: type[Assigned]
) -> None:
    space, action_space = SPACES[kind], spaces.Box(-1, 1, (2,), np.float32)
    cls = CompressedDictReplayBuffer if kind == "dict" else CompressedReplayBuffer
    buffer = WAYS[way](cls(30, space, action_space, "cpu", n_envs=ENVS))
    rng = np.random.default_rng(0)
    if kind != "dict":
        for name in ("actions", "rewards", "dones", "timeouts"):
            setattr(buffer, name, getattr(buffer, name).view(assigned))

    def step(convert: Callable[[Any], Any]) -> None:
        action, reward = rng.random((ENVS, 2), np.float32), rng.random(ENVS, np.float32)
        done = np.zeros(ENVS, bool)
        given = [convert(part) for part in (draw(space, rng), draw(space, rng), action, reward, done)]
        buffer.add(*given, [{} for _ in range(ENVS)])

    for _ in range(5):
        step(lambda part: part)
        step(by_pickle)
    assert accepted == [] and assigned.count == 0
    obs = draw(space, rng)
    lists = {key: part.tolist() for key, part in obs.items()} if kind == "dict" else obs.tolist()
    buffer.add(lists, obs, rng.random((ENVS, 2), np.float32), np.zeros(ENVS), np.zeros(ENVS, bool), [{}] * ENVS)
    assert accepted, "the count cannot fail"


@pytest.mark.parametrize("way", WAYS)
def test_a_loaded_rollout_buffer_takes_observations_as_they_are(way: str, accepted: list[str]) -> None:
    import torch as th

    buffer = WAYS[way](CompressedRolloutBuffer(8, BOX, spaces.Discrete(2), "cpu", n_envs=ENVS))
    rng = np.random.default_rng(0)
    for convert in (lambda obs: obs, by_pickle):
        rest = np.zeros((ENVS, 1)), np.zeros(ENVS), np.zeros(ENVS), th.zeros(ENVS), th.zeros(ENVS)
        buffer.add(convert(draw(BOX, rng)), *rest)
    assert accepted == []


@pytest.mark.parametrize("way", WAYS)
def test_a_loaded_buffer_stores_what_sb3_stores(way: str) -> None:
    """After loading, and with arrays that come from other processes."""
    rng = np.random.default_rng(0)
    options: Any = (30, BOX, spaces.Discrete(4), "cpu")
    ours, theirs = (WAYS[way](cls(*options, n_envs=ENVS)) for cls in (CompressedReplayBuffer, ReplayBuffer))
    for _ in range(40):
        obs, next_obs = by_pickle((draw(BOX, rng), draw(BOX, rng)))
        rest = by_pickle((rng.integers(0, 4, (ENVS, 1)), rng.random(ENVS), rng.integers(0, 2, ENVS).astype(bool)))
        for buffer in (ours, theirs):
            buffer.add(obs, next_obs, *rest, [{"TimeLimit.truncated": bool(flag)} for flag in rest[2]])
    for name in ("observations", "next_observations", "actions", "rewards", "dones", "timeouts"):
        assert np.asarray(getattr(ours, name)).tobytes() == getattr(theirs, name).tobytes(), name
