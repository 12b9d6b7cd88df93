"""Arrays whose first axis is rows, saved in pieces of some rows each: saving again writes those that have changed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sb3_extra_buffers.storage.directory import DamagedFileError, Replacement, SavedDirectory
from sb3_extra_buffers.storage.errors import StorageError
from sb3_extra_buffers.storage.json_values import from_json, to_json

Array = npt.NDArray[Any]

MOST_ROWS = 1 << 36
"""That a file may ask for."""

_PIECE_BYTES = 1 << 16
_MOST_PIECES = 512
_INFO_BYTES = 64  # what is reckoned for a dict


class RowPieces:
    """Arrays that are written together, cut into pieces to be saved."""

    def __init__(
        self,
        name: str,
        arrays: Mapping[str, Array],
        used: int,
        copies: bool = True,
        before: RowPieces | None = None,
        changed: Sequence[tuple[int, int]] | None = None,
    ) -> None:
        rows = len(next(iter(arrays.values())))
        row_bytes = sum(array[:1].nbytes for array in arrays.values())
        self._holds_objects = any(array.dtype.hasobject for array in arrays.values())
        if self._holds_objects:
            row_bytes = row_bytes // 8 * _INFO_BYTES
        piece_rows = max(-(-_PIECE_BYTES // max(row_bytes, 1)), -(-rows // _MOST_PIECES), 1)
        self.said: dict[str, Any] = {"name": name, "members": _describe(arrays), "used": used, "piece_rows": piece_rows}
        self.names: list[str] = []
        self._firsts = range(0, used, piece_rows)
        self._pieces: dict[int, Any] = {}
        for place, first in enumerate(self._firsts):
            stop = min(first + piece_rows, used)
            if before is not None and changed is not None and place < len(before.names) and not _touches(first, stop, changed):
                self._pieces[first] = before.names[place]
            else:
                parts = [array[first:stop] for array in arrays.values()]
                # Only copied: whoever puts them has more time than whoever waits for the copy.
                self._pieces[first] = [part.copy() for part in parts] if copies else parts

    def _bytes_of(self, parts: Sequence[Array]) -> bytes:
        if self._holds_objects:
            said = [to_json(info, "infos, what environments told,") for part in parts for info in part.reshape(-1).tolist()]
            return json.dumps(said, separators=(",", ":"), allow_nan=False).encode()
        return b"".join([part.tobytes() for part in parts])

    def put(self, files: Replacement) -> dict[str, Any]:
        """Save them."""
        for first in self._firsts:
            piece = self._pieces.pop(first)
            if isinstance(piece, str):
                self.names.append(files.keep(piece))
                continue
            data = self._bytes_of(piece)
            mark = hashlib.blake2b(data, digest_size=12).hexdigest()
            self.names.append(files.put(f"{self.said['name']}-{first}-{mark}", data))
        return {**self.said, "pieces": self.names}


def _touches(first: int, stop: int, ranges: Sequence[tuple[int, int]]) -> bool:
    return any(first < end and begin < stop for begin, end in ranges)


def _describe(arrays: Mapping[str, Array]) -> list[Any]:
    return [[key, "infos" if array.dtype.hasobject else array.dtype.str, list(array.shape)] for key, array in arrays.items()]


def load_rows(said: Any, arrays: Mapping[str, Array], saved: SavedDirectory, lost: list[tuple[int, int]] | None) -> None:
    """Fill arrays with what was saved of them."""
    rows = len(next(iter(arrays.values())))
    try:
        members = _describe(arrays)
        if said["members"] != members:
            raise ValueError(f"it holds {said['members']}, and {members} are expected")
        used, piece_rows, pieces = said["used"], said["piece_rows"], said["pieces"]
        for number in (used, piece_rows):
            if type(number) is not int or not 0 <= number < 1 << 48:
                raise ValueError(f"{number!r} is not a number of rows")
        if used > rows or not piece_rows or not isinstance(pieces, list) or len(pieces) != -(-used // piece_rows):
            raise ValueError(f"{used} of {rows} rows in files of {piece_rows} do not fit")
        if len(set(pieces)) != len(pieces):
            raise ValueError("a piece is there twice")
    except (KeyError, TypeError, ValueError) as error:
        raise StorageError(f"{saved.path} is damaged: {said['name']!r} does not fit: {error}; load another copy") from error
    for number, name in enumerate(pieces):
        first, stop = number * piece_rows, min((number + 1) * piece_rows, used)
        try:
            _fill(arrays, first, stop, saved.read(name), name)
        except DamagedFileError:
            if lost is None:
                raise
            lost.append((first, stop))


def _fill(arrays: Mapping[str, Array], first: int, stop: int, data: memoryview, name: str) -> None:
    at = 0
    for array in arrays.values():
        target = array[first:stop]
        if array.dtype.hasobject:
            _fill_infos(target, data, name)
            return
        if at + target.nbytes > len(data):
            break
        target[...] = np.frombuffer(data, array.dtype, target.size, at).reshape(target.shape)
        at += target.nbytes
    if at != len(data) or at != sum(array[first:stop].nbytes for array in arrays.values()):
        raise DamagedFileError(f"{name} is damaged: it holds {len(data)} bytes, which are not its rows; load another copy")


def _fill_infos(target: Array, data: memoryview, name: str) -> None:
    try:
        infos = json.loads(bytes(data))
        if not isinstance(infos, list) or len(infos) != target.size:
            raise ValueError(f"{target.size} infos are expected")
    except (ValueError, RecursionError) as error:
        raise DamagedFileError(f"{name} is damaged: {error}; load another copy") from error
    for place, said in zip(np.ndindex(target.shape), infos, strict=True):
        target[place] = from_json(said)
