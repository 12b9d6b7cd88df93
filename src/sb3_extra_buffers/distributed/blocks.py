"""
Blocks: what collectors send to shards, as tuples of plain values that Ray carries.

A ``Schema`` says what all blocks of a run hold. A ``BlockBuilder`` takes steps as ``ReplayBuffer.add`` does, and codes
observations as they come. A block then has a name (collector, incarnation, sequence), the episodes that have ended in it, and
its columns and chunks one after the other, deflated together, because a short chunk is mostly its key frame. The stream of
zlib has a checksum, and so has each chunk.
"""

from __future__ import annotations

import hashlib
import math
import pickle
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sb3_extra_buffers.codecs._optional import has_igzip
from sb3_extra_buffers.storage import StorageError, StoreLock, make_spec, runs_type_for
from sb3_extra_buffers.storage._core import BLOCK_ROWS, PlainColumn, Table
from sb3_extra_buffers.storage.frames import Frames, frames_of
from sb3_extra_buffers.storage.layout import FrameLayout
from sb3_extra_buffers.storage.methods import CoderSpec

Array = npt.NDArray[Any]
Who = tuple[int, int]
"""A collector and its incarnation: how often it has been replaced."""

_LEVEL, _LEVEL_OF_ISAL = 1, 2  # about as small as each other
_MOST_STEPS = 4096
_TAIL = "actions", "rewards", "dones", "timeouts"


class BlockError(StorageError):
    """A message is not a block of this run, or is damaged; nothing of it was added."""


class ShardLostError(RuntimeError):
    """
    A shard does not answer any more.

    :param shard: Its number
    :param why: What is known
    """

    def __init__(self, shard: int, why: str) -> None:
        super().__init__(f"shard {shard} is lost: {why}")
        self.shard = shard

    def __reduce__(self) -> tuple[type[ShardLostError], tuple[int, str]]:
        return ShardLostError, (self.shard, self.args[0].partition(": ")[2])


class MissingError(TimeoutError):
    """A collector or a shard did not answer in time; the message names it."""


# -- what blocks hold -----------------------------------------------------------------------------------------------------


class Column(NamedTuple):
    """A column of numbers that are sent as they are."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class Field(NamedTuple):
    """The observations of one key, or all of them where they are not a Dict."""

    key: str | None
    shape: tuple[int, ...]
    dtype: str
    is_compressed: bool
    """Whether they are kept as frames; small ones are kept as they are."""


@dataclass(frozen=True)
class Schema:
    """What all blocks of a run hold, and how it is coded."""

    fields: tuple[Field, ...]
    action_shape: tuple[int, ...]
    action_dtype: str
    """As the learner gets actions."""
    stored_action_dtype: str
    """As they are sent and kept; every action has to fit it."""
    n_envs: int
    """Environments of a collector."""
    block_steps: int
    method: str
    fallback: str
    """The codec for frames that no reference helps; it has to be installed everywhere."""

    def __post_init__(self) -> None:
        if self.block_steps % BLOCK_ROWS or not BLOCK_ROWS <= self.block_steps <= _MOST_STEPS:
            raise ValueError(
                f"block_steps is {self.block_steps}; it must be a multiple of {BLOCK_ROWS}, from {BLOCK_ROWS} to {_MOST_STEPS}"
            )

    @cached_property
    def cells(self) -> int:
        """Transitions in a block."""
        return self.block_steps * self.n_envs

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """The columns that are no frames, in the order of a row."""
        small = [
            Column(f"{view}:{'' if field.key is None else field.key}", field.shape, np.dtype(field.dtype))
            for field in self.fields
            if not field.is_compressed
            for view in ("obs", "next_obs")
        ]
        types = np.dtype(self.stored_action_dtype), np.dtype(np.float32), np.dtype(np.bool_), np.dtype(np.bool_)
        shapes: tuple[tuple[int, ...], ...] = (self.action_shape, (), (), ())
        return (*small, *(Column(*described) for described in zip(_TAIL, shapes, types, strict=True)))

    @cached_property
    def are_frames(self) -> tuple[bool, ...]:
        """For each array of a sample, whether it is kept as frames."""
        return (*(field.is_compressed for field in self.fields for _ in range(2)), False, False, False, False)

    @cached_property
    def digest(self) -> str:
        """What tells one schema from another."""
        return hashlib.blake2b(str((self, BLOCK_ROWS)).encode(), digest_size=8).hexdigest()

    def make_table(self, rows: int, n_envs: int | None = None, chunk_rows: int | None = None) -> BlockTable:
        """An empty table for such rows, of a collector's environments and with all rows in a chunk by default."""
        return BlockTable(self, rows, self.n_envs if n_envs is None else n_envs, rows if chunk_rows is None else chunk_rows)


