"""Samples for the learner: asked for ahead of time, from one shard a call."""

from __future__ import annotations

import time
import zlib
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from sb3_extra_buffers.distributed.actors import READ, call_actor, get_answer
from sb3_extra_buffers.distributed.blocks import Array, MissingError, Schema, ShardLostError
from sb3_extra_buffers.distributed.shard import Reply
from sb3_extra_buffers.storage import StorageError
from sb3_extra_buffers.storage._core import Chunk

_SHARD_BITS, _INCARNATION_BITS, _INSERTION_BITS = 12, 8, 43
_MOST_SHARDS = 1 << _SHARD_BITS
_LOOK_SECONDS = 1.0
_CALLS = 2


class Batch(NamedTuple):
    """A batch of transitions, as arrays."""

    values: list[Any]
    """Observations and what followed for each key, actions, rewards, dones, discounts."""
    shares: Array
    """Their shares in the sum of all priorities, as the shard has them; 1 where there are none."""
    probabilities: Array
    """With which each was drawn, times the sum of all shares: its share, unless totals were old."""
    indices: Array
    """Shard, its incarnation and insertion number in one integer each."""


def pack_indices(shard: int, incarnation: int, insertions: Array) -> Array:
    """Make one integer of shard, incarnation and insertion number."""
    who = shard << _INCARNATION_BITS | incarnation % (1 << _INCARNATION_BITS)
    return insertions.astype(np.int64) | who << _INSERTION_BITS


def unpack_indices(indices: Array) -> tuple[Array, Array, Array]:
    """Shards, incarnations (modulo 256) and insertion numbers."""
    who = indices >> _INSERTION_BITS
    return who >> _INCARNATION_BITS, who & (1 << _INCARNATION_BITS) - 1, indices & (1 << _INSERTION_BITS) - 1


def open_reply(schema: Schema, reply: Reply) -> Callable[[int], list[Any]]:
    """Return what gives all arrays of a batch by its number; what is coded is decoded only then."""
    size, count = reply.batch_size, reply.batch_size * reply.batches
    if reply.chunks is None or reply.places is None:
        return lambda number: [array[number * size : (number + 1) * size] for array in reply.arrays]
    table, places = schema.make_table(count, 1), reply.places.astype(np.int64)
    try:
        table.adopt([[Chunk(zlib.decompress(data)) for data in of_key] for of_key in reply.chunks])
    except zlib.error as error:
        raise StorageError(f"samples of shard {reply.shard} are damaged: {error}") from error
    wanted = tuple(place for place, is_frames in enumerate(schema.are_frames) if is_frames)
    envs = np.zeros(size, np.int64)

    def read(number: int) -> list[Any]:
        part = slice(number * size, (number + 1) * size)
        decoded = iter(table.table.begin_read(places[part], envs, wanted).finish())
        both = zip(reply.arrays, schema.are_frames, strict=True)
        return [next(decoded) if is_frames else array[part] for array, is_frames in both]

    return read


class _Call(NamedTuple):
    """A call that is under way."""

    ref: Any
    shard: int
    incarnation: int
    chance: float
    """With which this shard was chosen."""


