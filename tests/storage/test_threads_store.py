"""One thread writes round and round while others read: every pair that is read is one that was written, never half of two."""

from __future__ import annotations

import os
import pickle
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch as th
from observation_streams import METHODS, Stream
from store_kit import limits, make_store, store_by

from sb3_extra_buffers.storage import FrameStore
from sb3_extra_buffers.storage.layout import FrameLayout

METHODS_HERE = [method for method in METHODS if method in ("delta", "delta-zstd", "zstd-3", "none")]
ROWS, ENVS, DEPTH, SIDE = 30, 2, 3, 16
KINDS = {1: (1, SIDE, SIDE), DEPTH: (DEPTH, SIDE, SIDE)}


def frame(number: int, env: int) -> np.ndarray:
    """A frame that says its number: patches pay for some, codecs for others, and for some nothing does."""
    out = np.zeros((SIDE, SIDE), np.uint8)
    if number % 5 == 0:
        out[:] = np.random.default_rng(number).integers(0, 256 if number % 2 else 2, out.shape)
    out[number % SIDE] = 7
    out.reshape(-1)[:9] = np.frombuffer(struct.pack("<qB", number, env + 1), np.uint8)
    return out


def observation(number: int, env: int, depth: int) -> np.ndarray:
    """A stack of the frames up to this number; every eleventh begins an episode, whose frames before it are zeros."""
    first = number - number % 11
    frames = [frame(n, env) if n >= first else np.zeros((SIDE, SIDE), np.uint8) for n in range(number - depth + 1, number + 1)]
    return np.stack(frames)


def observations(number: int, depth: int) -> np.ndarray:
    return np.stack([observation(number, env, depth) for env in range(ENVS)])


def made(method: str, depth: int) -> FrameStore:
    store, _ = make_store(Stream(0, ENVS, KINDS[depth], np.uint8), method, ROWS)
    store_by(store, FrameLayout(KINDS[depth], 1, 0, 1))
    return store


def number_of(obs: np.ndarray) -> int:
    number: int = struct.unpack_from("<q", obs[-1].tobytes())[0]
    return number


def check_pairs(obs: np.ndarray, next_obs: np.ndarray, envs: np.ndarray, depth: int, newest: int) -> None:
    """Each pair is one that was written for that environment, byte for byte; or a row that never was."""
    for one, other, env in zip(obs, next_obs, envs.tolist(), strict=True):
        if not one.any() and not other.any():
            continue
        number = number_of(one)
        assert 0 <= number <= newest
        assert one.tobytes() == observation(number, env, depth).tobytes(), number
        assert other.tobytes() == observation(number + 1, env, depth).tobytes(), number


