"""Reads that are interrupted, made by a signal handler, by a thread that outlives the main one, or by other people's code."""

from __future__ import annotations

import subprocess
import sys
import weakref
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from interrupt_kit import between, is_cut
from observation_streams import Stack, Stream, assert_same_bits, assert_same_samples, sampled, space_of
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.type_aliases import ReplayBufferSamples

from sb3_extra_buffers.compressed import CompressedReplayBuffer, CompressedRolloutBuffer

ACTIONS = spaces.Discrete(3)


def filled_pair(
    ours: type[Any] = CompressedReplayBuffer, theirs: type[Any] = ReplayBuffer, side: int = 40
) -> tuple[Any, Any, Stream]:
    stream = Stream(0, 2, (1, side, side), np.uint8, "game", Stack(4, 0))
    buffers = ours(60, space_of(stream), ACTIONS, "cpu", 2), theirs(60, space_of(stream), ACTIONS, "cpu", 2)
    for _ in range(40):
        add_to(buffers, stream)
    return *buffers, stream


def add_to(buffers: tuple[Any, ...], stream: Stream) -> None:
    obs, next_obs, dones, infos = stream.step()
    for buffer in buffers:
        buffer.add(obs, next_obs, np.zeros((2, 1)), np.zeros(2), dones, infos)


# -- a signal handler that reads ------------------------------------------------------------------------------------


@pytest.mark.timeout(120)  # what is tested for is a hang
def test_a_signal_handler_samples_in_the_middle_of_a_sample() -> None:
    """It neither hangs nor gets the memory that the interrupted sample is about to use."""
    ours, theirs, _ = filled_pair(side=84)
    expected, _ = sampled(theirs, 1, 24)
    nested, _ = sampled(theirs, 2, 24)
    instructions = between(lambda: sampled(ours, 1, 24), 1 << 30, lambda: None)
    kept: list[Any] = []

    def handler() -> None:
        state = np.random.get_state()
        kept.append(sampled(ours, 2, 24)[0])
        np.random.set_state(state)

    for at in range(0, instructions, 11):
        result: list[Any] = []
        between(lambda result=result: result.append(sampled(ours, 1, 24)[0]), at, handler)
        assert_same_samples(result[0], expected)
        assert_same_samples(kept[-1], nested)
        del kept[:-2]
    assert_same_samples(kept[0], nested)


@pytest.mark.timeout(120)
def test_a_signal_handler_reads_a_rollout_that_another_thread_would_fetch() -> None:
    """The thread that fetches ahead must not wait for what the interrupted call holds while the handler waits for it."""
    stream = Stream(0, 2, (1, 40, 40), np.uint8, "game", Stack(4, 0))
    buffer = CompressedRolloutBuffer(20, space_of(stream), ACTIONS, "cpu", n_envs=2, prefetch=True)
    for _ in range(20):
        buffer.add(stream.step()[0], np.zeros((2, 1)), np.zeros(2), np.zeros(2), th.zeros(2, 1), th.zeros(2))
    next(buffer.get(16))  # flattens it, once
    instructions = between(lambda: next(buffer.get(16)), 1 << 30, lambda: None)
    for at in range(0, instructions, 13):
        read: list[int] = []
        handler = lambda read=read: read.append(sum(len(batch.observations) for batch in buffer.get(16)))  # noqa: E731
        between(lambda: next(buffer.get(16)), at, handler)
        assert read == [40]


# -- Ctrl-C -----------------------------------------------------------------------------------------------------------


def test_an_interrupted_sample_leaves_nothing_behind() -> None:
    """Afterwards direct reads give what is stored now, also with the very index that the sample used."""
    ours, theirs, stream = filled_pair()
    instructions = between(lambda: ours.sample(8), 1 << 30, lambda: None)
    rows, envs = np.arange(30), np.zeros(30, dtype=np.int64)
    cuts = 0
    for at in [*range(0, instructions, 17), *range(instructions - 120, instructions)]:
        cuts += is_cut(lambda at=at: ours.sample(8), at)
        for name in ("next_observations", "observations", "observations", "next_observations"):
            np.testing.assert_array_equal(getattr(ours, name)[rows, envs], getattr(theirs, name)[rows, envs])
            add_to((ours, theirs), stream)
    assert cuts > 100


