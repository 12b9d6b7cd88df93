"""Collectors act as SB3 does, and what they send is what they have played; without Ray."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import fake_ray
import gymnasium as gym
import numpy as np
import pytest
import torch as th
from fleet_worlds import Continuous, Numbered, check_samples
from gymnasium import spaces
from network import Network
from numbered_envs import RUN
from stable_baselines3 import DQN, SAC, TD3
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.vec_env import DummyVecEnv

from sb3_extra_buffers.distributed.actors import SHARD_GROUPS, CollectorActor, ShardActor
from sb3_extra_buffers.distributed.blocks import BlockBuilder
from sb3_extra_buffers.distributed.collector import (
    Actor,
    Collector,
    Outbox,
    apex_epsilons,
    describe_policy,
    make_envs,
    make_schema,
    publish,
)
from sb3_extra_buffers.distributed.shard import Shard

SMALL: dict[str, Any] = {"net_arch": [8], "features_extractor_kwargs": {"features_dim": 16}}


def make_model(kind: type[Any], env: Any, **kwargs: Any) -> Any:
    own = copy.deepcopy(SMALL)  # SB3 writes to it
    return kind("CnnPolicy", env, buffer_size=10, learning_starts=0, policy_kwargs=own, device="cpu", seed=0, **kwargs)


@pytest.mark.parametrize("kind", [DQN, SAC, TD3])
def test_what_is_sent_was_played(kind: type[Any]) -> None:
    env = make_envs(Numbered if kind is DQN else Continuous, 2)
    noise = NormalActionNoise(np.zeros(2), 0.1 * np.ones(2)) if kind is TD3 else None
    model = make_model(kind, env, **({} if noise is None else {"action_noise": noise}))
    schema = make_schema(env.observation_space, env.action_space, 2, 16)
    network = Network([Shard(schema, 640, RUN, number, seed=0) for number in range(2)])
    actor = Actor(describe_policy(model, "ape-x"), env.action_space, 2, apex_epsilons(2), 0)
    outbox = Outbox(network, list(network.handles), 0, network.now)
    collector = Collector(env, actor, BlockBuilder(schema, RUN, 0, 0), outbox, lambda where: where)
    for shard in network.shards:
        shard.steer(10**6, 1, publish(model, 1))

    def attend() -> None:
        network.run()
        if sum(shard.blocks for shard in network.shards) >= 6:
            collector.stopped.set()

    network.on_wait = attend
    assert collector.run() >= 6 * 16
    assert actor.version == 1 and abs(network.shards[0].blocks - network.shards[1].blocks) <= 1
    for shard in network.shards:
        *values, actions, rewards, dones, _ = shard.sample(64).arrays
        tensors = [th.from_numpy(np.array(array)) for array in (*values, actions, rewards, dones)]
        named = dict(zip(("observations", "next_observations", "actions", "rewards", "dones"), tensors, strict=True))
        check_samples(SimpleNamespace(**named))
        if kind is not DQN:
            assert actions.shape == (64, 2) and np.abs(actions).max() <= 1 and len(np.unique(actions)) > 32


def test_a_policy_acts_as_the_model_does() -> None:
    env = make_envs(Numbered, 2)
    model = make_model(DQN, env)
    other = make_model(DQN, env)
    with th.no_grad():
        for tensor in model.policy.parameters():
            tensor.add_(th.randn_like(tensor))
    actor = Actor(describe_policy(other, "model"), env.action_space, 2, np.zeros(2), 0)
    model.exploration_rate = 0.0
    obs = np.random.default_rng(0).integers(0, 256, (2, *env.observation_space.shape), dtype=np.uint8)  # type: ignore[misc]
    actor.take(publish(model, 3))
    assert actor.act(obs)[0].tolist() == model.policy.predict(obs)[0].tolist() and actor.version == 3
    assert not any(name.startswith("q_net_target") for name in publish(model, 1).weights)
    model.learning_starts, model.exploration_rate = 10, 1.0
    assert publish(model, 4).is_random
    drawn = set()
    actor.take(publish(model, 5)._replace(is_random=False))
    for _ in range(40):
        drawn |= set(actor.act(obs)[0].tolist())
    assert drawn == {0, 1, 2}


def test_ape_x_explores_in_steps() -> None:
    shares = apex_epsilons(8)
    assert shares[0] == 0.4 and shares[-1] == pytest.approx(0.4**8) and (np.diff(shares) < 0).all()
    assert apex_epsilons(1).tolist() == [0.4]


def test_environments_are_wrapped_as_by_sb3() -> None:
    env = make_envs(lambda: DummyVecEnv([Numbered] * 3), 3)
    assert env.num_envs == 3
    with pytest.raises(ValueError, match="3 environments, but envs_per_collector is 2"):
        make_envs(lambda: DummyVecEnv([Numbered] * 3), 2)


@contextmanager
def playing(
    monkeypatch: pytest.MonkeyPatch, make_env: Any, kind: type[Any], seed: int, n_shards: int, **kwargs: Any
) -> Iterator[tuple[Any, list[Any], CollectorActor]]:
    """A collector, in this process, that plays for the first two of some shards as soon as the context is left."""
    actor = CollectorActor(make_env, 2)
    schema = make_schema(actor.env.observation_space, actor.env.action_space, 2, 16)
    model = make_model(kind, actor.env, **kwargs)
    with fake_ray.installed(monkeypatch) as ray:
        made = [{"number": min(number, 1), "incarnation": 3 * (number == 2)} for number in range(n_shards)]
        make = ray.remote(concurrency_groups=SHARD_GROUPS)(ShardActor)
        shards = [make.remote(schema, {"capacity": 640, "run": RUN, "seed": 0, **given}, None) for given in made]
        for shard in shards:
            ray.get(shard.steer.remote(10**6, 1, [ray.put(publish(model, 1))]))
        yield ray, shards, actor
        settings = {"number": 0, "seed": seed, "run": RUN, "incarnation": 0, "epsilons": np.zeros(2)}
        given = schema, describe_policy(model, "model"), [(shard, 0) for shard in shards[:2]], settings
        thread = threading.Thread(target=actor.run, args=given)
        thread.start()
        while ray.get(shards[-1].stats.remote(0)).added < 32:
            assert thread.is_alive()
        actor.collector.stopped.set()
        thread.join()
        actor.found = [ray.get(shard.stats.remote(0)) for shard in shards]  # type: ignore[attr-defined]
        actor.drawn = ray.get(shards[0].sample.remote(100, 1, False)).arrays[-4]  # type: ignore[attr-defined]


def test_a_shard_that_is_replaced_before_the_first_step_is_known_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """A collector that has been started in the place of another one hears of it before it plays."""
    with playing(monkeypatch, Numbered, DQN, 3, 3) as (_, shards, actor):
        actor.replace_shard(1, [shards[2]], 3)
    first, old, new = (stats.added for stats in actor.found)  # type: ignore[attr-defined]
    assert old == 0 < first and new >= 32
    assert actor.progress().largest_block > 100  # type: ignore[union-attr]


class Still(gym.Env[Any, Any]):
    """Always shows the same."""

    observation_space = spaces.Box(0, 255, (2, 36, 36), np.uint8)
    action_space = spaces.Box(-2.0, 2.0, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.full((2, 36, 36), 7, np.uint8), {}

    def step(self, action: Any) -> Any:
        return np.full((2, 36, 36), 7, np.uint8), 0.0, False, False, {}


@pytest.mark.parametrize("kind", [SAC, TD3])
def test_the_seed_reaches_the_noise_of_actions(monkeypatch: pytest.MonkeyPatch, kind: type[Any]) -> None:
    noise = {"action_noise": NormalActionNoise(np.zeros(2), 0.1 * np.ones(2))} if kind is TD3 else {}
    drawn = []
    for seed in (3, 3, 4):
        with playing(monkeypatch, Still, kind, seed, 1, **noise) as (_, _, actor):
            pass
        drawn.append({tuple(action) for action in actor.drawn.tolist()})  # type: ignore[attr-defined]
    assert drawn[0] & drawn[1] and not drawn[0] & drawn[2]


def test_environments_have_the_seeds_that_they_are_given() -> None:
    class Dice(Numbered):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            found = super().reset(seed=seed)
            seen.append(seed)
            return found

    seen: list[int | None] = []
    env = make_envs(Dice, 2)
    env.seed(40)
    env.reset()
    assert seen[-2:] == [40, 41]
