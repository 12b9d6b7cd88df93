"""One side of the comparison: fill a buffer, read from it, in a process that does nothing else."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer, RolloutBuffer

from kit.data import DATASETS, Dataset, load
from kit.process import anonymous_bytes, digest, no_pause, settle, summary, take_turn, time_calls
from kit.recordings import Recording, Transition, from_workers

SB3 = "sb3"
SB3_OPTIMIZED = "sb3-optimized"
GPU = "gpu:"
_ROLLOUT = 2048
_WARM_ROWS = 300


def make_replay(
    method: str, transitions: int, space: spaces.Box, action_space: spaces.Space[Any], n_envs: int
) -> ReplayBuffer:
    """Make the replay buffer of one side."""
    if method == SB3:
        return ReplayBuffer(transitions, space, action_space, "cpu", n_envs=n_envs)
    if method == SB3_OPTIMIZED:
        options: dict[str, Any] = {"optimize_memory_usage": True, "handle_timeout_termination": False}
        return ReplayBuffer(transitions, space, action_space, "cpu", n_envs=n_envs, **options)
    if method.startswith(GPU):
        from sb3_extra_buffers.gpu_buffers import GpuReplayBuffer

        options = {"compression_method": method[len(GPU) :], "buffer_device": "cpu"}
        return GpuReplayBuffer(transitions, space, action_space, "cpu", n_envs=n_envs, **options)
    from sb3_extra_buffers.compressed import CompressedReplayBuffer

    return CompressedReplayBuffer(transitions, space, action_space, "cpu", n_envs=n_envs, compression_method=method)


def make_rollout(method: str, rows: int, space: spaces.Box, action_space: spaces.Space[Any], n_envs: int) -> RolloutBuffer:
    """Make the rollout buffer of one side."""
    if method in (SB3, SB3_OPTIMIZED):
        return RolloutBuffer(rows, space, action_space, "cpu", n_envs=n_envs)
    from sb3_extra_buffers.compressed import CompressedRolloutBuffer

    return CompressedRolloutBuffer(rows, space, action_space, "cpu", n_envs=n_envs, compression_method=method)


def begin(stream: Iterator[Transition]) -> Iterator[Transition]:
    """Have a recording begin to play: what that takes is there before the memory of a buffer is counted."""
    return chain([next(stream)], stream)


def fill(
    buffer: ReplayBuffer,
    stream: Iterator[Transition],
    rows: int,
    clock: Callable[[], int] = time.perf_counter_ns,
    pause: Callable[[], None] = no_pause,
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Add rows to a replay buffer."""
    times = np.empty(rows, dtype=np.int64)
    done = 0
    for transition in islice(stream, rows):
        if done % 100 == 0:
            pause()
        start = clock()
        buffer.add(*transition)
        times[done] = clock() - start
        done += 1
    if done < rows:
        raise ValueError(f"the recording ends {rows - done} rows too early")
    return times


def split_memory(buffer: Any, memory: int) -> dict[str, int]:
    """Tell where the memory of a replay buffer is."""
    usage = buffer.memory_usage()
    columns = sum(getattr(buffer, name).nbytes for name in ("actions", "rewards", "dones", "timeouts"))
    parts = {"frames": usage.stored_bytes, "index": usage.index_bytes, "columns": columns}
    return {**parts, "rest": memory - sum(parts.values())}


def sample_digest(buffer: ReplayBuffer) -> str:
    """Hash a few samples drawn from a fixed seed."""
    np.random.seed(0)
    return digest(tensor for _ in range(8) for tensor in buffer.sample(64)[:5])


def collect(buffer: RolloutBuffer, stream: Iterator[Transition], rows: int) -> list[int]:
    """Add rows to a rollout buffer."""
    zeros, starts = th.zeros(buffer.n_envs), np.ones(buffer.n_envs)
    times = []
    for obs, _, action, reward, done, _ in islice(stream, rows):
        start = time.perf_counter_ns()
        buffer.add(obs, action.reshape(buffer.n_envs, -1), reward, starts, zeros, zeros)
        times.append(time.perf_counter_ns() - start)
        starts = done
    return times


