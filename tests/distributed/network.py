"""Ray in one thread, with calls that a test carries out, fails, or loses the answer of, in the order that it likes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from fake_ray import GetTimeoutError, ObjectLostError, RayActorError, RayTaskError

from sb3_extra_buffers.distributed.shard import Shard


class Handle:
    """An actor with a shard in it."""

    def __init__(self, network: Network, shard: Shard) -> None:
        self.network, self.shard, self.is_dead = network, shard, False

    def __getattr__(self, method: str) -> Any:
        def remote(*args: Any) -> int:
            return self.network.submit(self, method, args)

        return SimpleNamespace(options=lambda concurrency_group: SimpleNamespace(remote=remote))


class Network:
    """Calls to shards that have not been carried out yet. Time passes only when the test says so."""

    def __init__(self, shards: list[Shard]) -> None:
        self.handles = [Handle(self, shard) for shard in shards]
        self.time = 0.0
        self.calls: list[tuple[int, Handle, str, tuple[Any, ...]]] = []
        self.answers: dict[int, Any] = {}
        self.refs = 0
        self.on_wait: Callable[[], None] = lambda: None
        self.exceptions = SimpleNamespace(
            GetTimeoutError=GetTimeoutError, RayActorError=RayActorError, ObjectLostError=ObjectLostError
        )

    @property
    def shards(self) -> list[Shard]:
        return [handle.shard for handle in self.handles]

    def now(self) -> float:
        return self.time

    def replace(self, number: int, shard: Shard) -> Handle:
        """Kill an actor, and have another one in its place."""
        self.handles[number].is_dead = True
        self.handles[number] = Handle(self, shard)
        return self.handles[number]

    # -- what Ray has ---------------------------------------------------------------------------------------------------

    def submit(self, handle: Handle, call: str, args: tuple[Any, ...]) -> int:
        self.refs += 1
        self.calls.append((self.refs, handle, call, args))
        return self.refs

    def wait(self, refs: Sequence[int], num_returns: int = 1, timeout: float = 0.0) -> tuple[list[int], list[int]]:
        self.on_wait()
        done = [ref for ref in refs if ref in self.answers][:num_returns]
        return done, [ref for ref in refs if ref not in done]

    def get(self, ref: int, timeout: float) -> Any:
        answer = self.answers.pop(ref)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    # -- what happens to calls ------------------------------------------------------------------------------------------

    def deliver(self, place: int = 0, answers: bool = True) -> None:
        """Carry out a call, perhaps with the answer lost: Ray says then that the actor is unavailable."""
        if not self.calls:
            return
        ref, handle, call, args = self.calls.pop(place % len(self.calls))
        if handle.is_dead:
            self.answers[ref] = RayActorError("The actor is dead")
            return
        try:
            answer = getattr(handle.shard, call)(*args)
        except Exception as error:
            answer = RayTaskError(error)
        self.answers[ref] = answer if answers else RayActorError("The actor is unavailable")

    def fail(self, place: int = 0) -> None:
        """Have a call fail before it is carried out."""
        if self.calls:
            self.answers[self.calls.pop(place % len(self.calls))[0]] = RayActorError("The actor is unavailable")

    def drop(self, place: int = 0) -> None:
        """Have a call never answered: its actor hangs."""
        if self.calls:
            del self.calls[place % len(self.calls)]

    def run(self) -> None:
        """Carry everything out."""
        while self.calls:
            self.deliver()
