"""
Ray: calls with a deadline, the actors of shards and collectors, and the two pools that start, watch and replace them.

A shard's process never imports torch or SB3, and it imports this module.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import re
import sys
import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sb3_extra_buffers.codecs._optional import install_hint
from sb3_extra_buffers.distributed.blocks import BlockBuilder, MissingError, Schema, ShardLostError, Who
from sb3_extra_buffers.distributed.checkpoints import load_shard, save_shard
from sb3_extra_buffers.distributed.shard import Shard, Stats
from sb3_extra_buffers.storage.freed_memory import keep_freed_memory

if TYPE_CHECKING:
    from sb3_extra_buffers.distributed.fleet import Fleet

logger = logging.getLogger(__name__)

# Concurrency groups: what changes a shard, what reads it, and what is answered in any case do not wait for each other.
WRITE, READ, SAVE, CONTROL = "write", "read", "save", "control"
SHARD_GROUPS = {WRITE: 1, READ: 2, SAVE: 1, CONTROL: 1}
# Ray must not start an actor again by itself: it would be empty, and calls would go on as if nothing had happened.
# Nor must its server keep a record of each call: it would grow by megabytes a minute.
_OPTIONS = {"max_restarts": 0, "max_task_retries": 0, "enable_task_events": False}
_PLACED = {"scheduling_strategy", "resources", "label_selector", "placement_group"}  # by which users say where shards belong

_LOOK_SECONDS, _ASK_SECONDS, _FETCH_SECONDS, _TAKE_SECONDS = 1.0, 5.0, 20.0, 30.0
MOST_FAILURES = 2
LARGE_BLOCK = 100_000
"""Bytes above which Ray sends a message by way of its object store."""
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_TOO_FEW = (
    "The cluster has {:.0f} CPUs; if that is too few, give collector_options=dict(num_cpus=...) or add machines "
    "(ray start --address=...)"
)


# -- calls ----------------------------------------------------------------------------------------------------------------


def need_ray() -> Any:
    """Import Ray, or say what to install."""
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise ImportError(f"a fleet of collectors and shards needs ray: {install_hint('ray')}") from error


def call_actor(handle: Any, method: str, *args: Any, group: str = CONTROL) -> Any:
    """Call a method of an actor, and return Ray's reference to the answer."""
    return getattr(handle, method).options(concurrency_group=group).remote(*args)


def get_answer(ray: Any, ref: Any, shard: int) -> Any:
    """Return an answer that is there; what the method raised is raised, and ``ShardLostError`` where there is none."""
    try:
        return ray.get(ref, timeout=_TAKE_SECONDS)
    except ray.exceptions.GetTimeoutError as error:
        raise ShardLostError(shard, f"its answer did not arrive within {_TAKE_SECONDS:.0f} s") from error
    except (ray.exceptions.RayActorError, ray.exceptions.ObjectLostError) as error:
        raise ShardLostError(shard, reason(error)) from error


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


# -- what runs in actors --------------------------------------------------------------------------------------------------


class ShardInfo(NamedTuple):
    """What a new shard tells."""

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


class ShardActor(Shard):
    """A shard as an actor, which goes on with a checkpoint, its directory and name, if one is given."""

    def __init__(self, schema: Schema, arguments: dict[str, Any], checkpoint: tuple[str, str] | None) -> None:
        keep_freed_memory()  # batches are as large as each other: the next one takes the pages of the last
        super().__init__(schema, **arguments)
        self.problem, self.restored = "", 0
        if checkpoint is not None:
            try:
                self.restored = load_shard(self, *checkpoint)
            except (OSError, RuntimeError) as error:
                super().__init__(schema, **arguments)
                self.problem = str(error)

    def describe(self) -> ShardInfo:
        """Tell where it is, and what it has."""
        node = need_ray().get_runtime_context().get_node_id()
        loaded = tuple(name for name in ("torch", "stable_baselines3") if name in sys.modules)
        return ShardInfo(node, os.getpid(), self.restored, self.drawer.total(self.size), self.problem, loaded, self.seen)

    def save(self, path: str, name: str, keep: str | None) -> int:
        """As ``save_shard``."""
        return save_shard(self, path, name, keep)


