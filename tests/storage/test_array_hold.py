"""Observations that an array takes before it is told the row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from observation_streams import METHODS, Stack, Stream

from sb3_extra_buffers.storage import HELD, CompressedArray


def pair_of_arrays(stream: Stream, method: str | None, rows: int = 9) -> tuple[CompressedArray, CompressedArray]:
    shape = (rows, stream.n_envs, *stream.obs_shape)
    first = CompressedArray(shape, stream.dtype, stream.obs_shape, compression_method=method)
    return first, CompressedArray(shape, stream.dtype, stream.obs_shape, share_with=first)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("depth", [1, 4])
def test_held_observations_go_to_the_row_that_is_assigned(method: str | None, depth: int) -> None:
    stream = Stream(0, 2, (1, 9, 8), np.uint8, "game", Stack(depth, 0) if depth > 1 else None, done_rate=0.2)
    one, other = pair_of_arrays(stream, method)
    twins = np.zeros((2, *one.shape), np.uint8)
    for step in range(30):
        obs, next_obs = stream.step()[:2]
        row = step % len(one)
        given: Any = one.hold(obs, next_obs)
        assert given.size == 0
        one[row] = np.array(given)
        other[row] = np.array(given)
        twins[:, row] = obs, next_obs
        np.testing.assert_array_equal(np.asarray(one), twins[0])
        np.testing.assert_array_equal(np.asarray(other), twins[1])


def test_of_one_array_alone() -> None:
    stream = Stream(0, 3, (1, 9, 8), np.uint8, "game")
    array, _ = pair_of_arrays(stream, None)
    obs = stream.step()[0]
    array[-1] = array.hold(obs)
    np.testing.assert_array_equal(array[8], obs)


def test_nothing_is_written_before_or_without() -> None:
    stream = Stream(0, 2, (1, 9, 8), np.uint8, "game")
    one, other = pair_of_arrays(stream, None)
    obs, next_obs = stream.step()[:2]
    one.hold(obs, next_obs)
    assert not np.asarray(one).any()
    one[2] = HELD
    before = np.asarray(one), np.asarray(other)
    one[3] = HELD  # there is nothing left to write
    np.testing.assert_array_equal(np.asarray(one), before[0])
    np.testing.assert_array_equal(np.asarray(other), before[1])


@pytest.mark.parametrize("bad", [np.zeros((2, 1, 9, 7), np.uint8), np.full((2, 1, 9, 8), 0.5)])
def test_what_cannot_be_stored_is_refused_at_once(bad: np.ndarray) -> None:
    stream = Stream(0, 2, (1, 9, 8), np.uint8, "game")
    one, _ = pair_of_arrays(stream, None)
    obs = stream.step()[0]
    one[0] = obs
    for given in ((bad, obs), (obs, bad)):
        with pytest.raises((ValueError, TypeError)):
            one.hold(*given)
    one[0] = HELD
    np.testing.assert_array_equal(one[0], obs)


def test_a_row_out_of_bounds() -> None:
    stream = Stream(0, 2, (1, 9, 8), np.uint8, "game")
    one, _ = pair_of_arrays(stream, None)
    with pytest.raises(IndexError):
        one[9] = one.hold(stream.step()[0])
    assert not np.asarray(one).any()


def test_only_rows_of_its_own_type_are_taken_as_they_are() -> None:
    stream = Stream(0, 2, (1, 9, 8), np.uint8, "game")
    one, other = pair_of_arrays(stream, None)
    obs, next_obs = stream.step()[:2]
    for given in (
        (obs[:1], next_obs),
        (obs, next_obs[:1]),
        (obs.astype(float), next_obs),
        (obs, next_obs.tolist()),
        (obs, None),
    ):
        assert not one.hold_as_is(*given)
    one[0] = HELD
    assert not np.asarray(one).any()
    assert one.hold_as_is(obs, next_obs)
    one[0] = other[0] = HELD
    np.testing.assert_array_equal(one[0], obs)
    np.testing.assert_array_equal(other[0], next_obs)


def test_what_is_stored_as_another_type_is_not_taken_as_it_is() -> None:
    array = CompressedArray((3, 2), np.float64, (40,), {"elem_type": np.uint8, "runs_type": np.uint16})
    obs = np.full((2, 40), 7.0)
    assert not array.hold_as_is(obs)
    array[1] = array.hold(obs)
    np.testing.assert_array_equal(array[1], obs)
