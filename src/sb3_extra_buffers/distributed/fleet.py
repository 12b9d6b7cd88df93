"""A fleet: collectors and shards on Ray, and what the learner needs of them."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from sb3_extra_buffers.distributed.acting import EXPLORATIONS, describe_policy, lane_epsilons, publish
from sb3_extra_buffers.distributed.actors import CollectorActor, ShardActor
from sb3_extra_buffers.distributed.callback import FleetCallback
from sb3_extra_buffers.distributed.checkpoints import DEFAULTS, NUMBERS, load_manifest, save_fleet
from sb3_extra_buffers.distributed.client import Batch, Client
from sb3_extra_buffers.distributed.clock import Clock, PatientClock
from sb3_extra_buffers.distributed.closed import ClosedFleet
from sb3_extra_buffers.distributed.collector_crew import CollectorCrew
from sb3_extra_buffers.distributed.env import FleetEnv
from sb3_extra_buffers.distributed.errors import MissingError, ShardLostError
from sb3_extra_buffers.distributed.optional import need_ray
from sb3_extra_buffers.distributed.ray_transport import RayTransport
from sb3_extra_buffers.distributed.schema import Array
from sb3_extra_buffers.distributed.shard_crew import ShardCrew
from sb3_extra_buffers.distributed.spaces import make_schema
from sb3_extra_buffers.distributed.status import FleetStatus

logger = logging.getLogger(__name__)

ON_SHARD_LOSS = ("continue", "stop")
_POLL_SECONDS = 0.5
_POLL_WHEN_WAITING = 0.05


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
    :param on_shard_loss: ``"continue"`` replaces a shard and says what was lost; ``"stop"`` raises ``ShardLostError``
    :param checkpoint_dir: Directory for checkpoints, which all machines see; None for none
    :param checkpoint_every: Timesteps between checkpoints; None for one at the end
    :param compression_method: How frames are coded
    :param timeout: Seconds after which somebody who does not answer is missing
    :param start_timeout: Seconds that starting an actor, replacing one or saving a shard may take
    :param resend_after: Seconds after which a block that was not acknowledged is sent again
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
        resend_after: float = 10.0,
        seed: int | None = None,
        collector_options: dict[str, Any] | None = None,
        shard_options: dict[str, Any] | None = None,
    ) -> None:
        given = dict(locals())
        for name, value in (
            ("max_lead", 1 if max_lead is None else max_lead),
            *(("n_collectors", n_collectors), ("envs_per_collector", envs_per_collector), ("n_shards", n_shards)),
            ("publish_every", publish_every),
        ):
            if value < 1:
                raise ValueError(f"{name} is {value}; it must be 1 or more")
        for name, seconds in (("timeout", timeout), ("start_timeout", start_timeout), ("resend_after", resend_after)):
            if not seconds > 0:  # also false for NaN
                raise ValueError(f"{name} is {seconds}; it must be more than 0 seconds")
        if exploration not in EXPLORATIONS:
            raise ValueError(f"exploration is {exploration!r}; it must be one of {EXPLORATIONS}")
        if on_shard_loss not in ON_SHARD_LOSS:
            raise ValueError(f"on_shard_loss is {on_shard_loss!r}; it must be one of {ON_SHARD_LOSS}")
        if checkpoint_every is not None and checkpoint_dir is None:
            raise ValueError("checkpoint_every needs a checkpoint_dir")
        self.ray = need_ray()
        self.n_lanes, self.n_shards = n_collectors * envs_per_collector, n_shards
        self.block_steps, self.publish_every, self.exploration = block_steps, publish_every, exploration
        self.on_shard_loss, self.seed = on_shard_loss, seed
        self.timeout, self.start_timeout = timeout, start_timeout
        self.checkpoint_dir = None if checkpoint_dir is None else os.path.abspath(checkpoint_dir)
        self.checkpoint_every = checkpoint_every
        self.max_lead = 4 * self.n_lanes * block_steps if max_lead is None else max_lead
        self.settings = {name: given[name] for name in (*NUMBERS, *DEFAULTS)}
        """What a fleet that is restored from a checkpoint of this one is made with."""
        self.clock = Clock(n_shards, self.n_lanes // n_collectors * block_steps)
        self.now = PatientClock(min(timeout, start_timeout) / 4).now
        self.run, self.incarnation = os.urandom(16), 0
        self.checkpoint: str | None = None
        """Name of the checkpoint that replaced shards begin with."""
        self.model: Any = None
        """The model that learns."""
        self.is_closed = False
        self.restored = 0
        """Transitions that were there when this fleet began."""
        self.events: list[str] = []
        """What has gone wrong, and what was lost by it."""
        self.client: Client | None = None
        self.shards: ShardCrew | None = None
        self.version = 0
        self._publication: list[Any] | None = None
        self._lock = threading.RLock()
        """Somebody may ask for the status from another thread while the learner learns."""
        self._failure: BaseException | None = None
        """What another thread has found, for the learner."""
        self._polled_at = 0.0
        self.waited, self.began = 0.0, time.monotonic()
        options = {"num_cpus": 1, **(collector_options or {})}
        self._shard_options = {"num_cpus": 0, **(shard_options or {})}
        self.collectors = CollectorCrew(
            self, CollectorActor, make_env, n_collectors, envs_per_collector, options, resend_after
        )
        try:
            info = self.collectors.hire()
            lanes = envs_per_collector, block_steps
            self.schema = make_schema(info.observation_space, info.action_space, *lanes, compression_method)
        except BaseException:
            self.close()
            raise
        self.env = FleetEnv(self, info.observation_space, info.action_space)

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
        self.collectors.dismiss()
        if self.shards is not None:
            self.shards.dismiss()

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
        """
        Start the shards; ``ShardedReplayBuffer`` calls it.

        :param buffer: The buffer
        :param capacity: Transitions of all shards together
        :param prefetch: Batches of a call
        :param arguments: What else ``Shard`` takes
        """
        if self.shards is not None:
            raise RuntimeError("this fleet has a buffer already; make another fleet for another model")
        if (buffer.observation_space, buffer.action_space) != (self.env.observation_space, self.env.action_space):
            raise ValueError("the buffer has other spaces than fleet.env")
        each = -(-capacity // self.n_shards)
        seed = self._seed_of_samples()
        given = {"capacity": each, "run": self.run, "seed": seed, **arguments}
        self.shards = ShardCrew(self, ShardActor, given, self._shard_options)
        self.shards.hire()
        # The crew's own list: whom it replaces is reached at once.
        transport = RayTransport(self.shards.handles)
        self.client = Client(transport, self.schema, self.n_shards, prefetch, self.timeout, seed)
        self.client.on_lost = self._on_lost
        for number, info in enumerate(self.shards.infos):
            self._introduce(number, info)
            self.clock.note(number, 0, info.restored, {who: max(known) for who, (_, known) in info.seen.items() if known})
        self.clock.timesteps = self.restored = self.clock.total

    def _seed_of_samples(self) -> int | None:
        """A restored fleet does not draw what the one before it has drawn."""
        if self.seed is None:
            return None
        return int(np.random.SeedSequence([self.seed, self.incarnation]).generate_state(1)[0])

    def _introduce(self, number: int, info: Any) -> None:
        assert self.client is not None and self.shards is not None
        here = self.ray.get_runtime_context().get_node_id()
        self.client.coded[number] = info.node != here
        self.client.weigh(number, self.shards.incarnations[number], info.total)

    def start_collectors(self, model: Any) -> None:
        """
        Publish a first policy and have collectors play; the callback calls it.

        :param model: The model
        """
        assert self.shards is not None
        self.model = model
        self.publish(model)
        epsilons = lane_epsilons(0, self.n_lanes, self.n_lanes)
        self.collectors.start(self.schema.to_json(), describe_policy(model, self.exploration), self.shards, self.run, epsilons)

    # -- while the learner learns ---------------------------------------------------------------------------------------

    def publish(self, model: Any) -> None:
        """
        Send the policy to collectors, by way of what shards answer them.

        :param model: The model
        """
        self.version += 1
        # In a list, so that Ray hands over the reference and not what it refers to.
        self._publication = [self.ray.put(publish(model, self.version))]
        self._steer()

    def _steer(self) -> None:
        assert self.shards is not None
        self.shards.steer(self.clock.limits(self.max_lead), self.version, self._publication)

    def advance(self, timesteps: int) -> None:
        """
        Wait until so many more transitions have been collected.

        :param timesteps: How many; ``MissingError`` names who has not played when they have not come in time
        """
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
        Hear how everybody is, tell shards how far they may go, and replace whom Ray has lost. It waits for a shard that
        is replaced, and for nobody else.

        :param every: Do nothing if that was done less than so many seconds ago
        """
        with self._lock:
            now = time.monotonic()
            if self.shards is not None and not self.is_closed and now - self._polled_at >= every:
                self._polled_at = now
                self._poll(self.shards)

    def _poll(self, shards: ShardCrew) -> None:
        for stats in shards.hear():
            self.clock.note(stats.shard, stats.incarnation, stats.added, stats.newest)
            self.collectors.have_sent(collector for collector, _ in stats.newest)
            if self.client is not None:
                self.client.weigh(stats.shard, stats.incarnation, stats.total)
            self.env.episodes += stats.episodes
        for number, why in shards.missing(self.timeout):
            self.replace_shard(number, why)
        self.collectors.look_after(self.timeout)
        self._steer()

    def _on_lost(self, shard: int) -> None:
        if shard < 0:
            self.poll(_POLL_WHEN_WAITING)
        else:
            self.replace_shard(shard, "it did not answer a call for samples")

    def replace_shard(self, number: int, why: str) -> None:
        """
        Put another shard in the place of one that is lost, and tell everybody.

        :param number: Its number
        :param why: What is known of that
        """
        assert self.shards is not None and self.client is not None
        info = self.shards.replace(number)
        incarnation = self.shards.incarnations[number]
        self._introduce(number, info)
        told = self.collectors.replace_shard(number, self.shards.handles[number], incarnation)
        lost = self.clock.replace(number, incarnation, info.restored, info.seen, told, self.shards.capacity)
        self.announce(
            f"shard {number} is lost ({why}): {lost:,} transitions are gone, {info.restored:,} were restored"
            + (f"; {info.problem}" if info.problem else "")
        )
        self._steer()
        self.shards.settle(number)
        if self.on_shard_loss == "stop":
            raise ShardLostError(number, f"{why}; {lost:,} transitions are gone, and on_shard_loss is 'stop'")

    def announce(self, what: str) -> None:
        """
        Say that something has gone wrong.

        :param what: What
        """
        self.events.append(what)
        logger.warning(what)

    # -- samples --------------------------------------------------------------------------------------------------------

    def sample(self, batch_size: int) -> Batch:
        """
        Draw a batch.

        :param batch_size: Number of transitions
        :return: The batch
        """
        assert self.client is not None
        with self._lock:
            self.check()
            if self.client.is_empty:
                self.poll()
            return self.client.sample(batch_size)

    def update_priorities(self, indices: Array, priorities: Array) -> None:
        """
        Send priorities to the shards.

        :param indices: Indices of samples
        :param priorities: One each
        """
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
        return FleetStatus.of(self)

    # -- checkpoints ----------------------------------------------------------------------------------------------------

    def save(self, model: Any = None) -> None:
        """
        Save all shards and the model. The checkpoint before counts until all of it is written.

        :param model: The model; None for the one that learns
        """
        with self._lock:
            self.check()
            save_fleet(self, self.model if model is None else model)

    def shard_path(self, number: int) -> str:
        """
        Tell where a shard is saved.

        :param number: Its number
        :return: A directory
        """
        assert self.checkpoint_dir is not None
        return os.path.join(self.checkpoint_dir, f"shard-{number}")
