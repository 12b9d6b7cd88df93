"""Shards that are actors of Ray's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sb3_extra_buffers.distributed.errors import ShardLostError
from sb3_extra_buffers.distributed.optional import need_ray

# What changes a shard, what reads it, and what is answered in any case do not wait for each other.
GROUPS = {"add": "write", "sample": "read", "update_priorities": "read", "save": "read"}
CONTROL = "control"
SHARD_GROUPS = {"write": 1, "read": 1, CONTROL: 1}
_TAKE_SECONDS = 30.0


def first_sentence(error: BaseException) -> str:
    """
    Shorten what Ray says: most of it is advice.

    :param error: What it has raised
    :return: The sentence that says what has happened
    """
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return (lines[-1] if "Traceback" in str(error) else lines[0]).split(". ")[0]


def call_actor(handle: Any, call: str, *args: Any, group: str = CONTROL) -> Any:
    """
    Call a method of an actor.

    :param handle: The actor
    :param call: Name of the method
    :param args: What it takes
    :param group: Its concurrency group
    :return: Ray's reference to the answer
    """
    return getattr(handle, call).options(concurrency_group=group).remote(*args)


class RayTransport:
    """
    As ``Transport``.

    :param handles: The shards
    """

    def __init__(self, handles: Sequence[Any]) -> None:
        self.ray = need_ray()
        self.handles = list(handles)
        self._shards: dict[Any, int] = {}

    def submit(self, shard: int, call: str, *args: Any) -> Any:
        """As in ``Transport``."""
        ticket = call_actor(self.handles[shard], call, *args, group=GROUPS.get(call, CONTROL))
        if call != "update_priorities":  # nobody asks for the answer
            self._shards[ticket] = shard
        return ticket

    def wait(self, tickets: Sequence[Any], timeout: float) -> list[Any]:
        """As in ``Transport``."""
        unique = list(dict.fromkeys(tickets))
        done, rest = self.ray.wait(unique, num_returns=1, timeout=max(timeout, 0.0))
        if done and rest:
            done += self.ray.wait(rest, num_returns=len(rest), timeout=0)[0]
        return list(done)

    def result(self, ticket: Any) -> Any:
        """As in ``Transport``."""
        shard = self._shards.pop(ticket, -1)
        try:
            return self.ray.get(ticket, timeout=_TAKE_SECONDS)
        except self.ray.exceptions.GetTimeoutError as error:
            raise ShardLostError(shard, f"its answer did not arrive within {_TAKE_SECONDS:.0f} s") from error
        except (self.ray.exceptions.RayActorError, self.ray.exceptions.ObjectLostError) as error:
            raise ShardLostError(shard, first_sentence(error)) from error

    def forget(self, ticket: Any) -> None:
        """
        Say that nobody is going to ask for an answer.

        :param ticket: Whose
        """
        self._shards.pop(ticket, None)
