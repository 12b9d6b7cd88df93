"""
Blocks: what a collector sends to a shard.

A block is one message of bytes: a header of fixed size, a body, and a checksum of both. The body has the episodes that have
ended, the columns of numbers, and the chunks of frames just as they lie in memory; it is deflated, because a short chunk is
mostly its key frame. Nothing of it is ever unpickled or evaluated, and everything is checked before it is used.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from sb3_extra_buffers.distributed.deflate import deflate, inflate
from sb3_extra_buffers.distributed.errors import BlockError
from sb3_extra_buffers.distributed.schema import VERSION, Array, Schema
from sb3_extra_buffers.storage._core import checksum

# magic, version, flags, steps, lanes, schema, run, collector, incarnation, sequence, settled, policy version, first step, body
_HEADER = struct.Struct("<8sHHII16s16sIIQQQQI")
HEADER_BYTES = _HEADER.size
_MAGIC = b"SB3XBLOK"
_DEFLATED = 1
_SUM = struct.Struct("<I")
_COUNT = struct.Struct("<I")
_FRAMES = struct.Struct("<HHI")
_EPISODE = struct.Struct("<IIdQdb")
_MOST_EPISODES = 1 << 20


class Episode(NamedTuple):
    """An episode that has ended, as ``Monitor`` tells it."""

    lane: int
    step: int
    """In which step of the block."""
    reward: float
    length: int
    seconds: float
    success: int = -1
    """1 or 0 where the environment says whether it succeeded, else -1."""


class Name(NamedTuple):
    """What tells a block from all others of a run."""

    collector: int
    incarnation: int
    sequence: int


@dataclass(frozen=True)
class Block:
    """
    Steps of all environments of one collector.

    :param schema: What it looks like
    :param run: 16 bytes that are the run's own
    :param name: Which block it is
    :param settled: Blocks of this collector and incarnation before this one have been acknowledged
    :param policy_version: The oldest policy that has acted in it
    :param first_step: Steps of the collector before its first one
    :param columns: Arrays of ``(block_steps, lanes, ...)``, in the order of the schema
    :param chunks: For each key that is kept as frames its chunks, in the order of rows
    :param splits: Likewise, axis and planes of a frame
    :param episodes: Episodes that have ended in it
    """

    schema: Schema
    run: bytes
    name: Name
    settled: int
    policy_version: int
    first_step: int
    columns: Sequence[Array]
    chunks: Sequence[Sequence[Any]]
    splits: Sequence[tuple[int, int]]
    episodes: Sequence[Episode] = field(default_factory=tuple)

    def encode(self) -> bytes:
        """
        Write the message.

        :return: Its bytes
        """
        schema = self.schema
        parts: list[Any] = [_COUNT.pack(len(self.episodes)), *(_EPISODE.pack(*episode) for episode in self.episodes)]
        for (axis, group), chunks in zip(self.splits, self.chunks, strict=True):
            parts.append(_FRAMES.pack(axis, group, len(chunks)))
            parts += [_COUNT.pack(len(memoryview(chunk))) for chunk in chunks]
        parts += [np.ascontiguousarray(array).tobytes() for array in self.columns]
        parts += [chunk for chunks in self.chunks for chunk in chunks]
        body = b"".join(parts)
        packed, flags = deflate(body), _DEFLATED
        if len(packed) >= len(body):
            packed, flags = body, 0
        numbers = *self.name, self.settled, self.policy_version, self.first_step, len(body)
        shape = schema.block_steps, schema.lanes
        header = _HEADER.pack(_MAGIC, VERSION, flags, *shape, schema.digest, self.run, *numbers)
        return b"".join((header, packed, _SUM.pack(checksum(header + packed))))


def read_name(message: bytes) -> Name:
    """
    Tell which block a message is, without looking further.

    :param message: A message that was encoded here
    :return: Its name
    """
    return Name(*_HEADER.unpack_from(message)[7:10])


def decode_block(message: bytes, schema: Schema, run: bytes) -> Block:
    """
    Read a message. Nothing of it is trusted.

    :param message: Its bytes
    :param schema: What blocks look like here
    :param run: The run that they have to belong to
    :return: The block; its arrays and chunks are views. ``BlockError`` where it is none
    """
    size = len(message)
    if size < HEADER_BYTES + _SUM.size or message[: len(_MAGIC)] != _MAGIC:
        raise BlockError(f"{size} bytes that are not a block were sent")
    view = memoryview(message).toreadonly()
    if _SUM.unpack_from(view, size - _SUM.size)[0] != checksum(view[: -_SUM.size]):
        raise BlockError("a block was damaged on its way: its checksum is wrong")
    _, version, flags, steps, lanes, digest, of_run, collector, incarnation, *rest = _HEADER.unpack_from(view)
    sequence, settled, policy_version, first_step, body_bytes = rest
    name = Name(collector, incarnation, sequence)
    if version != VERSION:
        raise BlockError(
            f"block {name} has version {version}, and this shard reads {VERSION}: install the same one everywhere"
        )
    if flags & ~_DEFLATED:
        raise BlockError(f"block {name} is packed in a way that is not known here: install the same version everywhere")
    if of_run != run:
        raise BlockError(f"block {name} is of another run; stop the collectors of that run")
    if digest != schema.digest or (steps, lanes) != (schema.block_steps, schema.lanes):
        raise BlockError(
            f"block {name} holds other observations or actions than this shard: its environments are not those of the fleet"
        )
    body = _inflate(view[HEADER_BYTES : -_SUM.size], bool(flags & _DEFLATED), body_bytes, schema, name)
    try:
        episodes, splits, chunks, columns = _cut(body, schema)
    except (struct.error, ValueError) as error:
        raise BlockError(f"block {name} does not make sense: {error}") from error
    return Block(schema, run, name, settled, policy_version, first_step, columns, chunks, splits, episodes)


def _inflate(data: memoryview, is_deflated: bool, size: int, schema: Schema, name: Name) -> memoryview:
    """The body. It is never larger than what a block of dense observations would be."""
    most = schema.most_bytes(schema.cells)
    if size > most:
        raise BlockError(f"block {name} says that it has {size} bytes; {most} are possible")
    try:
        body = memoryview(inflate(data, size)) if is_deflated else data
    except ValueError as error:
        raise BlockError(f"block {name} says that it has {size} bytes, and {error}") from error
    if len(body) != size:
        raise BlockError(f"block {name} has {len(body)} bytes, not {size} as it says")
    return body


def _cut(body: memoryview, schema: Schema) -> tuple[list[Episode], list[tuple[int, int]], list[list[memoryview]], list[Array]]:
    """Take a body apart; ``struct.error`` or ``ValueError`` where that is not possible."""
    (n_episodes,), at = _COUNT.unpack_from(body), _COUNT.size
    if n_episodes > min(_MOST_EPISODES, schema.cells):
        raise ValueError(f"{n_episodes} episodes cannot have ended in {schema.cells} steps")
    episodes = []
    for _ in range(n_episodes):
        episodes.append(Episode(*_EPISODE.unpack_from(body, at)))
        at += _EPISODE.size
        if episodes[-1].lane >= schema.lanes or episodes[-1].step >= schema.block_steps:
            raise ValueError(f"an episode has ended in step {episodes[-1].step} of environment {episodes[-1].lane}")
    splits, sizes = [], []
    for each in schema.frame_fields:
        axis, group, n_chunks = _FRAMES.unpack_from(body, at)
        at += _FRAMES.size
        if axis >= len(each.shape) or group < 1 or each.shape[axis] % group:
            raise ValueError(f"observations of shape {each.shape} do not split into {group} planes along axis {axis}")
        if not 1 <= n_chunks <= schema.block_steps:
            raise ValueError(f"{n_chunks} chunks")
        splits.append((axis, group))
        sizes.append([size for (size,) in (_COUNT.unpack_from(body, at + _COUNT.size * place) for place in range(n_chunks))])
        at += _COUNT.size * n_chunks
    columns = []
    for column in schema.columns:
        shape = schema.block_steps, schema.lanes, *column.shape
        array = np.frombuffer(body, column.dtype, int(np.prod(shape)), at).reshape(shape)
        if column.dtype == np.bool_ and array.view(np.uint8).max() > 1:
            raise ValueError(f"{column.name} are neither true nor false")
        columns.append(array)
        at += array.nbytes
    chunks = []
    for of_field in sizes:
        chunks.append([body[stop - size : stop] for size, stop in zip(of_field, at + np.cumsum(of_field), strict=True)])
        at += sum(of_field)
    if at != len(body):
        raise ValueError(f"it has {len(body)} bytes, and its parts {at}")
    return episodes, splits, chunks, columns
