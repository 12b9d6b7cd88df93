"""One thread adds while others sample: every transition that is sampled is one that was added, never half of two."""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from observation_streams import METHODS
from stable_baselines3.common.vec_env import DummyVecEnv

from sb3_extra_buffers.compressed import (
    CompressedDictReplayBuffer,
    CompressedDictRolloutBuffer,
    CompressedHerReplayBuffer,
    CompressedNStepReplayBuffer,
    CompressedPrioritizedReplayBuffer,
    CompressedReplayBuffer,
    CompressedRolloutBuffer,
)
from sb3_extra_buffers.gpu_buffers import GpuReplayBuffer

ENVS, ROWS, SIDE, DEPTH = 2, 40, 16, 2
SECONDS = 1.5
ACTIONS = spaces.Box(-np.inf, np.inf, (1,), np.float64)
IMAGE = spaces.Box(0, 255, (DEPTH, SIDE, SIDE), np.uint8)
GOAL = spaces.Box(-np.inf, np.inf, (2,), np.float64)
EPISODE = 7
GAMMA = 0.5

# Everything about a transition follows from one number: its step, and the environment that it is of.
PICTURE = np.random.default_rng(0).integers(0, 256, (ENVS, SIDE, SIDE), dtype=np.uint8)


def frame(step: int, env: int) -> np.ndarray:
    """A picture with a number on it and a bar that moves; some are altogether another."""
    picture = PICTURE[env].copy() if step % 5 else np.full((SIDE, SIDE), step % 251, np.uint8)
    picture[:, step % SIDE] = step % 249
    picture[0, :4] = np.frombuffer(np.uint32(step + 1).tobytes(), np.uint8)
    return picture


def image(step: int, env: int) -> np.ndarray:
    return np.stack([frame(step + place, env) for place in range(DEPTH)])


def step_of(picture: np.ndarray) -> int:
    return int(picture[0, 0, :4].copy().view(np.uint32)[0]) - 1


def images(step: int) -> np.ndarray:
    return np.stack([image(step, env) for env in range(ENVS)])


def vectors(step: int) -> np.ndarray:
    return np.stack([[step, env] for env in range(ENVS)]).astype(np.float64)


class Goals(gym.Env[Any, Any]):
    """What HER asks an environment for."""

    observation_space = spaces.Dict({"observation": IMAGE, "achieved_goal": GOAL, "desired_goal": GOAL})
    action_space = ACTIONS

    def compute_reward(self, achieved: Any, desired: Any, _: Any) -> Any:
        return achieved[:, 0] * 1000 + desired[:, 0]


class Feed:
    """Adds transitions one after the other, until it is told to stop."""

    def __init__(self, buffer: Any, observe: Callable[[int], Any]) -> None:
        self.buffer, self.observe, self.step = buffer, observe, 0

    def add(self) -> None:
        step = self.step
        values = step * ENVS + np.arange(ENVS, dtype=np.float64)
        done = np.full(ENVS, step % EPISODE == EPISODE - 1)
        self.buffer.add(self.observe(step), self.observe(step + 1), values[:, None], values, done, [{}] * ENVS)
        self.step += 1


def check_transition(sample: Any, which: int, obs: np.ndarray, next_obs: np.ndarray, ahead: tuple[int, ...] = (1,)) -> int:
    """
    Check that image, action and next image belong together.

    :param sample: Samples
    :param which: Which of them
    :param obs: Its image
    :param next_obs: What followed
    :param ahead: How many steps later that may be
    :return: How many steps later it is
    """
    step, env = divmod(int(sample.actions[which]), ENVS)
    assert step_of(obs) == step and np.array_equal(obs, image(step, env)), "observation and action"
    later = step_of(next_obs) - step
    assert later in ahead and np.array_equal(next_obs, image(step + later, env)), "observation and next observation"
    return later


def check_plain(sample: Any) -> None:
    for which in range(len(sample.actions)):
        check_transition(sample, which, sample.observations[which].numpy(), sample.next_observations[which].numpy())
        step = int(sample.actions[which]) // ENVS
        assert float(sample.rewards[which]) == float(sample.actions[which].float()), "reward"
        assert bool(sample.dones[which]) == (step % EPISODE == EPISODE - 1), "done"


def check_dict(sample: Any) -> None:
    for which in range(len(sample.actions)):
        both = sample.observations, sample.next_observations
        check_transition(sample, which, *(obs["image"][which].numpy() for obs in both))
        step, env = divmod(int(sample.actions[which]), ENVS)
        assert [obs["vector"][which].tolist() for obs in both] == [[step, env], [step + 1, env]], "small key"
        assert float(sample.rewards[which]) == float(sample.actions[which].float()), "reward"


