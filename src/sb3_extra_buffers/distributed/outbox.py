"""Blocks of a collector on their way: each is sent until it is acknowledged, and always to the same shard."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sb3_extra_buffers.distributed.errors import ShardLostError
from sb3_extra_buffers.distributed.shard import Ack
from sb3_extra_buffers.distributed.transport import Transport


@dataclass
class _Waiting:
    """A block that is not acknowledged yet."""

    shard: int
    message: bytes
    tickets: list[Any]
    sent_at: float


class Outbox:
    """
    Sends blocks, a few at a time.

    Block ``s`` of collector ``c`` belongs to shard ``(c + s) % n_shards``, also after that shard has been replaced: a new
    one that was restored from a checkpoint knows which blocks it has. So nothing is ever in two shards.

    :param transport: How shards are reached
    :param collector: Number of the collector
    :param n_shards: Number of shards
    :param window: Blocks that may be on their way at once
    :param resend_after: Seconds after which a block is sent again
    :param now: The time
    """

    def __init__(
        self,
        transport: Transport,
        collector: int,
        n_shards: int,
        window: int = 2,
        resend_after: float = 10.0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.transport, self.collector, self.n_shards = transport, collector, n_shards
        self.window, self.resend_after, self.now = window, resend_after, now
        self.sequence = 0
        """Number of the next block."""
        self.acknowledged = [0] * n_shards
        """Blocks that each shard has acknowledged, whichever incarnation of it."""
        self.resent = 0
        self.largest = 0
        """Bytes of the largest block so far."""
        self.newest: Ack | None = None
        """The acknowledgement with the newest policy."""
        self._waiting: dict[int, _Waiting] = {}
        self._incarnations = [0] * n_shards
        self._credit = [0] * n_shards
        self._questions: dict[int, tuple[Any, float]] = {}
        self._lock = threading.RLock()  # a shard may be replaced from another thread

    @property
    def settled(self) -> int:
        """Blocks before this one have been acknowledged."""
        return min(self._waiting, default=self.sequence)

    @property
    def waiting(self) -> int:
        """Blocks that are on their way."""
        return len(self._waiting)

    def waits_for(self) -> list[int]:
        """
        Tell whose answers are missing; another thread may ask.

        :return: Numbers of shards
        """
        return sorted({block.shard for block in list(self._waiting.values())} or {self.shard_of(self.sequence)})

    def shard_of(self, sequence: int) -> int:
        """
        Tell where a block belongs.

        :param sequence: Its number
        :return: Number of a shard
        """
        return (self.collector + sequence) % self.n_shards

    def has_room(self) -> bool:
        """
        Find out whether another block may be collected now: not too many are on their way, and the learner is not far behind.

        :return: Whether it may
        """
        return len(self._waiting) < self.window and self._credit[self.shard_of(self.sequence)] > 0

    def push(self, message: bytes) -> None:
        """
        Send the next block.

        :param message: It
        """
        with self._lock:
            block = _Waiting(self.shard_of(self.sequence), message, [], self.now())
            self._waiting[self.sequence] = block
            self.sequence += 1
            self.largest = max(self.largest, len(message))
            self._send(block)

    def _send(self, block: _Waiting) -> None:
        block.sent_at = self.now()
        block.tickets.append(self.transport.submit(block.shard, "add", block.message))

    def replaced(self, shard: int, incarnation: int) -> tuple[int, tuple[int, ...]]:
        """
        Note that there is a new shard in place of one: what that had not acknowledged goes to the new one.

        :param shard: Number of the shard
        :param incarnation: How often it has been replaced
        :return: The number of the next block, and the blocks that no shard before this one has acknowledged; no answer of
            theirs counts any more
        """
        with self._lock:
            if incarnation > self._incarnations[shard]:
                self._incarnations[shard], self._credit[shard] = incarnation, 0
                self._questions.pop(shard, None)
                for block in self._waiting.values():
                    if block.shard == shard:
                        block.tickets.clear()
                        self.resent += 1
                        self._send(block)
            return self.sequence, tuple(number for number, block in self._waiting.items() if block.shard == shard)

    def pump(self, timeout: float) -> None:
        """
        Take answers, send again what has got lost, and ask for room if there is none.

        :param timeout: Seconds to wait for an answer at most
        """
        with self._lock:
            shard = self.shard_of(self.sequence)
            if len(self._waiting) < self.window and self._credit[shard] <= 0 and shard not in self._questions:
                self._questions[shard] = self.transport.submit(shard, "ask"), self.now()
            owners: list[tuple[Any, int, int]] = [
                (ticket, block.shard, sequence) for sequence, block in self._waiting.items() for ticket in block.tickets
            ]
            owners += [(ticket, number, -1) for number, (ticket, _) in self._questions.items()]
        done = self.transport.wait([ticket for ticket, _, _ in owners], timeout) if owners else []
        with self._lock:
            for ticket, number, sequence in owners:
                if any(ticket is one or ticket == one for one in done):
                    self._take(ticket, number, sequence)
            for block in self._waiting.values():
                if self.now() - block.sent_at >= self.resend_after:
                    self.resent += 1
                    self._send(block)
            for number, (_, asked_at) in list(self._questions.items()):
                if self.now() - asked_at >= self.resend_after:
                    del self._questions[number]

    def _take(self, ticket: Any, shard: int, sequence: int) -> None:
        block = self._waiting.get(sequence)
        if block is not None and ticket in block.tickets:
            block.tickets.remove(ticket)
        if self._questions.get(shard, (None, 0.0))[0] is ticket:
            del self._questions[shard]
        try:
            ack: Ack = self.transport.result(ticket)
        except ShardLostError:
            return  # it is sent again once there is another one, or after a while
        if ack.incarnation < self._incarnations[shard]:
            return  # of one that has been given up: what it holds does not count any more
        if block is not None and ack.sequence == sequence:
            del self._waiting[sequence]
            self.acknowledged[shard] += 1
        self.replaced(shard, ack.incarnation)  # where nobody has said so yet
        self._credit[shard] = ack.credit
        if self.newest is None or ack.version >= self.newest.version:
            self.newest = ack
