"""Environments go on from the very step at which their state was taken."""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from resuming_kit import Walk, assert_same, walks
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecFrameStack, VecMonitor, VecNormalize

from sb3_extra_buffers.training_utils import ResumableEnv, make_env
from sb3_extra_buffers.training_utils.resuming.environments import capture_envs, put_back_envs


def play(venv: VecEnv, steps: int, seed: int) -> list[Any]:
    """Everything that some steps give, except for the time."""
    rng = np.random.default_rng(seed)
    seen = []
    for _ in range(steps):
        actions = [rng.integers(venv.action_space.n) for _ in range(venv.num_envs)]  # type: ignore[attr-defined]
        obs, rewards, dones, infos = venv.step(np.array(actions))
        episodes = [(info["episode"]["r"], info["episode"]["l"]) for info in infos if "episode" in info]
        seen.append([np.copy(obs), rewards, dones, episodes, venv.action_space.sample()])
    return seen


def assert_goes_on(make: Callable[[], VecEnv], steps: int = 30) -> None:
    """What was taken from one goes on in another one, which was somewhere else."""
    ours, theirs = make(), make()
    for venv, seed in ((ours, 1), (theirs, 2)):
        venv.seed(seed)
        venv.action_space.seed(seed)
        venv.reset()
        play(venv, 40 + seed, seed)
    taken = pickle.loads(pickle.dumps(capture_envs(ours)))
    assert taken.get("reason") is None
    wanted = play(ours, steps, 3)
    assert put_back_envs(theirs, taken) is None
    space = theirs.action_space
    space.seed(0)  # the algorithm puts back the one that it draws from; this is no part of the environments
    again = play(theirs, steps, 3)
    ours.close(), theirs.close()
    assert_same({"": [part[:-1] for part in wanted]}, {"": [part[:-1] for part in again]})


@pytest.mark.parametrize("game", ["CartPole-v1", "FrozenLake-v1", "MountainCar-v0", "Acrobot-v1"])
def test_games_that_are_made_of_plain_values(game: str) -> None:
    assert_goes_on(lambda: make_vec_env(game, n_envs=2))


@pytest.mark.parametrize("around", [VecNormalize, lambda venv: VecFrameStack(venv, 3), VecMonitor])
def test_wrappers_around_all_of_them(around: Callable[[VecEnv], VecEnv]) -> None:
    assert_goes_on(lambda: walks(wrap=around))


def gymnasium_wrappers() -> gym.Env[Any, Any]:
    """Wrappers that count, stack, average and delay."""
    env: gym.Env[Any, Any] = gym.wrappers.TimeLimit(Walk(), 11)
    env = gym.wrappers.FrameStackObservation(gym.wrappers.NormalizeObservation(env), 2)
    return gym.wrappers.DelayObservation(gym.wrappers.StickyAction(env, 0.3), 2)


def test_wrappers_of_gymnasium() -> None:
    assert_goes_on(lambda: make_vec_env(gymnasium_wrappers, n_envs=2))


def test_worker_processes() -> None:
    venv = make_vec_env(
        Walk, n_envs=2, vec_env_cls=SubprocVecEnv, vec_env_kwargs={"start_method": "fork"}, wrapper_class=ResumableEnv
    )
    venv.seed(1)
    venv.reset()
    play(venv, 9, 1)
    taken = capture_envs(venv)
    wanted = play(venv, 30, 2)
    assert put_back_envs(venv, taken) is None
    again = play(venv, 30, 2)
    venv.close()
    assert_same({"": [part[:-1] for part in wanted]}, {"": [part[:-1] for part in again]})


def test_games_of_make_env_in_worker_processes() -> None:
    pytest.importorskip("ale_py")
    workers: Any = partial(SubprocVecEnv, start_method="fork")
    venv = make_env("BreakoutNoFrameskip-v4", 2, workers, framestack=2, seed=1)
    venv.reset()
    play(venv, 40, 1)
    taken = pickle.loads(pickle.dumps(capture_envs(venv)))
    wanted = play(venv, 60, 2)
    assert put_back_envs(venv, taken) is None
    again = play(venv, 60, 2)
    venv.close()
    assert_same({"": [part[:-1] for part in wanted]}, {"": [part[:-1] for part in again]})


class Around(gym.Wrapper[Any, Any, Any, Any]):
    """A wrapper of somebody's."""