class BlockTable:
    """A table of a schema's rows, with its columns at hand."""

    def __init__(self, schema: Schema, rows: int, n_envs: int, chunk_rows: int) -> None:
        self.rows = rows
        self.lock = StoreLock()
        self.frames: list[Frames] = []
        self.arrays: dict[str, Array] = {
            column.name: np.zeros((rows, n_envs, *column.shape), column.dtype) for column in schema.columns
        }
        plain = iter(schema.columns)
        columns: list[Any] = []
        for field in schema.fields:
            if field.is_compressed:
                dtype = np.dtype(field.dtype)
                layout = FrameLayout.whole(field.shape, dtype.itemsize)
                spec = make_spec(schema.method, dtype, runs_type_for(field.shape))
                coder = CoderSpec(spec.method, spec.elem_type, spec.runs_type, {}, {}, schema.fallback)  # the same everywhere
                columns.append(frames_of(rows, n_envs, 2, chunk_rows, layout, dtype, coder, self.lock))
                self.frames.append(columns[-1])
            else:
                columns += [PlainColumn(self.arrays[next(plain).name]) for _ in range(2)]
        columns += [PlainColumn(self.arrays[name]) for name in _TAIL]
        self.table = Table(columns, rows, n_envs, self.lock)

    def splits(self) -> tuple[tuple[int, int], ...]:
        """How observations split into frames now: axis and planes of a frame, for each key that is kept as frames."""
        return tuple((frames.layout.axis, frames.layout.group) for frames in self.frames)

    def split(self, splits: Sequence[tuple[int, int]]) -> None:
        """Split observations as another table does, and stop looking for a better way."""
        for frames, (axis, group) in zip(self.frames, splits, strict=True):
            if (frames.layout.axis, frames.layout.group) != (axis, group):
                frames.set_layout(FrameLayout(frames.obs_shape, frames.dtype.itemsize, axis, group))
            frames.next_look = 0
            frames.set_patience(1 << 60)

    def chunks(self) -> tuple[tuple[bytes, ...], ...]:
        """Seal the frames: for each key that is kept as frames its chunks, in the order of rows."""
        found = []
        for frames in self.frames:
            sealed, last = frames.chunks()
            found.append(tuple(map(bytes, [*sealed, *([] if last is None else [last])])))
        return tuple(found)

    def adopt(self, chunks: Sequence[Sequence[Any]], first: int = 0) -> None:
        """Make chunks of each key part of its column, from a row on."""
        for frames, of_key in zip(self.frames, chunks, strict=True):
            row = first
            for chunk in of_key:
                rows = chunk.rows
                frames.adopt(chunk, row)
                row += rows

    def read(self, rows: Array, envs: Array) -> tuple[Array, ...]:
        """Read cells: all values, in the order of a row."""
        return self.table.begin_read(rows, envs).finish()


def deflate(data: Any) -> bytes:
    """Compress bytes, faster where isal is installed; any zlib can read them."""
    if has_igzip():
        from isal import isal_zlib

        return bytes(isal_zlib.compress(data, _LEVEL_OF_ISAL))
    return zlib.compress(data, _LEVEL)


# -- blocks ---------------------------------------------------------------------------------------------------------------


class Episode(NamedTuple):
    """An episode that has ended, as ``Monitor`` tells it."""

    reward: float
    length: int
    seconds: float
    success: int = -1
    """1 or 0 where the environment says whether it succeeded, else -1."""


class Block(NamedTuple):
    """Steps of all environments of one collector. It is sent as a plain tuple, which takes fewer bytes."""

    run: bytes
    schema: str
    """Digest of the schema."""
    collector: int
    incarnation: int
    sequence: int
    settled: int
    """Blocks of this collector and incarnation before this one have been acknowledged."""
    policy_version: int
    """The oldest policy that has acted in it."""
    splits: tuple[tuple[int, int], ...]
    """For each key that is kept as frames, axis and planes of a frame."""
    sizes: tuple[tuple[int, ...], ...]
    """Likewise, bytes of each chunk."""
    episodes: tuple[tuple[float, int, float, int], ...]
    data: bytes
    """The columns in the order of the schema, and the chunks, deflated together."""

    @property
    def name(self) -> tuple[int, int, int]:
        """What tells it from all other blocks of the run."""
        return self.collector, self.incarnation, self.sequence