class Progress(NamedTuple):
    """What a collector tells about itself."""

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
    """What a new collector tells."""

    node: str
    pid: int
    observation_space: Any
    action_space: Any


class CollectorActor:
    """A collector as an actor."""

    def __init__(self, make_env: Any, n_envs: int) -> None:
        import torch as th

        from sb3_extra_buffers.distributed.collector import make_envs

        th.set_num_threads(1)
        self.n_envs = n_envs
        self.env = make_envs(make_env, n_envs)
        self.collector: Any = None
        self._lock = threading.Lock()
        self._newer: dict[int, tuple[Any, int]] = {}

    def describe(self) -> CollectorInfo:
        """Tell where it is, and what it plays."""
        node = need_ray().get_runtime_context().get_node_id()
        return CollectorInfo(node, os.getpid(), self.env.observation_space, self.env.action_space)

    def run(self, schema: Schema, spec: Any, shards: list[tuple[Any, int]], settings: dict[str, Any]) -> int:
        """
        Play until it is stopped. ``shards`` are actors, and how often each has been replaced; ``settings`` are run, number,
        incarnation, seed and epsilons. Return the steps that were played.
        """
        from stable_baselines3.common.utils import set_random_seed

        from sb3_extra_buffers.distributed.collector import Actor, Collector, Outbox, make_schema

        spaces = self.env.observation_space, self.env.action_space
        mine = make_schema(*spaces, self.n_envs, schema.block_steps, schema.method)
        if (mine.fields, mine.action_shape) != (schema.fields, schema.action_shape):
            raise ValueError(f"make_env() makes other environments here: {mine}, not {schema}")
        number, seed = settings["number"], settings["seed"]
        if seed is not None:
            set_random_seed(seed % (1 << 32))  # the noise of SAC's policies is torch's, and that of TD3 is NumPy's
            self.env.seed(seed)
        actor = Actor(spec, self.env.action_space, self.n_envs, settings["epsilons"], seed)
        builder = BlockBuilder(schema, settings["run"], number, settings["incarnation"])
        with self._lock:
            outbox = Outbox(need_ray(), [handle for handle, _ in shards], number)
            for shard, given in enumerate(shards):
                outbox.replace(shard, *self._newer.get(shard, given))
            self.collector = Collector(self.env, actor, builder, outbox, _fetch)
        return int(self.collector.run())

    def replace_shard(self, shard: int, handle: list[Any], incarnation: int) -> tuple[int, tuple[int, ...]]:
        """As ``Outbox.replace``; a collector that does not play yet will do so when it does. The actor is in a list."""
        with self._lock:
            if self.collector is None:
                self._newer[shard] = handle[0], incarnation
                return 0, ()
            known: tuple[int, tuple[int, ...]] = self.collector.outbox.replace(shard, handle[0], incarnation)
            return known

    def progress(self) -> Progress | None:
        """Tell how far it has got; None before it plays."""
        one = self.collector
        if one is None:
            return None
        outbox = one.outbox
        waits_for = () if outbox.has_room() else tuple(outbox.waits_for())
        seconds = one.coding_seconds, one.waiting_seconds, one.cpu_seconds
        return Progress(one.builder.steps, outbox.resent, one.actor.version, *seconds, waits_for, outbox.largest)


def _fetch(where: Any) -> Any:
    ray = need_ray()
    try:
        return ray.get(where[0], timeout=_FETCH_SECONDS)
    except (ray.exceptions.GetTimeoutError, ray.exceptions.ObjectLostError):
        return None  # there will be a newer one


# -- pools ----------------------------------------------------------------------------------------------------------------


class ActorFailed(Exception):
    """An actor has died, or a call of it has failed, while an answer was waited for."""

    def __init__(self, number: int, why: str, is_gone: bool) -> None:
        super().__init__(why)
        self.number, self.why, self.is_gone = number, why, is_gone