class Crowd:
    """
    A writer, and readers beside it.

    :param store: The store
    :param depth: Frames in an observation
    """

    def __init__(self, store: FrameStore, depth: int) -> None:
        self.store, self.depth = store, depth
        self.newest = -1
        self.pairs = 0
        self.errors: list[BaseException] = []
        self.stopped = threading.Event()

    def write(self, count: int) -> None:
        rng = np.random.default_rng(1)
        for number in range(self.newest + 1, self.newest + 1 + count):
            if self.stopped.is_set():
                return
            # Mostly round and round; sometimes elsewhere, so that old segments stay for a few frames and are compacted.
            row = number % ROWS if number % 3 else int(rng.integers(ROWS))
            self.newest = number
            self.store.write_row(row, 0, observations(number, self.depth), 1, observations(number + 1, self.depth))
            if number % 64 == 0:
                time.sleep(0)

    def read(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        while not self.stopped.is_set():
            size = int(rng.integers(1, 24))
            rows, envs = rng.integers(0, ROWS, size), rng.integers(0, ENVS, size)
            outs = [np.empty((size, *self.store.obs_shape), np.uint8) for _ in range(2)]
            assert self.store.read(rows, envs, 0, outs[0], 1, outs[1])
            check_pairs(outs[0], outs[1], envs, self.depth, self.newest)
            self.pairs += size

    def save(self) -> None:
        while not self.stopped.is_set():
            copy = pickle.loads(pickle.dumps(self.store))
            cells = np.arange(ROWS * ENVS)
            outs = [np.empty((len(cells), *copy.obs_shape), np.uint8) for _ in range(2)]
            assert copy.read(cells, None, 0, outs[0], 1, outs[1])
            check_pairs(outs[0], outs[1], cells % ENVS, self.depth, self.newest)
            time.sleep(0.01)

    def _guard(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self.errors.append(error)
            self.stopped.set()

    def run(self, writes: int, readers: int = 3, saves: bool = True) -> None:
        """
        Let all of them work until so much has been written, and enough was read meanwhile.

        :param writes: How many rows to write at least
        :param readers: How many threads read
        :param saves: Whether another one saves the store again and again
        """
        jobs = [lambda seed=seed: self.read(seed) for seed in range(readers)] + ([self.save] if saves else [])
        threads = [threading.Thread(target=self._guard, args=(job,)) for job in jobs]
        for thread in threads:
            thread.start()
        try:
            deadline = time.monotonic() + 60
            self._guard(lambda: self.write(writes))
            while self.pairs < 500 and not self.errors and time.monotonic() < deadline:
                self._guard(lambda: self.write(50))  # on a busy machine the others may not have come to anything yet
        finally:
            self.stopped.set()
            for thread in threads:
                thread.join(60)
        if self.errors:
            raise self.errors[0]
        assert not any(thread.is_alive() for thread in threads)
        assert self.pairs >= 500


@pytest.mark.parametrize("depth", [1, DEPTH])
@pytest.mark.parametrize("method", METHODS_HERE)
def test_every_pair_is_one_that_was_written(method: str, depth: int) -> None:
    with limits(min_segment=1 << 9, first_room=1, first_check=8, block_rows=2):
        crowd = Crowd(made(method, depth), depth)
        crowd.run(400)
        rebuilds, reclaims, _ = crowd.store.core.work
        assert reclaims > 5 and rebuilds > 1, "segments were to be used again, and the log compacted"


@pytest.mark.parametrize("method", METHODS_HERE)
def test_while_the_layout_changes(method: str) -> None:
    """Everything is stored again by another layout, and cleared, while others read."""
    store = made(method, DEPTH)
    crowd = Crowd(store, DEPTH)

    def change() -> None:
        for number in range(40):
            group = (1, DEPTH)[number % 2]
            store.core.rebuild(FrameLayout(KINDS[DEPTH], 1, 0, group))
            crowd.write(5)
            if number % 10 == 9:
                store.clear()
                crowd.write(3)

    threads = [threading.Thread(target=crowd._guard, args=(lambda seed=seed: crowd.read(seed),)) for seed in range(3)]
    for thread in threads:
        thread.start()
    crowd._guard(change)
    crowd.stopped.set()
    for thread in threads:
        thread.join(60)
    if crowd.errors:
        raise crowd.errors[0]


@pytest.mark.parametrize("threads", [1, 2])
def test_whatever_torch_does(threads: int) -> None:
    before = th.get_num_threads()
    th.set_num_threads(threads)
    try:
        crowd = Crowd(made("delta", DEPTH), DEPTH)
        th.ones(300, 300) @ th.ones(300, 300)  # so that its threads are there
        crowd.run(150)
    finally:
        th.set_num_threads(before)


@pytest.mark.parametrize("method", METHODS_HERE)
def test_several_writers(method: str) -> None:
    """Not what a buffer does, but nothing is lost: each writer has rows of its own, and the last in a row counts."""
    store = made(method, 1)
    store.next_look = 0
    errors: list[BaseException] = []
    last = np.zeros(ROWS, np.int64)

    def write(which: int) -> None:
        try:
            for number in range(which, 300, 3):
                row = 3 * (number // 3 % (ROWS // 3)) + which
                store.write_row(row, 0, observations(number, 1), 1, observations(number + 1, 1))
                last[row] = number
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(which,)) for which in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors, errors
    for which in range(2):
        out = np.empty((ROWS * ENVS, 1, SIDE, SIDE), np.uint8)
        assert store.read(np.arange(ROWS * ENVS), None, which, out)
        expected = np.concatenate([observations(int(number) + which, 1) for number in last])
        np.testing.assert_array_equal(out, expected)


FORK = """
import os, sys, threading, warnings
sys.path[:0] = sys.argv[2:]
import numpy as np
from test_threads_store import DEPTH, ENVS, ROWS, Crowd, check_pairs, made

warnings.simplefilter("ignore", DeprecationWarning)  # about forks in a process with threads, which is the point
store = made(sys.argv[1], DEPTH)
crowd = Crowd(store, DEPTH)
crowd.write(60)
threads = [threading.Thread(target=crowd._guard, args=(lambda seed=seed: crowd.read(seed),)) for seed in range(2)]
threads.append(threading.Thread(target=crowd._guard, args=(lambda: crowd.write(100_000),)))
for thread in threads:
    thread.start()

def look(newest):
    cells = np.arange(ROWS * ENVS)
    outs = [np.empty((len(cells), *store.obs_shape), np.uint8) for _ in range(2)]
    assert store.read(cells, None, 0, outs[0], 1, outs[1])
    check_pairs(outs[0], outs[1], cells % ENVS, DEPTH, newest)

for round in range(12):
    child = os.fork()
    if child == 0:
        try:
            look(crowd.newest)
            mine = Crowd(store, DEPTH)
            mine.newest = crowd.newest + 100
            mine.write(40)
            look(mine.newest)
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert status == 0, status
crowd.stopped.set()
for thread in threads:
    thread.join()
assert not crowd.errors, crowd.errors
print("all children are well")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.parametrize("method", METHODS_HERE)
def test_a_fork_while_others_read_and_write(method: str) -> None:
    """The child has the store as it was at that moment, reads it and writes on, whatever the other threads were doing."""
    here = Path(__file__).parent
    command = [sys.executable, "-c", FORK, method, str(here), str(here.parent)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert run.stdout.strip() == "all children are well", run.stdout + run.stderr