def pack(columns: Sequence[Array], chunks: Sequence[Sequence[bytes]]) -> tuple[tuple[tuple[int, ...], ...], bytes]:
    """Sizes and data of a block."""
    parts = [np.ascontiguousarray(array).tobytes() for array in columns] + [chunk for of_key in chunks for chunk in of_key]
    return tuple(tuple(map(len, of_key)) for of_key in chunks), deflate(b"".join(parts))


def unpack(schema: Schema, sizes: Sequence[Sequence[int]], data: Any) -> tuple[list[Array], tuple[tuple[bytes, ...], ...]]:
    """Columns and chunks of a block; ``ValueError`` or ``zlib.error`` where it is damaged."""
    body = zlib.decompress(data)
    columns, at = [], 0
    for column in schema.columns:
        shape = schema.block_steps, schema.n_envs, *column.shape
        columns.append(np.frombuffer(body, column.dtype, math.prod(shape), at).reshape(shape))
        at += columns[-1].nbytes
    chunks = []
    for of_key in sizes:
        stops = (at + np.cumsum(of_key, dtype=np.int64)).tolist()
        chunks.append(tuple(body[stop - size : stop] for size, stop in zip(of_key, stops, strict=True)))
        at = stops[-1] if stops else at
    if at != len(body):
        raise ValueError(f"it has {len(body)} bytes, and its parts {at}")
    return columns, tuple(chunks)


def wire_bytes(message: Any) -> int:
    """Bytes that a message takes when Ray sends it."""
    return len(pickle.dumps(message, 5))


class BlockBuilder:
    """Takes steps of all environments of a collector, and makes blocks of them."""

    def __init__(self, schema: Schema, run: bytes, collector: int, incarnation: int) -> None:
        self.schema, self.run, self.who = schema, run, (collector, incarnation)
        self.sequence = 0
        self.steps = 0
        """Steps of all blocks so far, the open one included."""
        self._table = schema.make_table(schema.block_steps)
        self._episodes: list[tuple[float, int, float, int]] = []
        self._rows = self._version = 0

    @property
    def is_full(self) -> bool:
        """Whether the block is complete, and has to be sealed before the next step."""
        return self._rows == self.schema.block_steps

    def add(
        self, obs: Any, next_obs: Any, actions: Any, rewards: Any, dones: Any, infos: Any, policy_version: int = 0
    ) -> None:
        """Add a step, as ``ReplayBuffer.add`` takes it, that a version of the policy has played."""
        if self.is_full:
            raise ValueError("the block is complete: seal it before the next step")
        schema, n_envs = self.schema, self.schema.n_envs
        given = np.asarray(actions).reshape(n_envs, *schema.action_shape)
        stored = given.astype(schema.stored_action_dtype)
        if not np.array_equal(stored, given.astype(schema.action_dtype), equal_nan=given.dtype.kind == "f"):
            raise ValueError(f"actions {given.tolist()} do not fit {schema.stored_action_dtype}, in which they are sent")
        done = np.asarray(dones).reshape(n_envs).astype(np.bool_)
        timeouts = np.array([bool(info.get("TimeLimit.truncated", False)) for info in infos])
        values = [
            np.asarray(view if field.key is None else view[field.key]).reshape(n_envs, *field.shape)
            for field in schema.fields
            for view in (obs, next_obs)
        ]
        rewarded = np.asarray(rewards, dtype=np.float32).reshape(n_envs)
        self._table.table.append((*values, stored, rewarded, done, timeouts))
        self._version = policy_version if self._rows == 0 else min(self._version, policy_version)
        self._episodes += [_episode(info) for env, info in enumerate(infos) if done[env] and "episode" in info]
        self._rows += 1
        self.steps += 1

    def seal(self, settled: int = 0) -> Block:
        """Make a block of the steps, and begin the next one. Blocks before ``settled`` have been acknowledged."""
        if not self.is_full:
            raise ValueError(f"the block has {self._rows} of {self.schema.block_steps} steps")
        table, schema = self._table, self.schema
        chunks = table.chunks()
        sizes, data = pack([table.arrays[column.name] for column in schema.columns], chunks)
        numbers = *self.who, self.sequence, settled, self._version
        block = Block(self.run, schema.digest, *numbers, table.splits(), sizes, tuple(self._episodes), data)
        table.table.clear()
        self._episodes, self._rows = [], 0
        self.sequence += 1
        return block


def _episode(info: Mapping[str, Any]) -> tuple[float, int, float, int]:
    told, success = info["episode"], info.get("is_success")
    return float(told["r"]), int(told["l"]), float(told.get("t", 0.0)), -1 if success is None else int(bool(success))