def check_n_step(sample: Any) -> None:
    for which in range(len(sample.actions)):
        obs, following = sample.observations[which].numpy(), sample.next_observations[which].numpy()
        later = check_transition(sample, which, obs, following, (1, 2, 3))
        rewards = [np.float32(int(sample.actions[which]) + ENVS * place) * GAMMA**place for place in range(later)]
        assert float(sample.rewards[which]) == pytest.approx(float(np.sum(rewards)), rel=1e-5), "return"
        assert float(sample.discounts[which]) == GAMMA**later, "discount"


def check_goals(sample: Any) -> None:
    for which in range(len(sample.actions)):
        both = sample.observations, sample.next_observations
        check_transition(sample, which, *(obs["observation"][which].numpy() for obs in both))
        step, env = divmod(int(sample.actions[which]), ENVS)
        assert [obs["achieved_goal"][which].tolist() for obs in both] == [[step, env], [step + 1, env]]
        goals = [obs["desired_goal"][which].tolist() for obs in both]
        assert goals[0] == goals[1]
        if goals[0] == [-1, -1]:  # a real one
            assert float(sample.rewards[which]) == float(sample.actions[which].float()), "reward"
            continue
        goal = int(goals[0][0])
        assert step < goal and (goal - 1) // EPISODE == step // EPISODE and goals[0][1] == env, "goal of another episode"
        assert float(sample.rewards[which]) == float(np.float32((step + 1) * 1000 + goal)), "reward of another goal"


def her_buffer(**kwargs: Any) -> Any:
    env = DummyVecEnv([Goals] * ENVS)
    return CompressedHerReplayBuffer(ENVS * ROWS, env.observation_space, ACTIONS, env, "cpu", ENVS, **kwargs)


def observe_goals(step: int) -> dict[str, np.ndarray]:
    return {"observation": images(step), "achieved_goal": vectors(step), "desired_goal": np.full((ENVS, 2), -1.0)}


def observe_dict(step: int) -> dict[str, np.ndarray]:
    return {"image": images(step), "vector": vectors(step)}


def replay(cls: type[Any], space: spaces.Space[Any] = IMAGE, **fixed: Any) -> Callable[..., Any]:
    return lambda **kwargs: cls(ENVS * ROWS, space, ACTIONS, "cpu", ENVS, **fixed, **kwargs)


DICT_SPACE = spaces.Dict({"image": IMAGE, "vector": GOAL})
N_STEP: dict[str, Any] = {"n_steps": 3, "gamma": GAMMA}
KINDS: dict[str, tuple[Callable[..., Any], Callable[[int], Any], Callable[[Any], None]]] = {
    "plain": (replay(CompressedReplayBuffer), images, check_plain),
    "dict": (replay(CompressedDictReplayBuffer, DICT_SPACE), observe_dict, check_dict),
    "n-step": (replay(CompressedNStepReplayBuffer, **N_STEP), images, check_n_step),
    "prioritized": (replay(CompressedPrioritizedReplayBuffer), images, check_plain),
    "prioritized n-step": (replay(CompressedPrioritizedReplayBuffer, **N_STEP), images, check_n_step),
    "her": (her_buffer, observe_goals, check_goals),
    "on a device": (replay(GpuReplayBuffer), images, check_plain),
}


@contextlib.contextmanager
def switching_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(2e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def run_together(*works: Callable[[], Any], seconds: float = SECONDS, enough: Callable[[], bool] = lambda: True) -> None:
    """
    Do several things at once, each again and again, each in a thread of its own; what one of them raises is raised here.

    :param works: What to do
    :param seconds: For how long at least
    :param enough: Whether enough has been done, which takes longer on a busy machine
    """
    wrong: list[BaseException] = []
    start = time.monotonic()

    def goes_on() -> bool:
        took = time.monotonic() - start
        return took < seconds or (took < 60 and not enough())

    def again_and_again(work: Callable[[], Any]) -> None:
        try:
            while not wrong and goes_on():
                work()
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=again_and_again, args=(work,)) for work in works]
    with switching_often():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    if wrong:
        raise wrong[0]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", KINDS)
def test_adding_while_two_threads_sample(kind: str) -> None:
    make, observe, check = KINDS[kind]
    buffer = make()
    feed = Feed(buffer, observe)
    for _ in range(2 * EPISODE):
        feed.add()
    checked = [0]

    def sample() -> None:
        samples = buffer.sample(6)
        check(samples)
        checked[0] += 1
        if hasattr(buffer, "update_priorities"):
            buffer.update_priorities(samples.indices, np.random.random(6))

    enough = lambda: checked[0] > 20 and feed.step > 2 * ROWS  # noqa: E731
    run_together(feed.add, sample, sample, enough=enough)
    assert enough()
    check(buffer.sample(64))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("method", [method for method in METHODS if method in ("delta-zstd", "zstd-3", "rle")])
