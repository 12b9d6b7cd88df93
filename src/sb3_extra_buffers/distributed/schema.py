"""What all blocks of a run look like: a plain value that collectors, shards and the learner agree on."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sb3_extra_buffers.storage import StoreLock, make_spec, runs_type_for
from sb3_extra_buffers.storage._core import BLOCK_ROWS, PlainColumn, Table
from sb3_extra_buffers.storage.frames import Frames, frames_of
from sb3_extra_buffers.storage.layout import FrameLayout
from sb3_extra_buffers.storage.methods import CoderSpec

Array = npt.NDArray[Any]

VERSION = 1
"""Version of blocks and of what describes them."""
MOST_BLOCK_STEPS = 4096
_SLACK = 1 << 20  # what a chunk takes besides its frames, generously
TAIL = ("actions", "rewards", "dones", "timeouts")
"""The columns after the observations."""


class Column(NamedTuple):
    """A column of numbers that are sent as they are."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


@dataclass(frozen=True)
class Field:
    """
    The observations of one key, or all of them where they are not a Dict.

    :param key: The key; None where they are not a Dict
    :param shape: Shape of one observation
    :param dtype: Type of its elements, as NumPy writes it
    :param is_compressed: Whether they are kept as frames; small ones are kept as they are
    """

    key: str | None
    shape: tuple[int, ...]
    dtype: str
    is_compressed: bool


@dataclass(frozen=True)
class Schema:
    """
    What a block holds, and how it is coded.

    :param fields: The observations
    :param action_shape: Shape of one action, as SB3's buffers store it
    :param action_dtype: Type in which the learner gets actions
    :param stored_action_dtype: Type in which they are sent and kept; every action has to fit it
    :param lanes: Environments of a collector
    :param block_steps: Steps in a block, a multiple of 16
    :param method: How frames are coded
    :param fallback: The codec for frames that no reference helps; it has to be installed everywhere
    """

    fields: tuple[Field, ...]
    action_shape: tuple[int, ...]
    action_dtype: str
    stored_action_dtype: str
    lanes: int
    block_steps: int
    method: str
    fallback: str

    def __post_init__(self) -> None:
        if self.block_steps % BLOCK_ROWS or not BLOCK_ROWS <= self.block_steps <= MOST_BLOCK_STEPS:
            raise ValueError(
                f"block_steps is {self.block_steps}; it must be a multiple of {BLOCK_ROWS}, from {BLOCK_ROWS} to "
                f"{MOST_BLOCK_STEPS}"
            )
        if self.lanes < 1:
            raise ValueError(f"a collector has {self.lanes} environments; it needs 1 or more")
        if not self.fields:
            raise ValueError("there are no observations to send")

    # -- what follows from it -------------------------------------------------------------------------------------------

    @cached_property
    def cells(self) -> int:
        """Transitions in a block."""
        return self.block_steps * self.lanes

    @cached_property
    def frame_fields(self) -> tuple[Field, ...]:
        """The observations that are kept as frames."""
        return tuple(field for field in self.fields if field.is_compressed)

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """All other columns, in the order of a row."""
        small = [
            Column(f"{view}:{'' if field.key is None else field.key}", field.shape, np.dtype(field.dtype))
            for field in self.fields
            if not field.is_compressed
            for view in ("obs", "next_obs")
        ]
        types = np.dtype(self.stored_action_dtype), np.dtype(np.float32), np.dtype(np.bool_), np.dtype(np.bool_)
        shapes: tuple[tuple[int, ...], ...] = (self.action_shape, (), (), ())
        return (*small, *(Column(*described) for described in zip(TAIL, shapes, types, strict=True)))

    @cached_property
    def n_observed(self) -> int:
        """Values of a row that are observations: two for each key."""
        return 2 * len(self.fields)

    @cached_property
    def digest(self) -> bytes:
        """16 bytes that tell one schema from another."""
        return hashlib.blake2b(self.to_json().encode(), digest_size=16).digest()

    def most_bytes(self, cells: int) -> int:
        """
        Tell what transitions can take at most, coded in the worst way.

        :param cells: How many
        :return: Bytes; nobody has to unpack more than that
        """
        observed = sum(math.prod(field.shape) * np.dtype(field.dtype).itemsize for field in self.fields)
        numbers = sum(math.prod(column.shape) * column.dtype.itemsize for column in self.columns)
        return 4 * cells * (observed + numbers) + _SLACK

    def coder(self, field: Field) -> CoderSpec:
        """
        Tell how frames of a key are coded.

        :param field: The key
        :return: The choice; the same in every process
        """
        dtype = np.dtype(field.dtype)
        spec = make_spec(self.method, dtype, runs_type_for(field.shape))
        return CoderSpec(spec.method, spec.elem_type, spec.runs_type, {}, {}, self.fallback)

    def make_table(self, rows: int, lanes: int | None = None, chunk_rows: int | None = None) -> SchemaTable:
        """
        Make an empty table for such rows.

        :param rows: How many
        :param lanes: Environments; those of a collector by default
        :param chunk_rows: Rows of a chunk; all by default
        :return: The table
        """
        return SchemaTable(self, rows, self.lanes if lanes is None else lanes, rows if chunk_rows is None else chunk_rows)

    # -- as text --------------------------------------------------------------------------------------------------------

    def to_json(self) -> str:
        """
        Describe it.

        :return: JSON, the same for equal schemas
        """
        return json.dumps({"version": VERSION, **asdict(self)}, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Schema:
        """
        Make one of its description.

        :param text: JSON
        :return: The schema; ``ValueError`` where this describes none
        """
        try:
            said = json.loads(text)
            if said.pop("version") != VERSION:
                raise ValueError("it is of another version of sb3-extra-buffers; install the same one everywhere")
            fields = tuple(Field(**{**field, "shape": tuple(field["shape"])}) for field in said.pop("fields"))
            return cls(fields=fields, action_shape=tuple(said.pop("action_shape")), **said)
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"this does not describe blocks: {error}") from error


