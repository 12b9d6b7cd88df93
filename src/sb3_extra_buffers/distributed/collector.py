"""A collector: environments, a policy that acts in them as SB3 would, and blocks of what is played on their way to shards."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.noise import VectorizedActionNoise
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.preprocessing import get_action_dim, get_obs_shape
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv
from stable_baselines3.common.vec_env.patch_gym import _patch_env

from sb3_extra_buffers.distributed.actors import WRITE, call_actor, get_answer
from sb3_extra_buffers.distributed.blocks import Array, Block, BlockBuilder, Field, Schema, ShardLostError, wire_bytes
from sb3_extra_buffers.distributed.shard import Ack
from sb3_extra_buffers.storage.methods import default_method, fallback_method

EXPLORATIONS = ("model", "ape-x")
_APEX_BASE, _APEX_POWER = 0.4, 7.0
_NOT_FOR_ACTING = ("critic", "q_net_target", "quantile_net_target", "actor_target")
_RAW_BELOW = 512  # observations of fewer bytes are not worth compressing and are kept as they are
_WINDOW = 2  # blocks that may be on their way at once
_RETRY_SECONDS = 1.0
_WAIT_SECONDS = 0.1
_NAP = 0.02


# -- environments ---------------------------------------------------------------------------------------------------------


def make_envs(make_env: Callable[[], Any], n_envs: int) -> VecEnv:
    """The environments of a collector, wrapped as SB3 wraps them."""
    first = make_env()
    if isinstance(first, VecEnv):
        if first.num_envs != n_envs:
            raise ValueError(f"make_env() makes a VecEnv of {first.num_envs} environments, but envs_per_collector is {n_envs}")
        env: VecEnv = first
    else:
        made = [first, *(make_env() for _ in range(n_envs - 1))]
        watched = [one if _has_monitor(one) else Monitor(_patch_env(one)) for one in made]
        env = DummyVecEnv([lambda one=one: one for one in watched])  # type: ignore[misc]
    return BaseAlgorithm._wrap_env(env)


def _has_monitor(env: Any) -> bool:
    while env is not None:
        if isinstance(env, Monitor):
            return True
        env = getattr(env, "env", None)
    return False


def make_schema(
    observation_space: spaces.Space[Any],
    action_space: spaces.Space[Any],
    n_envs: int,
    block_steps: int,
    method: str | None = None,
) -> Schema:
    """Describe the blocks of environments with these spaces, after SB3's wrappers."""
    is_dict = isinstance(observation_space, spaces.Dict)
    by_key = dict(observation_space.spaces.items()) if is_dict else {None: observation_space}  # type: ignore[attr-defined]
    fields = []
    for key, space in by_key.items():
        if is_dict and not isinstance(key, str):
            raise TypeError(f"keys of observations must be strings, not {key!r}")
        shape: tuple[int, ...] = get_obs_shape(space)  # type: ignore[assignment]
        dtype = np.dtype(space.dtype)
        fields.append(Field(key, shape, dtype.str, math.prod(shape) * dtype.itemsize >= _RAW_BELOW))
    dtype = np.dtype(action_space.dtype)
    given = np.dtype(np.float32) if dtype == np.float64 else dtype  # as SB3's buffers store it
    stored = given
    if isinstance(action_space, spaces.Discrete) and action_space.start >= 0 and action_space.start + action_space.n <= 256:
        stored = np.dtype(np.uint8)
    how = default_method() if method is None else method, fallback_method()
    return Schema(tuple(fields), (get_action_dim(action_space),), given.str, stored.str, n_envs, block_steps, *how)


# -- policies -------------------------------------------------------------------------------------------------------------


class PolicySpec(NamedTuple):
    """What a collector needs to make a policy: sent once."""

    policy_class: type[Any]
    arguments: dict[str, Any]
    action_noise: Any
    exploration: str


