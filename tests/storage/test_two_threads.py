"""
Batches so large that a second core helps to read them: with threads that want its help at once, and across forks.

From 2 MB on it always helps, from 1 MB on if the read was announced.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from observation_streams import Stream
from store_kit import make_store, watch_codecs

from sb3_extra_buffers.storage import FrameStore

ROWS, SIDE = 200, 64
BATCH, SMALLER, SMALL = 800, 300, 200  # 3.3, 1.2 and 0.8 MB
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

pytestmark = pytest.mark.skipif(CORES < 2, reason="there is one core")


def filled(coded: int = 0) -> tuple[FrameStore, int, np.ndarray]:
    """A store of frames that are like the ones before, but for the first few, which only a codec makes smaller."""
    rng = np.random.default_rng(0)
    frames = np.zeros((ROWS, SIDE, SIDE), np.uint8)
    frames[:coded] = np.tile(rng.integers(0, 256, (coded, 4, SIDE), dtype=np.uint8), (1, 16, 1))
    frames[coded:] = rng.integers(0, 256, (SIDE, SIDE), dtype=np.uint8)
    frames[np.arange(coded, ROWS), np.arange(coded, ROWS) % SIDE, 7] += 1
    store, (index, _) = make_store(Stream(0, 1, (SIDE, SIDE), np.uint8, "noise"), "delta", ROWS)
    for row in range(ROWS):
        store.write_row(row, index, frames[row][None])
    return store, index, frames


def check(store: FrameStore, index: int, frames: np.ndarray, seed: int = 0, count: int = BATCH) -> None:
    rows = np.random.default_rng(seed).integers(0, ROWS, count)
    out = np.empty((count, SIDE, SIDE), np.uint8)
    assert store.read(rows, None, index, out)
    np.testing.assert_array_equal(out, frames[rows])


def run(program: str) -> str:
    here = Path(__file__).parent
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program, str(here), str(here.parent)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return done.stdout.strip() + done.stderr


def test_threads_that_want_help_at_once() -> None:
    """There is one helper: who does not get it reads alone."""
    store, index, frames = filled()
    others = [filled() for _ in range(2)]
    errors: list[BaseException] = []

    def read(seed: int, which: tuple[FrameStore, int, np.ndarray]) -> None:
        try:
            for number in range(20):
                if number % 3 == 0:
                    which[0].core.announce_read(SMALLER)
                check(*which, seed=100 * seed + number, count=SMALLER if number % 2 else BATCH)
        except BaseException as error:
            errors.append(error)

    wanted = [(store, index, frames), (store, index, frames), *others]
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
        if announce:
            what[0].core.announce_read(count)
        begins = time.perf_counter() + seed % 20 * 1e-5
        while time.perf_counter() < begins:  # as whoever samples does something before it reads
            pass
        check(*what, seed=seed, count=count)
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


ANNOUNCED = """
import os, sys, time
sys.path[:0] = sys.argv[1:]
from test_two_threads import BATCH, SMALL, check, filled
what = filled()
counts = [len(os.listdir("/proc/self/task"))]
what[0].core.announce_read(SMALL)
counts.append(len(os.listdir("/proc/self/task")))
what[0].core.announce_read(BATCH)
counts.append(len(os.listdir("/proc/self/task")))
time.sleep(0.3)
before = time.process_time()
time.sleep(0.5)
print(counts[1] == counts[0], counts[2] > counts[1], time.process_time() - before < 0.1)
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="there is no /proc")
def test_who_waits_for_nothing_falls_asleep() -> None:
    """Nor is anybody called for what one reads alone."""
    assert run(ANNOUNCED) == "True True True"


ONE_HELPER = """
import os, sys
sys.path[:0] = sys.argv[1:]
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
    assert run(ONE_HELPER) == "True 1"


FORK = """
import os, sys
sys.path[:0] = sys.argv[1:]
from test_two_threads import BATCH, SMALLER, check, filled
what = filled()
check(*what)
for seed in range(8):
    if seed % 2:
        what[0].core.announce_read(SMALLER)
    child = os.fork()
    check(*what, seed=seed, count=SMALLER if seed % 4 > 1 else BATCH)
    if child == 0:
        what[0].core.announce_read(SMALLER)
        check(*what, seed=seed + 1, count=SMALLER)
        check(*what, seed=seed + 1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
print("both read")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_child_has_a_helper_of_its_own() -> None:
    """The parent's is not there: who waited for it would wait for ever."""
    assert run(FORK) == "both read"


FORK_IN_A_CODEC = """
import os, sys, threading
sys.path[:0] = sys.argv[1:]
import pytest
from store_kit import watch_codecs
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
    assert run(FORK_IN_A_CODEC) == "both read"
