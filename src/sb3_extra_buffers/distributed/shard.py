"""
A shard: a ring of blocks, kept as they came, and samples from it. It needs neither torch nor SB3.

The chunks of a block become part of the ring's columns without being decoded, and its numbers are copied. All blocks have the
same number of steps, so the ring is one of slots, and the transition with insertion number ``i`` is at cell ``i`` modulo the
capacity until it is written over.
"""

from __future__ import annotations

import threading
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from sb3_extra_buffers.distributed.blocks import (
    Array,
    Block,
    BlockError,
    BlockTable,
    Schema,
    Who,
    deflate,
    unpack,
    wire_bytes,
)
from sb3_extra_buffers.storage import StorageError
from sb3_extra_buffers.storage._core import Chunk
from sb3_extra_buffers.storage.sum_tree import SumTree

_MOST_EPISODES = 4096
# Between these no stored transition becomes unreachable and no sum of the tree overflows.
_SMALLEST_SHARE, _LARGEST_SHARE = 1e-300, 1e280
Chunks = tuple[tuple[bytes, ...], ...]


class Ack(NamedTuple):
    """What a shard answers to a block, or to the question whether there is room for more."""

    shard: int
    incarnation: int
    sequence: int
    """Of the block; -1 where none was sent."""
    added: bool
    """False for a block that had been added before."""
    may_play: bool
    """Whether the collector that has asked may play a block for this shard."""
    version: int
    """Of the newest policy."""
    publication: Any
    """Where that is."""


class Stats(NamedTuple):
    """Statistics of a shard."""

    shard: int
    incarnation: int
    added: int
    """Transitions ever added, also before it was replaced."""
    size: int
    """Transitions that it holds."""
    capacity: int
    reserved: int
    """Transitions of blocks that collectors may play now."""
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
    """Versions that the oldest policy in the newest blocks was behind when they came."""
    newest: dict[Who, int]
    """The newest block of each collector from which blocks came since the last question."""
    n_episodes: int
    """Episodes that have ever ended in blocks."""
    episodes: tuple[tuple[float, int, float, int], ...]
    """Those that were asked for, as far as they are still known."""


class Reply(NamedTuple):
    """Batches that a shard has drawn."""

    shard: int
    incarnation: int
    batch_size: int
    batches: int
    arrays: list[Any]
    """Values in the order of a row, with discounts instead of time-outs; None where observations are coded."""
    chunks: Chunks | None
    """Where observations are coded: chunks of each key, deflated."""
    places: Array | None
    """Where observations are coded: the row of each transition in the chunks."""
    insertions: Array
    shares: Array
    total: float
    """Sum of the shares, when these were drawn."""


class Slot(NamedTuple):
    """What is known of a block besides what is in the table."""

    name: tuple[int, int, int]
    splits: tuple[tuple[int, int], ...]
    chunks: Chunks


# -- which cells are drawn ------------------------------------------------------------------------------------------------