class Publication(NamedTuple):
    """A version of the policy."""

    version: int
    weights: dict[str, Array]
    epsilon: float
    """Share of random actions, where the algorithm has one."""
    is_random: bool
    """Whether all actions are random, as before ``learning_starts``."""


def describe_policy(model: OffPolicyAlgorithm, exploration: str) -> PolicySpec:
    """What makes another policy like that of a model."""
    noise = model.action_noise
    noise = getattr(noise, "base_noise", noise)  # SB3 has made one of it for each environment
    return PolicySpec(type(model.policy), model.policy._get_constructor_parameters(), noise, exploration)


def publish(model: OffPolicyAlgorithm, version: int) -> Publication:
    """Copies of the weights that acting needs, as arrays."""
    weights = {
        name: tensor.detach().cpu().numpy().copy()
        for name, tensor in model.policy.state_dict().items()
        if not name.startswith(_NOT_FOR_ACTING)
    }
    epsilon = float(getattr(model, "exploration_rate", 0.0))
    return Publication(version, weights, epsilon, model.num_timesteps < model.learning_starts)


def apex_epsilons(n_envs: int) -> Array:
    """The share of random actions of each environment of a fleet, as in Ape-X: most explore little, some a lot."""
    return np.asarray(_APEX_BASE ** (1.0 + _APEX_POWER * np.arange(n_envs) / max(n_envs - 1, 1)))


class Actor:
    """Acts as SB3's off-policy algorithms do while they collect. ``epsilons`` are for ``exploration="ape-x"``."""

    def __init__(
        self, spec: PolicySpec, action_space: spaces.Space[Any], n_envs: int, epsilons: Array, seed: int | None
    ) -> None:
        self.policy = spec.policy_class(**spec.arguments)
        self.policy.set_training_mode(False)
        self.action_space, self.n_envs = action_space, n_envs
        self.noise: Any = None if spec.action_noise is None else VectorizedActionNoise(spec.action_noise, n_envs)
        self.is_apex, self._apex = spec.exploration == "ape-x", epsilons
        self.rng = np.random.default_rng(seed)
        action_space.seed(seed)
        self.version = -1
        self._publication: Publication | None = None

    def take(self, publication: Publication) -> None:
        """Act by another version of the policy from now on."""
        # A copy: what comes from Ray's store cannot be written to, and torch warns of that.
        weights = {name: th.from_numpy(np.array(array)) for name, array in publication.weights.items()}
        self.policy.load_state_dict(weights, strict=False)
        self.version, self._publication = publication.version, publication

    def act(self, obs: Any) -> tuple[Array, Array]:
        """Choose actions: for the environments, and as they are stored."""
        assert self._publication is not None
        if self._publication.is_random:
            actions = self._sample()
        else:
            actions, _ = self.policy.predict(obs, deterministic=False)
            if isinstance(self.action_space, spaces.Discrete):
                by_chance = self.rng.random(self.n_envs) < (self._apex if self.is_apex else self._publication.epsilon)
                if by_chance.any():
                    actions = np.where(by_chance, self._sample(), actions)
        if not isinstance(self.action_space, spaces.Box):
            return actions, actions
        scaled = self.policy.scale_action(actions)
        if self.noise is not None:
            scaled = np.clip(scaled + self.noise(), -1, 1)
        return self.policy.unscale_action(scaled), scaled

    def _sample(self) -> Array:
        return np.array([self.action_space.sample() for _ in range(self.n_envs)])

    def end_episodes(self, dones: Array) -> None:
        """Reset the action noise where episodes have ended."""
        if self.noise is not None and dones.any():
            self.noise.reset(indices=np.flatnonzero(dones).tolist())


# -- blocks on their way --------------------------------------------------------------------------------------------------


@dataclass
class _Unacknowledged:
    """A block that is not acknowledged yet."""

    shard: int
    message: tuple[Any, ...]
    refs: list[Any] = field(default_factory=list)
    """Calls that have not been answered."""
    retry_at: float = math.inf


