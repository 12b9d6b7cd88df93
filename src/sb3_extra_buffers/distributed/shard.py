"""
A shard: a ring of blocks, kept as they came. It needs neither torch nor SB3.

A block is adopted, not decoded: its chunks become part of the ring's columns, its numbers are copied. All blocks have the
same number of steps, so the ring is one of slots, and the transition with insertion number ``i`` is at cell ``i`` modulo the
capacity until it is written over.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

import numpy as np

from sb3_extra_buffers.distributed.block import Block, Episode, Name, decode_block
from sb3_extra_buffers.distributed.clock import Who
from sb3_extra_buffers.distributed.drawing import Drawer, PriorityDrawer, UniformDrawer
from sb3_extra_buffers.distributed.errors import BlockError
from sb3_extra_buffers.distributed.replies import Reply, SampleCoder, gather
from sb3_extra_buffers.distributed.schema import Array, Schema
from sb3_extra_buffers.storage import StorageError
from sb3_extra_buffers.storage._core import Chunk

_MOST_EPISODES = 4096


class Ack(NamedTuple):
    """What a shard answers to a block, or to the question whether there is room for more."""

    shard: int
    incarnation: int
    sequence: int
    """Of the block; -1 where none was sent."""
    added: bool
    """False for a block that had been added before."""
    credit: int
    """Transitions that may still come before the learner has caught up."""
    version: int
    """Of the newest policy."""
    publication: Any
    """Where that is."""


class Stats(NamedTuple):
    """What a shard tells of itself."""

    shard: int
    incarnation: int
    added: int
    """Transitions ever added, also before it was replaced."""
    size: int
    """Transitions that it holds."""
    capacity: int
    total: float
    """Sum of the priorities; the size where there are none."""
    received: int
    """Transitions that were added and not restored."""
    wire_bytes: int
    """Bytes of their blocks."""
    held_bytes: int
    """Bytes of the chunks that it holds."""
    duplicates: int
    refused: int
    policy_lag: int
    """Versions that the policy of the oldest of the newest blocks was behind when it came."""
    newest: dict[Who, int]
    """The newest block of each collector from which blocks came since the last question."""
    n_episodes: int
    """Episodes ever told of."""
    episodes: tuple[Episode, ...]
    """Those that were asked for, as far as they are still known."""


class Slot(NamedTuple):
    """What a block was, besides what is in the table."""

    name: Name
    policy_version: int
    first_step: int
    splits: tuple[tuple[int, int], ...]
    chunks: tuple[tuple[bytes, ...], ...]


class Shard:
    """
    Keeps blocks, and draws from them.

    Several threads may call it at once: one that adds, others that sample. Nothing in it waits for anybody.

    :param schema: What blocks look like
    :param capacity: Transitions to keep; rounded up to whole blocks
    :param run: 16 bytes that are the run's own
    :param number: Its number
    :param incarnation: How often it has been replaced
    :param n_steps: Number of steps to accumulate rewards for
    :param gamma: Discount factor of these returns
    :param alpha: How much priorities matter; None to draw uniformly
    :param eps: Added to each priority
    :param seed: Seed of what is drawn
    """

    def __init__(
        self,
        schema: Schema,
        capacity: int,
        run: bytes,
        number: int = 0,
        incarnation: int = 0,
        n_steps: int = 1,
        gamma: float = 0.99,
        alpha: float | None = None,
        eps: float = 1e-6,
        seed: int | None = None,
    ) -> None:
        if capacity < 1:
            raise ValueError(f"a shard for {capacity} transitions; it must keep 1 or more")
        if n_steps < 1:
            raise ValueError(f"n_steps is {n_steps}; it must be 1 or more")
        self.schema, self.run, self.number, self.incarnation = schema, run, number, incarnation
        self.n_steps, self.gamma = n_steps, gamma
        self.slots = -(-capacity // schema.cells)
        self.capacity = self.slots * schema.cells
        self.table = schema.make_table(self.slots * schema.block_steps, chunk_rows=schema.block_steps)
        self.blocks = 0
        """Blocks ever added: the next one goes to the slot with this number modulo the slots."""
        self.kept: list[Slot | None] = [None] * self.slots
        self.seen: dict[tuple[int, int], tuple[int, set[int]]] = {}
        """For each collector and incarnation: blocks before this one are settled, and which others were added."""
        rng = np.random.default_rng(None if seed is None else [seed, number, incarnation])
        self.drawer: Drawer = (
            UniformDrawer(rng) if alpha is None else PriorityDrawer(rng, self.capacity, float(alpha), float(eps))
        )
        self.received = self.wire_bytes = self.duplicates = self.refused = 0
        self._lock = self.table.lock
        self._trial = schema.make_table(schema.block_steps)  # what does not fit here does not fit the ring
        self._coder = SampleCoder(schema)
        self._limit = 0
        self._published: tuple[int, Any] = (0, None)
        self._lag, self._lags = 0, set[int]()
        self._newest: dict[Who, int] = {}
        self._episodes: deque[Episode] = deque(maxlen=_MOST_EPISODES)
        self._n_episodes = self._held_bytes = 0

    # -- blocks ---------------------------------------------------------------------------------------------------------

    def add(self, message: bytes) -> Ack:
        """
        Add a block, once, however often it is sent.

        :param message: The block as bytes
        :return: The acknowledgement; ``BlockError`` where the message is no block of this run, and nothing was added
        """
        try:
            block = decode_block(message, self.schema, self.run)
            added = self.add_block(block)
        except BlockError:
            self.refused += 1
            raise
        self.received += self.schema.cells * added
        self.wire_bytes += len(message) * added
        return self._acknowledge(block.name.sequence, added)

    def add_block(self, block: Block) -> bool:
        """
        Add a block that was decoded.

        :param block: The block
        :return: Whether it is new
        """
        who, sequence = (block.name.collector, block.name.incarnation), block.name.sequence
        chunks = self._copy_chunks(block)
        with self._lock:
            settled, known = self.seen.get(who, (0, set()))
            is_new = sequence >= settled and sequence not in known
            if is_new:
                self._adopt(block, chunks)
            settled = max(settled, min(block.settled, sequence))
            self.seen[who] = settled, {number for number in (*known, sequence) if number >= settled}
            self.duplicates += not is_new
            if is_new:
                self._lags.add(max(self._published[0] - block.policy_version, 0))
                self._newest[who] = max(self._newest.get(who, sequence), sequence)
                self._episodes += block.episodes
                self._n_episodes += len(block.episodes)
        return is_new

    def _copy_chunks(self, block: Block) -> tuple[tuple[bytes, ...], ...]:
        """The chunks in memory of their own, after all that could be wrong with them has been looked for."""
        copies = tuple(tuple(map(bytes, chunks)) for chunks in block.chunks)
        for frames, chunks in zip(self._trial.frames, copies, strict=True):
            row = 0
            try:
                for data in chunks:
                    chunk = Chunk(data)
                    rows = chunk.rows
                    frames.adopt(chunk, row)
                    row += rows
            except StorageError as error:
                raise BlockError(f"block {block.name}: {error}") from error
            finally:
                frames.clear()
            if row != self.schema.block_steps:
                raise BlockError(f"block {block.name} has frames of {row} steps, not of {self.schema.block_steps}")
        return copies

    def put(self, block: Block) -> None:
        """
        Put a block in the oldest one's place, whether or not it has been there before.

        :param block: The block
        """
        self._adopt(block, self._copy_chunks(block))

    def _adopt(self, block: Block, copies: tuple[tuple[bytes, ...], ...]) -> None:
        slot, steps, cells = self.blocks % self.slots, self.schema.block_steps, self.schema.cells
        first, old = slot * steps, self.kept[slot]
        ready = [[Chunk(data) for data in chunks] for chunks in copies]
        for frames, chunks in zip(self.table.frames, ready, strict=True):
            row = first
            for chunk in chunks:
                rows = chunk.rows
                frames.adopt(chunk, row)
                row += rows
        for column, array in zip(self.schema.columns, block.columns, strict=True):
            self.table.arrays[column.name][first : first + steps] = array
        self._held_bytes += _count_bytes(copies) - (0 if old is None else _count_bytes(old.chunks))
        self.kept[slot] = Slot(block.name, block.policy_version, block.first_step, tuple(block.splits), copies)
        self.blocks += 1
        self.drawer.add(slot * cells, cells)

    # -- who may send how much ------------------------------------------------------------------------------------------

    @property
    def added(self) -> int:
        """Transitions ever added."""
        return self.blocks * self.schema.cells

    @property
    def size(self) -> int:
        """Transitions that are there."""
        return min(self.blocks, self.slots) * self.schema.cells

    def steer(self, limit: int, version: int | None = None, publication: Any = None) -> None:
        """
        Say what acknowledgements are to tell.

        :param limit: How many transitions may have been added before collectors wait
        :param version: Version of a new policy; None if there is none
        :param publication: Where that is
        """
        self._limit = limit
        if version is not None and version >= self._published[0]:
            self._published = version, publication

    def ask(self) -> Ack:
        """
        Tell whether there is room for more.

        :return: What an acknowledgement says
        """
        return self._acknowledge(-1, False)

    def _acknowledge(self, sequence: int, added: bool) -> Ack:
        version, publication = self._published
        return Ack(self.number, self.incarnation, sequence, added, self._limit - self.added, version, publication)

    def stats(self, episodes_from: int = 0) -> Stats:
        """
        Tell how it is.

        :param episodes_from: Tell of episodes from this one on
        :return: The figures
        """
        with self._lock:
            missing = max(self._n_episodes - max(episodes_from, 0), 0)
            recent = tuple(self._episodes)[len(self._episodes) - min(missing, len(self._episodes)) :]
            if self._lags:
                self._lag, self._lags = max(self._lags), set()
            newest, self._newest = self._newest, {}
            counts = self.received, self.wire_bytes, self._held_bytes, self.duplicates, self.refused, self._lag
            held = self.added, self.size, self.capacity, self.drawer.total(self.size)
            return Stats(self.number, self.incarnation, *held, *counts, newest, self._n_episodes, recent)

    # -- samples --------------------------------------------------------------------------------------------------------

    def sample(self, batch_size: int, batches: int = 1, coded: bool = False) -> Reply:
        """
        Draw transitions.

        :param batch_size: Transitions of a batch
        :param batches: How many batches
        :param coded: Whether observations come as chunks, which are small, or as arrays
        :return: The samples
        """
        if batch_size < 1 or batches < 1:
            raise ValueError(f"{batches} batches of {batch_size} transitions; both numbers must be 1 or more")
        with self._lock:
            if not self.blocks:
                raise ValueError(f"shard {self.number} is empty: it has nothing to draw from")
            cells, shares = self.drawer.draw(batch_size, batches, self.size)
            total = self.drawer.total(self.size)
            # The newest block that lies at a cell is the one whose number has that remainder.
            laps = (self.blocks - 1 - cells // self.schema.cells) // self.slots
            insertions = cells + laps * self.capacity
            begun = gather(self, cells)
            newest = self.kept[(self.blocks - 1) % self.slots]
            assert newest is not None
        who = self.number, self.incarnation, batch_size, batches
        if coded and self.schema.frame_fields:
            return Reply(*who, *self._coder.encode(begun, newest.splits, cells), insertions, shares, total, self.added)
        return Reply(*who, begun(), None, None, insertions, shares, total, self.added)

    def update_priorities(self, insertions: Array, priorities: Array) -> int:
        """
        Set priorities; those of transitions that have been written over are ignored.

        :param insertions: Insertion numbers, as samples tell them
        :param priorities: One each
        :return: How many were ignored
        """
        with self._lock:
            is_there = (insertions >= self.added - self.capacity) & (insertions >= 0) & (insertions < self.added)
            self.drawer.update(insertions[is_there] % self.capacity, priorities[is_there])
        return int(np.count_nonzero(~is_there))


def _count_bytes(chunks: tuple[tuple[bytes, ...], ...]) -> int:
    return sum(len(data) for of_field in chunks for data in of_field)
