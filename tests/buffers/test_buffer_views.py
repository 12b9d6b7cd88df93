"""A sample leaves the buffer as it is, and what other people set in theirs is kept."""

from __future__ import annotations

import copy
import gc
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from observation_streams import Stack, Stream, assert_same_samples, sampled, space_of
from stable_baselines3.common.buffers import ReplayBuffer, RolloutBuffer
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from sb3_extra_buffers.compressed import (
    CompressedHerReplayBuffer,
    CompressedReplayBuffer,
    CompressedRolloutBuffer,
)

ENVS = 2
ACTIONS = spaces.Box(-1, 1, (2,), np.float32)


def filled(cls: type[Any], steps: int = 25, **kwargs: Any) -> Any:
    stream = Stream(0, ENVS, (1, 30, 30), np.uint8, "game", Stack(3, 0), done_rate=0.1)
    buffer = cls(40, space_of(stream), ACTIONS, "cpu", n_envs=ENVS, **kwargs)
    rng = np.random.default_rng(0)
    for _ in range(steps):
        obs, next_obs, dones, infos = stream.step()
        buffer.add(obs, next_obs, rng.random((ENVS, 2), np.float32), rng.random(ENVS), dones, infos)
    return buffer


def filled_rollout(cls: type[Any], **kwargs: Any) -> Any:
    stream = Stream(0, ENVS, (1, 30, 30), np.uint8, "game", Stack(3, 0))
    buffer = cls(12, space_of(stream), ACTIONS, "cpu", n_envs=ENVS, **kwargs)
    rng = np.random.default_rng(0)
    for _ in range(12):
        value = th.as_tensor(rng.random((ENVS, 1), np.float32))
        buffer.add(stream.step()[0], rng.random((ENVS, 2), np.float32), rng.random(ENVS), np.zeros(ENVS), value, value[:, 0])
    return buffer


def test_a_sample_leaves_the_buffer_as_it_is() -> None:
    buffer = filled(CompressedReplayBuffer)
    before = dict(vars(buffer))
    buffer.sample(8)
    assert vars(buffer).keys() == before.keys() and all(vars(buffer)[name] is value for name, value in before.items())


def test_a_sample_is_freed_when_it_is_dropped() -> None:
    """Nothing of it is in a cycle: memory would pile up until Python looks for those."""
    buffer = filled(CompressedReplayBuffer)
    normalize = VecNormalize(DummyVecEnv([lambda: _Nothing(buffer.observation_space)] * ENVS))
    gc.collect()
    gc.disable()
    try:
        for env in (None, normalize):
            buffer.sample(8, env)
            assert gc.collect() == 0
    finally:
        gc.enable()


@pytest.mark.parametrize("batch_size", [-1, 2.5, "3"])
def test_what_is_no_batch_size_is_refused_as_by_sb3(batch_size: Any) -> None:
    with pytest.raises((TypeError, ValueError)) as theirs:
        filled(ReplayBuffer).sample(batch_size)
    with pytest.raises(theirs.type) as ours:
        filled(CompressedReplayBuffer).sample(batch_size)
    assert str(ours.value) == str(theirs.value)


class _Nothing(gym.Env[Any, Any]):
    """An environment that says what it observes."""

    def __init__(self, space: spaces.Space[Any]) -> None:
        self.observation_space, self.action_space = space, ACTIONS


class Counting(ReplayBuffer):
    """Somebody else's buffer, which keeps count of what was sampled, and where."""

    def _get_samples(self, batch_inds: np.ndarray, env: Any = None) -> Any:
        self.count = getattr(self, "count", 0) + len(batch_inds)
        self.places = batch_inds
        return super()._get_samples(batch_inds, env)


class CompressedCounting(Counting, CompressedReplayBuffer):
    """The same, over ours."""


class SamplingOnTop(CompressedReplayBuffer):
    """A subclass of ours with a ``sample`` that asks for more."""

    def sample(self, batch_size: int, *args: Any, **kwargs: Any) -> Any:
        self.count = getattr(self, "count", 0) + batch_size
        return super().sample(batch_size, *args, **kwargs)


def test_attributes_that_other_people_set_are_kept() -> None:
    theirs = filled(ReplayBuffer)
    for cls in (CompressedCounting, SamplingOnTop):
        buffer = filled(cls)
        for seed in range(3):
            assert_same_samples(sampled(buffer, seed, 7)[0], sampled(theirs, seed, 7)[0])
        assert buffer.count == 21
        assert cls is SamplingOnTop or buffer.places.shape == (7,)


class CountingRollout(RolloutBuffer):
    """Somebody else's rollout buffer."""

    def _get_samples(self, batch_inds: np.ndarray, env: Any = None) -> Any:
        self.count = getattr(self, "count", 0) + len(batch_inds)
        return super()._get_samples(batch_inds, env)


class CompressedCountingRollout(CountingRollout, CompressedRolloutBuffer):
    """The same, over ours."""


@pytest.mark.parametrize("prefetch", [False, True])
def test_attributes_of_other_peoples_rollouts_are_kept(prefetch: bool) -> None:
    buffer = filled_rollout(CompressedCountingRollout, prefetch=prefetch)
    assert sum(len(batch.actions) for batch in buffer.get(5)) == buffer.count == 24


