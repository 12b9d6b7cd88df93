"""Every class of the family beside the one that it stands for: the same samples, to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch as th
from family_buffers import (
    ORACLES,
    SmallDictNStepReplayBuffer,
    SmallDictReplayBuffer,
    SmallDictRolloutBuffer,
    SmallHerReplayBuffer,
    SmallMaskableDictRolloutBuffer,
    SmallMaskableRolloutBuffer,
    SmallNStepReplayBuffer,
    SmallRecurrentDictRolloutBuffer,
    SmallRecurrentRolloutBuffer,
    SmallReplayBuffer,
    SmallRolloutBuffer,
)
from gymnasium import spaces
from sb3_contrib.common.recurrent.type_aliases import RNNStates
from stable_baselines3.common.buffers import NStepReplayBuffer
from stable_baselines3.common.vec_env import DummyVecEnv

from sb3_extra_buffers.testing import assert_same, check_replay_buffer, check_rollout_buffer
from sb3_extra_buffers.testing.worlds import DEFAULT_SPACE, World, _Still, copied, normalizer

SEEDS = range(3)
VECTORS = spaces.Box(-np.inf, np.inf, (6,), np.float32)
ACTION_SPACES = [spaces.Discrete(3), spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(5)]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("buffer_class", [SmallReplayBuffer, SmallDictReplayBuffer])
def test_replay(buffer_class: Any, n_envs: int, seed: int) -> None:
    check_replay_buffer(buffer_class, ORACLES[buffer_class], n_envs=n_envs, seed=seed)


@pytest.mark.parametrize("handle_timeouts", [True, False])
@pytest.mark.parametrize(("n_steps", "gamma"), [(1, 0.99), (3, 0.9), (30, 0.99)])
@pytest.mark.parametrize("space", [DEFAULT_SPACE, VECTORS, spaces.Discrete(7)], ids=str)
def test_n_step(space: Any, n_steps: int, gamma: float, handle_timeouts: bool) -> None:
    kwargs = {"n_steps": n_steps, "gamma": gamma, "handle_timeout_termination": handle_timeouts}
    check_replay_buffer(SmallNStepReplayBuffer, NStepReplayBuffer, observation_space=space, kwargs=kwargs)


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_dict_n_step_is_n_step_of_every_key(seed: int, normalized: bool) -> None:
    space = spaces.Dict({"image": DEFAULT_SPACE, "vector": VECTORS})
    world = World(space, spaces.Discrete(3), 2, seed)
    env = normalizer(world) if normalized else None
    kwargs: dict[str, Any] = {"n_envs": 2, "device": "cpu", "n_steps": 3, "gamma": 0.9}
    ours = SmallDictNStepReplayBuffer(40, space, world.action_space, **kwargs)
    theirs = {key: NStepReplayBuffer(40, part, world.action_space, **kwargs) for key, part in space.spaces.items()}
    for step in range(50):
        obs, next_obs, dones, infos = world.step()
        actions, rewards = world.actions(), world.rng.standard_normal(2)
        ours.add(copied(obs), copied(next_obs), actions, rewards, dones, infos)
        for key, buffer in theirs.items():
            buffer.add(obs[key], next_obs[key], actions, rewards, dones, infos)
        if step % 9 == 8:
            np.random.seed(step)
            got = ours.sample(32, env)
            for key, buffer in theirs.items():
                part = None if env is None else _of_key(env, key)
                np.random.seed(step)
                expected = buffer.sample(32, part)
                assert_same(got.observations[key], expected.observations, key)
                assert_same(got.next_observations[key], expected.next_observations, key)
                for name in ("actions", "rewards", "dones", "discounts"):
                    assert_same(getattr(got, name), getattr(expected, name), name)


def _of_key(env: Any, key: str) -> Any:
    """Normalizes one key as the whole does."""

    class OfKey:
        def normalize_obs(self, obs: Any) -> Any:
            return env._normalize_obs(obs, env.obs_rms[key]).astype(np.float32)

        def normalize_reward(self, reward: Any) -> Any:
            return env.normalize_reward(reward)

    return OfKey()


class _Goals(_Still):
    def compute_reward(self, achieved: Any, desired: Any, infos: Any) -> np.ndarray:
        late = np.array([info.get("TimeLimit.truncated", False) for info in infos])
        return np.abs(achieved.astype(np.float64) - desired).reshape(len(achieved), -1).mean(axis=1) + late


GOALS = {"vectors": spaces.Box(-5, 5, (3,), np.float32), "images": DEFAULT_SPACE}


@pytest.mark.parametrize("copy_info_dict", [False, True])
@pytest.mark.parametrize("goals", GOALS)
@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
@pytest.mark.parametrize("n_envs", [1, 3])
def test_her(n_envs: int, strategy: str, goals: str, copy_info_dict: bool) -> None:
    parts = {"observation": DEFAULT_SPACE, "achieved_goal": GOALS[goals], "desired_goal": GOALS[goals]}
    space = spaces.Dict(parts)
    env = DummyVecEnv([lambda: _Goals(World(space, spaces.Discrete(3), 1, 0))])
    kwargs = {"env": env, "goal_selection_strategy": strategy, "copy_info_dict": copy_info_dict, "n_sampled_goal": 2}
    oracle = ORACLES[SmallHerReplayBuffer]
    check_replay_buffer(SmallHerReplayBuffer, oracle, observation_space=space, n_envs=n_envs, kwargs=kwargs, rows=40)


@pytest.mark.parametrize("key", [spaces.Discrete(5), spaces.MultiBinary(4)], ids=str)
def test_her_with_another_key(key: Any) -> None:
    """SB3 reshapes a number before it stores it."""
    goal = GOALS["vectors"]
    space = spaces.Dict({"observation": DEFAULT_SPACE, "level": key, "achieved_goal": goal, "desired_goal": goal})
    env = DummyVecEnv([lambda: _Goals(World(space, spaces.Discrete(3), 1, 0))])
    oracle = ORACLES[SmallHerReplayBuffer]
    check_replay_buffer(SmallHerReplayBuffer, oracle, observation_space=space, n_envs=2, kwargs={"env": env}, rows=40)


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("buffer_class", [SmallRolloutBuffer, SmallDictRolloutBuffer])
def test_rollout(buffer_class: Any, n_envs: int) -> None:
    check_rollout_buffer(buffer_class, ORACLES[buffer_class], n_envs=n_envs)


def _masks(world: World) -> dict[str, Any]:
    space = world.action_space
    width = {"Discrete": lambda: space.n, "MultiDiscrete": lambda: sum(space.nvec), "MultiBinary": lambda: 2 * space.n}
    masks = world.rng.random((world.n_envs, int(width[type(space).__name__]()))) < 0.6
    chosen = world.rng.integers(0, 4)
    return {"action_masks": [masks, masks.astype(np.int64), masks.astype(np.float32), None][chosen]}


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("action_space", ACTION_SPACES, ids=str)
@pytest.mark.parametrize("buffer_class", [SmallMaskableRolloutBuffer, SmallMaskableDictRolloutBuffer])
def test_masks(buffer_class: Any, action_space: Any, n_envs: int) -> None:
    oracle = ORACLES[buffer_class]
    check_rollout_buffer(buffer_class, oracle, action_space=action_space, n_envs=n_envs, step_kwargs=_masks)


def _states(world: World, sharing: str) -> dict[str, Any]:
    h_pi, c_pi, h_vf, c_vf = th.as_tensor(world.rng.standard_normal((4, 2, world.n_envs, 6)), dtype=th.float32)
    both = {
        "none": (h_vf, c_vf),
        "all": (h_pi.clone(), c_pi.clone()),
        "hidden": (h_pi, c_vf),
        "sometimes": (h_pi, c_pi) if world.rng.random() < 0.9 else (h_vf, c_vf),
        "but for a sign": (h_pi, th.zeros_like(c_vf)),
    }
    c_pi = -th.zeros_like(c_pi) if sharing == "but for a sign" else c_pi
    return {"lstm_states": RNNStates((h_pi, c_pi), both[sharing])}


@pytest.mark.parametrize("sharing", ["none", "all", "hidden", "sometimes", "but for a sign"])
@pytest.mark.parametrize("buffer_class", [SmallRecurrentRolloutBuffer, SmallRecurrentDictRolloutBuffer])
def test_lstm_states(buffer_class: Any, sharing: str) -> None:
    check_rollout_buffer(
        buffer_class,
        ORACLES[buffer_class],
        n_envs=3,
        kwargs={"hidden_state_shape": (20, 2, 3, 6)},
        step_kwargs=lambda world: _states(world, sharing),
    )
