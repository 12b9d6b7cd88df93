"""Plain columns in pieces of memory: the same cells as of one array, and nothing is read that is not there."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sb3_extra_buffers.storage._core import Pieces


@given(rows=st.integers(1, 40), piece_rows=st.integers(1, 50), n_envs=st.integers(1, 3), seed=st.integers(0, 100))
def test_cells_are_those_of_one_array(rows: int, piece_rows: int, n_envs: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    columns = [rng.random((rows, n_envs, 3)), rng.integers(0, 256, (rows, n_envs), np.uint8)]
    pieces = Pieces(rows, piece_rows, n_envs, [24, 1])
    assert pieces.n_pieces == -(-rows // piece_rows)
    for piece in range(pieces.n_pieces):
        some = slice(piece * piece_rows, (piece + 1) * piece_rows)
        pieces.put(piece, b"".join([column[some].tobytes() for column in columns]))
    at, envs = rng.integers(0, rows, 30), rng.integers(0, n_envs, 30)
    for place, column in enumerate(columns):
        out = np.empty((30, *column.shape[2:]), column.dtype)
        pieces.gather(place, at, envs, out)
        assert np.array_equal(out, column[at, envs])


def test_wrong_places_are_refused() -> None:
    pieces = Pieces(10, 4, 2, [4])
    zeros, out = np.zeros(3, np.int64), np.empty(3, np.float32)
    with pytest.raises(ValueError, match="has not been put"):
        pieces.gather(0, zeros, zeros, out)
    with pytest.raises(ValueError, match="31 bytes are not 4 rows"):
        pieces.put(0, bytes(31))
    with pytest.raises(ValueError, match="bytes are not"):
        pieces.put(0, bytearray(32))  # somebody could write to it
    with pytest.raises(IndexError, match="no piece 3"):
        pieces.put(3, bytes(16))
    for piece, size in enumerate((32, 32, 16)):
        pieces.put(piece, bytes(size))
    pieces.gather(0, zeros, zeros, out)
    assert not out.any()
    for rows, envs in ((zeros + 10, zeros), (zeros - 1, zeros), (zeros, zeros + 2), (zeros, zeros - 1)):
        with pytest.raises(IndexError, match="no cell"):
            pieces.gather(0, rows, envs, out)
    with pytest.raises(IndexError, match="no column 1"):
        pieces.gather(1, zeros, zeros, out)
    for wrong in (np.empty(2, np.float32), np.empty(6, np.float32)[::2], np.empty(3)):
        with pytest.raises(ValueError, match="contiguous array"):
            pieces.gather(0, zeros, zeros, wrong)
    for arguments in ((-1, 1, 1, [1]), (1, 0, 1, [1]), (1, 1, 0, [1]), (1, 1, 1, []), (1, 1, 1, [0])):
        with pytest.raises(ValueError, match="rows of"):
            Pieces(*arguments)  # type: ignore[arg-type]
