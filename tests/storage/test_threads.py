"""One thread writes round and round while others read: every pair that is read is one that was written, never half of two."""

from __future__ import annotations

import os
import pickle
import struct
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
import torch as th
from frames_kit import QUICK_METHODS, make_column, read_column, run_program, split_by

from sb3_extra_buffers.storage import Frames, StoreLock
from sb3_extra_buffers.storage._core import PlainColumn, Table
from sb3_extra_buffers.storage.layout import FrameLayout

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


def made(method: str, depth: int) -> Frames:
    column = make_column(KINDS[depth], n_envs=ENVS, method=method, rows=ROWS)
    split_by(column, FrameLayout(KINDS[depth], 1, 0, 1))
    return column


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


def look_at_all(frames: Frames, depth: int, newest: int) -> None:
    """Read all cells."""
    rows, envs = np.divmod(np.arange(ROWS * ENVS), ENVS)
    outs = [np.empty((len(rows), *frames.obs_shape), np.uint8) for _ in range(2)]
    frames.read(rows, envs, outs[0], 0, outs[1])
    check_pairs(outs[0], outs[1], envs, depth, newest)


class Crowd:
    """
    A writer, and readers beside it.

    :param frames: The column
    :param depth: Frames in an observation
    """

    def __init__(self, frames: Frames, depth: int) -> None:
        self.frames, self.depth = frames, depth
        self.newest = -1
        self.pairs = 0
        self.errors: list[BaseException] = []
        self.stopped = threading.Event()

    def write(self, count: int) -> None:
        rng = np.random.default_rng(1)
        for number in range(self.newest + 1, self.newest + 1 + count):
            if self.stopped.is_set():
                return
            # Mostly round and round; sometimes elsewhere, so that chunks are coded again.
            row = number % ROWS if number % 3 else int(rng.integers(ROWS))
            self.newest = number
            self.frames.write(row, observations(number, self.depth), 0, observations(number + 1, self.depth))
            if number % 64 == 0:
                time.sleep(0)

    def read(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        while not self.stopped.is_set():
            size = int(rng.integers(1, 24))
            rows, envs = rng.integers(0, ROWS, size), rng.integers(0, ENVS, size)
            outs = [np.empty((size, *self.frames.obs_shape), np.uint8) for _ in range(2)]
            self.frames.read(rows, envs, outs[0], 0, outs[1])
            check_pairs(outs[0], outs[1], envs, self.depth, self.newest)
            self.pairs += size

    def save(self) -> None:
        while not self.stopped.is_set():
            copy = pickle.loads(pickle.dumps(self.frames))
            look_at_all(copy, self.depth, self.newest)
            time.sleep(0.01)

    def go_on(self) -> None:
        """Look at all of it, write on, and look again, as a forked child does."""
        look_at_all(self.frames, self.depth, self.newest)
        mine = Crowd(self.frames, self.depth)
        mine.newest = self.newest + 100
        mine.write(40)
        look_at_all(self.frames, self.depth, mine.newest)

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
        :param saves: Whether another one saves the column again and again
        """
        jobs = [lambda seed=seed: self.read(seed) for seed in range(readers)] + ([self.save] if saves else [])
        threads = [threading.Thread(target=self._guard, args=(job,)) for job in jobs]
        for thread in threads:
            thread.start()
        try:
            deadline = time.monotonic() + 600
            self._guard(lambda: self.write(writes))
            while self.pairs < 500 and not self.errors and time.monotonic() < deadline:
                self._guard(lambda: self.write(50))  # on a busy machine the others may not have come to anything yet
        finally:
            self.stopped.set()
            for thread in threads:
                thread.join(600)
        if self.errors:
            raise self.errors[0]
        assert not any(thread.is_alive() for thread in threads)
        assert self.pairs >= 500


@pytest.mark.parametrize("depth", [1, DEPTH])
@pytest.mark.parametrize("method", QUICK_METHODS)
def test_every_pair_is_one_that_was_written(method: str, depth: int) -> None:
    crowd = Crowd(made(method, depth), depth)
    crowd.run(400)


@pytest.mark.parametrize("method", QUICK_METHODS)
def test_while_the_layout_changes(method: str) -> None:
    """Everything is stored again by another layout, and cleared, while others read."""
    frames = made(method, DEPTH)
    crowd = Crowd(frames, DEPTH)

    def change() -> None:
        for number in range(40):
            group = (1, DEPTH)[number % 2]
            frames.set_layout(FrameLayout(KINDS[DEPTH], 1, 0, group))
            crowd.write(5)
            if number % 10 == 9:
                frames.clear()
                crowd.write(3)

    threads = [threading.Thread(target=crowd._guard, args=(lambda seed=seed: crowd.read(seed),)) for seed in range(3)]
    for thread in threads:
        thread.start()
    crowd._guard(change)
    crowd.stopped.set()
    for thread in threads:
        thread.join(600)
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


@pytest.mark.parametrize("method", QUICK_METHODS)
def test_several_writers(method: str) -> None:
    """Not what a buffer does, but nothing is lost: each writer has rows of its own, and the last in a row counts."""
    frames = made(method, 1)
    errors: list[BaseException] = []
    last = np.zeros(ROWS, np.int64)

    def write(which: int) -> None:
        try:
            for number in range(which, 300, 3):
                row = 3 * (number // 3 % (ROWS // 3)) + which
                frames.write(row, observations(number, 1), 0, observations(number + 1, 1))
                last[row] = number
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(which,)) for which in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(600)
    assert not errors, errors
    for which in range(2):
        expected = np.stack([observations(int(number) + which, 1) for number in last])
        np.testing.assert_array_equal(read_column(frames, which), expected)


FORK = """
import sys, threading
from fork_kit import run_in_child
from test_threads import DEPTH, Crowd, made

frames = made(sys.argv[1], DEPTH)
crowd = Crowd(frames, DEPTH)
crowd.write(60)
threads = [threading.Thread(target=crowd._guard, args=(lambda seed=seed: crowd.read(seed),)) for seed in range(2)]
threads.append(threading.Thread(target=crowd._guard, args=(lambda: crowd.write(100_000),)))
for thread in threads:
    thread.start()
for round in range(12):
    assert run_in_child(crowd.go_on) == 0
crowd.stopped.set()
for thread in threads:
    thread.join()
assert not crowd.errors, crowd.errors
print("all children are well")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.parametrize("method", QUICK_METHODS)
def test_a_fork_while_others_read_and_write(method: str) -> None:
    """The child has the column as it was at that moment, reads it and writes on, whatever the other threads were doing."""
    assert run_program(FORK, method) == "all children are well"


FORK_IN_MID_WRITE = """
import pickle, sys
import numpy as np
import pytest
from fork_kit import run_in_child_of_another_thread
from frames_kit import CodecCalls, contents_of, watch_codecs
from test_tables import TableKit

calls = CodecCalls()
with pytest.MonkeyPatch.context() as patch:
    watch_codecs(patch, calls)
    kit = TableKit(sys.argv[1], rows=20)
kit.add(37)

def child():
    kit.check()
    values = kit.row()
    kit.table.append(values)
    kit.note(values)
    kit.check()
    for frames, twins in zip(kit.frames, (kit.twins[1:3], kit.twins[4:5])):
        assert contents_of(pickle.loads(pickle.dumps(frames))).tobytes() == np.stack(twins).tobytes()
    kit.add(30)
    kit.check()

statuses = []
for step in range(24):
    values = kit.row()
    calls.arm(step % 4, lambda: statuses.append(run_in_child_of_another_thread(child)))  # while this one is in a codec
    kit.table.append(values)
    calls.disarm()
    kit.note(values)
kit.check()
assert len(statuses) > 3 and not any(statuses), statuses
print("all children are well")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.parametrize("method", QUICK_METHODS)
def test_a_fork_in_the_middle_of_a_row(method: str) -> None:
    """In the child nobody goes on with the row: it is not there, in any column, and all goes on."""
    assert run_program(FORK_IN_MID_WRITE, method) == "all children are well"


FORK_OUT_OF_ORDER = """
import sys
import pytest
from fork_kit import run_in_child_of_another_thread
from frames_kit import CodecCalls, watch_codecs
from test_threads import DEPTH, Crowd, made

calls = CodecCalls()
with pytest.MonkeyPatch.context() as patch:
    watch_codecs(patch, calls)
    frames = made(sys.argv[1], DEPTH)
crowd = Crowd(frames, DEPTH)
crowd.write(60)
statuses = []
for step in range(60):
    calls.arm(step % 7, lambda: statuses.append(run_in_child_of_another_thread(crowd.go_on)))  # while this one is in a codec
    crowd.write(1)  # each third row is out of order: its chunk is coded again
    calls.disarm()
assert len(statuses) > 5 and not any(statuses), statuses
print("all children are well")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.parametrize("method", QUICK_METHODS)
def test_a_fork_while_a_chunk_is_coded_again(method: str) -> None:
    """Nothing is staged in the open chunk then, so there is nothing to take back: its last row must stay."""
    assert run_program(FORK_OUT_OF_ORDER, method) == "all children are well"


TABLE_ROWS = 50


@pytest.mark.parametrize("method", QUICK_METHODS)
def test_rows_of_a_table_are_never_torn(method: str) -> None:
    """Several threads read while one appends: what was read of a row is all of one row, and that was written."""
    lock = StoreLock()
    frames = make_column(KINDS[1], n_envs=ENVS, method=method, rows=TABLE_ROWS, lock=lock)
    plain = [PlainColumn(np.zeros((TABLE_ROWS, ENVS), kind)) for kind in (np.int64, np.float32)]
    table = Table([plain[0], frames, plain[1]], TABLE_ROWS, ENVS, lock)
    errors: list[BaseException] = []
    stopped, written, seen = threading.Event(), [0], [0]

    def read(seed: int) -> None:
        rng = np.random.default_rng(seed)
        try:
            while not stopped.is_set():
                size = int(rng.integers(1, 40))
                rows, envs = rng.integers(0, TABLE_ROWS, size), rng.integers(0, ENVS, size)
                reading = table.begin_read(rows, envs)
                newest = written[0]
                numbers, obs, next_obs, floats = reading.finish()
                check_pairs(obs, next_obs, envs, 1, newest + 1)
                for number, one, value in zip(numbers.tolist(), obs, floats.tolist(), strict=True):
                    assert value == number and number <= newest + 1
                    assert number_of(one) == number
                seen[0] += size
        except BaseException as error:
            errors.append(error)
            stopped.set()

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 600
    number = 0
    while not errors and (number < 600 or seen[0] < 2000) and time.monotonic() < deadline:
        number += 1
        whole = np.full(ENVS, number)
        table.append((whole, observations(number, 1), observations(number + 1, 1), whole.astype(np.float64)))
        written[0] = number
        if number % 7 == 0:
            time.sleep(0)
    stopped.set()
    for thread in threads:
        thread.join(600)
    assert not errors, errors
    assert seen[0] >= 2000