class Outbox:
    """
    Sends blocks to shards, which are actors in a list, a few at a time; each until it is acknowledged.

    Block ``s`` of collector ``c`` belongs to shard ``(c + s) % n_shards``, also after that shard has been replaced: a new
    one that was restored from a checkpoint knows which blocks it has. So nothing is ever in two shards. A call that has failed
    is made again: Ray may take an actor for unavailable although the call was carried out.
    """

    def __init__(self, ray: Any, handles: list[Any], collector: int, now: Callable[[], float] = time.monotonic) -> None:
        n_shards = len(handles)
        self.ray, self.handles, self.collector, self.n_shards, self.now = ray, handles, collector, n_shards, now
        self.sequence = 0
        """Number of the next block."""
        self.resent = 0
        self.largest = 0
        """Bytes of the largest block so far."""
        self.newest: Ack | None = None
        """The acknowledgement with the newest policy."""
        self._unacknowledged: dict[int, _Unacknowledged] = {}
        self._incarnations = [0] * n_shards
        self._reserved = -1  # the block for which there is room
        self._questions: dict[int, Any] = {}
        self._ask_at = [0.0] * n_shards
        self._lock = threading.RLock()  # a shard may be replaced from another thread

    @property
    def settled(self) -> int:
        """Blocks before this one have been acknowledged."""
        return min(self._unacknowledged, default=self.sequence)

    def waits_for(self) -> list[int]:
        """Shards whose answers are missing; another thread may ask."""
        return sorted({block.shard for block in list(self._unacknowledged.values())} or {self.shard_of(self.sequence)})

    def shard_of(self, sequence: int) -> int:
        """The shard of a block."""
        return (self.collector + sequence) % self.n_shards

    def has_room(self) -> bool:
        """Whether the next block may be played now: few are on their way, and the learner is not far behind."""
        return len(self._unacknowledged) < _WINDOW and self._reserved == self.sequence

    def push(self, block: Block) -> None:
        """Send the next block."""
        with self._lock:
            sent = _Unacknowledged(self.shard_of(self.sequence), tuple(block))
            self._unacknowledged[self.sequence] = sent
            self.sequence += 1
            self.largest = max(self.largest, wire_bytes(sent.message))
            self._send(sent)

    def _send(self, block: _Unacknowledged) -> None:
        block.retry_at = math.inf
        block.refs.append(call_actor(self.handles[block.shard], "add", block.message, group=WRITE))

    def replace(self, shard: int, handle: Any, incarnation: int) -> tuple[int, tuple[int, ...]]:
        """
        Send to another actor in the place of a shard from now on, also what the one before it has not acknowledged; its
        answers do not count any more. Return the number of the next block, and the blocks of that shard that are not
        acknowledged.
        """
        with self._lock:
            if incarnation > self._incarnations[shard]:
                self.handles[shard] = handle
                self._incarnations[shard], self._ask_at[shard] = incarnation, 0.0
                self._questions.pop(shard, None)
                for block in self._unacknowledged.values():
                    if block.shard == shard:
                        block.refs.clear()
                        self.resent += 1
                        self._send(block)
            return self.sequence, tuple(number for number, block in self._unacknowledged.items() if block.shard == shard)

    def poll(self, timeout: float) -> None:
        """Take answers, retry what has failed, and ask for room if there is none; wait so long for an answer at most."""
        with self._lock:
            shard = self.shard_of(self.sequence)
            is_idle = len(self._unacknowledged) < _WINDOW and self._reserved != self.sequence and shard not in self._questions
            if is_idle and self.now() >= self._ask_at[shard]:
                self._questions[shard] = call_actor(self.handles[shard], "ask", self.collector)
            for block in self._unacknowledged.values():
                if self.now() >= block.retry_at:
                    self.resent += 1
                    self._send(block)
            owners = {ref: (block.shard, number) for number, block in self._unacknowledged.items() for ref in block.refs}
            owners |= {ref: (number, -1) for number, ref in self._questions.items()}
        if not owners:
            return
        done, rest = self.ray.wait(list(owners), num_returns=1, timeout=timeout)
        if done and rest:
            done += self.ray.wait(rest, num_returns=len(rest), timeout=0)[0]
        with self._lock:
            for ref in done:
                self._take(ref, *owners[ref])

    def _take(self, ref: Any, shard: int, sequence: int) -> None:
        block = self._unacknowledged.get(sequence)
        if block is not None and ref in block.refs:
            block.refs.remove(ref)
        is_question = self._questions.get(shard) == ref
        if is_question:
            del self._questions[shard]
        try:
            ack: Ack = get_answer(self.ray, ref, shard)
        except ShardLostError:  # it may come back, or another one in its place
            if block is not None and not block.refs:
                block.retry_at = self.now() + _RETRY_SECONDS
            elif is_question:
                self._ask_at[shard] = self.now() + _RETRY_SECONDS
            return
        if ack.incarnation < self._incarnations[shard]:
            return  # of one that has been given up: what it holds does not count any more
        if block is not None and ack.sequence == sequence:
            del self._unacknowledged[sequence]
        if ack.may_play and shard == self.shard_of(self.sequence):
            self._reserved = self.sequence
        if self.newest is None or ack.version >= self.newest.version:
            self.newest = ack


