"""Samples for the learner: asked for ahead of time, from one shard a call."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from sb3_extra_buffers.distributed.errors import MissingError, ShardLostError
from sb3_extra_buffers.distributed.replies import Reply, open_reply
from sb3_extra_buffers.distributed.schema import Array, Schema
from sb3_extra_buffers.distributed.transport import Transport

_SHARD_BITS, _INCARNATION_BITS, _INSERTION_BITS = 12, 8, 43
MOST_SHARDS = 1 << _SHARD_BITS
_LOOK_SECONDS = 1.0


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
    """
    Make one integer of what tells a transition from all others.

    :param shard: Number of the shard
    :param incarnation: How often it has been replaced
    :param insertions: Insertion numbers
    :return: The integers
    """
    who = shard << _INCARNATION_BITS | incarnation % (1 << _INCARNATION_BITS)
    return insertions.astype(np.int64) | who << _INSERTION_BITS


def unpack_indices(indices: Array) -> tuple[Array, Array, Array]:
    """
    Take these integers apart.

    :param indices: They
    :return: Shards, incarnations (modulo 256) and insertion numbers
    """
    who = indices >> _INSERTION_BITS
    return who >> _INCARNATION_BITS, who & (1 << _INCARNATION_BITS) - 1, indices & (1 << _INSERTION_BITS) - 1


class _Asked(NamedTuple):
    """A call that is under way."""

    ticket: Any
    shard: int
    incarnation: int
    chance: float
    """With which this shard was chosen."""


class Client:
    """
    Draws batches from shards.

    Each call asks one shard for several batches, and two calls are under way at any time. Which shard is a matter of chance,
    by its share in all transitions, or in all priorities; all shards get blocks of all collectors, so they hold the same
    mixture.

    :param transport: How shards are reached
    :param schema: What blocks look like
    :param n_shards: Number of shards
    :param prefetch: Batches of a call
    :param timeout: Seconds that a call may take
    :param seed: Seed of the choice of shards
    :param now: The time
    """

    CALLS = 2

    def __init__(
        self,
        transport: Transport,
        schema: Schema,
        n_shards: int,
        prefetch: int = 8,
        timeout: float = 60.0,
        seed: int | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        if not 1 <= n_shards <= MOST_SHARDS:
            raise ValueError(f"{n_shards} shards; from 1 to {MOST_SHARDS} are possible")
        if prefetch < 1:
            raise ValueError(f"prefetch is {prefetch}; it must be 1 or more")
        self.transport, self.schema, self.n_shards = transport, schema, n_shards
        self.prefetch, self.timeout, self.now = prefetch, timeout, now
        self.coded = [False] * n_shards
        """Which shards are far away, so that what they send is coded."""
        self.waited = 0.0
        """Seconds spent waiting for samples."""
        self.received = 0
        """Transitions that have come."""
        self.on_lost: Callable[[int], None] = lambda shard: None
        """Called with a shard that does not answer."""
        self._rng = np.random.default_rng(seed)
        self._weights = np.zeros(n_shards)
        self._incarnations = [0] * n_shards
        self._asked: deque[_Asked] = deque()
        self._ready: deque[Callable[[], Batch]] = deque()
        self._silent: list[int] = []
        self._size = 0

    def weigh(self, shard: int, incarnation: int, weight: float) -> None:
        """
        Note what a shard holds.

        :param shard: Its number
        :param incarnation: How often it has been replaced
        :param weight: Its transitions, or the sum of their priorities
        """
        self._weights[shard], self._incarnations[shard] = weight, incarnation

    @property
    def is_empty(self) -> bool:
        """Whether no shard is known to hold anything."""
        return not self._weights.sum() > 0

    def sample(self, batch_size: int) -> Batch:
        """
        Take a batch.

        :param batch_size: Number of transitions
        :return: The batch; ``MissingError`` names the shards that have not answered in time
        """
        if batch_size != self._size:
            self._ready.clear()
            self._asked.clear()
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
        """Have two calls under way."""
        while len(self._asked) < self.CALLS and not self.is_empty:
            chances = self._weights / self._weights.sum()
            shard = int(self._rng.choice(self.n_shards, p=chances))
            ticket = self.transport.submit(shard, "sample", self._size, self.prefetch, self.coded[shard])
            self._asked.append(_Asked(ticket, shard, self._incarnations[shard], float(chances[shard])))

    def _receive(self, began: float) -> float:
        """Wait for the call that was made first. Who does not answer in time is lost; the others get as much time then."""
        left = began + self.timeout - self.now()
        if not self._asked:
            if left <= 0:
                silent = f"; shards {sorted(set(self._silent))} have not answered in time" if self._silent else ""
                raise MissingError(
                    f"there was nothing to sample for {self.timeout:.0f} s: no shard has any transitions{silent}"
                )
            time.sleep(min(0.02, left))
            self.on_lost(-1)  # nobody in particular: who looks after the shards may look again
            return began
        call, since = self._asked.popleft(), time.monotonic()
        done = self.transport.wait([call.ticket], min(max(left, 0), _LOOK_SECONDS))
        while not done and (left := began + self.timeout - self.now()) > 0:
            done = self.transport.wait([call.ticket], min(left, _LOOK_SECONDS))
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
            reply: Reply = self.transport.result(call.ticket)
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

    def _take(self, reply: Reply, call: _Asked) -> None:
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
        """
        Send priorities to the shards that they belong to; those of a shard that has been replaced are nobody's any more.

        :param indices: Indices of samples
        :param priorities: One each
        """
        shards, incarnations, insertions = unpack_indices(indices)
        for shard in np.unique(shards).tolist():
            if not 0 <= shard < self.n_shards:
                raise IndexError(f"there is no shard {shard}: these are not indices of samples of this fleet")
            current = self._incarnations[shard] % (1 << _INCARNATION_BITS)
            mine = (shards == shard) & (incarnations == current)
            if mine.any():
                self.transport.submit(shard, "update_priorities", insertions[mine], priorities[mine])
