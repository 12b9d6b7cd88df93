"""Transitions to and from npz files. Nothing in a file is unpickled, and it is read and written some rows at a time."""

from __future__ import annotations

import json
import math
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from io import BytesIO
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.preprocessing import get_action_dim, get_obs_shape

from sb3_extra_buffers._spaces import any_box, discrete_for, scale_actions
from sb3_extra_buffers._support import atomic_write, with_progress
from sb3_extra_buffers.compressed.files import Path
from sb3_extra_buffers.compressed.saved_spaces import describe_space, make_space
from sb3_extra_buffers.datasets.dataset import OfflineDataset
from sb3_extra_buffers.datasets.filling import add_block, new_buffer, rows_of
from sb3_extra_buffers.recording.rows import OBSERVED, PLAIN, Array
from sb3_extra_buffers.storage.errors import StorageError

SPACES = "spaces"
"""The member that says what observations and actions are."""

_ROWS_AT_ONCE = 64
_DAMAGES = (
    *(zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, NotImplementedError),
    *(ValueError, ArithmeticError, LookupError, RuntimeError, TypeError, SyntaxError, tokenize.TokenError),
)


def export_npz(source: ReplayBuffer | OfflineDataset | Path, path: Path, *, progress: bool = False) -> int:
    """
    Write the transitions of a replay buffer or a data set to an npz file, which ``numpy.load`` reads.

    Each column is an array of steps x environments, oldest step first: ``observations``, ``next_observations`` (of Dict
    observations ``observations/KEY``), ``actions``, ``rewards``, ``dones``, ``timeouts``. The file appears whole or not at
    all.

    :param source: A replay buffer of SB3 or of this package, a data set, or its directory
    :param path: The file
    :param progress: Whether to show a progress bar (on a terminal)
    :return: How many transitions were written
    """
    rows = rows_of(source)
    described = {
        "observation_space": describe_space(rows.observation_space),
        "action_space": describe_space(rows.action_space),
    }
    members = _members(rows.observation_space, rows.action_space, rows.n_envs)
    with atomic_write(path) as beside, zipfile.ZipFile(beside, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        with archive.open(f"{SPACES}.npy", "w") as file:
            np.lib.format.write_array(file, np.array(json.dumps(described)), allow_pickle=False)
        for name, (column, key, dtype, shape) in with_progress(members.items(), len(members), "writing", "array", progress):
            head = {"descr": dtype.str, "fortran_order": False, "shape": (rows.used, *shape)}
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array_header_1_0(file, head)
                for block in rows.blocks((column,)):
                    part = block[column] if key is None else block[column][key]
                    file.write(np.ascontiguousarray(part, dtype).reshape(-1).view(np.uint8).data)
    return rows.used * rows.n_envs


def _members(
    space: spaces.Space[Any], action_space: spaces.Space[Any], n_envs: int
) -> dict[str, tuple[str, str | None, np.dtype[Any], tuple[int, ...]]]:
    """Of each array its column and key, its type, and the shape of a step."""
    parts: dict[Any, Any] = dict(space.spaces) if isinstance(space, spaces.Dict) else {None: space}
    members: dict[str, Any] = {}
    for column in OBSERVED:
        for key, part in parts.items():
            shape: Any = get_obs_shape(part)
            members[column if key is None else f"{column}/{key}"] = column, key, np.dtype(part.dtype), (n_envs, *shape)
    action_type = np.dtype(ReplayBuffer._maybe_cast_dtype(action_space.dtype))
    members["actions"] = "actions", None, action_type, (n_envs, get_action_dim(action_space))
    return members | {name: (name, None, np.dtype(np.float32), (n_envs,)) for name in PLAIN[1:]}


class _NpzFile:
    """Arrays in a zip file, read like ``numpy.load(allow_pickle=False)``, but some rows at a time."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self._members = {name.removesuffix(".npy"): name for name in archive.namelist()}
        self.heads = {name: self._read_head(name) for name in self._members}

    def _read_head(self, name: str) -> tuple[tuple[int, ...], np.dtype[Any], int]:
        with self._archive.open(self._members[name]) as file:
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, is_fortran, dtype = read(file)
            start = file.tell()
        if dtype.hasobject:
            raise StorageError(
                f"{name!r} holds Python objects, which are pickled and could run code; save it as an array of numbers"
            )
        if dtype.kind not in "biufU" or (is_fortran and len(shape) > 1):
            raise StorageError(f"{name!r} is of type {dtype}, or in Fortran's order; save numbers, with np.ascontiguousarray")
        return shape, dtype, start

    def whole(self, name: str) -> Array:
        """All of an array."""
        array: Array = np.load(BytesIO(self._archive.read(self._members[name])), allow_pickle=False)
        return array

    def pieces(self, name: str, rows: int) -> Iterator[Array]:
        """An array, some rows at a time."""
        shape, dtype, start = self.heads[name]
        with self._archive.open(self._members[name]) as file:
            file.read(start)
            for first in range(0, shape[0], rows):
                some = (min(rows, shape[0] - first), *shape[1:])
                yield np.frombuffer(file.read(math.prod(some) * dtype.itemsize), dtype).reshape(some)
            if file.read(1):  # the checksum is compared at the end
                raise StorageError(f"{name!r} is longer than it says")


def replay_from_npz(
    path: Path,
    *,
    observation_space: spaces.Space[Any] | None = None,
    action_space: spaces.Space[Any] | None = None,
    progress: bool = False,
    **options: Any,
) -> Any:
    """
    Read transitions from an npz file: one of ``export_npz``, or arrays of the same names from elsewhere.

    From elsewhere, arrays may also be of transitions alone, without an axis for environments; ``terminals`` may stand for
    dones that are not due to time-outs; ``timeouts`` may be missing. Actions of a ``Box`` are taken to be those of the
    environment.

    :param path: The file
    :param observation_space: What was seen; found in the file, or guessed from the arrays by default
    :param action_space: What was done; likewise
    :param progress: Whether to show a progress bar (on a terminal)
    :param options: Options of the buffer
    :return: A compressed replay buffer
    """
    with open(path, "rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                return _read(_NpzFile(archive), observation_space, action_space, progress, options)
        except StorageError as error:
            raise StorageError(f"{path}: {error}") from error
        except _DAMAGES as error:
            raise StorageError(f"{path} is damaged, or is not an npz file of transitions: {error}") from error


def _read(file: _NpzFile, space: Any, action_space: Any, progress: bool, options: Mapping[str, Any]) -> Any:
    is_ours = SPACES in file.heads
    if is_ours:
        described = json.loads(file.whole(SPACES).item())
        space, action_space = make_space(described["observation_space"]), make_space(described["action_space"])
    heads = file.heads
    ends = "dones" if "dones" in heads else "terminals"
    missing = [name for name in ("actions", "rewards", ends) if name not in heads]
    missing += [name for name in OBSERVED if name not in heads and not any(key.startswith(f"{name}/") for key in heads)]
    if missing:
        raise StorageError(f"there is no array {missing[0]!r}; there are {', '.join(map(repr, heads)) or 'none'}")
    steps = heads["rewards"][0]  # of shape (steps,) or (steps, environments)
    if len(steps) not in (1, 2):
        raise StorageError(f"rewards have the shape {steps}; it must be (steps,) or (steps, environments)")
    rows, n_envs = steps[0], steps[1] if len(steps) == 2 else 1
    space = _guess_space(heads, len(steps)) if space is None else space
    action_space = _guess_actions(file, len(steps)) if action_space is None else action_space
    members = _members(space, action_space, n_envs)
    columns: dict[tuple[str, str | None], Iterator[Array]] = {}
    for name, (column, key, dtype, shape) in members.items():
        found = ends if name == "dones" else name
        if found not in heads:
            if name == "timeouts":
                continue
            raise StorageError(f"there is no array {found!r}, which {space} needs")
        given, given_type, _ = heads[found]
        if given[: len(steps)] != steps or math.prod(given[len(steps) :]) != math.prod(shape[1:]):
            raise StorageError(f"{found!r} has the shape {given}, and {(rows, *shape)} is needed")
        if column in OBSERVED and given_type != dtype:
            raise StorageError(f"{found!r} is of type {given_type}, but {space} is of {dtype}")
        columns[column, key] = file.pieces(found, _ROWS_AT_ONCE)
    buffer = new_buffer(space, action_space, rows, n_envs, options)
    starts = range(0, rows, _ROWS_AT_ONCE)
    for first in with_progress(starts, len(starts), "reading", "block", progress):
        count = min(_ROWS_AT_ONCE, rows - first)
        block: dict[str, Any] = {}
        for name, (column, key, dtype, shape) in members.items():
            if (column, key) not in columns:
                part: Any = np.zeros((count, *shape), dtype)
            else:
                part = next(columns[column, key]).reshape(count, *shape)
            if key is None:
                block[name] = part
            else:
                block.setdefault(column, {})[key] = part
        if ends == "terminals":
            block["timeouts"] = (block["timeouts"] > 0) & (block["dones"] == 0)
            block["dones"] = (block["dones"] > 0) | block["timeouts"]
        if not is_ours:
            block["actions"] = scale_actions(action_space, block["actions"])
        add_block(buffer, block)
    for pieces in columns.values():
        next(pieces, None)  # reads to the end, where the checksum is compared
    return buffer


def _guess_space(heads: Mapping[str, Any], axes: int) -> spaces.Space[Any]:
    if "observations" in heads:
        shape, dtype, _ = heads["observations"]
        return any_box(shape[axes:], dtype)
    parts = {name.partition("/")[2]: head for name, head in heads.items() if name.startswith("observations/")}
    return spaces.Dict({key: any_box(shape[axes:], dtype) for key, (shape, dtype, _) in parts.items()})


def _guess_actions(file: _NpzFile, axes: int) -> spaces.Space[Any]:
    actions = file.whole("actions")
    shape = actions.shape[axes:]
    if not actions.size:
        raise StorageError("it holds no actions, so say what they are: action_space=")
    if actions.dtype.kind in "iu" and math.prod(shape) == 1:
        return discrete_for(actions)
    if actions.dtype.kind == "f" and actions.min() >= -1 and actions.max() <= 1:
        return spaces.Box(-1, 1, shape, np.float32)
    raise StorageError(f"it does not say what its actions of {actions.dtype} and shape {shape} are; give action_space=")
