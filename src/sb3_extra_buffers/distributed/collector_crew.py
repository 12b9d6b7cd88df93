"""The collectors of a fleet, from being started to being replaced."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from sb3_extra_buffers.distributed.clock import Who
from sb3_extra_buffers.distributed.crew import ASK_SECONDS, MOST_FAILURES, Crew, Died
from sb3_extra_buffers.distributed.ray_transport import CONTROL, call_actor, reason
from sb3_extra_buffers.distributed.shard_crew import ShardCrew

if TYPE_CHECKING:
    from sb3_extra_buffers.distributed.fleet import Fleet

_WINDOW = 2
_PROGRESS_SECONDS = 1.0
LARGE_BLOCK = 100_000
"""Bytes above which Ray sends a message by way of its object store."""

logger = logging.getLogger(__name__)


class CollectorCrew(Crew):
    """
    The collectors. Once they play, nobody waits for one that is started in the place of another.

    :param fleet: Whose
    :param kind: Their class
    :param make_env: Makes environments
    :param count: How many
    :param lanes: Environments of each
    :param options: Options of Ray's
    :param resend_after: Seconds after which a block is sent again
    """

    def __init__(
        self,
        fleet: Fleet,
        kind: type[Any],
        make_env: Any,
        count: int,
        lanes: int,
        options: dict[str, Any],
        resend_after: float,
    ) -> None:
        super().__init__(fleet, kind, options, {CONTROL: 1}, "collector")
        self._cpus = float(options.get("num_cpus") or 0) * count
        self.count, self.lanes, self.resend_after = count, lanes, resend_after
        self._make_env = self.ray.put(make_env)
        self.incarnations = [0] * count
        self.progress: list[Any] = [None] * count
        self.replaced = 0
        """How many have been replaced, altogether."""
        self._asked: list[tuple[Any, float] | None] = [None] * count
        self._runs: list[Any] = [None] * count
        self._starting: list[tuple[Any, float, str] | None] = [None] * count
        self._has_warned = False
        self._late: set[int] = set()
        self._failures = [0] * count
        self._past_steps = 0
        self._start_with: tuple[Any, ...] | None = None

    def _start(self) -> Any:
        return self._make.remote(self._make_env, self.lanes)

    def hire(self) -> Any:
        """
        Start all collectors; they do not play yet.

        :return: What the first one tells of itself
        """
        there = self.ray.cluster_resources().get("CPU", 0)
        if self._cpus > there:
            logger.warning(
                f"{self.count} collectors ask for {self._cpus:g} CPUs, and the cluster has {there:g}: some of them cannot "
                "start. Give collector_options=dict(num_cpus=...), or add machines (ray start --address=...)"
            )
        self.handles = [self._start() for _ in range(self.count)]
        try:
            self.infos = self.ask([call_actor(handle, "describe") for handle in self.handles], range(self.count), "started")
        except Died as error:
            raise RuntimeError(f"collector {error.number} could not be started: {error.why}") from error
        for number, info in enumerate(self.infos):
            self._check_spaces(number, info)
        return self.infos[0]

    def _check_spaces(self, number: int, info: Any) -> None:
        for name in ("observation_space", "action_space"):
            mine, first = getattr(info, name), getattr(self.infos[0], name)
            if mine != first:
                raise ValueError(
                    f"make_env() makes different environments: collector {number} has {name} {mine}, collector 0 has {first}"
                )

    def renumber(self, incarnation: int) -> None:
        """
        Count incarnations from here on: earlier ones were of the run that is restored.

        :param incarnation: The first
        """
        self.incarnations = [incarnation] * self.count

    def start(self, schema: str, spec: Any, shards: ShardCrew, run: bytes, epsilons: Any) -> None:
        """
        Have them play.

        :param schema: What blocks look like, as JSON
        :param spec: The policy
        :param shards: Where blocks go
        :param run: 16 bytes that are the run's own
        :param epsilons: Share of random actions of each environment
        """
        again = self._start_with is not None
        self._start_with = schema, spec, shards, run, epsilons
        if not again:
            for number in range(self.count):
                self._set_to_work(number)

    def _set_to_work(self, number: int) -> None:
        assert self._start_with is not None
        schema, spec, shards, run, epsilons = self._start_with
        seed, incarnation = self.fleet.seed, self.incarnations[number]
        settings = {
            "run": run,
            "number": number,
            "incarnation": incarnation,
            "seed": None if seed is None else seed + (incarnation * self.count + number) * self.lanes,
            "epsilons": epsilons[number * self.lanes : (number + 1) * self.lanes],
            "window": _WINDOW,
            "resend_after": self.resend_after,
        }
        known = list(zip(shards.handles, shards.incarnations, strict=True))
        self._runs[number] = self.handles[number].run.remote(schema, spec, known, settings)

    def look_after(self, timeout: float) -> None:
        """
        Hear how they are, and replace those that are gone. It waits for nobody.

        :param timeout: Seconds that an answer may take
        """
        if self._start_with is None:
            return
        # One question for all of them: there may be a thousand.
        tickets = [*self._runs, *(asked[0] for asked in (*self._asked, *self._starting) if asked is not None)]
        done = set(self.ray.wait(tickets, num_returns=len(tickets), timeout=0)[0])
        for number in range(self.count):
            why = self._look_at(number, timeout, done)
            if why is not None:
                self._replace(number, why)

    def _look_at(self, number: int, timeout: float, done: set[Any]) -> str | None:
        """Why one has to be replaced; None where it has not."""
        if self._runs[number] in done:
            return self._why(self._runs[number])
        starting = self._starting[number]
        if starting is not None:
            if starting[0] in done:
                self._starting[number] = None
                with contextlib.suppress(self.ray.exceptions.RayError):  # who is gone is noticed by what they were running
                    info = self.ray.get(starting[0], timeout=ASK_SECONDS)
                    self._check_spaces(number, info)
                    self.infos[number] = info
            elif number not in self._late and self.fleet.now() - starting[1] > self.fleet.start_timeout:
                # There may be no place for it because a machine is gone, and it may find one later.
                self._late.add(number)
                self.fleet.announce(f"{self.explain_one(number)}; the others go on without it")
            return None
        asked = self._asked[number]
        if asked is not None and asked[0] not in done:
            late = self.fleet.now() - asked[1] > timeout
            return f"it has not answered for {timeout:.0f} s" if late else None
        if asked is not None:
            self._take(number, asked[0])
        if asked is None or self.fleet.now() - asked[1] > min(_PROGRESS_SECONDS, timeout / 4):
            self._asked[number] = call_actor(self.handles[number], "progress"), self.fleet.now()
        return None

    def _take(self, number: int, ticket: Any) -> None:
        with contextlib.suppress(Exception):  # as above
            progress = self.ray.get(ticket, timeout=ASK_SECONDS)
            if progress is not None:
                self.progress[number] = progress
                self._warn(progress.largest_block)

    def _warn(self, largest: int) -> None:
        if largest <= LARGE_BLOCK or self._has_warned:
            return
        self._has_warned = True
        logger.warning(
            f"a block has {largest:,} bytes; Ray takes longer to send one of more than {LARGE_BLOCK:,}. A smaller block_steps "
            f"(now {self.fleet.block_steps}) or fewer envs_per_collector (now {self.lanes}) make blocks smaller"
        )

    def _why(self, run: Any) -> str:
        try:
            self.ray.get(run, timeout=ASK_SECONDS)
        except Exception as error:
            return reason(error)
        return "it has stopped"

    def _replace(self, number: int, why: str) -> None:
        self._failures[number] += 1
        if self._failures[number] > MOST_FAILURES:
            raise RuntimeError(
                f"collector {number} has failed {self._failures[number]} times without a single block acknowledged: {why}"
            )
        self.end(number)
        if self.progress[number] is not None:
            self._past_steps += self.progress[number].steps
        self.progress[number], self._asked[number] = None, None
        self.incarnations[number] += 1
        self.replaced += 1
        self._late.discard(number)
        self.handles[number] = self._start()
        self._starting[number] = call_actor(self.handles[number], "describe"), self.fleet.now(), why
        self._set_to_work(number)
        self.fleet.announce(f"collector {number} is lost ({why}), and is being replaced; what it had not sent is gone")

    def have_sent(self, numbers: Iterable[int]) -> None:
        """Note that blocks of some collectors have arrived: an environment of theirs does not always fail."""
        for number in numbers:
            self._failures[number] = 0

    @property
    def steps(self) -> int:
        """Steps that have been played, as far as is known."""
        now: int = sum(progress.steps for progress in self.progress if progress is not None)
        return self._past_steps + now

    def replace_shard(self, shard: int, handle: Any, incarnation: int) -> dict[Who, tuple[int, tuple[int, ...]]]:
        """
        Have collectors send to another actor, and return what they tell (see ``Outbox.replaced``). Those that do not answer
        soon are not in it.
        """
        if self._start_with is None:
            return {}
        tickets = [call_actor(collector, "replace_shard", shard, [handle], incarnation) for collector in self.handles]
        asked = {ticket: number for number, ticket in enumerate(tickets) if self._starting[number] is None}
        done = self.ray.wait(list(asked), num_returns=len(asked), timeout=ASK_SECONDS)[0] if asked else []
        found = {}
        for ticket in done:
            with contextlib.suppress(self.ray.exceptions.RayError):
                number = asked[ticket]
                found[number, self.incarnations[number]] = self.ray.get(ticket, timeout=ASK_SECONDS)
        return found

    @property
    def all_play(self) -> bool:
        """Whether everybody has told how far they have got."""
        return all(progress is not None for progress in self.progress)

    def explain(self) -> str:
        """
        Say what collectors are waiting for.

        :return: A sentence
        """
        return "; ".join(self.explain_one(number) for number in range(self.count))

    def explain_one(self, number: int) -> str:
        """
        Say what a collector is waiting for.

        :param number: Its number
        :return: A sentence
        """
        starting, progress = self._starting[number], self.progress[number]
        if starting is not None:
            seconds, there = self.fleet.now() - starting[1], self.ray.cluster_resources().get("CPU", 0)
            return (
                f"collector {number} has not started within {seconds:.0f} s (the cluster has {there:.0f} CPUs), "
                f"in place of one that is lost ({starting[2]})"
            )
        if progress is None:
            return f"collector {number} has not begun to play"
        if progress.waits_for:
            return f"collector {number} waits for shards {list(progress.waits_for)}"
        return f"collector {number} is playing, {progress.steps:,} steps so far"
