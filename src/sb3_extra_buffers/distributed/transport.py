"""How collectors and the learner reach shards: by Ray, or in tests by what drops, repeats, reorders and kills."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class Transport(Protocol):
    """
    Calls methods of shards without waiting for them.

    A call may be carried out never, once or, where the network repeats it, twice, and its answer may get lost.
    """

    def submit(self, shard: int, call: str, *args: Any) -> Any:
        """
        Call a method of a shard.

        :param shard: Its number
        :param call: Name of the method
        :param args: What the method takes
        :return: A ticket for the answer
        """

    def wait(self, tickets: Sequence[Any], timeout: float) -> list[Any]:
        """
        Wait until at least one answer is there.

        :param tickets: Whose
        :param timeout: Seconds to wait at most
        :return: Tickets whose answers are there; none if the time is over
        """

    def result(self, ticket: Any) -> Any:
        """
        Take an answer that is there.

        :param ticket: Whose
        :return: What the method returned. What it raised is raised; ``ShardLostError`` where nobody is going to answer
        """