def test_what_is_read_after_an_interrupted_sample_is_kept_by_nobody() -> None:
    """Else a training that goes on would grow with every read."""
    ours, _, _ = filled_pair()
    instructions = between(lambda: ours.sample(8), 1 << 30, lambda: None)
    rows, envs = np.arange(30), np.zeros(30, dtype=np.int64)
    kept = 0
    for at in range(instructions):
        is_cut(lambda: ours.sample(8), at)
        for name in ("observations", "next_observations"):
            read = getattr(ours, name)[rows, envs]
            watch = weakref.ref(read)
            del read
            kept += watch() is not None
    assert kept == 0


CTRL_C = """
import faulthandler, gc, pickle, random, signal, time
import numpy as np
from sb3_extra_buffers.storage import CompressedArray

faulthandler.enable()
rng = np.random.default_rng(0)
# One half of what is read was never written and takes no time; the other half is long at work when the first is done.
array = CompressedArray((2_000_000, 1), np.uint8, (84, 84))  # so large that its tables go back to the system at once
frame = rng.integers(0, 255, (1, 84, 84), np.uint8)
for row in range(2_000):
    frame[0, row % 84, ::3] = row % 251
    array[row] = frame
rows, columns = np.concatenate([np.full(8_000, 1_500_000), rng.integers(0, 2_000, 8_000)]), np.zeros(16_000, np.int64)
saved = pickle.dumps(array)
for _ in range(2):
    start = time.perf_counter()
    array[rows, columns]
    took = time.perf_counter() - start

def handler(number, at):
    global left, cuts
    if left and at.f_code.co_filename != "<string>":  # two, and in the code that is tested
        left -= 1
        cuts += 1
        raise KeyboardInterrupt

cuts = left = 0
signal.signal(signal.SIGALRM, handler)
until = time.monotonic() + 600
while cuts < 16 and time.monotonic() < until:  # on a busy machine many come too late
    left = 2
    try:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(0.05, 0.6) * took, 0.1 * took)
        array[rows, columns]
    except KeyboardInterrupt:
        pass
    left = 0
    signal.setitimer(signal.ITIMER_REAL, 0)
    del array
    gc.collect()
    trash = [np.zeros(1 << 20, np.uint8) for _ in range(8)]
    array = pickle.loads(saved)
print("cuts", cuts)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no setitimer on Windows")
def test_ctrl_c_in_a_large_read_and_the_buffer_is_dropped() -> None:
    """A thread that decodes the other half must not be left behind without the memory that it reads."""
    run = subprocess.run([sys.executable, "-c", CTRL_C], capture_output=True, text=True, timeout=600, check=False)
    assert run.returncode == 0, f"exit code {run.returncode}\n{run.stderr[-2000:]}"
    assert int(run.stdout.split()[-1]) > 0


# -- after the main thread ---------------------------------------------------------------------------------------------

AFTER_MAIN = """
import atexit, threading, time
import numpy as np, torch as th
from gymnasium import spaces
from sb3_extra_buffers.compressed import CompressedReplayBuffer, CompressedRolloutBuffer

space, rng = spaces.Box(0, 255, (4, 84, 84), np.uint8), np.random.default_rng(0)
replay = CompressedReplayBuffer(300, space, spaces.Discrete(3), "cpu", 1)
rollout = CompressedRolloutBuffer(300, space, spaces.Discrete(3), "cpu", n_envs=1, prefetch=True)
frames = rng.integers(0, 255, (304, 84, 84), np.uint8)
stacks = np.stack([frames[row : row + 4] for row in range(301)])
for row in range(300):
    replay.add(stacks[row][None], stacks[row + 1][None], np.zeros((1, 1)), np.zeros(1), np.zeros(1), [{}])
    rollout.add(stacks[row][None], np.zeros((1, 1)), np.zeros(1), np.zeros(1), th.zeros(1, 1), th.zeros(1))