class Pool:
    """Actors of one kind."""

    kind: type[Any]
    groups: dict[str, int]
    name: str

    def __init__(self, fleet: Fleet, options: dict[str, Any]) -> None:
        self.fleet, self.ray, self.options = fleet, fleet.ray, options
        self._make = self.ray.remote(**{**options, **_OPTIONS, "concurrency_groups": self.groups})(self.kind)
        self.handles: list[Any] = []
        self.incarnations: list[int] = []
        """How often each has been replaced."""
        self.infos: list[Any] = []

    def _get_all(self, refs: Sequence[Any], numbers: Sequence[int], what: str, hint: str = _TOO_FEW) -> list[Any]:
        """
        Wait for all answers, with one shared deadline. ``MissingError`` names actors that have not given one, ``ActorFailed``
        one that never will.
        """
        most, now = self.fleet.start_timeout, self.fleet.now
        deadline, answers, silent = now() + most, [], []
        for ref, number in zip(refs, numbers, strict=True):
            try:
                while not self.ray.wait([ref], timeout=max(min(deadline - now(), _LOOK_SECONDS), 0.01))[0]:
                    if now() >= deadline:
                        silent.append(number)
                        break
                else:
                    answers.append(self.ray.get(ref, timeout=_ASK_SECONDS))
            except self.ray.exceptions.RayError as error:
                gone = self.ray.exceptions.RayActorError, self.ray.exceptions.ObjectLostError
                raise ActorFailed(number, reason(error), isinstance(error, gone)) from error
        if silent:
            there = self.ray.cluster_resources().get("CPU", 0)
            which = f"{self.name} {silent[0]} has" if len(silent) == 1 else f"{self.name}s {silent} have"
            raise MissingError(f"{which} not {what} within {most:.0f} s. {hint.format(there)}")
        return answers

    def _describe_all(self) -> None:
        try:
            refs = [call_actor(handle, "describe") for handle in self.handles]
            self.infos = self._get_all(refs, range(len(refs)), "started")
        except ActorFailed as error:
            raise RuntimeError(f"{self.name} {error.number} could not be started: {error.why}") from error

    def kill(self, number: int) -> None:
        """End an actor."""
        with contextlib.suppress(Exception):
            self.ray.kill(self.handles[number])

    def stop(self) -> None:
        """End all of them."""
        for number in range(len(self.handles)):
            self.kill(number)
        self.handles.clear()


