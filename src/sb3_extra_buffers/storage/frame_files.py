"""Columns of frames in a directory: chunks are there just as they lie in memory, and are mapped when they are loaded."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from sb3_extra_buffers.storage._core import Chunk
from sb3_extra_buffers.storage.directory import DamagedFileError, Replacement, SavedDirectory
from sb3_extra_buffers.storage.errors import StorageError
from sb3_extra_buffers.storage.frames import Frames, FrozenFrames, adopt_span, check_places, frames_of
from sb3_extra_buffers.storage.json_values import from_json, make_dtype, make_shape, to_json
from sb3_extra_buffers.storage.layout import FrameLayout
from sb3_extra_buffers.storage.locks import StoreLock
from sb3_extra_buffers.storage.methods import CoderSpec

_HEADER = 152
_MOST_CHUNK_ROWS = 65519


def save_frames(name: str, frozen: FrozenFrames, used: int, files: Replacement) -> dict[str, Any]:
    """Save a column."""
    shape, obs_shape, dtype, spec, split = frozen.head
    names: dict[int, str] = {}
    spans = []
    for chunk, *rows in frozen.spans:
        if rows[1] < used:
            names[id(chunk)] = names.get(id(chunk)) or _save_chunk(name, chunk, files)
            spans.append([names[id(chunk)], *rows])
    return {
        "name": name,
        "shape": list(shape),
        "obs_shape": list(obs_shape),
        "dtype": dtype.str,
        "coder": _describe_coder(spec),
        "split": list(split),
        "looks": list(frozen.looks),
        "spans": spans,
    }


def _save_chunk(name: str, chunk: Chunk, files: Replacement) -> str:
    data = memoryview(chunk)
    # The header has the checksums of all that follows, so it tells whether a chunk is the same.
    mark = hashlib.blake2b(data[:_HEADER], digest_size=12).hexdigest()
    return files.put(f"{name}-{chunk.first_row}-{mark}", data)


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
    """Make a choice of coder of its description."""
    method, fallback = said["method"], said["fallback"]
    encoding, decoding = from_json(said["compression_kwargs"]), from_json(said["decompression_kwargs"])
    if not (
        isinstance(method, str) and isinstance(fallback, str) and isinstance(encoding, dict) and isinstance(decoding, dict)
    ):
        raise ValueError("the method and its options are not what they should be")
    return CoderSpec(method, make_dtype(said["elem_type"]), make_dtype(said["runs_type"]), encoding, decoding, fallback)


def empty_frames(said: Any, expected: Frames | None, lock: StoreLock, any_coder: bool = False) -> Frames:
    """Make an empty column as one was that was saved."""
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
    """Make a column of what was saved of it. Nothing of it is trusted."""
    try:
        frames = empty_frames(said, expected, expected.lock, any_coder)
        spans = SavedSpans(said, frames, saved)
    except (KeyError, TypeError, ValueError, IndexError, ZeroDivisionError, OverflowError) as error:
        raise StorageError(f"{saved.path} is damaged: {error}; load another copy of the directory") from error
    for number in reversed(range(len(spans.places))):
        try:
            spans.take(number)
        except DamagedFileError:
            if lost is None:
                raise
            _, _, first, rows = spans.places[number]
            lost.append((first, first + rows))
    return frames


class SavedSpans:
    """The spans of a column that was saved."""

    def __init__(self, said: Any, frames: Frames, saved: SavedDirectory) -> None:
        self.places = check_places(said["spans"], frames.rows)
        if not all(isinstance(name, str) for name, *_ in self.places):
            raise ValueError("the parts of its spans have no names")
        self._frames, self._saved = frames, saved
        self._chunks: dict[Any, Chunk] = {}

    def take(self, number: int) -> None:
        """Have the column adopt one of them; see ``adopt_span``."""
        name = self.places[number][0]
        try:
            chunk = self._chunks.get(name)
            if chunk is None:
                chunk = self._chunks[name] = Chunk(self._saved.read(name))
            adopt_span(self._frames, self.places, number, chunk)
        except DamagedFileError:
            raise
        except StorageError as error:
            raise DamagedFileError(f"{self._saved.path}/{name}: {error}") from error