def read(who):
    np.random.seed(0)
    samples = replay.sample(128)
    np.random.seed(0)
    rows = np.random.randint(0, 300, size=128)
    assert np.array_equal(samples.observations.numpy(), stacks[rows])
    total = sum(len(batch.observations) for batch in rollout.get(100))
    assert total == 300
    print(who, flush=True)

def later():
    threading.main_thread().join()
    read("thread")

IN_THREAD and threading.Thread(target=later).start()
atexit.register(read, "atexit")
FIRST and read("main")
"""


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("in_thread", [False, True])
def test_reading_after_the_main_thread_has_ended(first: bool, in_thread: bool) -> None:
    program = f"IN_THREAD, FIRST = {in_thread}, {first}\n{AFTER_MAIN}"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600, check=False)
    assert run.returncode == 0 and "Error" not in run.stderr, run.stderr[-2000:]
    assert run.stdout.split() == [*["main"] * first, *["thread"] * in_thread, "atexit"]


# -- other people's code -------------------------------------------------------------------------------------------------


class Shifting(ReplayBuffer):
    """Somebody else's buffer, which changes its index in place between two reads."""

    def _get_samples(self, batch_inds: np.ndarray, env: Any = None) -> ReplayBufferSamples:
        envs = np.zeros(len(batch_inds), dtype=np.int64)
        batch_inds %= 20
        next_obs = self.next_observations[batch_inds, envs, :]
        batch_inds += 2
        obs = self.observations[batch_inds, envs, :]
        envs += 1
        other = self.observations[batch_inds, envs, :]
        data = obs, other, next_obs, self.dones[batch_inds, envs].reshape(-1, 1), self.rewards[batch_inds, envs].reshape(-1, 1)
        return ReplayBufferSamples(*map(self.to_torch, data))


class CompressedShifting(Shifting, CompressedReplayBuffer):
    """The same, over ours."""


def test_an_index_that_is_changed_in_place() -> None:
    ours, theirs, _ = filled_pair(CompressedShifting, Shifting)
    for seed in range(5):
        assert_same_samples(sampled(ours, seed, 16)[0], sampled(theirs, seed, 16)[0])


class Brightening(ReplayBuffer):
    """Somebody else's buffer, which goes on working with an array that it has made a tensor of."""

    def _get_samples(self, batch_inds: np.ndarray, env: Any = None) -> ReplayBufferSamples:
        envs = np.zeros(len(batch_inds), dtype=np.int64)
        obs = self.observations[batch_inds, envs, :]
        first = self.to_torch(obs)
        obs += 1
        zeros = th.zeros(1)
        return ReplayBufferSamples(first, zeros, self.to_torch(obs), zeros, zeros)


class CompressedBrightening(Brightening, CompressedReplayBuffer):
    """The same, over ours."""


class BrighteningOnTop(CompressedReplayBuffer):
    """A subclass of ours that does the same."""

    _get_samples = Brightening._get_samples


@pytest.mark.parametrize("ours", [CompressedBrightening, BrighteningOnTop])
def test_a_tensor_shares_no_memory_with_an_array_of_somebody_else(ours: type[Any]) -> None:
    ours, theirs, _ = filled_pair(ours, Brightening)
    assert_same_samples(sampled(ours, 3, 16)[0], sampled(theirs, 3, 16)[0])


def test_samples_of_sb3s_own_code_share_no_memory_with_each_other() -> None:
    ours, theirs, _ = filled_pair(side=84)
    first, expected = (sampled(buffer, 4, 16)[0] for buffer in (ours, theirs))
    first.observations.zero_()
    again = sampled(ours, 4, 16)[0]
    assert_same_bits(first.next_observations, expected.next_observations)
    assert_same_samples(again, expected)
