"""What belongs to a step beside its observations is stored as SB3 and NumPy store it, whatever form it has."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from hypothesis import assume, given
from hypothesis import strategies as st
from stable_baselines3.common.buffers import ReplayBuffer

from sb3_extra_buffers.compressed import CompressedReplayBuffer
from sb3_extra_buffers.storage import StoreLock
from sb3_extra_buffers.storage._core import PlainColumn, Table

ROWS, ENVS = 3, 4
DTYPES = ["?", "i1", "u1", "i4", "i8", "f2", "f4", "f8", ">f4", "c8", "O"]
FORMS: dict[str, Any] = {
    "as it is": lambda value: value,
    "every second": lambda value: np.repeat(value, 2, axis=0)[::2],
    "read-only": lambda value: np.broadcast_to(value, value.shape),
    "one for all": lambda value: value.reshape(-1)[0],
    "a column": lambda value: value.reshape(-1, 1),
    "too many": lambda value: np.concatenate((value, value)),
    "a list": lambda value: value.tolist(),
    "a tensor": lambda value: th.ones(value.shape, dtype=th.float64),
}
TRUNCATED: list[Any] = [False, True, 0, 1, np.False_, np.True_, 0.5, None, "no"]


def outcome(call: Any) -> Any:
    """What a call ends with: nothing, or the kind of error or warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            call()
        except Exception as error:
            return type(error)
    return None


@st.composite
def numbers(draw: st.DrawFn, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    values = rng.choice([0.0, 1.0, -2.5, 1e300, 3.5e38, 3.4e38, np.inf, np.nan, 0.1], shape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return values.astype(draw(st.sampled_from(DTYPES)))


@given(
    data=st.data(),
    row=st.sampled_from([0, ROWS - 1]),
    stored=st.sampled_from(["f4", "f8", "i8", "?", "u1"]),
    form=st.sampled_from(sorted(FORMS)),
)
def test_a_row_is_set_as_numpy_does(data: Any, row: int, stored: str, form: str) -> None:
    """In any of its three places, with whatever warning or error NumPy has for it; but then nothing of it is there."""
    which = data.draw(st.sampled_from(["action", "reward", "done"]))
    step: dict[str, Any] = {"action": np.zeros((ENVS, 2), "f4"), "reward": np.zeros(ENVS, "f4"), "done": np.zeros(ENVS, bool)}
    step[which] = FORMS[form](data.draw(numbers(step[which].shape)))
    assume(hasattr(step["action"], "reshape"))  # SB3 needs that
    ours, theirs = ([np.ones((ROWS, *shape), stored) for shape in ((ENVS, 2), (ENVS,), (ENVS,))] for _ in range(2))
    columns = [PlainColumn(array, place == 0) for place, array in enumerate(ours)]
    table, attributes = Table(columns, ROWS, ENVS, StoreLock()), {"pos": row, "full": False}

    def by_numpy() -> None:
        theirs[0][row] = step["action"].reshape(ENVS, 2)
        for place, name in ((1, "reward"), (2, "done")):  # SB3 makes an array of a list before it stores it
            theirs[place][row] = np.array(step[name]) if isinstance(step[name], list) else step[name]

    expected = outcome(by_numpy)
    assert outcome(lambda: table.append(tuple(step.values()), attributes)) == expected
    assert attributes == ({"pos": row, "full": False} if expected else {"pos": (row + 1) % ROWS, "full": row == ROWS - 1})
    for mine, array in zip(ours, theirs, strict=True):
        assert repr(mine.tolist()) == repr((np.ones_like(array) if expected else array).tolist())


@given(
    said=st.lists(st.one_of(st.sampled_from(TRUNCATED), st.just("missing")), min_size=1, max_size=6), form=st.integers(0, 2)
)
def test_time_outs_are_set_as_sb3_does(said: list[Any], form: int) -> None:
    infos: Any = [{} if what == "missing" else {"TimeLimit.truncated": what} for what in said]
    if form == 1:
        infos = tuple(infos)
    elif form == 2:
        infos = [OtherMapping(info) for info in infos]
    space = spaces.Box(-1, 1, (2,))
    pair = [cls(ROWS * ENVS, space, space, "cpu", n_envs=ENVS) for cls in (CompressedReplayBuffer, ReplayBuffer)]
    zeros = np.zeros((ENVS, 2), np.float32)
    for buffer in pair:
        buffer.timeouts[:] = 7
    outcomes = [outcome(lambda b=buffer: b.add(zeros, zeros, zeros, zeros[:, 0], zeros[:, 0], infos)) for buffer in pair]
    assert outcomes[0] == outcomes[1]
    np.testing.assert_array_equal(pair[0].timeouts, pair[1].timeouts)
    assert pair[0].pos == pair[1].pos


class OtherMapping:
    """What is no dict, but can be asked."""

    def __init__(self, of: dict[str, Any]) -> None:
        self.get = of.get


@pytest.mark.parametrize("actions", [spaces.Discrete(5), spaces.Box(-1, 1, (3,), np.float32), spaces.MultiBinary(2)])
def test_buffers_hold_what_those_of_sb3_hold(actions: Any) -> None:
    space = spaces.Box(0, 255, (1, 30, 30), np.uint8)
    pair = [cls(ROWS * ENVS, space, actions, "cpu", n_envs=ENVS) for cls in (CompressedReplayBuffer, ReplayBuffer)]
    rng = np.random.default_rng(0)
    for step in range(12):
        obs, next_obs = rng.integers(0, 256, (2, ENVS, *space.shape), dtype=np.uint8)
        action = np.array([actions.sample() for _ in range(ENVS)])
        reward = rng.normal(size=ENVS).astype([np.float32, np.float64, np.float16][step % 3])
        done = rng.random(ENVS) < 0.5
        infos = [{"TimeLimit.truncated": bool(ended and step % 2)} for ended in done]
        for buffer in pair:
            buffer.add(obs, next_obs, action, reward, done if step % 4 else done.astype(np.float32), infos)
        for name in ("observations", "next_observations", "actions", "rewards", "dones", "timeouts"):
            ours, theirs = np.asarray(getattr(pair[0], name)), getattr(pair[1], name)
            assert ours.dtype == theirs.dtype
            np.testing.assert_array_equal(ours, theirs)
    for buffer in pair:
        with pytest.raises(ValueError, match="cannot reshape"):
            buffer.add(obs, next_obs, np.zeros((ENVS, 7)), reward, done, infos)
    np.testing.assert_array_equal(np.asarray(pair[0].observations), pair[1].observations)
    assert pair[0].pos == pair[1].pos
