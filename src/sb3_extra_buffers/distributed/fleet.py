"""A fleet: collectors and shards on Ray, what the learner needs of them, and what is known of them."""

from __future__ import annotations

import logging
import os
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sb3_extra_buffers.distributed.actors import (
    MOST_FAILURES,
    ActorFailed,
    CollectorPool,
    ShardInfo,
    ShardPool,
    need_ray,
)
from sb3_extra_buffers.distributed.blocks import Array, MissingError, ShardLostError
from sb3_extra_buffers.distributed.buffers import ClosedFleet, FleetCallback, FleetEnv
from sb3_extra_buffers.distributed.checkpoints import DEFAULTS, NUMBERS, load_manifest, save_fleet
from sb3_extra_buffers.distributed.client import Batch, Client
from sb3_extra_buffers.distributed.clock import Clock, PatientClock
from sb3_extra_buffers.distributed.collector import EXPLORATIONS, apex_epsilons, describe_policy, make_schema, publish

logger = logging.getLogger(__name__)

_ON_SHARD_LOSS = ("continue", "stop")
_POLL_SECONDS, _POLL_WHEN_WAITING = 0.5, 0.05


class Fleet:
    """
    Collectors that play, shards that keep what they play, and an environment and a buffer for a learner of SB3's.

    Use it in a ``with`` block: leaving that ends all actors. Ray has to be running; ``ray.init()`` starts it on this machine.

    :param make_env: Makes one environment, or a ``VecEnv`` of ``envs_per_collector``; runs in the collectors
    :param n_collectors: Number of processes that play
    :param envs_per_collector: Environments of each
    :param n_shards: Number of processes that keep transitions
    :param block_steps: Steps of a block, a multiple of 16; larger blocks are denser and come later
    :param max_lead: Transitions that collectors may be ahead of the learner; by default four blocks of each of them
    :param publish_every: Updates after which the policy is sent to collectors
    :param exploration: ``"model"``: as the algorithm would; ``"ape-x"``: each environment has its own share of random actions
    :param on_shard_loss: ``"continue"`` replaces a shard and reports what was lost; ``"stop"`` raises ``ShardLostError``
    :param checkpoint_dir: Directory for checkpoints, which all machines see; None for none
    :param checkpoint_every: Timesteps between checkpoints; None for one at the end
    :param compression_method: How frames are coded
    :param timeout: Seconds after which an actor that does not answer is missing
    :param start_timeout: Seconds that starting an actor, replacing one or saving a shard may take
    :param resend_after: Deprecated, without effect: blocks are sent again when a call has failed or a shard was replaced
    :param seed: Seed of environments, exploration and samples
    :param collector_options: Options of Ray's for collectors, such as ``num_cpus`` (1 by default)
    :param shard_options: Options of Ray's for shards
    """

    def __init__(
        self,
        make_env: Callable[[], Any],
        *,
        n_collectors: int = 2,
        envs_per_collector: int = 1,
        n_shards: int = 1,
        block_steps: int = 64,
        max_lead: int | None = None,
        publish_every: int = 100,
        exploration: str = "model",
        on_shard_loss: str = "continue",
        checkpoint_dir: str | os.PathLike[str] | None = None,
        checkpoint_every: int | None = None,
        compression_method: str | None = None,
        timeout: float = 60.0,
        start_timeout: float = 120.0,
        resend_after: float | None = None,
        seed: int | None = None,
        collector_options: dict[str, Any] | None = None,
        shard_options: dict[str, Any] | None = None,
    ) -> None:
        given = dict(locals())
        plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in given.items()}
        self.settings = {name: plain[name] for name in (*NUMBERS, *DEFAULTS)}
        """What a fleet that is restored from a checkpoint of this one is made with."""
        for name in ("n_collectors", "envs_per_collector", "n_shards", "publish_every", "max_lead"):
            if given[name] is not None and given[name] < 1:
                raise ValueError(f"{name} is {given[name]}; it must be 1 or more")
        for name in ("timeout", "start_timeout"):
            if not given[name] > 0:  # also false for NaN
                raise ValueError(f"{name} is {given[name]}; it must be more than 0 seconds")
        if exploration not in EXPLORATIONS:
            raise ValueError(f"exploration is {exploration!r}; it must be one of {EXPLORATIONS}")
        if on_shard_loss not in _ON_SHARD_LOSS:
            raise ValueError(f"on_shard_loss is {on_shard_loss!r}; it must be one of {_ON_SHARD_LOSS}")
        if checkpoint_every is not None and checkpoint_dir is None:
            raise ValueError("checkpoint_every needs a checkpoint_dir")
        if resend_after is not None:
            warnings.warn("resend_after has no effect any more: leave it out", DeprecationWarning, stacklevel=2)
        self.ray = need_ray()
        self.n_envs, self.n_shards = n_collectors * envs_per_collector, n_shards
        self.block_steps, self.publish_every, self.exploration = block_steps, publish_every, exploration
        self.max_lead = 4 * self.n_envs * block_steps if max_lead is None else max_lead
        self.on_shard_loss, self.seed = on_shard_loss, self.settings["seed"]
        self.timeout, self.start_timeout = timeout, start_timeout
        self.checkpoint_dir = None if checkpoint_dir is None else os.path.abspath(checkpoint_dir)
        self.checkpoint_every = checkpoint_every
        self.clock = Clock(n_shards, envs_per_collector * block_steps)
        self.now = PatientClock(min(timeout, start_timeout) / 4).now
        self.run, self.incarnation = os.urandom(16), 0
        self.checkpoint: str | None = None
        """Name of the checkpoint with which replaced shards go on."""
        self.restored = 0
        """Transitions that were there when this fleet began."""
        self.model: Any = None
        """The model that learns."""
        self.is_closed = False
        self.events: list[str] = []
        """What has gone wrong, and what was lost by it."""
        self.client: Client | None = None
        self.shards: ShardPool | None = None
        self.version = 0
        self._publication: list[Any] | None = None
        self._lock = threading.RLock()  # another thread may ask for the status while the learner learns
        self._failure: BaseException | None = None  # what such a thread has found, for the learner
        self._polled_at = 0.0
        self.waited, self.began = 0.0, time.monotonic()
        self._shard_options = {"num_cpus": 0, **(shard_options or {})}
        options = {"num_cpus": 1, **(collector_options or {})}
        self.collectors = CollectorPool(self, make_env, n_collectors, envs_per_collector, options)
        try:
            info = self.collectors.start()
            spaces = info.observation_space, info.action_space
            self.schema = make_schema(*spaces, envs_per_collector, block_steps, compression_method)
        except BaseException:
            self.close()
            raise
        self.env = FleetEnv(self, *spaces)

    @classmethod
    def restore(cls, checkpoint_dir: str | os.PathLike[str], make_env: Callable[[], Any], **kwargs: Any) -> Fleet:
        """
        Make a fleet that goes on where another one has saved a checkpoint; the model is ``model.zip`` in there.

        :param checkpoint_dir: Where
        :param make_env: Makes the same environments
        :param kwargs: What ``Fleet`` takes. Numbers of collectors, environments, shards and steps of a block have to be the
            same; all else but options of Ray's is as it was unless it is given here
        :return: The fleet
        """
        manifest = load_manifest(checkpoint_dir)
        for name, value in manifest.settings.items():
            if kwargs.setdefault(name, value) != value and name in NUMBERS:
                raise ValueError(f"{name} is {kwargs[name]}, but the checkpoint in {checkpoint_dir} was made with {value}")
        fleet = cls(make_env, checkpoint_dir=checkpoint_dir, **kwargs)
        fleet.run, fleet.checkpoint = manifest.run, manifest.name
        fleet.incarnation = manifest.incarnation + 1
        fleet.collectors.renumber(fleet.incarnation)
        return fleet

    # -- beginning and end ----------------------------------------------------------------------------------------------

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """End all actors. What was not saved is gone."""
        self.is_closed = True
        self.collectors.stop()
        if self.shards is not None:
            self.shards.stop()

    def check(self) -> None:
        """Raise an error if this fleet has been closed, or if another thread has found that it cannot go on."""
        if self.is_closed:
            raise RuntimeError("this fleet has been closed, and its actors have ended: learn inside its with block")
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def __reduce__(self) -> Any:
        # SB3 saves replay_buffer_kwargs with a model; one that is loaded needs another fleet to go on, but none to act.
        return ClosedFleet, ()

    def callback(self) -> FleetCallback:
        """
        Make the callback that ``learn`` needs.

        :return: The callback
        """
        return FleetCallback(self)

    def start_shards(self, buffer: Any, capacity: int, prefetch: int, arguments: dict[str, Any]) -> None:
        """Start the shards, for ``capacity`` transitions together; ``arguments`` are further ones of ``Shard``."""
        if self.shards is not None:
            raise RuntimeError("this fleet has a buffer already; make another fleet for another model")
        if (buffer.observation_space, buffer.action_space) != (self.env.observation_space, self.env.action_space):
            raise ValueError("the buffer has other spaces than fleet.env")
        seed = None
        if self.seed is not None:  # a restored fleet does not draw what the one before it has drawn
            seed = int(np.random.SeedSequence([self.seed, self.incarnation]).generate_state(1)[0])
        each = -(-capacity // self.n_shards)
        self.shards = ShardPool(self, {"capacity": each, "run": self.run, "seed": seed, **arguments}, self._shard_options)
        self.shards.start()
        # The pool's own list: a shard that it replaces is reached at once.
        self.client = Client(self.ray, self.shards.handles, self.schema, prefetch, self.timeout, seed, self.now)
        self.client.on_lost = self._on_lost
        for number, info in enumerate(self.shards.infos):
            self._weigh(number, info)
            self.clock.note(number, 0, info.restored, {})
            self.clock.note_seen(number, info.seen)
        self.clock.timesteps = self.restored = self.clock.total

    def _weigh(self, number: int, info: ShardInfo) -> None:
        assert self.client is not None and self.shards is not None
        self.client.coded[number] = info.node != self.ray.get_runtime_context().get_node_id()
        self.client.weigh(number, self.shards.incarnations[number], info.total)

    def start_collectors(self, model: Any) -> None:
        """Publish a first policy and have collectors play."""
        assert self.shards is not None
        self.model = model
        self.publish(model)
        spec = describe_policy(model, self.exploration)
        self.collectors.play(self.schema, spec, self.shards, self.run, apex_epsilons(self.n_envs))

    # -- while the learner learns ---------------------------------------------------------------------------------------

    def publish(self, model: Any) -> None:
        """Send the policy to collectors, by way of what shards answer them."""
        self.version += 1
        # In a list, so that Ray hands over the reference and not what it refers to.
        self._publication = [self.ray.put(publish(model, self.version))]
        self._steer()

    def _steer(self) -> None:
        assert self.shards is not None
        self.shards.steer(self.clock.limits(self.max_lead), self.version, self._publication)

    def advance(self, timesteps: int) -> None:
        """Wait until so many more transitions have been collected; ``MissingError`` names collectors that do not play."""
        self.check()
        self.clock.timesteps += timesteps
        since = time.monotonic()
        try:
            self._wait_for_collectors()
        except BaseException:
            self.clock.timesteps -= timesteps  # an interrupted step has not been taken
            raise
        finally:
            self.waited += time.monotonic() - since
        self.poll(_POLL_SECONDS)

    def _wait_for_collectors(self) -> None:
        began, last = self.now(), None
        while self.clock.lead < 0:
            self.check()
            self.poll(_POLL_WHEN_WAITING)
            # One that is started gets time for that; those that fail again and again are not replaced for ever.
            known = self.clock.total, self.collectors.replaced, self.collectors.steps
            patience = self.timeout if self.collectors.all_play else max(self.timeout, self.start_timeout)
            if known != last:
                began, last = self.now(), known
            if self.now() - began > patience:
                raise MissingError(
                    f"nothing has been played for {patience:.0f} s: {self.collectors.explain()}; "
                    f"{-self.clock.lead:,} more transitions are needed"
                )
            time.sleep(_POLL_WHEN_WAITING)

    def poll(self, every: float = 0.0) -> None:
        """
        Take what shards and collectors have told, set limits, and replace dead actors, unless that was done less than so many
        seconds ago. It waits only while a shard is replaced.
        """
        with self._lock:
            now = time.monotonic()
            if self.shards is None or self.is_closed or now - self._polled_at < every:
                return
            self._polled_at = now
            for stats in self.shards.poll():
                self.clock.note(stats.shard, stats.incarnation, stats.added, stats.newest, stats.reserved)
                self.collectors.have_sent(collector for collector, _ in stats.newest)
                if self.client is not None:
                    self.client.weigh(stats.shard, stats.incarnation, stats.total)
                self.env.episodes += stats.episodes
            for number, why in self.shards.missing(self.timeout):
                self.replace_shard(number, why)
            self.collectors.poll(self.timeout)
            self._steer()

    def _on_lost(self, shard: int) -> None:
        if shard < 0:
            self.poll(_POLL_WHEN_WAITING)
        else:
            self.replace_shard(shard, "it did not answer a call for samples")

    def replace_shard(self, number: int, why: str) -> None:
        """Put another shard in the place of one that is lost, tell collectors, and report what was lost."""
        assert self.shards is not None
        info = self.shards.replace(number)
        incarnation = self.shards.incarnations[number]
        self._weigh(number, info)
        told = self.collectors.replace_shard(number, self.shards.handles[number], incarnation)
        lost = self.clock.replace(number, incarnation, info.restored, info.seen, told, self.shards.capacity)
        self.report(
            f"shard {number} is lost ({why}): {lost:,} transitions are gone, {info.restored:,} were restored"
            + (f"; {info.problem}" if info.problem else "")
        )
        self._steer()
        self.shards.end_replacement(number)
        if self.on_shard_loss == "stop":
            raise ShardLostError(number, f"{why}; {lost:,} transitions are gone, and on_shard_loss is 'stop'")

    def report(self, what: str) -> None:
        """Note and log that something has gone wrong."""
        self.events.append(what)
        logger.warning(what)

    # -- samples --------------------------------------------------------------------------------------------------------

    def sample(self, batch_size: int) -> Batch:
        """Draw a batch."""
        with self._lock:
            self.check()
            assert self.client is not None
            if self.client.is_empty:
                self.poll()
            return self.client.sample(batch_size)

    def update_priorities(self, indices: Array, priorities: Array) -> None:
        """Send priorities to the shards."""
        assert self.client is not None
        with self._lock:
            self.client.update_priorities(indices, priorities)

    @property
    def size(self) -> int:
        """Transitions that all shards hold, as far as is known."""
        return 0 if self.shards is None else sum(stats.size for stats in self.shards.stats if stats is not None)

    # -- what is known --------------------------------------------------------------------------------------------------

    def status(self) -> FleetStatus:
        """
        Return what is known of shards and collectors. Other threads may ask while the learner learns; it does not wait.

        :return: Figures; printed, they are a table
        """
        if self._lock.acquire(blocking=False):
            try:
                self.poll()
            except (RuntimeError, TimeoutError, ValueError) as error:
                self._failure = error  # which the learner will get
            finally:
                self._lock.release()
        shards = () if self.shards is None else tuple(self.shards.stats)
        played = tuple(self.collectors.progress), tuple(self.collectors.incarnations)
        return FleetStatus(shards, *played, self.figures(), tuple(self.events))

    def figures(self) -> dict[str, float]:
        """Figures by name, as SB3's logger gets them."""
        known = [stats for stats in (self.shards.stats if self.shards is not None else []) if stats is not None]
        received = max(sum(stats.received for stats in known), 1)
        seconds = max(time.monotonic() - self.began, 1e-9)
        return {
            "transitions": float(self.clock.total),
            "adds_per_second": (self.clock.total - self.restored) / seconds,
            "wire_bytes_per_transition": sum(stats.wire_bytes for stats in known) / received,
            "waiting_for_collectors": self.waited / seconds,
            "waiting_for_samples": (self.client.waited if self.client is not None else 0.0) / seconds,
            "policy_lag": float(max((stats.policy_lag for stats in known), default=0)),
            "lost": float(self.clock.lost),
            "duplicates": float(sum(stats.duplicates for stats in known)),
        }

    # -- checkpoints ----------------------------------------------------------------------------------------------------

    def save(self, model: Any = None) -> None:
        """
        Save all shards and the model. The checkpoint before counts until all of it is written.

        :param model: The model; None for the one that learns
        """
        with self._lock:
            self.check()
            if self.checkpoint_dir is None or self.shards is None:
                raise ValueError("there is nowhere to save to: give the Fleet a checkpoint_dir, and a model a buffer of it")
            highest = max([self.incarnation, *self.collectors.incarnations])
            model = self.model if model is None else model
            self.checkpoint = save_fleet(self.checkpoint_dir, self._save_shards, model, self.run, highest, self.settings)

    def _save_shards(self, name: str, keep: str | None) -> None:
        """Save all of them; one that dies meanwhile is replaced, and all are saved again."""
        assert self.shards is not None
        for _ in range(MOST_FAILURES + 1):
            try:
                return self.shards.save(name, keep)
            except ActorFailed as error:
                if not error.is_gone:
                    raise RuntimeError(f"shard {error.number} could not be saved: {error.why}") from error
                self.replace_shard(error.number, error.why)
        raise MissingError(f"a checkpoint was begun {MOST_FAILURES + 1} times, and each time a shard was lost meanwhile")

    def shard_path(self, number: int) -> str:
        """The directory of a shard."""
        assert self.checkpoint_dir is not None
        return os.path.join(self.checkpoint_dir, f"shard-{number}")


@dataclass(frozen=True)
class FleetStatus:
    """What is known of a fleet; ``str`` makes a table of it."""

    shards: tuple[Any, ...]
    """``Stats`` of each shard, None of those that have not answered yet."""
    collectors: tuple[Any, ...]
    """``Progress`` of each collector, likewise."""
    collector_incarnations: tuple[int, ...]
    """How often each collector has been replaced."""
    figures: dict[str, float]
    events: tuple[str, ...]
    """What has gone wrong."""

    def __str__(self) -> str:
        lines = ["shard      replaced      added       held   of   bytes each  twice"]
        for number, stats in enumerate(self.shards):
            if stats is None:
                lines.append(f"{number:<5} has not answered yet")
                continue
            wire = stats.wire_bytes / max(stats.received, 1)
            lines.append(
                f"{number:<10} {stats.incarnation:>8} {stats.added:>10,} {stats.size:>10,} {stats.size / stats.capacity:>5.0%}"
                f" {wire:>10.0f} {stats.duplicates:>6}"
            )
        lines.append("collector  replaced      steps     resent   policy  coding")
        for number, progress in enumerate(self.collectors):
            if progress is None:
                lines.append(f"{number:<5} has not answered yet")
                continue
            coding = progress.coding_seconds / max(progress.cpu_seconds, 1e-9)
            lines.append(
                f"{number:<10} {self.collector_incarnations[number]:>8} {progress.steps:>10,} {progress.resent:>10,} "
                f"{progress.version:>8} {coding:>7.0%}"
            )
        lines += [f"{name.replace('_', ' '):<28} {value:>14,.2f}" for name, value in self.figures.items()]
        return "\n".join([*lines, *self.events])