def test_minibatches_of_a_rollout_that_is_no_longer_there() -> None:
    buffer = filled_rollout(CompressedRolloutBuffer)
    batches = buffer.get(5)
    next(batches)
    buffer.reset()
    with pytest.raises(RuntimeError, match="was reset"):
        next(batches)
    with pytest.raises(RuntimeError, match="not full"):
        buffer.get(5)


# -- what is stored by SB3's code -----------------------------------------------------------------------------------------


def test_vectors_are_added_as_sb3_does() -> None:
    space = spaces.Box(-1, 1, (3,), np.float32)
    pair = [cls(12, space, ACTIONS, "cpu", ENVS) for cls in (CompressedReplayBuffer, ReplayBuffer)]
    rng = np.random.default_rng(0)
    for step in range(15):
        obs, next_obs = rng.random((2, ENVS, 3), np.float32)
        infos = [{"TimeLimit.truncated": step % 3 == env} if step % 2 else {} for env in range(ENVS)]
        for buffer in pair:
            buffer.add(
                obs, next_obs, rng.random((ENVS, 2)) * 0 + step, np.arange(ENVS) + step, np.array([True, step % 2]), infos
            )
        for name in ("observations", "next_observations", "actions", "rewards", "dones", "timeouts"):
            np.testing.assert_array_equal(getattr(pair[0], name), getattr(pair[1], name))
        assert (pair[0].pos, pair[0].full) == (pair[1].pos, pair[1].full)
    for buffer in pair:
        with pytest.raises(TypeError):
            buffer.add(obs, next_obs, rng.random((ENVS, 2)), np.zeros(ENVS), np.zeros(ENVS), infos, "more")
        with pytest.raises(ValueError, match="reshape"):
            buffer.add(obs, next_obs, rng.random((ENVS, 3)), np.zeros(ENVS), np.zeros(ENVS), infos)
    np.testing.assert_array_equal(pair[0].observations, pair[1].observations)


# -- hindsight ---------------------------------------------------------------------------------------------------------------


class GoalEnv(gym.Env[Any, Any]):
    """
    What HER asks an environment for.

    :param achieved: What a goal is that was reached
    :param desired: What one is that is asked for
    """

    def __init__(self, achieved: spaces.Box, desired: spaces.Box) -> None:
        image = spaces.Box(0, 255, (3, 20, 20), np.uint8)
        self.observation_space = spaces.Dict({"observation": image, "achieved_goal": achieved, "desired_goal": desired})
        self.action_space = ACTIONS

    def compute_reward(self, achieved: Any, desired: Any, infos: Any) -> Any:
        axes = tuple(range(1, achieved.ndim))
        bonus = np.array([info.get("bonus", 0) for info in infos], dtype=float)
        return achieved.astype(float).sum(axes) - desired.astype(float).sum(axes) + bonus


class ReadsOtherwise(CompressedHerReplayBuffer):
    """Somebody's subclass, in which virtual transitions are worth more."""

    def _get_virtual_samples(self, *args: Any, **kwargs: Any) -> Any:
        samples = super()._get_virtual_samples(*args, **kwargs)
        return samples._replace(rewards=samples.rewards + 100)


class TheirsOtherwise(HerReplayBuffer):
    """The same over SB3's."""

    def _get_virtual_samples(self, *args: Any, **kwargs: Any) -> Any:
        samples = super()._get_virtual_samples(*args, **kwargs)
        return samples._replace(rewards=samples.rewards + 100)


VECTOR = spaces.Box(-9, 9, (4,), np.float32)
GOALS = {
    "vectors": (VECTOR, VECTOR),
    "of two types": (spaces.Box(-9, 9, (4,), np.float64), VECTOR),
    "pictures": (spaces.Box(0, 255, (1, 24, 24), np.uint8), spaces.Box(0, 255, (1, 24, 24), np.uint8)),
}


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("classes", [(CompressedHerReplayBuffer, HerReplayBuffer), (ReadsOtherwise, TheirsOtherwise)])
@pytest.mark.parametrize("goals", GOALS)
@pytest.mark.parametrize("n_sampled_goal", [0, 4])
def test_hindsight_is_that_of_sb3(classes: tuple[Any, Any], goals: str, n_sampled_goal: int, normalized: bool) -> None:
    env = DummyVecEnv([lambda: GoalEnv(*GOALS[goals])] * ENVS)
    space, rng = copy.deepcopy(env.observation_space), np.random.default_rng(0)  # VecNormalize changes the environment's
    options: dict[str, Any] = {"n_sampled_goal": n_sampled_goal, "copy_info_dict": True}
    pair = [cls(40, space, ACTIONS, env, "cpu", ENVS, **options) for cls in classes]
    norm = VecNormalize(env, norm_obs_keys=["observation"]) if normalized else None
    obs = {key: np.stack([part.sample() for _ in range(ENVS)]) for key, part in space.spaces.items()}
    for step in range(55):
        following = {key: np.stack([part.sample() for _ in range(ENVS)]) for key, part in space.spaces.items()}
        done = np.array([step % 6 == 5, step % 9 == 8])
        infos = [{"bonus": step}, {}]
        for buffer in pair:
            buffer.add(obs, following, np.full((ENVS, 2), step / 55), rng.random(ENVS) * 0 + step, done, infos)
        obs = following
        if step > 10:
            ours, theirs = (sampled(buffer, step, 20, env=norm) for buffer in pair)
            assert_same_samples(ours[0], theirs[0])
