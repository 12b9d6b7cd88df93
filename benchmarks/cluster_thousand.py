"""
A thousand collectors and 64 shards, without machines: their classes, over a stand-in for Ray with a clock of its own.

Collectors, shards and the learner's clock are those of the package; what a message, a block in a shard, a step and a start
take comes from measurements and is added to the time of the stand-in. The learner is slower than the collectors, so they wait
for it nearly all the time. Collectors fail, and a shard does, and nothing is restored from a checkpoint. The same is run
without failures, to see what they cost.
"""

from __future__ import annotations

import heapq
import itertools
import json
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from kit.results import RESULTS, ResultFile, console, options

COLLECTORS, SHARDS, STEPS, MAX_LEAD = 1_000, 64, 64, 50_000
LEARNER = 280.0  # transitions a second that the learner takes
PLAYED = 100.0  # steps a second of a collector
CALL_SECONDS, POLL_SECONDS, ASK_SECONDS = 1e-3, 0.5, 0.12
START_COLLECTOR, START_SHARD, NOTICED = 10.0, 5.0, 1.0


class ActorDied(Exception):
    """What a call to an actor that has died raises."""


class Timeline:
    """Things that happen at certain times."""

    def __init__(self) -> None:
        self.now, self._order, self._events = 0.0, itertools.count(), list[tuple[float, int, Callable[[], None]]]()

    def at(self, time: float, what: Callable[[], None]) -> None:
        """Have something happen."""
        heapq.heappush(self._events, (time, next(self._order), what))

    def run(self, is_over: Callable[[], bool]) -> None:
        """Have it all happen."""
        while not is_over():
            self.now, _, what = heapq.heappop(self._events)
            what()


class Node:
    """A shard as an actor: calls take their time, and one is carried out after the other."""

    def __init__(self, ray: Ray, shard: Any) -> None:
        self.ray, self.shard, self.is_dead, self.free_at = ray, shard, False, 0.0

    def __getattr__(self, method: str) -> Any:
        def remote(*args: Any) -> int:
            return self.ray.submit(self, method, args)

        return SimpleNamespace(options=lambda concurrency_group: SimpleNamespace(remote=remote))


class Ray:
    """What an ``Outbox`` needs of Ray."""

    def __init__(self, timeline: Timeline, add_seconds: float) -> None:
        self.timeline, self.add_seconds = timeline, add_seconds
        self.answers: dict[int, Any] = {}
        self.refs = itertools.count()
        self.caller: Callable[[], None] = lambda: None
        self.exceptions = SimpleNamespace(GetTimeoutError=TimeoutError, RayActorError=ActorDied, ObjectLostError=ActorDied)

    def submit(self, node: Node, method: str, args: tuple[Any, ...]) -> int:
        """Call a method; who has called is woken when the answer is there."""
        ref, caller, timeline = next(self.refs), self.caller, self.timeline
        seconds = self.add_seconds if method == "add" else 0.0
        node.free_at = max(node.free_at, timeline.now + CALL_SECONDS) + seconds

        def answer() -> None:
            self.answers[ref] = ActorDied("it was killed") if node.is_dead else getattr(node.shard, method)(*args)
            caller()

        timeline.at(node.free_at + CALL_SECONDS, answer)
        return ref

    def wait(self, refs: Sequence[int], num_returns: int = 1, timeout: float = 0.0) -> tuple[list[int], list[int]]:
        """Answers that are there."""
        done = [ref for ref in refs if ref in self.answers]
        return done, [ref for ref in refs if ref not in self.answers]

    def get(self, ref: int, timeout: float) -> Any:
        """An answer."""
        answer = self.answers.pop(ref)
        if isinstance(answer, BaseException):
            raise answer
        return answer


