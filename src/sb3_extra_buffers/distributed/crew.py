"""What crews of shards and of collectors share: starting actors of Ray's, asking them with a deadline, ending them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sb3_extra_buffers.distributed.errors import MissingError
from sb3_extra_buffers.distributed.ray_transport import reason

if TYPE_CHECKING:
    from sb3_extra_buffers.distributed.fleet import Fleet

# Ray must not start an actor again by itself: it would be empty, and calls would go on as if nothing had happened.
# Nor must its server keep a record of each call: it would grow by megabytes a minute.
_ACTORS = {"max_restarts": 0, "max_task_retries": 0, "enable_task_events": False}
ASK_SECONDS = 5.0
_LOOK_SECONDS = 1.0
MOST_FAILURES = 2
TOO_FEW = (
    "The cluster has {:.0f} CPUs; if that is too few, give collector_options=dict(num_cpus=...) or add machines "
    "(ray start --address=...)"
)


class Died(Exception):
    """
    An actor has died, or a call of it has failed, while an answer was waited for.

    :param number: Which
    :param why: What Ray says
    :param is_gone: Whether there is nobody any more
    """

    def __init__(self, number: int, why: str, is_gone: bool) -> None:
        super().__init__(why)
        self.number, self.why, self.is_gone = number, why, is_gone


class Crew:
    """
    Actors of one kind.

    :param fleet: Whose
    :param kind: Their class
    :param options: Options of Ray's
    :param groups: Concurrency groups
    :param name: What one of them is called
    """

    def __init__(self, fleet: Fleet, kind: type[Any], options: dict[str, Any], groups: dict[str, int], name: str) -> None:
        self.fleet, self.ray, self.name = fleet, fleet.ray, name
        self._make = self.ray.remote(**{**options, **_ACTORS, "concurrency_groups": groups})(kind)
        self.handles: list[Any] = []
        self.incarnations: list[int] = []
        self.infos: list[Any] = []

    def ask(self, tickets: Sequence[Any], numbers: Sequence[int], what: str, hint: str = TOO_FEW) -> list[Any]:
        """
        Wait for answers that cannot be done without, for all of them together as long as one may take.

        :param tickets: Whose
        :param numbers: Who answers
        :param what: What is wanted
        :param hint: What may help, with a place for the CPUs of the cluster
        :return: The answers; ``MissingError`` names who has not given one, ``Died`` who never will
        """
        most, now = self.fleet.start_timeout, self.fleet.now
        deadline, answers, silent = now() + most, [], []
        for ticket, number in zip(tickets, numbers, strict=True):
            try:
                while not self.ray.wait([ticket], timeout=max(min(deadline - now(), _LOOK_SECONDS), 0.01))[0]:
                    if now() >= deadline:
                        silent.append(number)
                        break
                else:
                    answers.append(self.ray.get(ticket, timeout=ASK_SECONDS))
            except self.ray.exceptions.RayError as error:
                gone = self.ray.exceptions.RayActorError, self.ray.exceptions.ObjectLostError
                raise Died(number, reason(error), isinstance(error, gone)) from error
        if silent:
            there = self.ray.cluster_resources().get("CPU", 0)
            who = f"{self.name} {silent[0]} has" if len(silent) == 1 else f"{self.name}s {silent} have"
            raise MissingError(f"{who} not {what} within {most:.0f} s. {hint.format(there)}")
        return answers

    def end(self, number: int) -> None:
        """
        End an actor.

        :param number: Its number
        """
        with contextlib.suppress(Exception):
            self.ray.kill(self.handles[number])

    def dismiss(self) -> None:
        """End all of them."""
        for number in range(len(self.handles)):
            self.end(number)
        self.handles.clear()
