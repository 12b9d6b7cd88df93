"""
Batches so large that a second core helps to read them: with threads that want its help at once, and across forks.

From 2 MB on it always helps, from 1 MB on if it was woken up before, as tables do.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from frames_kit import make_column, run_program, watch_codecs

from sb3_extra_buffers.storage import Frames
from sb3_extra_buffers.storage._core import Table

ROWS, SIDE = 200, 64
BATCH, SMALLER, SMALL = 800, 300, 200  # 3.3, 1.2 and 0.8 MB
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

pytestmark = pytest.mark.skipif(CORES < 2, reason="there is one core")


def filled(coded: int = 0) -> tuple[Frames, np.ndarray]:
    """A column of frames that are like the ones before, but for the first few, which only a codec makes smaller."""
    rng = np.random.default_rng(0)
    frames = np.zeros((ROWS, SIDE, SIDE), np.uint8)
    frames[:coded] = np.tile(rng.integers(0, 256, (coded, 4, SIDE), dtype=np.uint8), (1, 16, 1))
    frames[coded:] = rng.integers(0, 256, (SIDE, SIDE), dtype=np.uint8)
    frames[np.arange(coded, ROWS), np.arange(coded, ROWS) % SIDE, 7] += 1
    column = make_column((SIDE, SIDE), method="delta", rows=ROWS + 16, views=1, chunk_rows=64)
    for row in range(ROWS):
        column.write(row, frames[row][None])
    for row in range(ROWS, ROWS + 16):
        column.write(row, frames[:1])  # so that what is read is sealed
    return column, frames


def check(column: Frames, frames: np.ndarray, seed: int = 0, count: int = BATCH, announce: bool = False) -> None:
    """Read some, from the column itself or through a table, which wakes up the helper first."""
    rows = np.random.default_rng(seed).integers(0, 192, count)
    if announce:
        table = Table([column], column.rows, 1, column.lock)
        (out,) = table.begin_read(rows, np.zeros(count, np.int64)).finish()
    else:
        out = np.empty((count, SIDE, SIDE), np.uint8)
        column.read(rows, np.zeros(count, np.int64), out)
    np.testing.assert_array_equal(out, frames[rows])


def test_threads_that_want_help_at_once() -> None:
    """There is one helper: who does not get it reads alone."""
    same = filled()
    others = [filled() for _ in range(2)]
    errors: list[BaseException] = []

    def read(seed: int, which: tuple[Frames, np.ndarray]) -> None:
        try:
            for number in range(20):
                check(*which, 100 * seed + number, SMALLER if number % 2 else BATCH, announce=number % 3 == 0)
        except BaseException as error:
            errors.append(error)

    wanted = [same, same, *others]
    threads = [threading.Thread(target=read, args=(seed, which)) for seed, which in enumerate(wanted)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors


def who_decodes(count: int, announce: bool, seconds: float, monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Read again and again until two threads have; the threads that had a codec decode something."""
    threads: set[int] = set()
    watch_codecs(monkeypatch, lambda call: threads.add(threading.get_ident()) if call == "decode" else None)
    what = filled(coded=40)
    threads.clear()
    time.sleep(0.2)  # whoever was called before is asleep by now
    seed, end = 0, time.monotonic() + seconds
    while len(threads) < 2 and time.monotonic() < end:
        check(*what, seed, count, announce)
        seed += 1
    return threads


@pytest.mark.parametrize(
    ("count", "announce", "helps"), [(SMALLER, True, True), (SMALLER, False, False), (SMALL, True, False)]
)
def test_a_read_that_was_announced_is_shared(count: int, announce: bool, helps: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would take too long to wake somebody up for it, unless there was time to do so."""
    threads = who_decodes(count, announce, 20 if helps else 1, monkeypatch)
    assert threading.get_ident() in threads
    assert len(threads) == 1 + helps


ONE_HELPER = """
import os, sys
from test_two_threads import check, filled
what = filled()
counts = [len(os.listdir("/proc/self/task"))]
for seed in range(30):
    check(*what, seed=seed)
    counts.append(len(os.listdir("/proc/self/task")))
print(counts[0] < counts[1], len(set(counts[1:])))
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="there is no /proc")
def test_the_helper_is_started_once() -> None:
    assert run_program(ONE_HELPER) == "True 1"


FORK = """
import os, sys
from test_two_threads import BATCH, SMALLER, check, filled
what = filled()
check(*what)
for seed in range(8):
    child = os.fork()
    check(*what, seed=seed, count=SMALLER if seed % 4 > 1 else BATCH, announce=seed % 2 == 1)
    if child == 0:
        check(*what, seed=seed + 1, count=SMALLER, announce=True)
        check(*what, seed=seed + 1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
print("both read")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_child_has_a_helper_of_its_own() -> None:
    """The parent's is not there: who waited for it would wait for ever."""
    assert run_program(FORK) == "both read"


FORK_IN_A_CODEC = """
import os, sys, threading
import pytest
from frames_kit import watch_codecs
from test_two_threads import check, filled

children, reading, me = [], False, threading.get_ident()

def fork_once(call):
    if call == "decode" and reading and not children and threading.get_ident() == me:
        children.append(os.fork())

with pytest.MonkeyPatch.context() as patch:
    watch_codecs(patch, fork_once)
    what = filled(coded=40)
reading = True
for seed in range(20):
    check(*what, seed=seed)
assert len(children) == 1
if children[0] == 0:
    os._exit(0)
assert os.waitpid(children[0], 0)[1] == 0
print("both read")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_codec_that_forks_while_two_read() -> None:
    """In the child nobody does what the helper had begun."""
    assert run_program(FORK_IN_A_CODEC) == "both read"


@pytest.mark.skipif(not getattr(sys, "_is_gil_enabled", lambda: True)(), reason="this Python has no GIL")
def test_a_small_batch_is_read_without_giving_the_gil_away() -> None:
    """A thread that waits for the GIL gets it when its turn comes, not in the middle of a read that is nearly done."""
    column, frames = filled()
    table = Table([column], column.rows, 1, column.lock)
    rows, envs = np.arange(SMALL, dtype=np.int64) % 192, np.zeros(SMALL, np.int64)
    turns, gate, stop = [0], threading.Lock(), False

    def wait_for_the_gil() -> None:
        with gate:
            while not stop:
                turns[0] += 1

    other = threading.Thread(target=wait_for_the_gil)
    interval = sys.getswitchinterval()
    gate.acquire()
    other.start()
    try:
        sys.setswitchinterval(5)  # much longer than all of this takes
        gate.release()  # from now on, the other thread wants to run
        for _ in range(300):
            (out,) = table.begin_read(rows, envs).finish()
        assert turns[0] == 0
    finally:
        sys.setswitchinterval(interval)
        stop = True
        other.join()
    np.testing.assert_array_equal(out, frames[rows])
