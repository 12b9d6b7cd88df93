"""Figures of one buffer, measured in a process of its own."""

from __future__ import annotations

import hashlib
import mmap
import statistics
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import BaseBuffer, DictReplayBuffer, DictRolloutBuffer, ReplayBuffer, RolloutBuffer

from sb3_extra_buffers.cli.children import Report
from sb3_extra_buffers.cli.memory import resident_bytes, resident_bytes_after_release
from sb3_extra_buffers.cli.played import Played, Transition
from sb3_extra_buffers.cli.silence import hush
from sb3_extra_buffers.compressed import (
    CompressedDictReplayBuffer,
    CompressedDictRolloutBuffer,
    CompressedReplayBuffer,
    CompressedRolloutBuffer,
)

BATCH_SIZE = 32
_WARM_UP_ROWS = 16
_COMPARED_BATCHES = 20
_TIMED_SAMPLES = 200
_LEAST_SAMPLES = 10
_SECONDS_OF_SAMPLING = 2.0
_ROWS_OF_A_TURN = 16
_SAMPLES_OF_A_TURN = 5

# By: whether SB3's own, whether on-policy, whether observations are a Dict.
_CLASSES: dict[tuple[bool, bool, bool], type[BaseBuffer]] = {
    (True, False, False): ReplayBuffer,
    (True, False, True): DictReplayBuffer,
    (True, True, False): RolloutBuffer,
    (True, True, True): DictRolloutBuffer,
    (False, False, False): CompressedReplayBuffer,
    (False, False, True): CompressedDictReplayBuffer,
    (False, True, False): CompressedRolloutBuffer,
    (False, True, True): CompressedDictRolloutBuffer,
}


def use_one_thread() -> None:
    """
    Keep torch to one thread.

    On two cores a second thread gains little, and as soon as anything else runs the two wait for each other: then
    training took five times as long, and SB3's sample(32) milliseconds. All sides get the same.
    """
    th.set_num_threads(1)


def hash_array(digest: Any, array: npt.NDArray[Any]) -> None:
    """
    Add an array to a hash: type, shape and every byte.

    :param digest: The hash
    :param array: The array
    """
    digest.update(f"{array.dtype} {array.shape}".encode())
    digest.update(np.ascontiguousarray(array))


def sample(buffer: BaseBuffer, batch_size: int) -> Any:
    """
    Take a batch out of a buffer, or the first minibatch of a rollout.

    :param buffer: Where from
    :param batch_size: How many transitions
    :return: The batch
    """
    return next(buffer.get(batch_size)) if isinstance(buffer, RolloutBuffer) else buffer.sample(batch_size)


def batch_digest(buffer: BaseBuffer, batch_size: int, seed: int) -> str:
    """
    Sample with a seed; hash every byte of every field.

    :param buffer: Where from
    :param batch_size: How many transitions
    :param seed: The seed
    :return: The hash
    """
    np.random.seed(seed)
    digest = hashlib.sha256()
    batch = sample(buffer, batch_size)
    for name, field in zip(batch._fields, batch, strict=True):
        parts = field if isinstance(field, dict) else {"": field}
        for key in sorted(parts):
            digest.update(f"{name} {key}".encode())
            if parts[key] is not None:
                hash_array(digest, parts[key].numpy())
    return digest.hexdigest()


def median_microseconds(nanoseconds: list[int]) -> float:
    """
    Take the middle of many times.

    :param nanoseconds: The times
    :return: Their median
    """
    return statistics.median(nanoseconds) / 1000


@dataclass(frozen=True)
class Measured:
    """
    Figures of one buffer.

    :param method: Compression method; None for SB3's own buffer
    :param memory_bytes: The most that the process grew by
    :param stored_bytes: What the observations in it take, by its own account
    :param add_us: Median microseconds of ``add``, one step of all environments, until the buffer was full
    :param add_full_us: Likewise in the full buffer
    :param sample_us: Median microseconds of ``sample(32)``
    :param digest: Hash of sampled batches, all of their fields
    :param usage: What the buffer says about the memory that its observations take, full; None for SB3's own
    """

    method: str | None
    memory_bytes: int
    stored_bytes: int
    add_us: float
    add_full_us: float
    sample_us: float
    digest: str
    usage: str | None = None


def make_buffer(played: Played, rows: int, method: str | None, on_policy: bool = False) -> BaseBuffer:
    """
    Make a buffer.

    :param played: What is to go into it
    :param rows: How many steps of all environments it holds
    :param method: Compression method; None for SB3's own buffer
    :param on_policy: Whether it holds rollouts
    :return: The buffer
    """
    kind: Any = _CLASSES[method is None, on_policy, isinstance(played.observation_space, spaces.Dict)]
    options = {} if method is None else {"compression_method": method}
    size = rows if on_policy else rows * played.n_envs
    buffer: BaseBuffer = kind(size, played.observation_space, played.action_space, "cpu", n_envs=played.n_envs, **options)
    return buffer


