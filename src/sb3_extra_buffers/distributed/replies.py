"""Samples on their way from a shard to the learner: as arrays, or with observations coded."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sb3_extra_buffers.distributed.deflate import deflate, inflate
from sb3_extra_buffers.distributed.schema import Array, Schema, SchemaTable
from sb3_extra_buffers.storage import StorageError
from sb3_extra_buffers.storage._core import Chunk

if TYPE_CHECKING:
    from sb3_extra_buffers.distributed.shard import Shard

Chunks = list[list[bytes]]


class Reply(NamedTuple):
    """Batches that a shard has drawn."""

    shard: int
    incarnation: int
    batch_size: int
    batches: int
    arrays: list[Any]
    """Values in the order of a row, without time-outs, and discounts at last; None where observations are coded."""
    chunks: Chunks | None
    """Where observations are coded: chunks for each key, deflated."""
    places: Array | None
    """Where observations are coded: the row of each transition in the chunks."""
    insertions: Array
    shares: Array
    total: float
    """Sum of the shares, when these were drawn."""
    added: int


def gather(shard: Shard, cells: Array) -> Callable[[], list[Any]]:
    """
    Find transitions of a shard, with what n steps from there on have given. No step of another block counts: what follows it
    in the ring is another lane, or another time.

    :param shard: The shard; its lock is held
    :param cells: Which
    :return: What reads them, without a lock: observations and what followed for each key, actions, rewards, dones, discounts
    """
    schema, table = shard.schema, shard.table
    rows, lanes = np.divmod(cells, schema.lanes)
    n, count = schema.n_observed, len(cells)
    if shard.n_steps == 1:
        reading = table.table.begin_read(rows, lanes)
        gamma = np.full((count, 1), shard.gamma, np.float32)

        def read() -> list[Any]:
            *values, actions, rewards, dones, timeouts = reading.finish()
            return [*values, actions, rewards.reshape(-1, 1), _final(dones, timeouts), gamma]

        return read
    steps = np.arange(shard.n_steps)
    places = rows[:, None] + steps
    last_row = (rows // schema.block_steps + 1) * schema.block_steps - 1
    inside = np.minimum(places, last_row[:, None]), lanes[:, None]
    dones, timeouts, rewards = (table.arrays[name][inside] for name in ("dones", "timeouts", "rewards"))
    ends = dones | timeouts | (places >= last_row[:, None])
    last = np.where(ends.any(axis=1), ends.argmax(axis=1), shard.n_steps - 1)
    mask = steps <= last[:, None]
    powers = np.float32(shard.gamma) ** steps.astype(np.float32)
    returns = (rewards * powers * mask).sum(axis=1, keepdims=True, dtype=np.float32)
    discounts = np.float32(shard.gamma) ** mask.sum(axis=1, keepdims=True).astype(np.float32)
    each = np.arange(count), last
    final = _final(dones[each], timeouts[each])
    begun = table.table.begin_read(rows, lanes, (*range(0, n, 2), n))
    end = table.table.begin_read(rows + last, lanes, tuple(range(1, n, 2)))

    def read_ends() -> list[Any]:
        (*obs, actions), following = begun.finish(), end.finish()
        both = [value for pair in zip(obs, following, strict=True) for value in pair]
        return [*both, actions, returns, final, discounts]

    return read_ends


def _final(dones: Array, timeouts: Array) -> Array:
    """Only dones that are not due to time-outs."""
    return (dones & ~timeouts).astype(np.float32).reshape(-1, 1)


def _is_frames(schema: Schema) -> list[bool]:
    """For each array of a reply, whether it is made of frames."""
    return [field.is_compressed for field in schema.fields for _ in range(2)] + [False] * 4


class SampleCoder:
    """
    Codes the observations of samples: one lane, and a row for each, so that all of them share key frames. Rows are in the
    order in which transitions were played, so that neighbours are alike. Threads read and code one after the other, since
    coding holds the interpreter's lock all the time; while one deflates and sends, the next one begins.

    :param schema: What blocks look like
    """

    def __init__(self, schema: Schema) -> None:
        self.schema, self._frames = schema, _is_frames(schema)
        self._table: SchemaTable | None = None
        self._lock = threading.Lock()

    def encode(
        self, read: Callable[[], list[Any]], splits: Sequence[tuple[int, int]], cells: Array
    ) -> tuple[list[Any], Chunks, Array]:
        """
        Read samples, and code their observations.

        :param read: Gives the arrays of a reply
        :param splits: How observations split into frames
        :param cells: Where each transition is in the shard
        :return: The arrays, with None in the place of those that are coded; chunks for each key that is kept as frames; and
            the row of each transition in them
        """
        count, schema = len(cells), self.schema
        block, cell = np.divmod(cells, schema.cells)
        step, lane = np.divmod(cell, schema.lanes)
        order = np.argsort((block * schema.lanes + lane) * schema.block_steps + step)
        with self._lock:
            arrays = read()
            values = [array for array, is_frames in zip(arrays, self._frames, strict=True) if is_frames]
            if self._table is None or self._table.rows != count:
                self._table = schema.make_table(count, 1)
            try:
                coded = self._write(self._table, values, splits, order.tolist())
            finally:
                for frames in self._table.frames:
                    frames.clear()
        chunks = [[deflate(chunk) for chunk in of_field] for of_field in coded]
        places = np.empty(count, np.min_scalar_type(count))
        places[order] = np.arange(count)
        rest = [None if is_frames else array for array, is_frames in zip(arrays, self._frames, strict=True)]
        return rest, chunks, places

    @staticmethod
    def _write(table: SchemaTable, values: list[Any], splits: Sequence[tuple[int, int]], order: list[int]) -> Chunks:
        table.split(splits)
        for number, frames in enumerate(table.frames):
            obs, following = values[2 * number : 2 * number + 2]
            for row, which in enumerate(order):
                frames.write(row, obs[which : which + 1], 0, following[which : which + 1])
        return [[bytes(chunk) for chunk in of_field] for of_field in table.chunks()]


def open_reply(schema: Schema, reply: Reply) -> Callable[[int], list[Any]]:
    """
    Make the batches of a reply readable, one by one: what is coded is decoded only then.

    :param schema: What blocks look like
    :param reply: The reply
    :return: What gives all arrays of a batch, by its number; ``StorageError`` where the reply makes no sense
    """
    size, count, is_frames = reply.batch_size, reply.batch_size * reply.batches, _is_frames(schema)
    if reply.chunks is None or reply.places is None:
        return lambda number: [array[number * size : (number + 1) * size] for array in reply.arrays]
    table = schema.make_table(count, 1)
    most, places = schema.most_bytes(count), reply.places.astype(np.int64)
    for frames, chunks in zip(table.frames, reply.chunks, strict=True):
        row = 0
        for data in chunks:
            try:
                chunk = Chunk(inflate(data, most))
            except ValueError as error:
                raise StorageError(f"samples of shard {reply.shard} are damaged: {error}") from error
            rows = chunk.rows
            frames.adopt(chunk, row)
            row += rows
    wanted = tuple(place for place, of_frames in enumerate(is_frames) if of_frames)
    lanes = np.zeros(size, np.int64)

    def read(number: int) -> list[Any]:
        part = slice(number * size, (number + 1) * size)
        decoded = iter(table.table.begin_read(places[part], lanes, wanted).finish())
        return [next(decoded) if of_frames else array[part] for array, of_frames in zip(reply.arrays, is_frames, strict=True)]

    return read