# -- playing --------------------------------------------------------------------------------------------------------------


class Collector:
    """Plays and sends until it is stopped. It waits only while there is no policy or no room to send."""

    def __init__(
        self,
        env: VecEnv,
        actor: Actor,
        builder: BlockBuilder,
        outbox: Outbox,
        fetch: Callable[[Any], Publication | None],
    ) -> None:
        self.env, self.actor, self.builder, self.outbox, self.fetch = env, actor, builder, outbox, fetch
        self.stopped = threading.Event()
        self.coding_seconds = self.waiting_seconds = 0.0
        self._obs: Any = None
        self._cpu_began = 0.0

    @property
    def cpu_seconds(self) -> float:
        """Processor time since it began to play."""
        return time.process_time() - self._cpu_began

    def run(self) -> int:
        """Play until ``stopped`` is set. Return the steps that were played."""
        self._obs = self.env.reset()
        self._cpu_began = time.process_time()
        while not self.stopped.is_set():
            self._poll(0.0)
            if self.actor.version < 0 or not self.outbox.has_room():
                since = time.perf_counter()
                self._poll(_WAIT_SECONDS)
                if self.actor.version < 0 or not self.outbox.has_room():
                    self.stopped.wait(_NAP)
                self.waiting_seconds += time.perf_counter() - since
                continue
            while not self.builder.is_full and not self.stopped.is_set():
                self._step()
            if self.builder.is_full:
                since = time.thread_time()
                self.outbox.push(self.builder.seal(self.outbox.settled))
                self.coding_seconds += time.thread_time() - since
        return self.builder.steps

    def _poll(self, timeout: float) -> None:
        """Take answers, and the newest policy."""
        self.outbox.poll(timeout)
        newest = self.outbox.newest
        if newest is not None and newest.version > self.actor.version and newest.publication is not None:
            publication = self.fetch(newest.publication)
            if publication is not None:
                self.actor.take(publication)

    def _step(self) -> None:
        obs = self._obs
        actions, stored = self.actor.act(obs)
        following, rewards, dones, infos = self.env.step(actions)
        next_obs: Any = following
        for env, done in enumerate(dones):
            last = infos[env].get("terminal_observation")
            if done and last is not None:
                if next_obs is following:
                    next_obs = deepcopy(following)
                if isinstance(next_obs, dict):
                    for key in next_obs:
                        next_obs[key][env] = last[key]
                else:
                    next_obs[env] = last
        since = time.thread_time()
        self.builder.add(obs, next_obs, stored, rewards, dones, infos, self.actor.version)
        self.coding_seconds += time.thread_time() - since
        self.actor.end_episodes(dones)
        self._obs = following
