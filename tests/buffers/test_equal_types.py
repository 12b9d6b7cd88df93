"""
A type that comes from a pickle, or from another process, is equal to NumPy's own but another object: it is as quick.

What is quick is told by what is called: the checks of an observation that is not taken as it is.
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
from sb3_extra_buffers.storage import StoreLock
from sb3_extra_buffers.storage._core import PlainColumn, Table

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
@pytest.mark.parametrize("name", ["?", "i1", "u1", "i2", "i4", "i8", "q", "f2", "f4", "f8", "g", "c8"])
def test_values_that_were_pickled_are_taken_as_they_are(name: str, way: str) -> None:
    """And those of any other type are looked at."""
    looked_at: list[Any] = []

    def accept(value: Any) -> Any:
        looked_at.append(value)
        return np.asarray(value).astype(name)

    dtype = np.dtype(name)
    table = Table([PlainColumn(WAYS[way](np.zeros((9, 2, 3), dtype)), False, accept)], 9, 2, StoreLock())
    array = np.arange(6).reshape(2, 3).astype(dtype)
    for value in (array, WAYS[way](array), np.require(array, requirements="W")):
        table.append((value,))
        np.testing.assert_array_equal(table.columns[0].array[table.attributes["pos"] - 1], array)
    assert looked_at == []
    for value in (array.tolist(), array[:, ::-1], array.astype(">i2"), array.T.copy().T):
        table.append((value,))
        assert looked_at and looked_at.pop() is value
        np.testing.assert_array_equal(table.columns[0].array[table.attributes["pos"] - 1], np.asarray(value).astype(dtype))


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

    def counted(self: Field, obs: Any, view: int) -> Any:
        calls.append(str(self.key))
        return accept(self, obs, view)

    monkeypatch.setattr(Field, "accept", counted)
    return calls


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", SPACES)
def test_a_loaded_replay_buffer_takes_observations_as_they_are(kind: str, way: str, accepted: list[str]) -> None:
    space, action_space = SPACES[kind], spaces.Box(-1, 1, (2,), np.float32)
    cls = CompressedDictReplayBuffer if kind == "dict" else CompressedReplayBuffer
    buffer = WAYS[way](cls(30, space, action_space, "cpu", n_envs=ENVS))
    rng = np.random.default_rng(0)

    def step(convert: Callable[[Any], Any]) -> None:
        action, reward = rng.random((ENVS, 2), np.float32), rng.random(ENVS, np.float32)
        done = np.zeros(ENVS, bool)
        given = [convert(part) for part in (draw(space, rng), draw(space, rng), action, reward, done)]
        buffer.add(*given, [{} for _ in range(ENVS)])

    for _ in range(5):
        step(lambda part: part)
        step(by_pickle)
    assert accepted == []
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
