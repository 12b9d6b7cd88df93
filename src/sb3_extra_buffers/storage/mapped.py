"""A table that was saved, read where it lies: files are mapped, and a part of them is checked when it is first needed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from sb3_extra_buffers.storage._core import Pieces
from sb3_extra_buffers.storage.directory import DamagedFileError, SavedDirectory
from sb3_extra_buffers.storage.errors import StorageError
from sb3_extra_buffers.storage.frame_files import SavedSpans, empty_frames
from sb3_extra_buffers.storage.frames import is_shared
from sb3_extra_buffers.storage.json_values import make_dtype, make_shape
from sb3_extra_buffers.storage.locks import StoreLock

Array = npt.NDArray[Any]
Integers = npt.NDArray[np.int64]


class MappedFrames:
    """A column of frames. A chunk is checked and taken over when one of its rows is needed."""

    def __init__(self, said: Any, saved: SavedDirectory, lock: StoreLock) -> None:
        try:
            self.frames = empty_frames(said, None, lock)
            self._spans = SavedSpans(said, self.frames, saved)
        except (KeyError, TypeError, ValueError, IndexError, ZeroDivisionError, OverflowError) as error:
            raise StorageError(f"{saved.path} is damaged: {error}; load another copy of the directory") from error
        self._firsts = np.array([first for _, _, first, _ in self._spans.places], np.int64)
        self._is_missing = np.ones(len(self._firsts), np.bool_)
        self._n_missing = len(self._firsts)

    def need(self, rows: Integers) -> None:
        """Have rows that can be read from ``frames``."""
        if not self._n_missing:
            return
        wanted = np.zeros(len(self._firsts), np.bool_)
        place = np.searchsorted(self._firsts, rows, "right") - 1
        wanted[place[place >= 0]] = True
        for span in np.flatnonzero(wanted & self._is_missing).tolist():
            self._take(span)

    def need_all(self) -> None:
        """Have all rows."""
        for span in np.flatnonzero(self._is_missing).tolist():
            self._take(span)

    def _take(self, span: int) -> None:
        with self.frames.lock:
            for number in (span + 1, span, span - 1):  # two that share a row together, the later one first
                is_wanted = number == span or is_shared(self._spans.places, min(span, number))
                if is_wanted and self._is_missing[number]:  # else another thread was faster
                    self._spans.take(number)
                    self._is_missing[number] = False
                    self._n_missing -= 1


class MappedRows:
    """Plain columns that were saved together. A piece of them is checked when one of its rows is needed."""

    def __init__(
        self,
        said: Any,
        expected: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]],
        saved: SavedDirectory,
        lock: StoreLock,
    ) -> None:
        self._saved, self._lock = saved, lock
        try:
            members = {name: (make_dtype(dtype), make_shape(shape)) for name, dtype, shape in said["members"]}
            found = {name: (dtype, shape[1:]) for name, (dtype, shape) in members.items()}
            if found != dict(expected) or len(members) != len(said["members"]):
                raise ValueError(f"it holds {found}, and {dict(expected)} are expected")
            self.used: int = said["used"]
            piece_rows, self._names = said["piece_rows"], said["pieces"]
            for number in (self.used, piece_rows):
                if type(number) is not int or not 0 <= number < 1 << 48:
                    raise ValueError(f"{number!r} is not a number of rows")
            if not isinstance(self._names, list) or not piece_rows or len(self._names) != -(-self.used // piece_rows):
                raise ValueError(f"{self.used} rows in pieces of {piece_rows} do not fit")
            if len(set(self._names)) != len(self._names):
                raise ValueError("a piece is there twice")
            self._cells = {name: (place, dtype, shape[2:]) for place, (name, (dtype, shape)) in enumerate(members.items())}
            n_envs = next(iter(members.values()))[1][1]
            cell_bytes = [int(np.prod(shape, dtype=np.int64)) * dtype.itemsize for _, dtype, shape in self._cells.values()]
            self._pieces = Pieces(self.used, piece_rows, n_envs, cell_bytes)
        except (KeyError, TypeError, ValueError, IndexError, OverflowError, StopIteration) as error:
            raise StorageError(f"{saved.path} is damaged: its columns do not fit: {error}; load another copy") from error
        self._piece_rows = piece_rows
        self._is_missing = np.ones(self._pieces.n_pieces, np.bool_)
        self._n_missing = self._pieces.n_pieces

    def read(self, name: str, rows: Integers, envs: Integers) -> Array:
        """Read cells of a column."""
        if self._n_missing:
            wanted = np.unique(rows // self._piece_rows)
            for piece in wanted[self._is_missing[wanted]].tolist():
                self._take(piece)
        place, dtype, shape = self._cells[name]
        out = np.empty((len(rows), *shape), dtype)
        self._pieces.gather(place, rows, envs, out)
        return out

    def need_all(self) -> None:
        """Check all of it."""
        for piece in np.flatnonzero(self._is_missing).tolist():
            self._take(piece)

    def _take(self, piece: int) -> None:
        name = self._names[piece]
        with self._lock:
            if not self._is_missing[piece]:  # another thread was faster
                return
            try:
                self._pieces.put(piece, self._saved.read(name))
            except ValueError as error:
                raise DamagedFileError(f"{name} is damaged: {error}; load another copy") from error
            self._is_missing[piece] = False
            self._n_missing -= 1
