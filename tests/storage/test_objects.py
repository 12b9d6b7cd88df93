"""Changes that happen again are stored once: exact whatever moves, wherever chunks end, and as the page of the format says."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from frames_kit import chunks_of, game, make_column, read_column
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_decoder import HEADER, NO_BASE, OBJECTS, PLAIN, ChunkDecoder, checksum, number

from sb3_extra_buffers.storage.errors import StorageError
from sb3_extra_buffers.storage.frames import rows_of_chunk


@settings(deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 2**16),
    n_envs=st.integers(1, 3),
    rows=st.integers(20, 90),
    chunk_rows=st.sampled_from([16, 32, 96]),
    shape=st.sampled_from([(40, 48), (48, 40), (20, 100)]),
    laps=st.sampled_from([1, 1.5]),
)
def test_games_come_back(seed: int, n_envs: int, rows: int, chunk_rows: int, shape: tuple[int, int], laps: float) -> None:
    """From the open chunk and from sealed ones, by the core and by the reference decoder, before and after pickling."""
    steps = int(rows * laps)
    frames = game(seed, steps, n_envs, shape)
    column = make_column(shape, n_envs=n_envs, rows=rows, views=1, chunk_rows=chunk_rows)
    expected = np.zeros((rows, n_envs, *shape), np.uint8)
    for step in range(steps):
        column.write(step % rows, frames[step], 0)
        expected[step % rows] = frames[step]
    np.testing.assert_array_equal(read_column(column), expected)
    np.testing.assert_array_equal(read_column(pickle.loads(pickle.dumps(column))), expected)
    sealed, last = column.spans()
    for held, chunk_row, first, count in (*sealed, *([] if last is None else [last])):
        chunk = ChunkDecoder(bytes(held))
        for row in range(0, count, 5):
            for env in range(n_envs):
                assert chunk.observation(chunk_row + row, env, 0) == expected[first + row, env].tobytes()


def test_changes_are_stored_once() -> None:
    """Most groups have references, and some begin with another group's first frame."""
    frames = game(0, 256, 2, (40, 48))
    column = make_column((40, 48), n_envs=2, rows=256, views=1, chunk_rows=256)
    for row, both in enumerate(frames):
        column.write(row, both, 0)
    (chunk,) = chunks_of(column)
    records = [chunk.record(env, group) for env, lane in enumerate(chunk.lanes) for group in range(len(lane.groups))]
    bodies = [body for coder, _, body in records if coder == OBJECTS]
    assert len(bodies) > len(records) / 2
    assert sum(number(body[6:8]) for body in bodies if number(body[6:8]) != PLAIN) > 4 * len(bodies)
    assert any(number(body[3:6]) != NO_BASE for body in bodies)


@pytest.mark.parametrize("place", ["reference", "key", "base", "count", "position", "length"])
def test_damage_is_told(place: str) -> None:
    """Whatever number of an OBJECTS record is wrong, reading is refused, or gives some picture, and never leaves the chunk."""
    frames = game(0, 192, 1, (40, 48))
    column = make_column((40, 48), rows=192, views=1, chunk_rows=192)
    for row, one in enumerate(frames):
        column.write(row, one, 0)
    sealed, _ = column.chunks()
    chunk = ChunkDecoder(bytes(sealed[0]))
    offsets = [
        at for at, _ in chunk.lanes[0].groups if chunk.data[at + 6] == OBJECTS and number(chunk.data[at + 14 : at + 16]) > 1
    ]
    body = offsets[-1] + 8
    n_references = number(chunk.data[body + 6 : body + 8])
    patches = body + 8 + 3 * n_references
    at, width = {
        "key": (body, 3),
        "base": (body + 3, 3),
        "count": (body + 6, 2),
        "reference": (body + 8, 3),
        "position": (patches + 1, 2),
        "length": (patches + 3, 1),
    }[place]
    for value in (0, 1, 2, 253, 254, 255, 0xFFFE, 0xFFFF, chunk.head["data_bytes"] - 1, 0xFFFFFE, 0xFFFFFF):
        data = bytearray(chunk.chunk)
        where = chunk.data_at + at
        data[where : where + width] = (value & (1 << 8 * width) - 1).to_bytes(width, "little")
        data[128:132] = checksum(bytes(data[chunk.data_at : chunk.index_at])).to_bytes(4, "little")
        data[148:152] = checksum(bytes(data[: HEADER[-1][1]])).to_bytes(4, "little")
        other = make_column((40, 48), rows=192, views=1, chunk_rows=192)
        other.adopt(bytes(data))
        out = np.empty((1, 40, 48), np.uint8)
        for row in range(0, 192, 3):
            try:
                other.read(np.array([row]), np.array([0]), out)
            except StorageError as error:
                assert "damaged" in str(error)


@pytest.mark.parametrize(
    ("rows", "wraps", "expected"),
    [
        (1, True, 16),
        (250, True, 32),
        (1000, True, 128),
        (10_000, True, 1264),
        (10**6, True, 4096),
        (128, False, 128),
        (2048, False, 512),
    ],
)
def test_rows_of_a_chunk(rows: int, wraps: bool, expected: int) -> None:
    """An eighth of a ring; for whoever writes in any order, few enough to be coded again."""
    assert rows_of_chunk(rows, wraps) == expected


def test_a_chunk_ends_when_it_has_enough_bytes() -> None:
    """A ring may be longer than that by one chunk, so chunks are small however many rows there are."""
    rng = np.random.default_rng(0)
    column = make_column((40, 48), rows=1024, views=1, chunk_rows=1024)
    for row in range(1024):
        column.write(row, rng.integers(0, 256, (1, 40, 48), dtype=np.uint8), 0)
    sizes = [len(bytes(chunk)) for chunk in column.chunks()[0]]
    assert len(sizes) > 3 and max(sizes) < (1 << 19) + 20 * 2000
