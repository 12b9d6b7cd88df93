"""The transitions in a directory, mapped: the state when it was opened, even if other processes go on writing there."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.preprocessing import get_action_dim, get_obs_shape

from sb3_extra_buffers.compressed.files import CLASSES, Path
from sb3_extra_buffers.compressed.saved_spaces import MOST_EVEN_BYTES, make_space
from sb3_extra_buffers.recording.rows import OBSERVED, PLAIN, Array, Integers, Rows
from sb3_extra_buffers.storage._core import Table
from sb3_extra_buffers.storage.directory import DamagedFileError, SavedDirectory
from sb3_extra_buffers.storage.disk import DISK, Disk
from sb3_extra_buffers.storage.errors import StorageError
from sb3_extra_buffers.storage.json_values import from_json
from sb3_extra_buffers.storage.locks import StoreLock
from sb3_extra_buffers.storage.mapped import MappedFrames, MappedRows
from sb3_extra_buffers.storage.row_files import MOST_ROWS

_TRIES = 5


class SavedTable(Rows):
    """What a directory holds, all of whose packs are mapped. ``open_table`` makes one."""

    def __init__(self, saved: SavedDirectory) -> None:
        self.saved = saved
        body = saved.body
        name = body.get("class")
        if not isinstance(name, str) or name not in CLASSES:
            raise StorageError(f"{saved.path} holds a {name!r}, which this version does not know; install a newer one")
        if "Rollout" in name:
            raise StorageError(
                f"{saved.path} holds a {name}, which has no transitions with what followed; load it with load_buffer(path)"
            )
        self.class_name: str = name
        """The class of the buffer that was saved."""
        try:
            self._read_arguments(body)
            self._map(body)
        except (LookupError, TypeError, ValueError, AssertionError, AttributeError, ArithmeticError, MemoryError) as error:
            raise StorageError(
                f"{saved.path} is damaged, or does not hold a {name}: {error!r}; load another copy of the directory"
            ) from error

    def _read_arguments(self, body: Mapping[str, Any]) -> None:
        given, values = body["arguments"], body["values"]
        room = [MOST_EVEN_BYTES]
        self.observation_space: spaces.Space[Any] = make_space(given["observation_space"], room)
        self.action_space: spaces.Space[Any] = make_space(given["action_space"], room)
        size, n_envs = from_json(given["buffer_size"]), from_json(given["n_envs"])
        for number in (size, n_envs):
            if type(number) is not int or not 0 < number < MOST_ROWS:
                raise ValueError(f"{size!r} transitions of {n_envs!r} environments")
        self.n_envs: int = n_envs
        self.rows: int = max(size // n_envs, 1)
        self.pos, self.full = values["pos"], values["full"]
        if type(self.pos) is not int or not 0 <= self.pos <= self.rows or type(self.full) is not bool:
            raise ValueError(f"pos {self.pos!r} and full {self.full!r} do not fit {self.rows} rows")
        self.used: int = self.rows if self.full else self.pos

    def _map(self, body: Mapping[str, Any]) -> None:
        lock = StoreLock()
        shape = self.n_envs, get_action_dim(self.action_space)
        floats = np.dtype(np.float32)
        expected: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {
            "actions": (np.dtype(ReplayBuffer._maybe_cast_dtype(self.action_space.dtype)), shape),
            **dict.fromkeys(PLAIN[1:], (floats, (self.n_envs,))),
        }
        self._frames: dict[Any, MappedFrames] = {}
        for described in body["frames"]:
            if described["key"] not in self.parts or described["key"] in self._frames:
                raise ValueError(f"there are frames of {described['key']!r}")
            self._frames[described["key"]] = mapped = MappedFrames(described, self.saved, lock)
            frames, space = mapped.frames, self.parts[described["key"]]
            found = frames.rows, frames.n_envs, frames.views, frames.obs_shape
            if found != (self.rows, self.n_envs, 2, get_obs_shape(space)):
                raise ValueError(f"{found} are frames of another form than {space}")
        for key, space in self.parts.items():
            if key not in self._frames:
                obs_shape: Any = get_obs_shape(space)
                expected |= {f"{view}/{key or ''}": (np.dtype(space.dtype), (self.n_envs, *obs_shape)) for view in (0, 1)}
        described = body["rows"][0]
        if described["name"] != "rows":
            raise ValueError(f"its first columns are {described['name']!r}")
        self._rows = MappedRows(described, expected, self.saved, lock)
        if not self.used <= self._rows.used <= self.rows:  # more after a reset of a HER buffer
            raise ValueError(f"its columns have {self._rows.used} rows, not {self.used}")
        columns = [mapped.frames for mapped in self._frames.values()]
        self._table = Table(columns, self.rows, self.n_envs, lock) if columns else None

    def in_order(self, steps: Integers) -> Integers:
        """Find the rows of steps, which are counted from 0 for the oldest one."""
        return (steps + self.pos) % self.rows if self.full else steps

    def read(self, names: Sequence[str], rows: Integers, envs: Integers) -> dict[str, Any]:
        """Read cells of columns: of each an array, or a dict of arrays. What observations share is decoded once."""
        found: dict[str, Any] = {name: self._rows.read(name, rows, envs) for name in names if name in PLAIN}
        views = [view for view, name in enumerate(OBSERVED) if name in names]
        decoded: dict[tuple[int, Any], Array] = {}
        if views and self._table is not None:
            for mapped in self._frames.values():
                mapped.need(rows)
            wanted = {2 * place + view: (view, key) for place, key in enumerate(self._frames) for view in views}
            arrays = self._table.begin_read(rows, envs, tuple(wanted)).finish()
            decoded = dict(zip(wanted.values(), arrays, strict=True))
        for view in views:
            parts: dict[Any, Array] = {}
            for key, space in self.parts.items():
                part = decoded.get((view, key))
                part = self._rows.read(f"{view}/{key or ''}", rows, envs) if part is None else part
                parts[key] = part if part.dtype == space.dtype else part.astype(space.dtype)
            found[OBSERVED[view]] = parts.get(None, parts)
        return found

    def check_all(self) -> None:
        """Check every byte, now."""
        for mapped in self._frames.values():
            mapped.need_all()
        self._rows.need_all()


def open_table(path: Path, disk: Disk = DISK) -> SavedTable:
    """Open a directory as it is now."""
    for _ in range(_TRIES):
        saved = SavedDirectory(path, disk)
        try:
            saved.hold()
        except DamagedFileError:
            if saved.has_changed():  # another process has saved meanwhile, and removed what this state needs
                continue
            raise
        return SavedTable(saved)
    raise StorageError(f"{os.fspath(path)} is saved more often than it can be opened; open it while no process saves to it")
