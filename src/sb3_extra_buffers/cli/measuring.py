"""Figures of one buffer, measured in a process of its own."""

from __future__ import annotations

import hashlib
import mmap
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer

from sb3_extra_buffers.cli.children import Report
from sb3_extra_buffers.cli.memory import resident_bytes, resident_bytes_after_release
from sb3_extra_buffers.cli.played import Played
from sb3_extra_buffers.cli.silence import hush
from sb3_extra_buffers.compressed import CompressedDictReplayBuffer, CompressedReplayBuffer

BATCH_SIZE = 32
_WARM_UP_ROWS = 16
_COMPARED_BATCHES = 20
_TIMED_SAMPLES = 200
_LEAST_SAMPLES = 10
_SECONDS_OF_SAMPLING = 2.0


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


def batch_digest(buffer: ReplayBuffer, batch_size: int, seed: int) -> str:
    """
    Sample with a seed; hash every byte of every field.

    :param buffer: Where from
    :param batch_size: How many transitions
    :param seed: The seed
    :return: The hash
    """
    np.random.seed(seed)
    digest = hashlib.sha256()
    batch: Any = buffer.sample(batch_size)
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
    """

    method: str | None
    memory_bytes: int
    stored_bytes: int
    add_us: float
    add_full_us: float
    sample_us: float
    digest: str

    @property
    def step_us(self) -> float:
        """What one ``add`` and one ``sample`` take."""
        return self.add_full_us + self.sample_us


def make_buffer(played: Played, rows: int, method: str | None) -> ReplayBuffer:
    """
    Make a buffer.

    :param played: What is to go into it
    :param rows: How many steps of all environments it holds
    :param method: Compression method; None for SB3's own buffer
    :return: The buffer
    """
    is_dict = isinstance(played.observation_space, spaces.Dict)
    kind: Any = DictReplayBuffer if is_dict else ReplayBuffer
    options = {}
    if method is not None:
        kind = CompressedDictReplayBuffer if is_dict else CompressedReplayBuffer
        options = {"compression_method": method}
    spaces_of_both = (played.observation_space, played.action_space)
    buffer: ReplayBuffer = kind(rows * played.n_envs, *spaces_of_both, "cpu", n_envs=played.n_envs, **options)
    return buffer


def _stored_bytes(buffer: Any) -> int:
    if hasattr(buffer, "memory_usage"):
        return int(buffer.memory_usage().total_bytes)
    arrays = (buffer.observations, buffer.next_observations)
    return sum(part.nbytes for held in arrays for part in (held.values() if isinstance(held, dict) else [held]))


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
    hush()
    use_one_thread()
    rows = len(played.steps)
    # Libraries and compiled code are loaded by a small buffer first: they come once, however large a buffer is.
    small = make_buffer(played, _WARM_UP_ROWS, method)
    for row, transition in zip(range(3 * _WARM_UP_ROWS), played.replay(), strict=False):
        small.add(*transition)
        if row % _WARM_UP_ROWS == 0:
            small.sample(BATCH_SIZE)
    del small, transition
    before = resident_bytes_after_release()

    buffer = make_buffer(played, rows, method)
    times: list[int] = []
    largest = mmap.PAGESIZE  # less cannot be seen, and a ratio to nothing is none

    def fill(count: int, done: int) -> None:
        nonlocal largest
        for number, transition in zip(range(1, count + 1), played.replay(), strict=False):
            start = time.perf_counter_ns()
            buffer.add(*transition)
            times.append(time.perf_counter_ns() - start)
            if number % 50 == 0 or number == count:
                largest = max(largest, resident_bytes() - before)
            report((done + number) * played.n_envs)

    fill(rows, 0)
    stored = _stored_bytes(buffer)
    digest = hashlib.sha256("".join(batch_digest(buffer, BATCH_SIZE, seed) for seed in range(_COMPARED_BATCHES)).encode())
    fill(rows_to_add(played) - rows, rows)
    sample_times: list[int] = []
    until = time.perf_counter() + _SECONDS_OF_SAMPLING
    while len(sample_times) < _TIMED_SAMPLES and (len(sample_times) < _LEAST_SAMPLES or time.perf_counter() < until):
        start = time.perf_counter_ns()
        buffer.sample(BATCH_SIZE)
        sample_times.append(time.perf_counter_ns() - start)
    return Measured(
        method=method,
        memory_bytes=largest,
        stored_bytes=stored,
        add_us=median_microseconds(times[:rows]),
        add_full_us=median_microseconds(times[rows:]),
        sample_us=median_microseconds(sample_times),
        digest=digest.hexdigest(),
    )


def measure_all(played: Played, methods: Sequence[str | None], report: Report) -> list[Measured]:
    """
    Measure several buffers in one process: sooner done, but then what the process grew by says little.

    :param played: What to put in
    :param methods: Compression methods; None for SB3's own buffer
    :param report: Told the number of transitions
    :return: The figures, in the same order
    """
    each = rows_to_add(played) * played.n_envs
    return [
        measure(played, method, lambda done, before=number * each: report(before + done))  # type: ignore[misc]
        for number, method in enumerate(methods)
    ]
