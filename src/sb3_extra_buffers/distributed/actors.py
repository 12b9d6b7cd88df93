"""What runs inside Ray's actors: thin shells around ``Shard`` and ``Collector``. A shard's process never imports torch."""

from __future__ import annotations

import os
import threading
from typing import Any, NamedTuple

from sb3_extra_buffers.distributed.checkpoints import load_shard, save_shard
from sb3_extra_buffers.distributed.clock import Who
from sb3_extra_buffers.distributed.optional import need_ray
from sb3_extra_buffers.distributed.outbox import Outbox
from sb3_extra_buffers.distributed.ray_transport import RayTransport
from sb3_extra_buffers.distributed.replies import Reply
from sb3_extra_buffers.distributed.schema import Array, Schema
from sb3_extra_buffers.distributed.shard import Ack, Shard, Stats
from sb3_extra_buffers.storage.freed_memory import keep_freed_memory

_FETCH_SECONDS = 20.0


class ShardInfo(NamedTuple):
    """What a new shard tells of itself."""

    node: str
    pid: int
    restored: int
    """Transitions that it counts, from a checkpoint."""
    total: float
    problem: str
    """Why a checkpoint could not be read; empty where that was no problem."""
    modules: tuple[str, ...]
    """Of torch and SB3, those that have been imported: none."""
    seen: dict[Who, tuple[int, set[int]]]
    """As ``Shard.seen``."""


class ShardActor:
    """
    A shard as an actor.

    :param schema: What blocks look like, as JSON
    :param arguments: What ``Shard`` takes
    :param checkpoint: Directory and name of a checkpoint to go on with; None for none
    """

    def __init__(self, schema: str, arguments: dict[str, Any], checkpoint: tuple[str, str] | None) -> None:
        keep_freed_memory()  # batches are as large as each other: the next one takes the pages of the last
        described = Schema.from_json(schema)
        self.shard, self.problem, self.restored = Shard(described, **arguments), "", 0
        if checkpoint is not None:
            try:
                self.restored = load_shard(self.shard, *checkpoint)
            except (OSError, RuntimeError) as error:
                self.problem, self.shard = str(error), Shard(described, **arguments)

    def describe(self) -> ShardInfo:
        """Tell where it is, and what it has."""
        import sys

        node = need_ray().get_runtime_context().get_node_id()
        loaded = tuple(name for name in ("torch", "stable_baselines3") if name in sys.modules)
        total = self.shard.drawer.total(self.shard.size)
        return ShardInfo(node, os.getpid(), self.restored, total, self.problem, loaded, self.shard.seen)

    def add(self, message: bytes) -> Ack:
        """As ``Shard``'s."""
        return self.shard.add(message)

    def ask(self) -> Ack:
        """As ``Shard``'s."""
        return self.shard.ask()

    def sample(self, batch_size: int, batches: int, coded: bool) -> Reply:
        """As ``Shard``'s."""
        return self.shard.sample(batch_size, batches, coded)

    def update_priorities(self, insertions: Array, priorities: Array) -> int:
        """As ``Shard``'s."""
        return self.shard.update_priorities(insertions, priorities)

    def steer(self, limit: int, version: int | None = None, publication: Any = None) -> None:
        """As ``Shard``'s."""
        self.shard.steer(limit, version, publication)

    def stats(self, episodes_from: int) -> Stats:
        """As ``Shard``'s."""
        return self.shard.stats(episodes_from)

    def save(self, path: str, name: str, keep: str | None) -> int:
        """As ``save_shard``."""
        return save_shard(self.shard, path, name, keep)


class Progress(NamedTuple):
    """What a collector tells of itself."""

    steps: int
    resent: int
    version: int
    coding_seconds: float
    waiting_seconds: float
    cpu_seconds: float
    waits_for: tuple[int, ...]
    """Shards whose answers are missing."""
    largest_block: int
    """Bytes of the largest block so far."""


class CollectorInfo(NamedTuple):
    """What a new collector tells of itself."""

    node: str
    pid: int
    observation_space: Any
    action_space: Any