class Player:
    """A collector, whose blocks are all alike."""

    def __init__(self, world: World, number: int, incarnation: int) -> None:
        from sb3_extra_buffers.distributed.collector import Outbox

        self.world, self.number, self.incarnation = world, number, incarnation
        self.outbox = Outbox(world.ray, list(world.nodes), number, lambda: world.timeline.now)
        for shard, node in enumerate(world.nodes):
            self.outbox.replace(shard, node, node.shard.incarnation)
        self.is_playing = self.is_dead = False

    def look(self) -> None:
        """Take what has come, and play if there is room."""
        world = self.world
        if self.is_dead or self.is_playing:
            return
        world.ray.caller = self.wake
        self.outbox.poll(0)
        if self.outbox.has_room():
            self.is_playing = True
            seconds = STEPS / PLAYED * world.rng.uniform(0.8, 1.2)
            world.timeline.at(world.timeline.now + seconds, self.finish)

    def wake(self) -> None:
        """An answer has come. What was refused is asked again when the shard has room, and not again and again."""
        shard = self.outbox.shard_of(self.outbox.sequence)
        if self.world.has_room(shard) or self.outbox.settled < self.outbox.sequence:
            self.look()
        else:
            self.world.waiting[shard].add(self)

    def finish(self) -> None:
        """Send the block."""
        if self.is_dead:
            return
        self.is_playing = False
        self.world.ray.caller = self.wake
        block = self.world.block._replace(
            collector=self.number, incarnation=self.incarnation, sequence=self.outbox.sequence, settled=self.outbox.settled
        )
        self.outbox.push(block)
        self.look()