class ShardPool(Pool):
    """The shards. ``arguments`` are those of ``Shard``."""

    kind, groups, name = ShardActor, SHARD_GROUPS, "shard"

    def __init__(self, fleet: Fleet, arguments: dict[str, Any], options: dict[str, Any]) -> None:
        super().__init__(fleet, options)
        self._arguments, cells, n_shards = arguments, fleet.schema.cells, fleet.n_shards
        self.capacity = -(-arguments["capacity"] // cells) * cells
        self.stats: list[Stats | None] = [None] * n_shards
        self._nodes: list[str | None] = [None] * n_shards
        self._asked: list[tuple[Any, float] | None] = [None] * n_shards
        self._episodes = [0] * n_shards
        self._dead: dict[int, str] = {}

    def start(self) -> None:
        """Start all shards."""
        self.incarnations = [0] * self.fleet.n_shards
        self.handles = [self._start(number) for number in range(self.fleet.n_shards)]
        self._describe_all()
        problems = [info.problem for info in self.infos if info.problem]
        if problems:
            raise ValueError(f"the checkpoint cannot be restored: {problems[0]}")

    def _start(self, number: int) -> Any:
        fleet = self.fleet
        given = {**self._arguments, "number": number, "incarnation": self.incarnations[number]}
        checkpoint = None if fleet.checkpoint is None else (fleet.shard_path(number), fleet.checkpoint)
        where = {} if _PLACED & set(self.options) else {"scheduling_strategy": self._choose_node(number)}
        return self._make.options(**where).remote(fleet.schema, given, checkpoint)

    def _choose_node(self, number: int) -> Any:
        """The machine with the fewest shards. Ray itself spreads only what takes a part of a CPU, which may not be free."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        alive = [node for node in self.ray.nodes() if node["Alive"]]
        there = [node["NodeID"] for node in alive if node["Resources"].get("CPU", 0) > 0] or [node["NodeID"] for node in alive]
        self._nodes[number] = None
        node = self._nodes[number] = min(sorted(there), key=self._nodes.count)
        return NodeAffinitySchedulingStrategy(node, soft=True)

    def replace(self, number: int) -> ShardInfo:
        """Put another shard in the place of one that is lost; ``ShardLostError`` where that dies as well, again and again."""
        # If this is interrupted, it is found dead again and replaced once more.
        self._dead[number] = "its replacement was interrupted"
        for left in reversed(range(MOST_FAILURES)):
            self.kill(number)
            self._asked[number], self.stats[number], self._episodes[number] = None, None, 0
            self.incarnations[number] += 1
            self.handles[number] = self._start(number)
            try:
                (info,) = self._get_all([call_actor(self.handles[number], "describe")], [number], "been replaced")
            except ActorFailed as error:
                if not left:
                    raise ShardLostError(number, f"so are {MOST_FAILURES} that replaced it: {error.why}") from error
                continue
            self.infos[number] = info
            break
        found: ShardInfo = self.infos[number]
        return found

    def end_replacement(self, number: int) -> None:
        """Note that all collectors have been told of a shard that was replaced."""
        self._dead.pop(number, None)

    def poll(self) -> list[Stats]:
        """Take the statistics that have come, and ask for more. It does not wait."""
        found = []
        for number, handle in enumerate(self.handles):
            asked = self._asked[number]
            if asked is not None:
                if not self.ray.wait([asked[0]], timeout=0)[0]:
                    continue
                try:
                    stats: Stats = self.ray.get(asked[0], timeout=_ASK_SECONDS)
                except (self.ray.exceptions.RayActorError, self.ray.exceptions.ObjectLostError) as error:
                    self._dead[number] = reason(error)
                    continue
                except self.ray.exceptions.GetTimeoutError:
                    continue
                self.stats[number], self._episodes[number] = stats, stats.n_episodes
                found.append(stats)
            self._asked[number] = call_actor(handle, "stats", self._episodes[number]), self.fleet.now()
        return found

    def missing(self, timeout: float) -> list[tuple[int, str]]:
        """Shards that are lost, and why."""
        found = dict(self._dead)
        for number, asked in enumerate(self._asked):
            if asked is not None and number not in found and self.fleet.now() - asked[1] > timeout:
                found[number] = f"it has not answered for {timeout:.0f} s"
        return sorted(found.items())

    def steer(self, limits: list[int], version: int, publication: Any) -> None:
        """Set what shards tell collectors: see ``Shard.steer``."""
        for handle, limit in zip(self.handles, limits, strict=True):
            call_actor(handle, "steer", limit, version, publication)

    def save(self, name: str, keep: str | None) -> None:
        """Save all shards, at the same time, as the checkpoint ``name``; ``ActorFailed`` names one that could not do it."""
        numbers, fleet = range(len(self.handles)), self.fleet
        refs = [
            call_actor(self.handles[number], "save", fleet.shard_path(number), name, keep, group=SAVE) for number in numbers
        ]
        self._get_all(refs, numbers, "been saved", "A larger start_timeout gives it more time")


class _Starting(NamedTuple):
    """A collector that was started in the place of another one."""

    ref: Any
    since: float
    why: str


class CollectorPool(Pool):
    """The collectors. Once they play, the fleet does not wait for one that is started in the place of another."""

    kind, groups, name = CollectorActor, {CONTROL: 1}, "collector"

    def __init__(self, fleet: Fleet, make_env: Any, count: int, n_envs: int, options: dict[str, Any]) -> None:
        super().__init__(fleet, options)
        self.count, self.n_envs = count, n_envs
        self._make_env = self.ray.put(make_env)
        self.incarnations = [0] * count
        self.progress: list[Progress | None] = [None] * count
        self.replaced = 0
        """How many have been replaced, altogether."""
        self._past_steps = 0
        self._asked: list[tuple[Any, float] | None] = [None] * count
        self._runs: list[Any] = [None] * count
        self._starting: list[_Starting | None] = [None] * count
        self._late: set[int] = set()
        self._failures = [0] * count
        self._has_warned = False
        self._start_with: tuple[Any, ...] | None = None

    def _start(self) -> Any:
        return self._make.remote(self._make_env, self.n_envs)

    def start(self) -> CollectorInfo:
        """Start all collectors; they do not play yet. Return what the first one tells."""
        wanted, there = float(self.options.get("num_cpus") or 0) * self.count, self.ray.cluster_resources().get("CPU", 0)
        if wanted > there:
            logger.warning(
                f"{self.count} collectors ask for {wanted:g} CPUs, and the cluster has {there:g}: some of them cannot start. "
                "Give collector_options=dict(num_cpus=...), or add machines (ray start --address=...)"
            )
        self.handles = [self._start() for _ in range(self.count)]
        self._describe_all()
        for number, info in enumerate(self.infos):
            self._check_spaces(number, info)
        first: CollectorInfo = self.infos[0]
        return first

    def _check_spaces(self, number: int, info: CollectorInfo) -> None:
        for name in ("observation_space", "action_space"):
            mine, first = getattr(info, name), getattr(self.infos[0], name)
            if mine != first:
                raise ValueError(
                    f"make_env() makes different environments: collector {number} has {name} {mine}, collector 0 has {first}"
                )

    def renumber(self, incarnation: int) -> None:
        """Count incarnations from here on: earlier ones were of the run that is restored."""
        self.incarnations = [incarnation] * self.count

    def play(self, schema: Schema, spec: Any, shards: ShardPool, run: bytes, epsilons: Any) -> None:
        """Have them play, if they do not yet."""
        again = self._start_with is not None
        self._start_with = schema, spec, shards, run, epsilons
        if not again:
            for number in range(self.count):
                self._play(number)

    def _play(self, number: int) -> None:
        assert self._start_with is not None
        schema, spec, shards, run, epsilons = self._start_with
        seed, incarnation = self.fleet.seed, self.incarnations[number]
        settings = {
            "run": run,
            "number": number,
            "incarnation": incarnation,
            "seed": None if seed is None else seed + (incarnation * self.count + number) * self.n_envs,
            "epsilons": epsilons[number * self.n_envs : (number + 1) * self.n_envs],
        }
        known = list(zip(shards.handles, shards.incarnations, strict=True))
        self._runs[number] = self.handles[number].run.remote(schema, spec, known, settings)

    def poll(self, timeout: float) -> None:
        """Take what has come, and replace collectors that are gone or have not answered in time. It does not wait."""
        if self._start_with is None:
            return
        # One question for all of them: there may be a thousand.
        refs = [*self._runs, *(asked[0] for asked in (*self._asked, *self._starting) if asked is not None)]
        done = set(self.ray.wait(refs, num_returns=len(refs), timeout=0)[0])
        for number in range(self.count):
            why = self._poll_one(number, timeout, done)
            if why is not None:
                self._replace(number, why)

    def _poll_one(self, number: int, timeout: float, done: set[Any]) -> str | None:
        """Why one has to be replaced; None where it has not."""
        now = self.fleet.now()
        if self._runs[number] in done:
            return self._why(self._runs[number])
        starting = self._starting[number]
        if starting is not None:
            if starting.ref in done:
                self._starting[number] = None
                with contextlib.suppress(self.ray.exceptions.RayError):  # its run fails, too, and says why
                    info = self.ray.get(starting.ref, timeout=_ASK_SECONDS)
                    self._check_spaces(number, info)
                    self.infos[number] = info
            elif number not in self._late and now - starting.since > self.fleet.start_timeout:
                # There may be no place for it because a machine is gone, and it may find one later.
                self._late.add(number)
                self.fleet.report(f"{self._explain(number)}; the others go on without it")
            return None
        asked = self._asked[number]
        if asked is not None and asked[0] not in done:
            return f"it has not answered for {timeout:.0f} s" if now - asked[1] > timeout else None
        if asked is not None:
            with contextlib.suppress(self.ray.exceptions.RayError):  # as above
                progress = self.ray.get(asked[0], timeout=_ASK_SECONDS)
                if progress is not None:
                    self.progress[number] = progress
                    self._warn(progress.largest_block)
        if asked is None or now - asked[1] > min(_LOOK_SECONDS, timeout / 4):
            self._asked[number] = call_actor(self.handles[number], "progress"), now
        return None

    def _warn(self, largest: int) -> None:
        if largest <= LARGE_BLOCK or self._has_warned:
            return
        self._has_warned = True
        logger.warning(
            f"a block has {largest:,} bytes; Ray takes longer to send one of more than {LARGE_BLOCK:,}. A smaller block_steps "
            f"(now {self.fleet.block_steps}) or fewer envs_per_collector (now {self.n_envs}) make blocks smaller"
        )

    def _why(self, run: Any) -> str:
        try:
            self.ray.get(run, timeout=_ASK_SECONDS)
        except Exception as error:
            return reason(error)
        return "it has stopped"

    def _replace(self, number: int, why: str) -> None:
        self._failures[number] += 1
        if self._failures[number] > MOST_FAILURES:
            raise RuntimeError(
                f"collector {number} has failed {self._failures[number]} times without a single block acknowledged: {why}"
            )
        self.kill(number)
        last = self.progress[number]
        self._past_steps += 0 if last is None else last.steps
        self.progress[number], self._asked[number] = None, None
        self.incarnations[number] += 1
        self.replaced += 1
        self._late.discard(number)
        shards: ShardPool = self._start_with[2]  # type: ignore[index]
        for shard in shards.handles:
            call_actor(shard, "release", number)
        self.handles[number] = self._start()
        self._starting[number] = _Starting(call_actor(self.handles[number], "describe"), self.fleet.now(), why)
        self._play(number)
        self.fleet.report(f"collector {number} is lost ({why}), and is being replaced; what it had not sent is gone")

    def have_sent(self, numbers: Iterable[int]) -> None:
        """Note that blocks of some collectors have arrived: their environments do not always fail."""
        for number in numbers:
            self._failures[number] = 0

    def replace_shard(self, shard: int, handle: Any, incarnation: int) -> dict[Who, tuple[int, tuple[int, ...]]]:
        """
        Have collectors send to another actor, and return what they tell (see ``Outbox.replace``). Those that do not answer
        soon are not in it.
        """
        if self._start_with is None:
            return {}
        refs = [call_actor(collector, "replace_shard", shard, [handle], incarnation) for collector in self.handles]
        asked = {ref: number for number, ref in enumerate(refs) if self._starting[number] is None}
        done = self.ray.wait(list(asked), num_returns=len(asked), timeout=_ASK_SECONDS)[0] if asked else []
        found = {}
        for ref in done:
            with contextlib.suppress(self.ray.exceptions.RayError):
                number = asked[ref]
                found[number, self.incarnations[number]] = self.ray.get(ref, timeout=_ASK_SECONDS)
        return found

    @property
    def all_play(self) -> bool:
        """Whether all have told how far they have got."""
        return all(progress is not None for progress in self.progress)

    @property
    def steps(self) -> int:
        """Steps that have been played, as far as is known."""
        return self._past_steps + sum(progress.steps for progress in self.progress if progress is not None)

    def explain(self) -> str:
        """Say what each collector waits for."""
        return "; ".join(map(self._explain, range(self.count)))

    def _explain(self, number: int) -> str:
        starting, progress = self._starting[number], self.progress[number]
        if starting is not None:
            seconds, there = self.fleet.now() - starting.since, self.ray.cluster_resources().get("CPU", 0)
            return (
                f"collector {number} has not started within {seconds:.0f} s (the cluster has {there:.0f} CPUs), "
                f"in place of one that is lost ({starting.why})"
            )
        if progress is None:
            return f"collector {number} has not begun to play"
        if progress.waits_for:
            return f"collector {number} waits for shards {list(progress.waits_for)}"
        return f"collector {number} is playing, {progress.steps:,} steps so far"
