"""Whatever comes between two instructions of an ``add``: what a buffer holds is right, and so is what follows."""

from __future__ import annotations

import copy
import pickle
import random
import signal
import time
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from buffer_contents import contents
from gymnasium import spaces
from interrupt_kit import PLACES, between, is_cut
from observation_streams import METHODS, Stack, Stream, space_of
from stable_baselines3.common.vec_env import DummyVecEnv

from sb3_extra_buffers import compressed
from sb3_extra_buffers.compressed import CompressedReplayBuffer

QUICK = [method for method in ("delta", "delta-zstd", "zstd-3", "rle") if method in METHODS]
ROWS = 24
ACTIONS = spaces.Discrete(3)


class SmallReplayBuffer(CompressedReplayBuffer):
    raw_below = 0


class Filled:
    """
    A buffer, and beside it what each of its rows holds.

    :param seed: Of the observations
    :param method: Method string
    :param depth: Frames in an observation
    :param content: What frames are like
    """

    def __init__(self, seed: int, method: str, depth: int, content: str) -> None:
        stack = Stack(depth, 0) if depth > 1 else None
        self.stream = Stream(seed, 2, (1, 16, 16), np.uint8, content, stack, done_rate=0.08)
        self.buffer = SmallReplayBuffer(2 * ROWS, space_of(self.stream), ACTIONS, "cpu", 2, compression_method=method)
        self.rows: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def step(self) -> tuple[np.ndarray, np.ndarray]:
        obs, next_obs, _, _ = self.stream.step()
        return obs, next_obs

    def add(self, count: int) -> None:
        for _ in range(count):
            self.rows[self.buffer.pos % ROWS] = pair = self.step()
            add(self.buffer, pair)


def add(buffer: Any, pair: tuple[np.ndarray, np.ndarray]) -> None:
    buffer.add(*pair, np.zeros((2, 1)), np.zeros(2), np.zeros(2), [{}, {}])


def add_and_save(buffer: Any, pair: tuple[np.ndarray, np.ndarray], at: int) -> tuple[bytes, int]:
    """
    Add to a buffer, and save it on the way.

    :param buffer: The buffer
    :param pair: What to add
    :param at: After how many instructions to save it; if there are fewer, after all of them
    :return: What was saved, and how many instructions the ``add`` has
    """
    saved: list[bytes] = []
    instructions = between(lambda: add(buffer, pair), at, lambda: saved.append(pickle.dumps(buffer)))
    return saved[0] if saved else pickle.dumps(buffer), instructions


def check(buffer: Any, rows: dict[int, tuple[np.ndarray, np.ndarray]], unsure: int | None = None) -> None:
    """
    Compare what a buffer holds.

    :param buffer: The buffer
    :param rows: What it should hold
    :param unsure: A row that was being written
    """
    for array, which in ((np.asarray(buffer.observations), 0), (np.asarray(buffer.next_observations), 1)):
        for row, pair in rows.items():
            if row != unsure:
                assert array[row].tobytes() == pair[which].tobytes(), f"row {row}"


@pytest.mark.parametrize(("depth", "content"), [(1, "mixed"), (4, "game")])
@pytest.mark.parametrize("method", QUICK)
def test_a_buffer_that_is_saved_in_the_middle_of_an_add(method: str, depth: int, content: str) -> None:
    """What a signal handler saves can be loaded and added to, and everything in it is right."""
    filled = Filled(3, method, depth, content)
    filled.add(ROWS - 8)
    buffer, rng = filled.buffer, random.Random(0)
    for _ in range(12):
        row, pair = buffer.pos, filled.step()
        for_copies = pickle.dumps(buffer)
        _, instructions = add_and_save(pickle.loads(for_copies), pair, 1 << 30)
        places = rng.sample(range(instructions), 5)
        saved = [add_and_save(pickle.loads(for_copies), pair, place)[0] for place in places[:-1]]
        saved.append(add_and_save(buffer, pair, places[-1])[0])
        before = dict(filled.rows)
        filled.rows[row] = pair
        check(buffer, filled.rows)  # to save does not disturb
        following = filled.step()
        for data in saved:
            loaded = pickle.loads(data)
            assert loaded.pos in (row, row + 1, (row + 1) % ROWS)
            rows = before if loaded.pos == row else dict(filled.rows)
            check(loaded, rows, unsure=row if loaded.pos == row else None)
            for next_pair in (following, (following[1], following[1])):
                rows = {**rows, loaded.pos % ROWS: next_pair}
                add(loaded, next_pair)
            check(loaded, rows)
        filled.rows[buffer.pos] = following
        add(buffer, following)
    assert len(filled.rows) == ROWS


@pytest.mark.parametrize(("depth", "content"), [(1, "mixed"), (4, "game")])
@pytest.mark.parametrize("method", QUICK)
def test_a_signal_handler_that_reads_in_the_middle_of_an_add(method: str, depth: int, content: str) -> None:
    """It sees every complete row, and the add goes on as if nothing had been."""
    filled = Filled(6, method, depth, content)
    filled.add(ROWS - 8)
    rng = random.Random(0)
    for _ in range(60):
        row, pair = filled.buffer.pos % ROWS, filled.step()
        read: list[int] = []

        def handler(row: int = row, read: list[int] = read) -> None:
            check(filled.buffer, filled.rows, unsure=row)
            read.append(filled.buffer.memory_usage().raw_bytes)

        instructions = between(lambda pair=pair: add(filled.buffer, pair), rng.randrange(rng.choice((100, 500))), handler)
        assert read or instructions < 500
        filled.rows[row] = pair
        check(filled.buffer, filled.rows)


