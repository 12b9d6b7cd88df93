"""A network in one thread that drops, repeats, reorders and kills, as it is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sb3_extra_buffers.distributed.errors import ShardLostError
from sb3_extra_buffers.distributed.shard import Shard


class Network:
    """Shards, and calls to them that have not arrived yet. Time passes only when the test says so."""

    def __init__(self, shards: list[Shard]) -> None:
        self.shards = shards
        self.time = 0.0
        self.calls: list[tuple[int, Shard, str, tuple[Any, ...]]] = []
        self.answers: dict[int, Any] = {}
        self.tickets = 0
        self.on_wait: Callable[[], None] = lambda: None

    def now(self) -> float:
        return self.time

    # -- what Transport has ---------------------------------------------------------------------------------------------

    def submit(self, shard: int, call: str, *args: Any) -> int:
        self.tickets += 1
        self.calls.append((self.tickets, self.shards[shard], call, args))
        return self.tickets

    def wait(self, tickets: Sequence[int], timeout: float) -> list[int]:
        self.on_wait()
        return [ticket for ticket in tickets if ticket in self.answers]

    def result(self, ticket: int) -> Any:
        answer = self.answers.pop(ticket)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    # -- what happens to calls ------------------------------------------------------------------------------------------

    def deliver(self, place: int = 0, repeats: int = 1, answers: bool = True) -> None:
        """Have a call carried out, perhaps twice, and perhaps with the answer lost."""
        if not self.calls:
            return
        ticket, shard, call, args = self.calls.pop(place % len(self.calls))
        if shard is not self.shards[shard.number]:
            self.answers[ticket] = ShardLostError(shard.number, "it was killed")
            return
        for _ in range(repeats):
            answer = getattr(shard, call)(*args)
        if answers:
            self.answers[ticket] = answer

    def drop(self, place: int = 0) -> None:
        if self.calls:
            del self.calls[place % len(self.calls)]

    def run(self) -> None:
        """Carry everything out."""
        while self.calls:
            self.deliver()
