"""A collector: environments, a policy, and blocks of what they play."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from copy import deepcopy
from typing import Any

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv
from stable_baselines3.common.vec_env.patch_gym import _patch_env

from sb3_extra_buffers.distributed.acting import Actor, Publication
from sb3_extra_buffers.distributed.builder import BlockBuilder
from sb3_extra_buffers.distributed.outbox import Outbox

_NAP = 0.02


def make_lanes(make_env: Callable[[], Any], lanes: int) -> VecEnv:
    """
    Make the environments of a collector, wrapped as SB3 wraps them.

    :param make_env: Makes one environment, or a ``VecEnv`` of all of them
    :param lanes: How many
    :return: The environments
    """
    first = make_env()
    if isinstance(first, VecEnv):
        if first.num_envs != lanes:
            raise ValueError(f"make_env() makes a VecEnv of {first.num_envs} environments, but envs_per_collector is {lanes}")
        env: VecEnv = first
    else:
        made = [first, *(make_env() for _ in range(lanes - 1))]
        watched = [one if _has_monitor(one) else Monitor(_patch_env(one)) for one in made]
        env = DummyVecEnv([lambda one=one: one for one in watched])  # type: ignore[misc]
    return BaseAlgorithm._wrap_env(env)


def _has_monitor(env: Any) -> bool:
    while env is not None:
        if isinstance(env, Monitor):
            return True
        env = getattr(env, "env", None)
    return False


class Collector:
    """
    Plays and sends until it is stopped. It never waits for anybody but for room to send.

    :param env: Its environments
    :param actor: How it acts
    :param builder: What makes blocks
    :param outbox: What sends them
    :param fetch: Gets a publication from where an acknowledgement says it is; None while it cannot be had
    """

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
        """
        Play until ``stopped`` is set.

        :return: Steps that were played
        """
        self._obs = self.env.reset()
        self._cpu_began = time.process_time()
        while not self.stopped.is_set():
            self._attend(0.0)
            if self.actor.version < 0 or not self.outbox.has_room():
                since = time.perf_counter()
                self._attend(0.1)
                if not self.outbox.has_room() or self.actor.version < 0:
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

    def _attend(self, timeout: float) -> None:
        """Take what has come, and the newest policy."""
        self.outbox.pump(timeout)
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
        for lane, done in enumerate(dones):
            last = infos[lane].get("terminal_observation")
            if done and last is not None:
                if next_obs is following:
                    next_obs = deepcopy(following)
                if isinstance(next_obs, dict):
                    for key in next_obs:
                        next_obs[key][lane] = last[key]
                else:
                    next_obs[lane] = last
        since = time.thread_time()
        self.builder.add(obs, next_obs, stored, rewards, dones, infos, self.actor.version)
        self.coding_seconds += time.thread_time() - since
        self.actor.end_episodes(dones)
        self._obs = following
