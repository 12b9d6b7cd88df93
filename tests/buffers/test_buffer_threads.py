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

import numpy as np
import pytest
import torch as th
from numbered_worlds import ACTIONS, DICT_SPACE, ENVS, EPISODE, IMAGE, KINDS, ROWS, Feed, image, images, observe_dict
from observation_streams import METHODS

from sb3_extra_buffers.compressed import CompressedDictRolloutBuffer, CompressedRolloutBuffer

SECONDS = 1.5


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
        return took < seconds or (took < 600 and not enough())

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
        until = time.monotonic() + 600
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
