"""Batches so large that a second core helps to read them: with threads that want its help at once, and across forks."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from observation_streams import Stream
from store_kit import make_store

from sb3_extra_buffers.storage import FrameStore

ROWS, SIDE, BATCH = 200, 64, 800  # a batch is 3.3 MB
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


def check(store: FrameStore, index: int, frames: np.ndarray, seed: int = 0) -> None:
    rows = np.random.default_rng(seed).integers(0, ROWS, BATCH)
    out = np.empty((BATCH, SIDE, SIDE), np.uint8)
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
                check(*which, seed=100 * seed + number)
        except BaseException as error:
            errors.append(error)

    wanted = [(store, index, frames), (store, index, frames), *others]
    threads = [threading.Thread(target=read, args=(seed, which)) for seed, which in enumerate(wanted)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors


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
from test_two_threads import check, filled
what = filled()
check(*what)
for seed in range(5):
    child = os.fork()
    check(*what, seed=seed)
    if child == 0:
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