def add(buffer: BaseBuffer, step: Transition) -> None:
    """
    Put a step into a buffer, as SB3's algorithms do; a rollout begins anew when it is full.

    :param buffer: Where to
    :param step: The step
    """
    if not isinstance(buffer, RolloutBuffer):
        buffer.add(*step)
        return
    if buffer.full:
        buffer.reset()
    nothing = th.zeros(buffer.n_envs)
    buffer.add(step.obs, step.action, step.reward, step.done, nothing, nothing)


def _stored_bytes(buffer: Any) -> int:
    if hasattr(buffer, "memory_usage"):
        return int(buffer.memory_usage().total_bytes)
    arrays = [buffer.observations, *([] if isinstance(buffer, RolloutBuffer) else [buffer.next_observations])]
    return sum(part.nbytes for held in arrays for part in (held.values() if isinstance(held, dict) else [held]))


def _usage(buffer: Any) -> str | None:
    return str(buffer.memory_usage()) if hasattr(buffer, "memory_usage") else None


def rows_to_add(played: Played) -> int:
    """
    Tell how many steps measuring takes: a quarter more than fits, so that a full ring is measured, too.

    :param played: What is put in
    :return: Steps of all environments
    """
    return len(played.steps) + max(1, len(played.steps) // 4)


def measure(played: Played, method: str | None, report: Report) -> Measured:
    """
    Fill a buffer with what was played, and measure it.

    :param played: What to put in
    :param method: Compression method; None for SB3's own buffer
    :param report: Told the number of transitions
    :return: The figures
    """
    (figures,) = by_turns([measuring(played, method, report)])
    assert isinstance(figures, Measured)
    return figures


def by_turns(works: Sequence[Generator[None, None, Any]]) -> list[Any]:
    """
    Do several things a little at a time. A machine that is slow for a while is then slow for all of them.

    :param works: Each goes on until it yields
    :return: What they returned, in the same order
    """
    results: list[Any] = [None] * len(works)
    going_on = list(enumerate(works))
    while going_on:
        for number, work in going_on[:]:
            try:
                next(work)
            except StopIteration as end:
                results[number] = end.value
                going_on.remove((number, work))
    return results


def measuring(
    played: Played,
    method: str | None,
    report: Report,
    on_policy: bool = False,
    clock: Callable[[], int] = time.perf_counter_ns,
) -> Generator[None, None, Measured]:
    """
    Fill a buffer with what was played, and measure it, a little at a time.

    :param played: What to put in
    :param method: Compression method; None for SB3's own buffer
    :param report: Told the number of transitions
    :param on_policy: Whether to measure a buffer of rollouts
    :param clock: Tells nanoseconds
    :return: The figures
    """
    hush()
    use_one_thread()
    rows = len(played.steps)
    # Libraries and compiled code are loaded by a small buffer first: they come once, however large a buffer is.
    small = make_buffer(played, _WARM_UP_ROWS, method, on_policy)
    for row, transition in zip(range(1, 3 * _WARM_UP_ROWS + 1), played.replay(), strict=False):
        add(small, transition)
        if row % _WARM_UP_ROWS == 0:
            sample(small, BATCH_SIZE)
    del small, transition
    before = resident_bytes_after_release()

    buffer = make_buffer(played, rows, method, on_policy)
    times: list[int] = []
    largest = mmap.PAGESIZE  # less cannot be seen, and a ratio to nothing is none

    def fill(count: int, done: int) -> Generator[None, None, None]:
        nonlocal largest
        for number, transition in zip(range(1, count + 1), played.replay(), strict=False):
            start = clock()
            add(buffer, transition)
            times.append(clock() - start)
            if number % 50 == 0 or number == count:
                largest = max(largest, resident_bytes() - before)
            report((done + number) * played.n_envs)
            if number % _ROWS_OF_A_TURN == 0:
                yield

    sample_times: list[int] = []

    def take_samples() -> Generator[None, None, None]:
        until = _SECONDS_OF_SAMPLING * 1e9
        while len(sample_times) < _TIMED_SAMPLES and (len(sample_times) < _LEAST_SAMPLES or sum(sample_times) < until):
            start = clock()
            sample(buffer, BATCH_SIZE)
            sample_times.append(clock() - start)
            if len(sample_times) % _SAMPLES_OF_A_TURN == 0:
                yield

    yield from fill(rows, 0)
    stored, usage = _stored_bytes(buffer), _usage(buffer)
    digest = hashlib.sha256("".join(batch_digest(buffer, BATCH_SIZE, seed) for seed in range(_COMPARED_BATCHES)).encode())
    # A rollout is read when it is full, and only then overwritten; a replay buffer is read while that happens.
    if on_policy:
        yield from take_samples()
    yield from fill(rows_to_add(played) - rows, rows)
    if not on_policy:
        yield from take_samples()
    return Measured(
        method=method,
        memory_bytes=largest,
        stored_bytes=stored,
        add_us=median_microseconds(times[:rows]),
        add_full_us=median_microseconds(times[rows:]),
        sample_us=median_microseconds(sample_times),
        digest=digest.hexdigest(),
        usage=usage,
    )