class World:
    """The fleet."""

    def __init__(self, total: int, failures: bool, add_us: float, seed: int) -> None:
        from sb3_extra_buffers.distributed.blocks import BlockBuilder, Field, Schema
        from sb3_extra_buffers.distributed.clock import Clock

        self.total, self.rng, self.timeline = total, np.random.default_rng(seed), Timeline()
        field = Field(None, (1,), "<f4", False)
        self.schema = Schema((field,), (1,), "<i8", "|u1", 1, STEPS, "delta", "gzip/1")
        builder, obs = BlockBuilder(self.schema, b"a benchmark run.", 0, 0), np.zeros((1, 1), np.float32)
        for _ in range(STEPS):
            builder.add(obs, obs, np.zeros((1, 1), np.int64), np.zeros(1), np.zeros(1, np.bool_), [{}])
        self.block = builder.seal()
        self.ray = Ray(self.timeline, add_us * 1e-6 * self.schema.cells)
        self.clock = Clock(SHARDS, self.schema.cells)
        self.nodes = [Node(self.ray, self.make_shard(number, 0)) for number in range(SHARDS)]
        self.players = [Player(self, number, 0) for number in range(COLLECTORS)]
        self.limits = [0] * SHARDS
        self.waiting: list[set[Player]] = [set() for _ in range(SHARDS)]
        self.leads: list[int] = []
        self.uneven: list[float] = []
        self.waited = 0.0
        self.ahead = 0.0  # transitions that the learner could have taken, and has not
        self.failed = [0, 0]
        if failures:
            seconds = total / LEARNER
            for _ in range(self.rng.poisson(0.02 * COLLECTORS * seconds / 3600)):
                self.timeline.at(self.rng.uniform(0, seconds), self.lose_collector)
            self.timeline.at(0.5 * seconds, self.lose_shard)

    def has_room(self, shard: int) -> bool:
        """Whether a collector would be let play a block for a shard."""
        kept = self.nodes[shard].shard
        return bool(kept.added + kept.reserved < self.limits[shard])

    def make_shard(self, number: int, incarnation: int) -> Any:
        """An empty shard."""
        from sb3_extra_buffers.distributed.shard import Shard

        return Shard(self.schema, 2 * self.total // SHARDS, b"a benchmark run.", number, incarnation, seed=0)

    def lose_collector(self) -> None:
        """One fails, and another one starts in its place."""
        number = int(self.rng.integers(COLLECTORS))
        old = self.players[number]
        if old.is_dead:
            return
        old.is_dead, self.failed[0] = True, self.failed[0] + 1

        def start() -> None:
            for node in self.nodes:
                node.shard.release(number)
            self.players[number] = Player(self, number, old.incarnation + 1)
            self.players[number].look()

        self.timeline.at(self.timeline.now + NOTICED + START_COLLECTOR, start)

    def lose_shard(self) -> None:
        """One fails, and another one starts empty in its place; the learner waits for that."""
        number, self.failed[1] = int(self.rng.integers(SHARDS)), self.failed[1] + 1
        self.nodes[number].is_dead = True
        incarnation = self.nodes[number].shard.incarnation + 1

        def start() -> None:
            node = self.nodes[number] = Node(self.ray, self.make_shard(number, incarnation))
            told = {}
            for player in self.players:
                self.ray.caller = player.wake
                if not player.is_dead:
                    told[player.number, player.incarnation] = player.outbox.replace(number, node, incarnation)
            self.clock.replace(number, incarnation, 0, {}, told, node.shard.capacity)
            self.waited += NOTICED + START_SHARD
            self.ahead -= START_SHARD * LEARNER
            for player in self.players:
                player.look()

        self.timeline.at(self.timeline.now + NOTICED + START_SHARD, start)

    def learn(self) -> None:
        """What the learner does twice a second."""
        for node in self.nodes:
            if not node.is_dead:
                stats = node.shard.stats()
                self.clock.note(stats.shard, stats.incarnation, stats.added, stats.newest, stats.reserved)
        self.ahead += LEARNER * POLL_SECONDS
        while self.ahead >= COLLECTORS and self.clock.lead >= COLLECTORS:
            self.clock.timesteps += COLLECTORS
            self.ahead -= COLLECTORS
        if self.ahead >= COLLECTORS:  # it waits
            self.waited += POLL_SECONDS
            self.ahead -= LEARNER * POLL_SECONDS
        for number, limit in enumerate(self.clock.limits(MAX_LEAD)):
            self.nodes[number].shard.steer(limit)
            self.limits[number] = limit
            if self.has_room(number):
                for player in sorted(self.waiting[number], key=lambda player: player.number):
                    self.timeline.at(self.timeline.now + self.rng.uniform(0, ASK_SECONDS), player.look)
                self.waiting[number].clear()
        self.leads.append(self.clock.lead)
        counts = np.array([node.shard.added for node in self.nodes if node.shard.incarnation == 0])
        if self.clock.total > self.total // 2:
            self.uneven.append(float(np.abs(counts / counts.mean() - 1).max()))
        self.timeline.at(self.timeline.now + POLL_SECONDS, self.learn)

    def run(self) -> dict[str, Any]:
        """Have it all happen, and return figures."""
        self.learn()
        for player in self.players:
            player.look()
        self.timeline.run(lambda: self.clock.timesteps >= self.total)
        return {
            "collectors_failed": self.failed[0],
            "shards_failed": self.failed[1],
            "hours": round(self.timeline.now / 3600, 3),
            "max_lead": max(self.leads),
            "uneven": round(max(self.uneven), 4),
            "waited_seconds": round(self.waited, 1),
            "lost": self.clock.lost,
            "resent": sum(player.outbox.resent for player in self.players),
            "collected": self.clock.total,
        }


def main() -> None:
    """Run what the command line says."""
    parser = options(__doc__ or "", cache=False)
    parser.add_argument("--transitions", type=int, default=1_000_000, help="how many the learner takes")
    args = parser.parse_args()
    measured = json.loads((RESULTS / "cluster.json").read_text())["rows"]["shards"]["shard_us"]
    add_us = max(measured.values())  # Ray included
    results = ResultFile("cluster_thousand", args.results)
    about = {
        **{"collectors": COLLECTORS, "shards": SHARDS, "transitions": args.transitions, "allowed_lead": MAX_LEAD},
        **{"block": STEPS, "learner": LEARNER, "add_us": add_us},
    }
    for name, failures in (("undisturbed", False), ("failures", True)):
        row = {**about, **World(args.transitions, failures, add_us, seed=0).run()}
        results.put(name, row)
        console.print(name, row, soft_wrap=True)


if __name__ == "__main__":
    main()