@pytest.mark.parametrize("wrap", [Around, lambda env: Around(ResumableEnv(env))])
def test_worker_processes_need_the_wrapper_and_nothing_around_it(wrap: Callable[[Any], Any]) -> None:
    kwargs = {"start_method": "fork"}
    venv = make_vec_env(Walk, n_envs=1, vec_env_cls=SubprocVecEnv, vec_env_kwargs=kwargs, wrapper_class=wrap)
    venv.reset()
    assert "need a ResumableEnv around each of them" in capture_envs(venv)["reason"]
    venv.close()


class Phase(Enum):
    """Part of a game."""

    EARLY = 1
    LATE = 2


class Point(NamedTuple):
    """A place."""

    x: int
    y: int


class Player:
    """An object that an environment is made of."""

    def __init__(self) -> None:
        self.health, self.trail, self.rng = 10, deque([0], maxlen=3), np.random.RandomState(3)


class Odd(Walk):
    """Has a bit of everything that Python has."""

    def __init__(self) -> None:
        super().__init__()
        self.player, self.phase, self.point = Player(), Phase.EARLY, Point(0, 0)
        self.seen: set[int] = set()
        self.friend = self.player  # the same object twice
        self.rule = lambda value: value + 1
        self.again = self
        self.names = {"a": [1.5, None], (1, 2): b"bytes"}
        self.inner = spaces.Dict({"x": spaces.Discrete(5)})

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = super().step(action)
        self.player.health -= 1
        self.player.trail.append(int(self.player.rng.randint(9)))
        self.phase = Phase.LATE if self.steps > 4 else Phase.EARLY
        self.point = Point(self.point.y, self.steps)
        self.seen.add(self.steps % 7)
        self.names[(1, 2)] = bytes([self.steps])
        drawn = self.inner.sample()["x"]
        bonus = self.friend.health + sum(self.player.trail) + self.phase.value + self.point.x + len(self.seen) + drawn
        return obs, reward + self.rule(bonus) + self.names[(1, 2)][0], terminated, truncated, info


def test_objects_of_many_kinds() -> None:
    assert_goes_on(lambda: make_vec_env(Odd, n_envs=2))


class Hidden(Walk):
    """Keeps something that only a pickle could hold, if anything."""

    def __init__(self, protocol: bool = False) -> None:
        super().__init__()
        self.iterator = iter(range(10**6))


class Told(Hidden):
    """The same, and takes care of it itself."""

    def get_state(self) -> Any:
        following = next(self.iterator)
        self.iterator = iter(range(following, 10**6))
        return {"next": following, "at": self.at, "steps": self.steps, "goal": self.goal}

    def set_state(self, state: Any) -> None:
        self.iterator = iter(range(state["next"], 10**6))
        self.at, self.steps, self.goal = state["at"], state["steps"], state["goal"]

    def reward(self) -> float:
        return float(next(self.iterator))


def test_what_cannot_be_saved_is_named_and_generators_still_go_on() -> None:
    venv, other = walks(1), DummyVecEnv([Hidden])
    venv.close()
    other.seed(4)
    other.reset()
    taken = capture_envs(other)
    assert taken["reason"].startswith("Hidden.iterator is a builtins.range_iterator; give the environment")
    again = DummyVecEnv([Hidden])
    again.reset()
    assert put_back_envs(again, taken) == taken["reason"]
    assert np.array_equal(again.reset(), other.reset())


def test_an_environment_may_take_care_of_itself() -> None:
    assert_goes_on(lambda: make_vec_env(Told, n_envs=2))


class Fails(Told):
    """Takes no care."""

    def get_state(self) -> Any:
        raise OSError("no state today")


def test_a_state_that_fails_is_no_reason_to_stop() -> None:
    venv = DummyVecEnv([Fails])
    venv.reset()
    assert "OSError: no state today" in capture_envs(venv)["reason"]


def test_other_wrappers_than_before() -> None:
    one, two = make_vec_env(Walk, n_envs=1), make_vec_env(Around, n_envs=1, env_kwargs={"env": Walk()})
    one.reset(), two.reset()
    told = put_back_envs(two, capture_envs(one))
    assert told is not None and "Around" in told and "Walk" in told
    told = put_back_envs(VecMonitor(two), capture_envs(one))
    assert told is not None and "VecMonitor" in told
