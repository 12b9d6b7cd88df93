"""Columns of frames in a directory: chunks are there just as they lie in memory, and are mapped when they are loaded."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from sb3_extra_buffers.storage._core import Chunk
from sb3_extra_buffers.storage.directory import DamagedFileError, Replacement, SavedDirectory
from sb3_extra_buffers.storage.errors import StorageError
from sb3_extra_buffers.storage.frames import Frames, FrozenFrames, frames_of
from sb3_extra_buffers.storage.json_values import from_json, make_dtype, make_shape, to_json
from sb3_extra_buffers.storage.layout import FrameLayout
from sb3_extra_buffers.storage.locks import StoreLock
from sb3_extra_buffers.storage.methods import CoderSpec

_HEADER = 152
_MOST_CHUNK_ROWS = 65519


def save_frames(name: str, frozen: FrozenFrames, used: int, files: Replacement) -> dict[str, Any]:
    """
    Save a column.

    :param name: Its name
    :param frozen: What it held at some moment
    :param used: Rows from this one on do not count
    :param files: Where to
    :return: A description, as JSON can hold it
    """
    shape, obs_shape, dtype, spec, split = frozen.head
    sealed, last = [chunk for chunk in frozen.chunks[:-1] if chunk is not None], frozen.chunks[-1]
    return {
        "name": name,
        "shape": list(shape),
        "obs_shape": list(obs_shape),
        "dtype": dtype.str,
        "coder": _describe_coder(spec),
        "split": list(split),
        "looks": list(frozen.looks),
        "chunks": [_save_chunk(name, chunk, files) for chunk in sealed if chunk.first_row < used],
        "open": None if last is None else _save_chunk(name, last, files),
    }


def _save_chunk(name: str, chunk: Chunk, files: Replacement) -> list[Any]:
    data = memoryview(chunk)
    # The header has the checksums of all that follows, so it tells whether a chunk is the same.
    mark = hashlib.blake2b(data[:_HEADER], digest_size=12).hexdigest()
    part = files.put(f"{name}-{chunk.lap}-{chunk.first_row}-{mark}", data)
    return [part, chunk.first_row, chunk.rows, chunk.lap]


def _describe_coder(spec: CoderSpec) -> dict[str, Any]:
    return {
        "method": spec.method,
        "elem_type": spec.elem_type.str,
        "runs_type": spec.runs_type.str,
        "compression_kwargs": to_json(dict(spec.compression_kwargs), "compression_kwargs"),
        "decompression_kwargs": to_json(dict(spec.decompression_kwargs), "decompression_kwargs"),
        "fallback": spec.fallback,
    }


def make_coder(said: Any) -> CoderSpec:
    """
    Make a choice of coder of its description.

    :param said: The description
    :return: The choice; ``ValueError`` or ``StorageError`` where this describes none
    """
    method, fallback = said["method"], said["fallback"]
    encoding, decoding = from_json(said["compression_kwargs"]), from_json(said["decompression_kwargs"])
    if not (
        isinstance(method, str) and isinstance(fallback, str) and isinstance(encoding, dict) and isinstance(decoding, dict)
    ):
        raise ValueError("the method and its options are not what they should be")
    return CoderSpec(method, make_dtype(said["elem_type"]), make_dtype(said["runs_type"]), encoding, decoding, fallback)


def empty_frames(said: Any, expected: Frames | None, lock: StoreLock, any_coder: bool = False) -> Frames:
    """
    Make an empty column as one was that was saved.

    :param said: The description
    :param expected: A column that holds observations of the same form, or nothing is loaded
    :param lock: The lock of the new one
    :param any_coder: Whether its frames may be coded otherwise than those of the other
    :return: The column
    """
    shape, obs_shape = make_shape(said["shape"]), make_shape(said["obs_shape"])
    rows, n_envs, views, chunk_rows = shape
    dtype, spec = make_dtype(said["dtype"]), make_coder(said["coder"])
    axis, group = make_shape(said["split"])
    writes, next_look = make_shape(said["looks"])
    if not 1 <= chunk_rows <= _MOST_CHUNK_ROWS:
        raise ValueError(f"chunks of {chunk_rows} rows")
    if expected is not None:
        method = spec.method if any_coder else expected.spec.method
        wanted = (expected.rows, expected.n_envs, expected.views, expected.obs_shape, expected.dtype, method)
        if (rows, n_envs, views, obs_shape, dtype, spec.method) != wanted:
            raise ValueError(f"observations of another form: {shape}, {obs_shape}, {dtype}, {spec.method!r}, not {wanted}")
    layout = FrameLayout(obs_shape, np.dtype(dtype).itemsize, axis, group)
    if layout.length % layout.group:
        raise ValueError(f"{layout.length} planes do not split into frames of {layout.group}")
    frames = frames_of(rows, n_envs, views, chunk_rows, layout, dtype, spec, lock)
    frames.writes, frames.next_look = writes, next_look
    return frames


def load_frames(
    said: Any, expected: Frames, saved: SavedDirectory, lost: list[tuple[int, int]] | None, any_coder: bool = False
) -> Frames:
    """
    Make a column of what was saved of it. Nothing of it is trusted.

    :param said: The description
    :param expected: An empty column that was made for the same observations
    :param saved: Where from
    :param lost: Gets the rows of chunks that are damaged; None if that is an error
    :param any_coder: Whether they may be coded otherwise than those of the empty column
    :return: The column
    """
    try:
        frames = empty_frames(said, expected, expected.lock, any_coder)
        chunks, last = [check_chunk(part, frames) for part in said["chunks"]], said["open"]
        last = None if last is None else check_chunk(last, frames)
    except (KeyError, TypeError, ValueError, IndexError, ZeroDivisionError, OverflowError) as error:
        raise StorageError(f"{saved.path} is damaged: {error}; load another copy of the directory") from error
    is_lost = np.zeros(frames.rows if lost is not None else 0, np.bool_)
    for name, first, rows in chunks:  # in the order in which they were written, so later ones hold what earlier ones did
        is_lost[first : first + rows] = not load_chunk(frames.adopt, saved, name, first, rows, lost is not None)
    if last is not None:
        _, first, rows = last
        is_lost[first : first + rows] = not load_chunk(frames.resume, saved, *last, lost is not None)
    if lost is not None:
        edges = np.flatnonzero(np.diff(np.concatenate(([0], is_lost, [0])))).tolist()
        lost += list(zip(edges[::2], edges[1::2], strict=True))
    return frames


def check_chunk(said: Any, frames: Frames) -> tuple[Any, int, int]:
    """
    Check what a description says of a chunk.

    :param said: That part of the description
    :param frames: The column that it belongs to
    :return: The name of its bytes, its first row and the number of its rows; ``ValueError`` or ``TypeError`` where it does
        not fit
    """
    name, first, rows, lap = said
    if any(type(number) is not int or number < 0 for number in (first, rows, lap)) or not 0 < rows <= frames.rows - first:
        raise ValueError(f"a chunk of {rows} rows from row {first} on does not fit {frames.rows} rows")
    return name, first, rows


def load_chunk(take: Any, saved: SavedDirectory, name: Any, first: int, rows: int, may_be_lost: bool) -> bool:
    """
    Load a chunk.

    :param take: What takes it: ``adopt`` or ``resume`` of a column
    :param saved: Where from
    :param name: The name of its bytes
    :param first: Its first row
    :param rows: The number of its rows
    :param may_be_lost: Whether it is no error if it is damaged
    :return: Whether it is there and undamaged
    """
    try:
        try:
            chunk = Chunk(saved.read(name))
            if (chunk.first_row, chunk.rows) != (first, rows):
                raise StorageError(f"it has {chunk.rows} rows from row {chunk.first_row} on, not {rows} from row {first} on")
            take(chunk)
        except DamagedFileError:
            raise
        except StorageError as error:
            raise DamagedFileError(f"{saved.path}/{name}: {error}") from error
    except DamagedFileError:
        if not may_be_lost:
            raise
        return False
    return True