class Client:
    """
    Draws batches from shards, which are actors in a list that is looked at for each call.

    Each call asks one shard for several batches, and two calls are under way at any time. The shard is drawn by its share in
    all transitions, or in all priorities; all shards get blocks of all collectors, so they hold the same mixture.
    """

    def __init__(
        self,
        ray: Any,
        handles: list[Any],
        schema: Schema,
        prefetch: int = 8,
        timeout: float = 60.0,
        seed: int | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        n_shards = len(handles)
        if n_shards > _MOST_SHARDS:
            raise ValueError(f"n_shards is {n_shards}; it must be {_MOST_SHARDS} or less")
        if prefetch < 1:
            raise ValueError(f"prefetch is {prefetch}; it must be 1 or more")
        self.ray, self.handles, self.schema, self.n_shards = ray, handles, schema, n_shards
        self.prefetch, self.timeout, self.now = prefetch, timeout, now
        self.coded = [False] * n_shards
        """Which shards are on other machines, so that what they send is coded."""
        self.waited = 0.0
        """Seconds spent waiting for samples."""
        self.received = 0
        """Transitions that have come."""
        self.on_lost: Callable[[int], None] = lambda shard: None
        """Called with a shard that does not answer, and with -1 while no shard has any transitions."""
        self._rng = np.random.default_rng(seed)
        self._weights = np.zeros(n_shards)
        self._incarnations = [0] * n_shards
        self._calls: deque[_Call] = deque()
        self._ready: deque[Callable[[], Batch]] = deque()
        self._silent: list[int] = []
        self._size = 0

    def weigh(self, shard: int, incarnation: int, weight: float) -> None:
        """Note what a shard holds: its transitions, or the sum of their priorities."""
        self._weights[shard], self._incarnations[shard] = weight, incarnation

    @property
    def is_empty(self) -> bool:
        """Whether no shard is known to hold anything."""
        return not self._weights.sum() > 0

    def sample(self, batch_size: int) -> Batch:
        """Take a batch; ``MissingError`` names the shards that have not answered in time."""
        if batch_size != self._size:
            self._ready.clear()
            self._calls.clear()
            self._size = batch_size
        self._silent = []
        began = self.now()
        while not self._ready:
            self._ask()
            began = self._receive(began)
        batch = self._ready.popleft()()
        self._ask()
        return batch

    def _ask(self) -> None:
        while len(self._calls) < _CALLS and not self.is_empty:
            chances = self._weights / self._weights.sum()
            shard = int(self._rng.choice(self.n_shards, p=chances))
            ref = call_actor(self.handles[shard], "sample", self._size, self.prefetch, self.coded[shard], group=READ)
            self._calls.append(_Call(ref, shard, self._incarnations[shard], float(chances[shard])))

    def _receive(self, began: float) -> float:
        """Wait for the oldest call. A shard that does not answer in time is lost; the others get as much time from then on."""
        left = began + self.timeout - self.now()
        if not self._calls:
            if left <= 0:
                silent = f"; shards {sorted(set(self._silent))} have not answered in time" if self._silent else ""
                raise MissingError(
                    f"there was nothing to sample for {self.timeout:.0f} s: no shard has any transitions{silent}"
                )
            time.sleep(min(0.02, left))
            self.on_lost(-1)
            return began
        call, since = self._calls.popleft(), time.monotonic()
        done = self.ray.wait([call.ref], timeout=min(max(left, 0.0), _LOOK_SECONDS))[0]
        while not done and (left := began + self.timeout - self.now()) > 0:
            done = self.ray.wait([call.ref], timeout=min(left, _LOOK_SECONDS))[0]
        self.waited += time.monotonic() - since
        is_old = call.incarnation < self._incarnations[call.shard]  # its shard has been replaced since
        if not done:
            if is_old:
                return began
            self._silent.append(call.shard)
            self._forget(call.shard)
            if len(self._silent) > self.n_shards:
                raise MissingError(
                    f"no samples: shards {sorted(set(self._silent))} have not answered within {self.timeout:.0f} s"
                )
            return self.now()
        try:
            reply: Reply = get_answer(self.ray, call.ref, call.shard)
        except ShardLostError:
            if not is_old:
                self._forget(call.shard)
            return began
        if reply.incarnation >= self._incarnations[call.shard]:  # else it is of one that has been given up
            self._take(reply, call)
        return began

    def _forget(self, shard: int) -> None:
        self._weights[shard] = 0.0
        self.on_lost(shard)

    def _take(self, reply: Reply, call: _Call) -> None:
        self.weigh(call.shard, reply.incarnation, reply.total)
        read = open_reply(self.schema, reply)
        # The shard was chosen by what was known then; this is what it comes to with what is known now.
        shares = call.chance * reply.shares / reply.total * self._weights.sum()
        indices = pack_indices(reply.shard, reply.incarnation, reply.insertions)
        self.received += len(indices)

        def make(number: int) -> Batch:
            part = slice(number * reply.batch_size, (number + 1) * reply.batch_size)
            return Batch(read(number), reply.shares[part], shares[part], indices[part])

        self._ready += [partial(make, number) for number in range(reply.batches)]

    def update_priorities(self, indices: Array, priorities: Array) -> None:
        """Send priorities to the shards of their samples; those of shards that have been replaced are ignored."""
        shards, incarnations, insertions = unpack_indices(indices)
        for shard in np.unique(shards).tolist():
            if not 0 <= shard < self.n_shards:
                raise IndexError(f"there is no shard {shard}: these are not indices of samples of this fleet")
            current = self._incarnations[shard] % (1 << _INCARNATION_BITS)
            mine = (shards == shard) & (incarnations == current)
            if mine.any():
                call_actor(self.handles[shard], "update_priorities", insertions[mine], priorities[mine], group=READ)