def warm_up(method: str, dataset: Dataset, recording: Recording, rows: int = 48) -> None:
    """
    Load and compile what the buffer of one side needs, and what times are summed up with, with a small one.

    :param method: ``sb3`` for SB3's, else the method of ours
    :param dataset: What to fill it with
    :param recording: Its recording
    :param rows: How many rows to add
    """
    space, action_space = recording.space(dataset.stack), dataset.action_space
    small = make_replay(method, 32 * dataset.n_envs, space, action_space, dataset.n_envs)
    summary(fill(small, recording.transitions(dataset.stack), rows))
    for size in (32, 256):
        small.sample(size)
    del small
    settle()


def touch(dataset: Dataset, recording: Recording) -> None:
    """Have the beginning of a recording brought into memory."""
    for _ in islice(recording.transitions(dataset.stack), _WARM_ROWS):
        pass
    settle()


def measure_rollout(
    buffer: RolloutBuffer,
    streams: Callable[[], Iterator[Transition]],
    rows: int,
    seconds: float,
    pause: Callable[[], None] = no_pause,
) -> dict[str, Any]:
    """Collect rollouts and read them in minibatches of 256, four epochs each, at one stretch, as PPO does."""
    adds: list[int] = []
    gets: list[int] = []
    np.random.seed(0)
    seen = ""
    spent = 0.0
    for number in range(6):
        if number >= 2 and spent > seconds:
            break
        pause()
        begin = time.perf_counter()
        buffer.reset()
        adds += collect(buffer, streams(), rows)
        for _ in range(4):
            batches = iter(buffer.get(256))
            while True:
                start = time.perf_counter_ns()
                batch = next(batches, None)
                if batch is None:
                    break
                gets.append(time.perf_counter_ns() - start)
                if number == 0:
                    seen = digest([th.frombuffer(bytearray(seen.encode() or b"-"), dtype=th.uint8), *batch[:6]])
        spent += time.perf_counter() - begin
    return {"rollout_add": summary(adds), "get_256": summary(gets), "get_digest": seen}


def measure(job: Mapping[str, Any]) -> dict[str, Any]:
    """
    Measure one side on one dataset.

    Code that is loaded and compiled for the buffer is warmed up before memory is counted, and given on its own.
    """
    dataset, method, seconds = DATASETS[job["dataset"]], job["method"], job["seconds"]
    recording = load(dataset, Path(job["cache"]))
    space, action_space = recording.space(dataset.stack), dataset.action_space
    n_envs = dataset.n_envs
    pause = take_turn if job.get("turns") else no_pause
    rows = job["transitions"] // n_envs
    rollout_rows = min(_ROLLOUT // n_envs, rows)

    def streams() -> Iterator[Transition]:
        stream = recording.transitions(dataset.stack)
        return from_workers(stream) if dataset.resumed else stream

    touch(dataset, recording)
    stream = begin(streams())
    without_code = anonymous_bytes()
    warm_up(method, dataset, recording, min(rows, 48))
    before = anonymous_bytes()

    start = time.perf_counter()
    buffer = make_replay(method, job["transitions"], space, action_space, n_envs)
    construct = time.perf_counter() - start
    if dataset.resumed:
        buffer = pickle.loads(pickle.dumps(buffer))
        settle()
    first = summary(fill(buffer, stream, rows, pause=pause))
    settle()
    memory = anonymous_bytes() - before
    digests = [sample_digest(buffer)]
    full = fill(buffer, stream, max(rows // 4, 1), pause=pause)
    digests.append(sample_digest(buffer))
    result = {
        "memory": memory,
        "code": before - without_code,
        "construct_ms": round(construct * 1e3, 2),
        "add_first": first,
        "add_full": summary(full),
        "sample_32": time_calls(partial(buffer.sample, 32), seconds, pause=pause),
    }
    if job.get("brief"):
        return {**result, "digests": digests}
    result["sample_256"] = time_calls(partial(buffer.sample, 256), seconds, pause=pause)
    del buffer
    settle()
    rollout = make_rollout(method, rollout_rows, space, action_space, n_envs)
    result |= measure_rollout(rollout, streams, rollout_rows, seconds, pause)
    digests.append(result.pop("get_digest"))
    return {**result, "digests": digests}