class UniformDrawer:
    """Draws cells of a ring, all with the same share, which is 1."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def add(self, first: int, count: int) -> None:
        """Note that cells have been written."""

    def draw(self, batch_size: int, batches: int, size: int) -> tuple[Array, Array]:
        """Draw from the cells that are written: cells, batch after batch, and the share of each in ``total``."""
        cells = self.rng.integers(0, size, batch_size * batches)
        return cells, np.ones(len(cells))

    def total(self, size: int) -> float:
        """The sum of all shares."""
        return float(size)

    def update(self, cells: Array, priorities: Array) -> None:
        """Set priorities, where there are any."""
        raise ValueError("this run draws uniformly and has no priorities; use ShardedPrioritizedReplayBuffer")


class PriorityDrawer(UniformDrawer):
    """Draws by shares, which are priorities to the power of ``alpha``. New cells get the highest so far."""

    def __init__(self, rng: np.random.Generator, capacity: int, alpha: float, eps: float) -> None:
        super().__init__(rng)
        self.tree, self.highest = SumTree(capacity), 1.0
        self.alpha, self.eps = alpha, eps

    def add(self, first: int, count: int) -> None:
        """As in ``UniformDrawer``."""
        self.tree.set(np.arange(first, first + count), self.highest)

    def draw(self, batch_size: int, batches: int, size: int) -> tuple[Array, Array]:
        """As in ``UniformDrawer``; one cell from each of ``batch_size`` ranges of equal probability."""
        places = (np.arange(batch_size) + self.rng.random((batches, batch_size))) * (self.tree.total / batch_size)
        cells = self.tree.find(places.ravel())
        return cells, self.tree.leaves[cells].copy()

    def total(self, size: int) -> float:
        """As in ``UniformDrawer``."""
        return self.tree.total

    def update(self, cells: Array, priorities: Array) -> None:
        """As in ``UniformDrawer``."""
        if not len(cells):
            return
        values = np.asarray(priorities, np.float64)
        if not (values.min() >= 0 and values.max() < np.inf):  # also false for NaN
            raise ValueError("priorities must be finite and not negative; did the loss diverge?")
        with np.errstate(over="ignore", under="ignore"):
            shares = np.clip((values + self.eps) ** self.alpha, _SMALLEST_SHARE, _LARGEST_SHARE)
        self.tree.set(cells, shares)
        self.highest = max(self.highest, float(shares.max()))


# -- shards ---------------------------------------------------------------------------------------------------------------


class Shard:
    """
    Keeps blocks, and draws from them.

    Several threads may call it at once: one that adds, others that sample. Without ``alpha`` it draws uniformly. The capacity
    is rounded up to whole blocks.
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
        self.seen: dict[Who, tuple[int, set[int]]] = {}
        """For each collector and incarnation: blocks before this one are acknowledged, and which others were added."""
        rng = np.random.default_rng(None if seed is None else [seed, number, incarnation])
        self.drawer = UniformDrawer(rng) if alpha is None else PriorityDrawer(rng, self.capacity, float(alpha), float(eps))
        self.received = self.wire_bytes = self.held_bytes = self.duplicates = self.refused = 0
        self._lock = self.table.lock
        self._coder = SampleCoder(schema)
        self._limit = 0
        self._reserved: set[int] = set()  # collectors that may play a block now
        self._published: tuple[int, Any] = (0, None)
        self._lag, self._lags = 0, set[int]()
        self._newest: dict[Who, int] = {}
        self._episodes: deque[tuple[float, int, float, int]] = deque(maxlen=_MOST_EPISODES)
        self._n_episodes = 0

    @property
    def added(self) -> int:
        """Transitions ever added."""
        return self.blocks * self.schema.cells

    @property
    def size(self) -> int:
        """Transitions that are there."""
        return min(self.blocks, self.slots) * self.schema.cells

    @property
    def reserved(self) -> int:
        """Transitions of blocks that collectors may play now."""
        return len(self._reserved) * self.schema.cells

    # -- blocks ---------------------------------------------------------------------------------------------------------

    def add(self, message: tuple[Any, ...]) -> Ack:
        """Add a block, once, however often it is sent. ``BlockError`` where it is none of this run; nothing was added then."""
        block = Block(*message)
        if block.run != self.run or block.schema != self.schema.digest:
            self.refused += 1
            raise BlockError(
                f"block {block.name} is of another run or holds other observations or actions: stop the collectors of other "
                "runs, and install the same version everywhere"
            )
        try:
            columns, chunks = unpack(self.schema, block.sizes, block.data)
            ready = self._open(chunks)
        except (StorageError, ValueError, zlib.error) as error:
            self.refused += 1
            raise BlockError(f"block {block.name} is damaged: {error}") from error
        who, sequence = (block.collector, block.incarnation), block.sequence
        with self._lock:
            self._reserved.discard(block.collector)
            settled, known = self.seen.get(who, (0, set()))
            is_new = sequence >= settled and sequence not in known
            if is_new:
                self._store(Slot(block.name, block.splits, chunks), columns, ready)
            settled = max(settled, min(block.settled, sequence))
            self.seen[who] = settled, {number for number in (*known, sequence) if number >= settled}
            self.duplicates += not is_new
            if is_new:
                self.received += self.schema.cells
                self.wire_bytes += wire_bytes(message)
                self._lags.add(max(self._published[0] - block.policy_version, 0))
                self._newest[who] = max(self._newest.get(who, sequence), sequence)
                self._episodes += block.episodes
                self._n_episodes += len(block.episodes)
        return self._acknowledge(sequence, is_new, False)

    def _open(self, chunks: Chunks) -> list[list[Any]]:
        """The chunks, ready to be adopted; errors where they are damaged or of another length."""
        ready = [[Chunk(data) for data in of_key] for of_key in chunks]
        if any(sum(chunk.rows for chunk in of_key) != self.schema.block_steps for of_key in ready):
            raise ValueError(f"its frames are not those of {self.schema.block_steps} steps")
        return ready

    def put(self, slot: Slot, columns: Sequence[Array]) -> None:
        """Put a block in the oldest one's place, whether or not it has been there before."""
        self._store(slot, columns, self._open(slot.chunks))

    def _store(self, new: Slot, columns: Sequence[Array], ready: list[list[Any]]) -> None:
        place, steps, cells = self.blocks % self.slots, self.schema.block_steps, self.schema.cells
        first, old = place * steps, self.kept[place]
        self.table.adopt(ready, first)
        for column, array in zip(self.schema.columns, columns, strict=True):
            self.table.arrays[column.name][first : first + steps] = array
        self.held_bytes += _count_bytes(new.chunks) - (0 if old is None else _count_bytes(old.chunks))
        self.kept[place] = new
        self.blocks += 1
        self.drawer.add(place * cells, cells)

    # -- flow control ---------------------------------------------------------------------------------------------------

    def steer(self, limit: int, version: int | None = None, publication: Any = None) -> None:
        """Set what acknowledgements carry: how many transitions may be added in all, and where a new policy is."""
        self._limit = limit
        if version is not None and version >= self._published[0]:
            self._published = version, publication

    def ask(self, collector: int) -> Ack:
        """Reserve room for a block of a collector, if there is any. Its next block, or ``release``, gives that back."""
        with self._lock:
            others = len(self._reserved - {collector}) * self.schema.cells
            may_play = self.added + others < self._limit
            if may_play:
                self._reserved.add(collector)
        return self._acknowledge(-1, False, may_play)

    def release(self, collector: int) -> None:
        """Give back what was reserved for a collector that is gone."""
        with self._lock:
            self._reserved.discard(collector)

    def _acknowledge(self, sequence: int, added: bool, may_play: bool) -> Ack:
        version, publication = self._published
        return Ack(self.number, self.incarnation, sequence, added, may_play, version, publication)

    def stats(self, episodes_from: int = 0) -> Stats:
        """Return statistics, and episodes from that number on."""
        with self._lock:
            missing = max(self._n_episodes - max(episodes_from, 0), 0)
            recent = tuple(self._episodes)[len(self._episodes) - min(missing, len(self._episodes)) :]
            if self._lags:
                self._lag, self._lags = max(self._lags), set()
            newest, self._newest = self._newest, {}
            held = self.added, self.size, self.capacity, self.reserved, self.drawer.total(self.size)
            counts = self.received, self.wire_bytes, self.held_bytes, self.duplicates, self.refused, self._lag
            return Stats(self.number, self.incarnation, *held, *counts, newest, self._n_episodes, recent)

    # -- samples --------------------------------------------------------------------------------------------------------

    def sample(self, batch_size: int, batches: int = 1, coded: bool = False) -> Reply:
        """Draw batches of transitions, with observations as chunks, which are small, or as arrays."""
        if batch_size < 1 or batches < 1:
            raise ValueError(f"{batches} batches of {batch_size} transitions; both numbers must be 1 or more")
        with self._lock:
            newest = self.kept[(self.blocks - 1) % self.slots]
            if newest is None:
                raise ValueError(f"shard {self.number} is empty: it has nothing to draw from")
            cells, shares = self.drawer.draw(batch_size, batches, self.size)
            total = self.drawer.total(self.size)
            # The newest block that lies at a cell is the one whose number has that remainder.
            laps = (self.blocks - 1 - cells // self.schema.cells) // self.slots
            read = self._gather(cells)
        drawn = cells + laps * self.capacity, shares, total
        who = self.number, self.incarnation, batch_size, batches
        if coded and self.table.frames:
            return Reply(*who, *self._coder.encode(read, newest.splits, cells), *drawn)
        return Reply(*who, read(), None, None, *drawn)

    def _gather(self, cells: Array) -> Callable[[], list[Any]]:
        """
        Find transitions, with what n steps from there on have given. No step of another block counts: the next row of the ring
        belongs to another collector or another time. The lock is held; what reads the arrays of a reply needs none.
        """
        schema, table = self.schema, self.table
        rows, envs = np.divmod(cells, schema.n_envs)
        n, count = 2 * len(schema.fields), len(cells)
        if self.n_steps == 1:
            reading = table.table.begin_read(rows, envs)
            gamma = np.full((count, 1), self.gamma, np.float32)

            def read() -> list[Any]:
                *values, actions, rewards, dones, timeouts = reading.finish()
                return [*values, actions, rewards.reshape(-1, 1), _final(dones, timeouts), gamma]

            return read
        steps = np.arange(self.n_steps)
        places = rows[:, None] + steps
        last_row = (rows // schema.block_steps + 1) * schema.block_steps - 1
        inside = np.minimum(places, last_row[:, None]), envs[:, None]
        dones, timeouts, rewards = (table.arrays[name][inside] for name in ("dones", "timeouts", "rewards"))
        ends = dones | timeouts | (places >= last_row[:, None])
        last = np.where(ends.any(axis=1), ends.argmax(axis=1), self.n_steps - 1)
        mask = steps <= last[:, None]
        powers = np.float32(self.gamma) ** steps.astype(np.float32)
        returns = (rewards * powers * mask).sum(axis=1, keepdims=True, dtype=np.float32)
        discounts = np.float32(self.gamma) ** mask.sum(axis=1, keepdims=True).astype(np.float32)
        each = np.arange(count), last
        final = _final(dones[each], timeouts[each])
        begun = table.table.begin_read(rows, envs, (*range(0, n, 2), n))
        end = table.table.begin_read(rows + last, envs, tuple(range(1, n, 2)))

        def read_ends() -> list[Any]:
            (*obs, actions), following = begun.finish(), end.finish()
            both = [value for pair in zip(obs, following, strict=True) for value in pair]
            return [*both, actions, returns, final, discounts]

        return read_ends

    def update_priorities(self, insertions: Array, priorities: Array) -> int:
        """Set priorities by insertion number. Return how many were ignored, as their transitions have been written over."""
        with self._lock:
            is_there = (insertions >= self.added - self.capacity) & (insertions >= 0) & (insertions < self.added)
            self.drawer.update(insertions[is_there] % self.capacity, priorities[is_there])
        return int(np.count_nonzero(~is_there))


def _final(dones: Array, timeouts: Array) -> Array:
    """Only dones that are not due to time-outs."""
    return (dones & ~timeouts).astype(np.float32).reshape(-1, 1)


def _count_bytes(chunks: Chunks) -> int:
    return sum(len(data) for of_key in chunks for data in of_key)


class SampleCoder:
    """
    Codes the observations of samples: one environment, and a row for each, so that all of them share key frames. Rows are in
    the order in which transitions were played, so that neighbours are alike. Threads read and code one after the other, since
    coding holds the interpreter's lock all the time; while one deflates and sends, the next one begins.
    """

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self._table: BlockTable | None = None
        self._lock = threading.Lock()

    def encode(
        self, read: Callable[[], list[Any]], splits: Sequence[tuple[int, int]], cells: Array
    ) -> tuple[list[Any], Chunks, Array]:
        """Read samples, and code their observations: arrays, chunks and places of a ``Reply``."""
        count, schema = len(cells), self.schema
        block, cell = np.divmod(cells, schema.cells)
        step, env = np.divmod(cell, schema.n_envs)
        order = np.argsort((block * schema.n_envs + env) * schema.block_steps + step)
        with self._lock:
            arrays = read()
            values = [array for array, is_frames in zip(arrays, schema.are_frames, strict=True) if is_frames]
            if self._table is None or self._table.rows != count:
                self._table = schema.make_table(count, 1)
            try:
                coded = _write(self._table, values, splits, order.tolist())
            finally:
                for frames in self._table.frames:
                    frames.clear()
        chunks = tuple(tuple(map(deflate, of_key)) for of_key in coded)
        places = np.empty(count, np.min_scalar_type(count))
        places[order] = np.arange(count)
        rest = [None if is_frames else array for array, is_frames in zip(arrays, schema.are_frames, strict=True)]
        return rest, chunks, places


def _write(table: BlockTable, values: list[Any], splits: Sequence[tuple[int, int]], order: list[int]) -> Chunks:
    table.split(splits)
    for number, frames in enumerate(table.frames):
        obs, following = values[2 * number : 2 * number + 2]
        for row, which in enumerate(order):
            frames.write(row, obs[which : which + 1], 0, following[which : which + 1])
    return table.chunks()
