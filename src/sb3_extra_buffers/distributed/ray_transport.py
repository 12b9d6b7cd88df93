"""Shards that are actors of Ray's."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from sb3_extra_buffers.distributed.errors import ShardLostError
from sb3_extra_buffers.distributed.optional import need_ray

# What changes a shard, what reads it, and what is answered in any case do not wait for each other.
GROUPS = {"add": "write", "sample": "read", "update_priorities": "read", "save": "save"}
CONTROL = "control"
SHARD_GROUPS = {"write": 1, "read": 2, "save": 1, CONTROL: 1}
_TAKE_SECONDS = 30.0
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def reason(error: BaseException) -> str:
    """What has happened, of what Ray says: most of that is a traceback, or advice."""
    lines = [line for line in _COLOURS.sub("", str(error)).splitlines() if line.strip()] or [type(error).__name__]
    frames = [place for place, line in enumerate(lines) if line.lstrip().startswith('File "')]
    if not frames:
        return lines[0].strip().rstrip(".")
    last = frames[-1] + 1
    while last < len(lines) - 1 and lines[last][:1].isspace():  # code
        last += 1
    return " ".join(line.strip() for line in lines[last:]).rstrip(".")


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


class Ticket(NamedTuple):
    """A call that is under way. It alone keeps the answer: whoever drops it does not want that any more."""

    ref: Any
    shard: int


class RayTransport:
    """
    As ``Transport``.

    :param handles: The shards; this list is looked at for each call
    """

    def __init__(self, handles: list[Any]) -> None:
        self.ray = need_ray()
        self.handles = handles

    def submit(self, shard: int, call: str, *args: Any) -> Ticket:
        """As in ``Transport``."""
        return Ticket(call_actor(self.handles[shard], call, *args, group=GROUPS.get(call, CONTROL)), shard)

    def wait(self, tickets: Sequence[Ticket], timeout: float) -> list[Ticket]:
        """As in ``Transport``."""
        by_ref = {ticket.ref: ticket for ticket in tickets}
        done, rest = self.ray.wait(list(by_ref), num_returns=1, timeout=max(timeout, 0.0))
        if done and rest:
            done += self.ray.wait(rest, num_returns=len(rest), timeout=0)[0]
        return [by_ref[ref] for ref in done]

    def result(self, ticket: Ticket) -> Any:
        """As in ``Transport``."""
        try:
            return self.ray.get(ticket.ref, timeout=_TAKE_SECONDS)
        except self.ray.exceptions.GetTimeoutError as error:
            raise ShardLostError(ticket.shard, f"its answer did not arrive within {_TAKE_SECONDS:.0f} s") from error
        except (self.ray.exceptions.RayActorError, self.ray.exceptions.ObjectLostError) as error:
            raise ShardLostError(ticket.shard, reason(error)) from error