class CollectorActor:
    """
    A collector as an actor.

    :param make_env: See ``Fleet``
    :param lanes: Number of environments
    """

    def __init__(self, make_env: Any, lanes: int) -> None:
        import torch as th

        from sb3_extra_buffers.distributed.collector import make_lanes

        th.set_num_threads(1)
        self.lanes = lanes
        self.env = make_lanes(make_env, lanes)
        self.collector: Any = None
        self.transport: Any = None
        self._lock = threading.Lock()
        self._newer: dict[int, tuple[Any, int]] = {}

    def describe(self) -> CollectorInfo:
        """Tell where it is, and what it plays."""
        node = need_ray().get_runtime_context().get_node_id()
        return CollectorInfo(node, os.getpid(), self.env.observation_space, self.env.action_space)

    def run(self, schema: str, spec: Any, shards: list[tuple[Any, int]], settings: dict[str, Any]) -> int:
        """
        Play until it is stopped.

        :param schema: What blocks look like, as JSON
        :param spec: A ``PolicySpec``
        :param shards: The shards, and how often each has been replaced
        :param settings: Run, number, incarnation, seed, epsilons, window and seconds after which blocks are sent again
        :return: Steps that were played
        """
        from sb3_extra_buffers.distributed.acting import Actor
        from sb3_extra_buffers.distributed.builder import BlockBuilder
        from sb3_extra_buffers.distributed.collector import Collector
        from sb3_extra_buffers.distributed.spaces import make_schema

        described = Schema.from_json(schema)
        mine = make_schema(
            self.env.observation_space, self.env.action_space, self.lanes, described.block_steps, described.method
        )
        if (mine.fields, mine.action_shape) != (described.fields, described.action_shape):
            raise ValueError(f"make_env() makes other environments here: {mine.to_json()}, not {schema}")
        number, seed = settings["number"], settings["seed"]
        if seed is not None:
            from stable_baselines3.common.utils import set_random_seed

            set_random_seed(seed % (1 << 32))  # the noise of SAC's policies is torch's, and that of TD3 is NumPy's
            self.env.seed(seed)
        actor = Actor(spec, self.env.action_space, self.lanes, settings["epsilons"], seed)
        builder = BlockBuilder(described, settings["run"], number, settings["incarnation"])
        with self._lock:
            known = [self._newer.get(shard, given) for shard, given in enumerate(shards)]
            transport = RayTransport([handle for handle, _ in known])
            outbox = Outbox(transport, number, len(shards), settings["window"], settings["resend_after"])
            for shard, (_, incarnation) in enumerate(known):
                outbox.replaced(shard, incarnation)
            self.collector, self.transport = Collector(self.env, actor, builder, outbox, self._fetch), transport
        return int(self.collector.run())

    def _fetch(self, where: Any) -> Any:
        ray = need_ray()
        try:
            return ray.get(where[0], timeout=_FETCH_SECONDS)
        except (ray.exceptions.GetTimeoutError, ray.exceptions.ObjectLostError):
            return None  # there will be a newer one

    def replace_shard(self, shard: int, handle: Any, incarnation: int) -> tuple[int, tuple[int, ...]]:
        """
        Send to another actor from now on; a collector that does not play yet will do so when it does.

        :param shard: Number of the shard
        :param handle: The actor, in a list
        :param incarnation: How often it has been replaced
        :return: As ``Outbox.replaced``
        """
        with self._lock:
            if self.collector is None:
                self._newer[shard] = handle[0], incarnation
                return 0, ()
            self.transport.handles[shard] = handle[0]
            known: tuple[int, tuple[int, ...]] = self.collector.outbox.replaced(shard, incarnation)
            return known

    def progress(self) -> Progress | None:
        """Tell how far it has got; None before it plays."""
        if self.collector is None:
            return None
        one, outbox = self.collector, self.collector.outbox
        seconds = one.coding_seconds, one.waiting_seconds, one.cpu_seconds
        waits_for = tuple(outbox.waits_for()) if not outbox.has_room() else ()
        counts = one.builder.steps, outbox.resent, one.actor.version
        return Progress(*counts, *seconds, waits_for, outbox.largest)
