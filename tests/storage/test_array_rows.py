"""A row of an array, and the same row of one that shares its frames, written in one step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from observation_streams import METHODS, Stack, Stream

from sb3_extra_buffers.storage import NOTHING_TO_STORE, CompressedArray


def pair_of_arrays(stream: Stream, method: str | None, rows: int = 9) -> tuple[CompressedArray, CompressedArray]:
    shape = (rows, stream.n_envs, *stream.obs_shape)
    first = CompressedArray(shape, stream.dtype, stream.obs_shape, compression_method=method)
    return first, CompressedArray(shape, stream.dtype, stream.obs_shape, share_with=first)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("depth", [1, 4])
def test_both_go_to_the_row(method: str | None, depth: int) -> None:
    stream = Stream(0, 2, (1, 9, 8), np.uint8, "game", Stack(depth, 0) if depth > 1 else None, done_rate=0.2)
    one, other = pair_of_arrays(stream, method)
    twins = np.zeros((2, *one.shape), np.uint8)
    for step in range(30):
        obs, next_obs = stream.step()[:2]
        row = step % len(one)
        one.write_row(row, obs, other, next_obs)
        twins[:, row] = obs, next_obs
        np.testing.assert_array_equal(np.asarray(one), twins[0])
        np.testing.assert_array_equal(np.asarray(other), twins[1])


def test_of_one_array_alone() -> None:
    stream = Stream(0, 3, (1, 9, 8), np.uint8, "game")
    array, other = pair_of_arrays(stream, None)
    obs = stream.step()[0]
    array.write_row(-1, obs)
    np.testing.assert_array_equal(array[8], obs)
    assert not np.asarray(other).any()


def test_observations_may_be_used_again_by_the_caller() -> None:
    stream = Stream(0, 2, (1, 9, 8), np.uint8, "game")
    one, other = pair_of_arrays(stream, None)
    obs, next_obs = (np.array(part) for part in stream.step()[:2])
    expected = obs.copy(), next_obs.copy()
    one.write_row(2, obs, other, next_obs)
    obs[:] = next_obs[:] = 7
    np.testing.assert_array_equal([one[2], other[2]], expected)


def test_nothing_to_store_changes_nothing() -> None:
    stream = Stream(0, 2, (1, 9, 8), np.uint8, "game")
    one, other = pair_of_arrays(stream, None)
    obs, next_obs = stream.step()[:2]
    one.write_row(2, obs, other, next_obs)
    before = np.asarray(one), np.asarray(other)
    for placeholder in (NOTHING_TO_STORE, np.array(NOTHING_TO_STORE), np.empty(2, NOTHING_TO_STORE.dtype).reshape(2, 1)):
        for row in (2, 3):  # one that was written, and one that was not
            one[row] = placeholder
            other[row] = placeholder
    np.testing.assert_array_equal(np.asarray(one), before[0])
    np.testing.assert_array_equal(np.asarray(other), before[1])


@pytest.mark.parametrize("bad", [np.zeros((2, 1, 9, 7), np.uint8), np.full((2, 1, 9, 8), 0.5)])
def test_if_one_of_both_cannot_be_stored_neither_is(bad: np.ndarray) -> None:
    stream = Stream(0, 2, (1, 9, 8), np.uint8, "game")
    one, other = pair_of_arrays(stream, None)
    obs, next_obs = stream.step()[:2]
    one.write_row(0, obs, other, next_obs)
    for given in ((bad, obs), (obs, bad)):
        with pytest.raises((ValueError, TypeError)):
            one.write_row(0, given[0], other, given[1])
    np.testing.assert_array_equal([one[0], other[0]], [obs, next_obs])


def test_a_row_out_of_bounds() -> None:
    stream = Stream(0, 2, (1, 9, 8), np.uint8, "game")
    one, other = pair_of_arrays(stream, None)
    obs, next_obs = stream.step()[:2]
    for row in (9, -10):
        with pytest.raises(IndexError):
            one.write_row(row, obs, other, next_obs)
    assert not np.asarray(one).any() and not np.asarray(other).any()


def test_only_arrays_that_share_frames_are_written_together() -> None:
    stream = Stream(0, 2, (1, 9, 8), np.uint8, "game")
    (one, other), (stranger, _) = pair_of_arrays(stream, None), pair_of_arrays(stream, None)
    obs, next_obs = stream.step()[:2]
    for beside in (stranger, other.swapaxes(0, 1)):
        with pytest.raises(ValueError, match="share frames"):
            one.write_row(0, obs, beside, next_obs)
    with pytest.raises(ValueError, match="view"):
        one.swapaxes(0, 1).write_row(0, obs)
    assert not np.asarray(one).any()


def test_values_are_cast_if_that_changes_none() -> None:
    stored: Any = {"elem_type": np.uint8, "runs_type": np.uint16}
    array = CompressedArray((3, 2), np.float64, (40,), stored)
    other = CompressedArray((3, 2), np.float64, (40,), share_with=array)
    array.write_row(1, np.full((2, 40), 7.0), other, [[8] * 40] * 2)
    np.testing.assert_array_equal([array[1], other[1]], [np.full((2, 40), 7.0), np.full((2, 40), 8.0)])
    with pytest.raises(ValueError, match="would change"):
        array.write_row(1, np.full((2, 40), 7.5))