class SchemaTable:
    """
    A table of a schema's rows, with its columns at hand.

    :param schema: The schema
    :param rows: Number of rows
    :param lanes: Number of environments
    :param chunk_rows: Rows of a chunk, at most
    """

    def __init__(self, schema: Schema, rows: int, lanes: int, chunk_rows: int) -> None:
        self.schema, self.rows, self.lanes = schema, rows, lanes
        self.lock = StoreLock()
        self.frames: list[Frames] = []
        self.arrays: dict[str, Array] = {
            column.name: np.zeros((rows, lanes, *column.shape), column.dtype) for column in schema.columns
        }
        plain = iter(schema.columns)
        columns: list[Any] = []
        for field in schema.fields:
            if field.is_compressed:
                dtype = np.dtype(field.dtype)
                layout = FrameLayout.whole(field.shape, dtype.itemsize)
                shape = rows, lanes, 2, chunk_rows
                columns.append(frames_of(*shape, layout, dtype, schema.coder(field), self.lock))
                self.frames.append(columns[-1])
            else:
                columns += [PlainColumn(self.arrays[next(plain).name]) for _ in range(2)]
        columns += [PlainColumn(self.arrays[name]) for name in TAIL]
        self.table = Table(columns, rows, lanes, self.lock)

    def splits(self) -> list[tuple[int, int]]:
        """
        Tell how observations split into frames now.

        :return: Axis and planes of a frame, for each key that is kept as frames
        """
        return [(frames.layout.axis, frames.layout.group) for frames in self.frames]

    def split(self, splits: Sequence[tuple[int, int]]) -> None:
        """
        Split observations in a way that others have found, and stop looking for one.

        :param splits: What ``splits`` gave there
        """
        for frames, (axis, group) in zip(self.frames, splits, strict=True):
            if (frames.layout.axis, frames.layout.group) != (axis, group):
                frames.set_layout(FrameLayout(frames.obs_shape, frames.dtype.itemsize, axis, group))
            frames.next_look = 0
            frames.set_patience(1 << 60)

    def chunks(self) -> list[list[Any]]:
        """
        Seal what is in it.

        :return: For each key that is kept as frames its chunks, in the order of rows
        """
        found = []
        for frames in self.frames:
            sealed, last = frames.chunks()
            found.append([*sealed, *([] if last is None else [last])])
        return found

    def read(self, rows: Array, lanes: Array) -> tuple[Array, ...]:
        """
        Read cells.

        :param rows: Their rows
        :param lanes: Their environments
        :return: All values, in the order of a row
        """
        return self.table.begin_read(rows, lanes).finish()
