"""Chunks that are arranged for a disk: other bytes, the same observations, and few pages for each."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from frames_kit import chunks_of, contents_of, game, make_column, read_column
from hypothesis import given, settings
from hypothesis import strategies as st
from observation_streams import METHODS, frames_of
from reference_decoder import CATALOGUE, KEY, RECORD_HEADER, ChunkDecoder

from sb3_extra_buffers.storage._core import Chunk


def arrange_all(column: object) -> list[bool]:
    """Arrange all sealed chunks; returns which of them are others now."""
    sealed, _ = column.chunks()  # type: ignore[attr-defined]
    return [column.arrange(chunk) is not chunk for chunk in sealed]  # type: ignore[attr-defined]


@settings(deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 2**16),
    n_envs=st.integers(1, 3),
    rows=st.integers(40, 120),
    chunk_rows=st.sampled_from([16, 32, 64]),
    laps=st.sampled_from([1, 1.5]),
)
def test_the_same_observations(seed: int, n_envs: int, rows: int, chunk_rows: int, laps: float) -> None:
    """By the core and by the reference decoder; whole chunks, and those that the ring has begun to write over."""
    steps, shape = int(rows * laps), (40, 48)
    frames = game(seed, steps, n_envs, shape)
    column = make_column(shape, n_envs=n_envs, rows=rows, views=1, chunk_rows=chunk_rows)
    for step in range(steps):
        column.write(step % rows, frames[step], 0)
    expected = read_column(column)
    assert all(arrange_all(column)) and not any(arrange_all(column)), "what is arranged stays as it is"
    np.testing.assert_array_equal(read_column(column), expected)
    for chunk, chunk_row, first, count in column.spans()[0]:
        decoder = ChunkDecoder(bytes(chunk))
        for row in range(0, count, 3):
            for env in range(n_envs):
                assert decoder.observation(chunk_row + row, env, 0) == expected[first + row, env].tobytes()
    for step in range(steps, steps + rows):  # the ring goes on
        column.write(step % rows, frames[step % steps], 0)
        expected[step % rows] = frames[step % steps]
    np.testing.assert_array_equal(read_column(column), expected)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("content", ["game", "noise", "mixed"])
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_whatever_is_stored(content: str, method: str | None, dtype: str) -> None:
    """A chunk that cannot be arranged, as with a codec for groups, stays as it is."""
    column = make_column((24, 20), dtype, n_envs=2, method=method, rows=48)
    frames = [frames_of(content, np.random.default_rng(env), (24, 20), np.dtype(dtype)) for env in range(2)]
    obs = np.stack([next(frames[env]) for env in range(2)])
    for row in range(48):
        after = np.stack([next(frames[env]) for env in range(2)])
        column.write(row, obs, 0, after)
        obs = after
    before = contents_of(column).tobytes()
    arrange_all(column)
    assert contents_of(column).tobytes() == before


def test_a_group_lies_beside_its_base() -> None:
    """The catalogue is first, key frames are next, then each stream from its first group to its last."""
    frames = game(0, 512, 2, (40, 48))
    column = make_column((40, 48), n_envs=2, rows=512, views=1, chunk_rows=256)
    for row, both in enumerate(frames):
        column.write(row, both, 0)
    before = sum(len(chunk.data) for chunk in chunks_of(column))
    arrange_all(column)
    chunk = chunks_of(column)[0]
    coders, at = [], 0
    while at < len(chunk.data):
        length, _, coder, _ = struct.unpack_from("<IHBB", chunk.data, at)
        coders.append(coder)
        at += RECORD_HEADER + length
    n_keys = coders.count(KEY)
    assert coders[0] == CATALOGUE and coders.count(CATALOGUE) == 1 and coders[1 : 1 + n_keys] == [KEY] * n_keys
    offsets = [offset for lane in chunk.lanes for offset, _ in lane.groups]
    assert offsets == sorted(offsets)
    assert sum(len(chunk.data) for chunk in chunks_of(column)) < 2 * before


def test_what_lies_in_other_memory_stays() -> None:
    """Such as a file: it would have to be written again."""
    column = make_column((40, 48), rows=64, views=1, chunk_rows=32)
    for row, one in enumerate(game(1, 64, 1, (40, 48))):
        column.write(row, one, 0)
    chunk = column.chunks()[0][0]
    copy = Chunk(bytes(chunk))
    column.exchange(chunk, copy)
    assert column.arrange(copy) is copy