@pytest.mark.parametrize(("depth", "content"), [(1, "mixed"), (4, "game")])
@pytest.mark.parametrize("method", QUICK)
def test_one_interrupt_after_another(method: str, depth: int, content: str) -> None:
    """Several adds in a row are cut short; only the row that they were to write may be another."""
    filled = Filled(4, method, depth, content)
    filled.add(10)
    rng = random.Random(0)
    cuts = 0
    for _ in range(25):
        row = filled.buffer.pos % ROWS
        for _ in range(rng.randint(1, 3)):
            pair = filled.step()
            cuts += is_cut(lambda pair=pair: add(filled.buffer, pair), rng.randrange(rng.choice((100, 400))))
            if filled.buffer.pos % ROWS != row:  # complete, whether it was cut after that or not
                filled.rows[row] = pair
                row = filled.buffer.pos % ROWS
        check(filled.buffer, filled.rows, unsure=row)
        filled.add(rng.randint(1, 3))
        check(filled.buffer, filled.rows)
    assert cuts > 10


IMAGE, GOAL = spaces.Box(0, 255, (1, 16, 16), np.uint8), spaces.Box(-9, 9, (2,), np.float32)
SEVERAL = spaces.Dict({"image": IMAGE, "vector": GOAL, "other": IMAGE})
GOALS = spaces.Dict({"observation": IMAGE, "achieved_goal": GOAL, "desired_goal": GOAL})


class Small:
    raw_below = 256  # the images are compressed, the goals are not


KINDS: dict[str, tuple[type[Any], Any]] = {
    name: (type(name, (Small, cls), {}), space)
    for name, cls, space in (
        ("plain", compressed.CompressedReplayBuffer, IMAGE),
        ("vector", compressed.CompressedReplayBuffer, GOAL),
        ("dict", compressed.CompressedDictReplayBuffer, SEVERAL),
        ("prioritized", compressed.CompressedPrioritizedReplayBuffer, IMAGE),
        ("her", compressed.CompressedHerReplayBuffer, GOALS),
    )
}


class Goals(gym.Env[Any, Any]):
    observation_space, action_space = GOALS, ACTIONS


def transition(space: Any, number: int, done: bool) -> dict[str, Any]:
    def observed(space: Any, number: int) -> Any:
        if isinstance(space, spaces.Dict):
            return {key: observed(part, number) for key, part in space.spaces.items()}
        return np.full((2, *space.shape), number, space.dtype)

    step: dict[str, Any] = {"obs": observed(space, number), "next_obs": observed(space, number + 1)}
    step |= {"action": np.full((2, 1), number % 3), "reward": np.full(2, number, np.float32), "done": np.array([done, False])}
    return step | {"infos": [{"TimeLimit.truncated": done}] * 2}


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_an_add_that_is_interrupted_has_happened_or_has_not(kind: str, done: bool) -> None:
    """Whenever Ctrl-C comes, and also where what was in the row before can be sampled."""
    cls, space = KINDS[kind]
    env = [DummyVecEnv([Goals] * 2)] if kind == "her" else []
    filled = cls(2 * 8, space, ACTIONS, *env, "cpu", 2)
    for number in range(11):
        filled.add(**transition(space, number, number % 4 == 3))
    step = transition(space, 99, done)
    added = copy.deepcopy(filled)
    instructions = between(lambda: added.add(**step), 1 << 30, lambda: None)
    before, after = contents(filled), contents(added)
    assert before != after
    happened = []
    for at in range(0, instructions, max(1, instructions // 150)):
        buffer = copy.deepcopy(filled)
        assert is_cut(lambda buffer=buffer: buffer.add(**step), at)
        now = contents(buffer)
        assert now in (before, after), at
        happened.append(now == after)
        if not happened[-1]:
            buffer.add(**step)
            assert contents(buffer) == after, at
    assert True in happened and False in happened


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="there is no setitimer on Windows")
@pytest.mark.parametrize("method", QUICK)
def test_interrupts_that_come_close_together(method: str) -> None:
    """Real signals, the second one while the first is still being dealt with."""
    filled = Filled(5, method, 4, "mixed")
    filled.add(10)
    rng = random.Random(0)
    left = cuts = 0

    def handler(_: int, frame: Any) -> None:
        nonlocal left, cuts
        if left and frame is not None and frame.f_code.co_filename.startswith(PLACES):
            left -= 1
            cuts += 1
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, handler)
    try:
        until = time.monotonic() + 600
        while cuts < 200 and time.monotonic() < until:
            row, pair = filled.buffer.pos, filled.step()
            left = 2
            try:
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(5e-6, 4e-4), 2e-5)
                add(filled.buffer, pair)
                left = 0
            except KeyboardInterrupt:
                left = 0
            signal.setitimer(signal.ITIMER_REAL, 0)
            if filled.buffer.pos != row:
                filled.rows[row] = pair
            unsure = filled.buffer.pos % ROWS
            filled.rows.pop(unsure, None)
            filled.add(rng.randint(0, 2))
            check(filled.buffer, filled.rows)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        time.sleep(0.05)  # on a busy machine, another thread may still be on its way to say that one has come
        signal.signal(signal.SIGALRM, before)
    assert cuts >= 200
