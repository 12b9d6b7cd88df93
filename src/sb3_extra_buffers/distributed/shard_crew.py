"""The shards of a fleet, from being started to being replaced."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sb3_extra_buffers.distributed.crew import ASK_SECONDS, MOST_FAILURES, Crew, Died
from sb3_extra_buffers.distributed.errors import ShardLostError
from sb3_extra_buffers.distributed.ray_transport import GROUPS, SHARD_GROUPS, call_actor, reason

if TYPE_CHECKING:
    from sb3_extra_buffers.distributed.fleet import Fleet

_PLACED = {"scheduling_strategy", "resources", "label_selector", "placement_group"}
"""Options by which a user has said where shards belong."""


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
        self._options = options
        self._nodes: list[str | None] = [None] * fleet.n_shards
        self._arguments, cells = arguments, fleet.schema.cells
        self.capacity = -(-arguments["capacity"] // cells) * cells
        self.stats: list[Any] = [None] * fleet.n_shards
        self._asked: list[tuple[Any, float] | None] = [None] * fleet.n_shards
        self._episodes = [0] * fleet.n_shards
        self._dead: dict[int, str] = {}

    def _start(self, number: int) -> Any:
        fleet = self.fleet
        given = {**self._arguments, "number": number, "incarnation": self.incarnations[number]}
        checkpoint = None if fleet.checkpoint is None else (fleet.shard_path(number), fleet.checkpoint)
        options = {}
        if not _PLACED & set(self._options):
            options["scheduling_strategy"] = self._choose_node(number)
        return self._make.options(**options).remote(fleet.schema.to_json(), given, checkpoint)

    def _choose_node(self, number: int) -> Any:
        """The machine with the fewest shards. Ray itself spreads only what takes a part of a CPU, which may not be free."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        alive = [node for node in self.ray.nodes() if node["Alive"]]
        there = [node["NodeID"] for node in alive if node["Resources"].get("CPU", 0) > 0] or [node["NodeID"] for node in alive]
        self._nodes[number] = None
        node = self._nodes[number] = min(sorted(there), key=self._nodes.count)
        return NodeAffinitySchedulingStrategy(node, soft=True)

    def hire(self) -> None:
        """Start all shards."""
        numbers = range(self.fleet.n_shards)
        self.incarnations = [0] * len(numbers)
        self.handles = [self._start(number) for number in numbers]
        try:
            self.infos = self.ask([call_actor(handle, "describe") for handle in self.handles], numbers, "started")
        except Died as error:
            raise RuntimeError(f"shard {error.number} could not be started: {error.why}") from error
        problems = [info.problem for info in self.infos if info.problem]
        if problems:
            raise ValueError(f"the checkpoint cannot be restored: {problems[0]}")

    def replace(self, number: int) -> Any:
        """
        Put another shard in the place of one that is lost.

        :param number: Its number
        :return: What the new one tells of itself; ``ShardLostError`` where that dies as well, again and again
        """
        # Whoever interrupts this finds it dead again, and replaces it once more.
        self._dead[number] = "its replacement was interrupted"
        for left in reversed(range(MOST_FAILURES)):
            self.end(number)
            self._asked[number], self.stats[number], self._episodes[number] = None, None, 0
            self.incarnations[number] += 1
            self.handles[number] = self._start(number)
            try:
                (info,) = self.ask([call_actor(self.handles[number], "describe")], [number], "been replaced")
            except Died as error:
                if not left:
                    raise ShardLostError(number, f"so are {MOST_FAILURES} that replaced it: {error.why}") from error
                continue
            self.infos[number] = info
            break
        return self.infos[number]

    def settle(self, number: int) -> None:
        """
        Note that everybody knows of a shard that has been replaced.

        :param number: Its number
        """
        self._dead.pop(number, None)

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
                    stats = self.ray.get(asked[0], timeout=ASK_SECONDS)
                except (self.ray.exceptions.RayActorError, self.ray.exceptions.ObjectLostError) as error:
                    self._dead[number] = reason(error)
                    continue
                except self.ray.exceptions.GetTimeoutError:
                    continue
                self.stats[number], self._episodes[number] = stats, stats.n_episodes
                heard.append(stats)
            self._asked[number] = call_actor(handle, "stats", self._episodes[number]), self.fleet.now()
        return heard

    def missing(self, timeout: float) -> list[tuple[int, str]]:
        """
        Tell who is lost.

        :param timeout: Seconds that an answer may take
        :return: Numbers of shards, and why
        """
        found = dict(self._dead)
        for number, asked in enumerate(self._asked):
            if asked is not None and number not in found and self.fleet.now() - asked[1] > timeout:
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

    def save(self, path_of: Callable[[int], str], name: str, keep: str | None) -> None:
        """Save all shards, at the same time, as the checkpoint ``name``; ``Died`` names one that could not do it."""
        group, numbers = GROUPS["save"], range(len(self.handles))
        asked = [call_actor(self.handles[number], "save", path_of(number), name, keep, group=group) for number in numbers]
        self.ask(asked, numbers, "been saved", "A larger start_timeout gives it more time")