def test_other_methods(method: str) -> None:
    make, observe, check = KINDS["plain"]
    buffer = make(compression_method=method)
    feed = Feed(buffer, observe)
    feed.add()
    samples = [lambda size=size: check(buffer.sample(size)) for size in (6, 3)]
    run_together(feed.add, *samples, seconds=1, enough=lambda: feed.step > ROWS)
    assert feed.step > ROWS


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["plain", "dict", "prioritized", "her", "on a device"])
def test_saving_and_resetting_while_another_thread_adds(kind: str) -> None:
    """What is saved are whole transitions, and as many priorities; the loaded buffer goes on."""
    make, observe, check = KINDS[kind]
    buffer = make()
    feed = Feed(buffer, observe)
    for _ in range(2 * EPISODE):
        feed.add()
    saved: list[bytes] = []

    def save() -> None:
        data = pickle.dumps(buffer)
        loaded = pickle.loads(data)
        if hasattr(loaded, "set_env"):
            loaded.set_env(buffer.env)
        check(loaded.sample(12))
        if hasattr(loaded, "priorities"):
            assert np.count_nonzero(loaded.priorities) == loaded.size() * ENVS
        saved.append(data)

    run_together(feed.add, save, enough=lambda: len(saved) > 3)
    assert len(saved) > 3
    if kind != "her":  # SB3's HER goes on with the episode that was under way

        def reset() -> None:
            buffer.reset()
            time.sleep(0.01)

        def sample() -> None:
            with contextlib.suppress(ValueError):  # it is empty
                check(buffer.sample(4))

        run_together(feed.add, reset, sample)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("prefetch", [False, True])
@pytest.mark.parametrize("is_dict", [False, True])
def test_a_rollout_that_is_read_while_another_one_is_collected(is_dict: bool, prefetch: bool) -> None:
    """Minibatches are whole; who reads a rollout that is no longer there is told so."""
    cls, space = (CompressedDictRolloutBuffer, DICT_SPACE) if is_dict else (CompressedRolloutBuffer, IMAGE)
    buffer: Any = cls(20, space, ACTIONS, "cpu", n_envs=ENVS, prefetch=prefetch)
    steps, checked = [0], [0]

    def collect() -> None:
        if buffer.full:
            time.sleep(0.02)
            buffer.reset()
        step = steps[0]
        numbers = step * ENVS + np.arange(ENVS, dtype=np.float64)
        value, log_prob = th.as_tensor(numbers[:, None]).float(), th.as_tensor(numbers).float()
        buffer.add(observe_dict(step) if is_dict else images(step), numbers[:, None], numbers, np.zeros(ENVS), value, log_prob)
        steps[0] += 1

    def read() -> None:
        try:
            for batch in buffer.get(7):
                for which, number in enumerate(batch.old_values.tolist()):
                    step, env = divmod(int(number), ENVS)
                    obs = batch.observations["image"] if is_dict else batch.observations
                    assert np.array_equal(obs[which].numpy(), image(step, env))
                    assert not is_dict or batch.observations["vector"][which].tolist() == [step, env]
                    assert batch.actions[which].item() == batch.old_log_prob[which].item() == number
                checked[0] += 1
        except RuntimeError as error:
            assert "rollout" in str(error)
            time.sleep(0.001)

    enough = lambda: checked[0] > 20 and steps[0] > 100  # noqa: E731
    run_together(collect, read, read, enough=enough)
    assert enough()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.timeout(300)
def test_a_child_forked_while_another_thread_adds() -> None:
    """The thread that held the lock is not there, and nobody waits for it."""
    make, observe, check = KINDS["plain"]
    buffer = make()
    feed = Feed(buffer, observe)
    for _ in range(ROWS + 3):
        feed.add()

    def fork() -> None:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                mine = Feed(buffer, observe)
                mine.step = 10_000_000
                for _ in range(3):
                    mine.add()
                    buffer.sample(4)
                code = 0
            finally:
                os._exit(code)
        until = time.monotonic() + 60
        while time.monotonic() < until:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                assert os.waitstatus_to_exitcode(status) == 0
                return
            time.sleep(0.005)
        os.kill(child, 9)
        raise AssertionError("the child hangs")

    run_together(feed.add, fork)
    check(buffer.sample(64))
