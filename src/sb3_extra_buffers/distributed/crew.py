"""Actors of a fleet, from being started to being replaced. Every call to Ray has a deadline."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sb3_extra_buffers.distributed.errors import MissingError
from sb3_extra_buffers.distributed.ray_transport import CONTROL, GROUPS, SHARD_GROUPS, call_actor, first_sentence

if TYPE_CHECKING:
    from sb3_extra_buffers.distributed.fleet import Fleet

# Ray must not start an actor again by itself: it would be empty, and calls would go on as if nothing had happened.
_NO_RESTARTS = {"max_restarts": 0, "max_task_retries": 0}
_ASK_SECONDS = 5.0
_MOST_FAILURES = 3
_WINDOW = 2


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
        self._make = self.ray.remote(**{**options, **_NO_RESTARTS, "concurrency_groups": groups})(kind)
        self.handles: list[Any] = []
        self.incarnations: list[int] = []
        self.infos: list[Any] = []

    def ask(self, ticket: Any, number: int, what: str) -> Any:
        """
        Wait for an answer that cannot be done without.

        :param ticket: Whose
        :param number: Who answers
        :param what: What is wanted
        :return: The answer; ``MissingError`` names who has not given one
        """
        try:
            return self.ray.get(ticket, timeout=self.fleet.start_timeout)
        except self.ray.exceptions.GetTimeoutError:
            there, waited = self.ray.cluster_resources().get("CPU", 0), self.fleet.start_timeout
            raise MissingError(
                f"{self.name} {number} has not {what} within {waited:.0f} s. The cluster has {there:.0f} CPUs; "
                "if that is too few, give collector_options=dict(num_cpus=...) or add machines (ray start --address=...)"
            ) from None

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


class ShardCrew(Crew):
    """
    The shards.

    :param fleet: Whose
    :param kind: Their class
    :param arguments: What ``Shard`` takes
    :param options: Options of Ray's
    """

    def __init__(self, fleet: Fleet, kind: type[Any], arguments: dict[str, Any], options: dict[str, Any]) -> None:
        super().__init__(fleet, kind, options, SHARD_GROUPS, "shard")
        self._arguments, cells = arguments, fleet.schema.cells
        self.capacity = -(-arguments["capacity"] // cells) * cells
        self.stats: list[Any] = [None] * fleet.n_shards
        self._asked: list[tuple[Any, float] | None] = [None] * fleet.n_shards
        self._episodes = [0] * fleet.n_shards
        self._dead: dict[int, str] = {}

    def _start(self, number: int) -> Any:
        fleet = self.fleet
        given = {**self._arguments, "number": number, "incarnation": self.incarnations[number]}
        path = None if fleet.checkpoint_dir is None else fleet.shard_path(number)
        if not fleet.restores and self.incarnations[number] == 0:
            path = None  # what is there is of another run
        return self._make.remote(fleet.schema.to_json(), given, path)

    def hire_all(self) -> None:
        """Start all shards."""
        self.incarnations = [0] * self.fleet.n_shards
        self.handles = [self._start(number) for number in range(self.fleet.n_shards)]
        asked = [call_actor(handle, "describe") for handle in self.handles]
        self.infos = [self.ask(ticket, number, "started") for number, ticket in enumerate(asked)]
        problems = [info.problem for info in self.infos if info.problem]
        if problems:
            raise ValueError(f"the checkpoint cannot be restored: {problems[0]}")

    def replace(self, number: int) -> Any:
        """
        Put another shard in the place of one that is lost.

        :param number: Its number
        :return: What the new one tells of itself
        """
        self.end(number)
        self._dead.pop(number, None)
        self._asked[number], self.stats[number], self._episodes[number] = None, None, 0
        self.incarnations[number] += 1
        self.handles[number] = self._start(number)
        self.infos[number] = self.ask(call_actor(self.handles[number], "describe"), number, "been replaced")
        return self.infos[number]

    def hear(self) -> list[Any]:
        """
        Take what shards have told, and ask again. It does not wait.

        :return: What is new
        """
        heard = []
        for number, handle in enumerate(self.handles):
            asked = self._asked[number]
            if asked is not None:
                if not self.ray.wait([asked[0]], timeout=0)[0]:
                    continue
                try:
                    stats = self.ray.get(asked[0], timeout=_ASK_SECONDS)
                except (self.ray.exceptions.RayActorError, self.ray.exceptions.ObjectLostError) as error:
                    self._dead[number] = first_sentence(error)
                    continue
                except self.ray.exceptions.GetTimeoutError:
                    continue
                self.stats[number], self._episodes[number] = stats, stats.n_episodes
                heard.append(stats)
            self._asked[number] = call_actor(handle, "stats", self._episodes[number]), time.monotonic()
        return heard

    def missing(self, timeout: float) -> list[tuple[int, str]]:
        """
        Tell who is lost.

        :param timeout: Seconds that an answer may take
        :return: Numbers of shards, and why
        """
        found = dict(self._dead)
        for number, asked in enumerate(self._asked):
            if asked is not None and number not in found and time.monotonic() - asked[1] > timeout:
                found[number] = f"it has not answered for {timeout:.0f} s"
        return sorted(found.items())

    def steer(self, limits: list[int], version: int, publication: Any) -> None:
        """
        Tell shards what to tell collectors.

        :param limits: Transitions that each may count
        :param version: Version of the policy
        :param publication: Where it is
        """
        for handle, limit in zip(self.handles, limits, strict=True):
            call_actor(handle, "steer", limit, version, publication)

    def save_all(self, path_of: Callable[[int], str]) -> list[int]:
        """
        Save all shards, at the same time.

        :param path_of: Where each goes to
        :return: Transitions that each counts
        """
        group = GROUPS["save"]
        asked = [call_actor(handle, "save", path_of(number), group=group) for number, handle in enumerate(self.handles)]
        return [self.ask(ticket, number, "been saved") for number, ticket in enumerate(asked)]


class CollectorCrew(Crew):
    """
    The collectors.

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
        self.count, self.lanes, self.resend_after = count, lanes, resend_after
        self._make_env = self.ray.put(make_env)
        self.incarnations = [0] * count
        self.progress: list[Any] = [None] * count
        self._past = [[0] * fleet.n_shards for _ in range(count)]
        self._asked: list[tuple[Any, float] | None] = [None] * count
        self._runs: list[Any] = [None] * count
        self._failures = [0] * count
        self._start_with: tuple[Any, ...] | None = None

    def _hire(self, number: int) -> Any:
        seed = self.fleet.seed
        own = None if seed is None else seed + (self.incarnations[number] * self.count + number) * self.lanes
        return self._make.remote(self._make_env, self.lanes, own)

    def hire(self) -> Any:
        """
        Start all collectors; they do not play yet.

        :return: What the first one tells of itself
        """
        self.handles = [self._hire(number) for number in range(self.count)]
        asked = [call_actor(handle, "describe") for handle in self.handles]
        self.infos = [self.ask(ticket, number, "started") for number, ticket in enumerate(asked)]
        return self.infos[0]

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
        settings = {
            "run": run,
            "number": number,
            "incarnation": self.incarnations[number],
            "epsilons": epsilons[number * self.lanes : (number + 1) * self.lanes],
            "window": _WINDOW,
            "resend_after": self.resend_after,
        }
        handle = self.handles[number]
        known = list(zip(shards.handles, shards.incarnations, strict=True))
        self.ask(call_actor(handle, "prepare", schema, spec, known, settings), number, "got ready")
        self._runs[number] = handle.run.remote()

    def look_after(self, timeout: float) -> None:
        """
        Hear how they are, and replace those that are gone. It does not wait for answers.

        :param timeout: Seconds that an answer may take
        """
        if self._start_with is None:
            return
        gone: dict[int, str] = {}
        runs = [run for run in self._runs if run is not None]
        ended = set(self.ray.wait(runs, num_returns=len(runs), timeout=0)[0]) if runs else set()
        for number in range(self.count):
            if self._runs[number] in ended:
                gone[number] = self._why(self._runs[number])
                continue
            asked = self._asked[number]
            if asked is not None and not self.ray.wait([asked[0]], timeout=0)[0]:
                if time.monotonic() - asked[1] > timeout:
                    gone[number] = f"it has not answered for {timeout:.0f} s"
                continue
            if asked is not None:
                self._take(number, asked[0])
            if asked is None or time.monotonic() - asked[1] > 1.0:
                self._asked[number] = call_actor(self.handles[number], "progress"), time.monotonic()
        for number, why in gone.items():
            self._replace(number, why)

    def _take(self, number: int, ticket: Any) -> None:
        with contextlib.suppress(Exception):  # who is gone is noticed by what they were running
            progress = self.ray.get(ticket, timeout=_ASK_SECONDS)
            if progress is not None:
                self.progress[number] = progress
                if sum(progress.acknowledged):
                    self._failures[number] = 0

    def _why(self, run: Any) -> str:
        try:
            self.ray.get(run, timeout=_ASK_SECONDS)
        except Exception as error:
            return first_sentence(error)
        return "it has stopped"

    def _replace(self, number: int, why: str) -> None:
        self._failures[number] += 1
        if self._failures[number] > _MOST_FAILURES:
            raise RuntimeError(
                f"collector {number} has failed {self._failures[number]} times without a single block acknowledged: {why}"
            )
        self.end(number)
        if self.progress[number] is not None:
            self._past[number] = [a + b for a, b in zip(self._past[number], self.progress[number].acknowledged, strict=True)]
        self.progress[number], self._asked[number] = None, None
        self.incarnations[number] += 1
        self.handles[number] = self._hire(number)
        self.fleet.announce(f"collector {number} is lost ({why}), and has been replaced; what it had not sent is gone")
        self.infos[number] = self.ask(call_actor(self.handles[number], "describe"), number, "been replaced")
        self._set_to_work(number)

    def acknowledged(self, shard: int) -> int:
        """
        Ask how many blocks a shard has acknowledged, all its incarnations together. Who does not answer counts as last known.

        :param shard: Its number
        :return: Blocks
        """
        if self._start_with is None:
            return 0
        asked = [call_actor(handle, "progress") for handle in self.handles]
        done = set(self.ray.wait(asked, num_returns=len(asked), timeout=_ASK_SECONDS)[0])
        for number, ticket in enumerate(asked):
            if ticket in done:
                self._take(number, ticket)
        now: int = sum(progress.acknowledged[shard] for progress in self.progress if progress is not None)
        return now + sum(past[shard] for past in self._past)

    def tell_of_shard(self, shard: int, handle: Any, incarnation: int) -> None:
        """
        Have collectors send to another actor.

        :param shard: Number of the shard
        :param handle: The actor
        :param incarnation: How often it has been replaced
        """
        if self._start_with is not None:
            for collector in self.handles:
                call_actor(collector, "replace_shard", shard, [handle], incarnation)

    def explain(self) -> str:
        """
        Say what collectors are waiting for.

        :return: A sentence
        """
        said = []
        for number, progress in enumerate(self.progress):
            if progress is None:
                said.append(f"collector {number} has not answered")
            elif progress.waits_for:
                said.append(f"collector {number} waits for shards {list(progress.waits_for)}")
            else:
                said.append(f"collector {number} is playing, {progress.steps:,} steps so far")
        return "; ".join(said)
