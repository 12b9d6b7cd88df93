"""
Play once, put the transitions into SB3's buffer and into compressed ones, and measure both by turns.

What was played is in files that every process maps. Each buffer has a fresh process (`compare`), so that memory is what that
process grew by; `recommend` measures times alone, in one process (`by_turns`).
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import pickle
import platform
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import psutil
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import BaseBuffer, DictReplayBuffer, DictRolloutBuffer, ReplayBuffer, RolloutBuffer
from stable_baselines3.common.preprocessing import is_image_space, is_image_space_channels_first
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecFrameStack, VecTransposeImage

from sb3_extra_buffers import __version__
from sb3_extra_buffers._support import format_bytes, free_bytes, resident_bytes, resident_bytes_after_release
from sb3_extra_buffers.cli import children
from sb3_extra_buffers.cli.children import Call, Report
from sb3_extra_buffers.cli.environments import Environments, hush, make_environments
from sb3_extra_buffers.cli.errors import UsageError
from sb3_extra_buffers.cli.progress import Stages
from sb3_extra_buffers.compressed import (
    CompressedDictReplayBuffer,
    CompressedDictRolloutBuffer,
    CompressedReplayBuffer,
    CompressedRolloutBuffer,
)

BATCH_SIZE = 32
_WARM_UP_ROWS = 16
_TIMED_SAMPLES = 200
_LEAST_SAMPLES = 10
_SECONDS_OF_SAMPLING = 2.0
_ROWS_OF_A_TURN = 16
_SAMPLES_OF_A_TURN = 5
_BUSY = 0.25  # share of the machine that other programs may have without distorting times by much
_LIBRARIES = ("stable-baselines3", "numpy", "torch", "gymnasium", "ale-py", "numba", "zstandard")

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


def prepare_process() -> None:
    """
    Silence libraries, and keep torch to one thread.

    On two cores a second thread gains little, and as soon as anything else runs the two wait for each other: then training
    took five times as long, and SB3's sample(32) milliseconds.
    """
    hush()
    th.set_num_threads(1)


# -- playing -------------------------------------------------------------------------------------------------------------


class Transition(NamedTuple):
    """The arguments of ``ReplayBuffer.add``: one step of all environments."""

    obs: Any
    next_obs: Any
    action: Any
    reward: Any
    done: Any
    infos: list[dict[str, Any]]


@dataclass(frozen=True)
class Played:
    """
    What was played: files in a folder, which any process can map.

    `observation_space` is as SB3's algorithms see it, images with their channels first; the files are in the order that the
    environments have, and `transposed` names the keys that differ (None for an observation that is no Dict). `step_us` is what
    a step of all environments takes while nothing else runs: the lower quartile, in microseconds.
    """

    folder: Path
    parts: dict[str | None, tuple[str, tuple[int, ...]]]
    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]
    n_envs: int
    rows: int
    transposed: frozenset[str | None]
    step_us: float

    @property
    def transitions(self) -> int:
        return self.rows * self.n_envs

    @property
    def rows_to_add(self) -> int:
        """A quarter more rows than a buffer holds, so that a full ring is measured, too."""
        return rows_to_add(self.rows)

    @cached_property
    def observations(self) -> dict[str | None, npt.NDArray[Any]]:
        """Observations in the order of memory that the environments have, one more than there are rows; mapped once."""
        return {
            key: np.asarray(np.memmap(self.folder / f"{number}.raw", dtype, "r", shape=(self.rows + 1, *shape)))
            for number, (key, (dtype, shape)) in enumerate(self.parts.items())
        }

    def replay(self) -> Iterator[Transition]:
        """The steps as ``OffPolicyAlgorithm`` hands them to a buffer: images as views of ``VecTransposeImage``."""
        with open(self.folder / "steps.pickle", "rb") as file:
            for row in range(self.rows):
                action, reward, done, infos, last = pickle.load(file)
                obs = {key: part[row] for key, part in self.observations.items()}
                # SB3 hands over a copy of its own, which no other observation shares its memory with.
                next_obs = {key: part[row + 1].copy() for key, part in self.observations.items()}
                for (env, key), value in last.items():
                    next_obs[key][env] = value
                yield Transition(self._view(obs), self._view(next_obs), action, reward, done, infos)

    def _view(self, parts: dict[str | None, npt.NDArray[Any]]) -> Any:
        views = {k: VecTransposeImage.transpose_image(v) if k in self.transposed else v for k, v in parts.items()}
        return views.get(None, views)


def rows_to_add(rows: int) -> int:
    return rows + max(1, rows // 4)


def observation_bytes(space: spaces.Space[Any]) -> int:
    """How large an observation is."""
    parts = list(space.spaces.values()) if isinstance(space, spaces.Dict) else [space]
    return sum(int(np.prod(part.shape or ())) * np.dtype(part.dtype).itemsize for part in parts)


def _as_sb3_sees_it(env: VecEnv) -> tuple[spaces.Space[Any], frozenset[str | None]]:
    space = env.observation_space
    parts: dict[Any, Any] = dict(space.spaces) if isinstance(space, spaces.Dict) else {None: space}
    keys = frozenset(key for key, part in parts.items() if is_image_space(part) and not is_image_space_channels_first(part))
    return (VecTransposeImage(env).observation_space if keys else space), keys


def _check_room(space: spaces.Space[Any], transitions: int, folder: Path) -> None:
    # SB3's buffer holds each observation twice, the files hold them once, in memory while they are read.
    size = observation_bytes(space)
    needed, free = 4 * transitions * size, free_bytes()
    if needed > 0.9 * free:
        raise UsageError(
            f"an observation takes {format_bytes(size)}, so comparing {transitions:,} transitions with SB3's buffer needs "
            f"{format_bytes(needed)} of memory, and {format_bytes(free)} are free: choose a smaller --size"
        )
    needed, free = transitions * size, shutil.disk_usage(folder).free
    if needed > 0.9 * free:
        raise UsageError(
            f"{transitions:,} transitions need {format_bytes(needed)} in {folder.parent}, where {format_bytes(free)} are "
            "free: choose a smaller --size, or another folder by the environment variable TMPDIR"
        )


def _play(env: VecEnv, rows: int, seed: int, folder: Path, report: Report) -> Played:
    space, transposed = _as_sb3_sees_it(env)
    _check_room(space, rows * env.num_envs, folder)
    env.action_space.seed(seed)
    times: list[int] = []

    def parts_of(obs: Any) -> dict[str | None, npt.NDArray[Any]]:
        return dict(obs) if isinstance(obs, dict) else {None: obs}

    first = parts_of(env.reset())
    with contextlib.ExitStack() as files:
        raw = {key: files.enter_context(open(folder / f"{number}.raw", "wb")) for number, key in enumerate(first)}
        steps = files.enter_context(open(folder / "steps.pickle", "wb"))
        for key, part in first.items():
            raw[key].write(part.tobytes())
        for row in range(rows):
            action = np.stack([env.action_space.sample() for _ in range(env.num_envs)])
            start = time.perf_counter_ns()
            obs, reward, done, infos = env.step(action)
            times.append(time.perf_counter_ns() - start)
            for key, part in parts_of(obs).items():
                raw[key].write(part.tobytes())
            last = {
                (int(env_index), key): part
                for env_index in np.flatnonzero(done)
                for key, part in parts_of(infos[env_index]["terminal_observation"]).items()
            }
            cut = [{"TimeLimit.truncated": bool(info.get("TimeLimit.truncated", False))} for info in infos]
            pickle.dump((action, deepcopy(reward), deepcopy(done), cut, last), steps)
            report((row + 1) * env.num_envs)
    parts = {key: (part.dtype.str, part.shape) for key, part in first.items()}
    env.close()
    step_us = float(np.quantile(times, 0.25)) / 1000
    return Played(folder, parts, space, env.action_space, env.num_envs, rows, transposed, step_us)


def play(wanted: Environments, rows: int, folder: Path, report: Report) -> Played:
    """Play at random."""
    hush()
    return _play(make_environments(wanted), rows, wanted.seed, folder, report)


class _Recorded(gym.Env[Any, Any]):
    """Shows the frames of a recording again, whatever is done, and then begins anew."""

    def __init__(self, recording: Any) -> None:
        first = recording[0].frame
        whole = np.issubdtype(first.dtype, np.integer)
        low, high = (np.iinfo(first.dtype).min, np.iinfo(first.dtype).max) if whole else (-np.inf, np.inf)
        self.observation_space = spaces.Box(low, high, first.shape, first.dtype)
        self.action_space = spaces.Discrete(2)
        self._episodes = list(recording.episodes())
        self._next = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self._episode = self._episodes[self._next % len(self._episodes)]
        self._next += 1
        self._frames = self._episode.iter_frames()
        self._frame = next(self._frames)
        return self._frame, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        frame = next(self._frames, None)
        if frame is not None:
            self._frame = frame
            return frame, 0.0, False, False, {}
        last = self._episode.final_frame  # which not every recording has
        cut = self._episode.truncated
        return self._frame if last is None else last, 0.0, not cut, cut, {}


def replay_recording(path: Path, rows: int, stack: int | None, folder: Path, report: Report) -> Played:
    """Show a recording as an environment would."""
    from sb3_extra_buffers.recording import RecordingError, load_recording

    hush()
    try:
        recording = load_recording(path)
    except (RecordingError, OSError) as error:
        raise UsageError(str(error)) from error
    if len(recording) == 0 or recording.frame_shape is None:
        raise UsageError(f"{path} holds no frames, so there is nothing to compress")
    env: VecEnv = DummyVecEnv([lambda: _Recorded(recording)])
    if stack is not None and stack > 1:
        env = VecFrameStack(env, stack)
    return _play(env, rows, 0, folder, report)


@dataclass(frozen=True)
class Source:
    """Where transitions come from: environments, or a recording, of which only the stack of `environments` counts."""

    environments: Environments
    recording: Path | None = None

    @property
    def title(self) -> str:
        return self.environments.title if self.recording is None else self.recording.name

    @property
    def recorded_steps(self) -> int | None:
        """How many steps the recording has; None for environments, which have no end."""
        if self.recording is None:
            return None
        from sb3_extra_buffers.recording import RecordingError, recording_info

        try:
            return recording_info(self.recording).steps
        except (RecordingError, OSError) as error:
            raise UsageError(str(error)) from error

    def rows(self, size: int) -> int:
        """How many steps of all environments that many transitions are."""
        return -(-size // self.environments.n_envs)

    @contextlib.contextmanager
    def played(self, rows: int, report: Report) -> Iterator[Played]:
        """Play in a process of its own. The files are there until the context is left."""
        with tempfile.TemporaryDirectory(prefix="sb3-extra-buffers-", ignore_cleanup_errors=True) as folder:
            if self.recording is None:
                call = Call(play, (self.environments, rows, Path(folder)), report)
            else:
                call = Call(replay_recording, (self.recording, rows, self.environments.stack, Path(folder)), report)
            (played,) = children.run_in_children(call)
            yield played


# -- measuring -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """
    Figures of one buffer. Times are medians in microseconds.

    `method` is None for SB3's own buffer. `memory_bytes` is the most that the process grew by with the buffer,
    `start_up_bytes` what the first use of its class loaded before; `stored_bytes` is what its observations take by its own
    account, and `usage` what it says of that. `add_us` is for one step of all environments until the buffer was full,
    `add_full_us` in the full one. `sample_digests` are hashes of sampled batches, all of their fields.
    """

    method: str | None
    memory_bytes: int
    start_up_bytes: int
    stored_bytes: int
    add_us: float
    add_full_us: float
    sample_us: float
    sample_digests: Sequence[str] = ()
    usage: str | None = None


def make_buffer(played: Played, rows: int, method: str | None, on_policy: bool = False) -> BaseBuffer:
    """Make a buffer for that many steps of all environments; SB3's own if there is no method."""
    kind: Any = _CLASSES[method is None, on_policy, isinstance(played.observation_space, spaces.Dict)]
    options = {} if method is None else {"compression_method": method}
    size = rows if on_policy else rows * played.n_envs
    buffer: BaseBuffer = kind(size, played.observation_space, played.action_space, "cpu", n_envs=played.n_envs, **options)
    return buffer


def add(buffer: BaseBuffer, step: Transition) -> None:
    """Put a step into a buffer, as SB3's algorithms do; a rollout begins anew when it is full."""
    if not isinstance(buffer, RolloutBuffer):
        buffer.add(*step)
        return
    if buffer.full:
        buffer.reset()
    nothing = th.zeros(buffer.n_envs)
    buffer.add(step.obs, step.action, step.reward, step.done, nothing, nothing)


def sample(buffer: BaseBuffer, batch_size: int) -> Any:
    """Take a batch, or the first minibatch of a rollout."""
    return next(buffer.get(batch_size)) if isinstance(buffer, RolloutBuffer) else buffer.sample(batch_size)


def hash_array(digest: Any, array: npt.NDArray[Any]) -> None:
    """Add type, shape and every byte of an array to a hash."""
    digest.update(f"{array.dtype} {array.shape}".encode())
    digest.update(np.ascontiguousarray(array))


def batch_digest(buffer: BaseBuffer, batch_size: int, seed: int) -> str:
    """Sample with a seed; hash every byte of every field."""
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


def _stored_bytes(buffer: Any) -> int:
    if hasattr(buffer, "memory_usage"):
        return int(buffer.memory_usage().total_bytes)
    arrays = [buffer.observations, *([] if isinstance(buffer, RolloutBuffer) else [buffer.next_observations])]
    return sum(part.nbytes for held in arrays for part in (held.values() if isinstance(held, dict) else [held]))


def median_us(nanoseconds: Sequence[int]) -> float:
    return statistics.median(nanoseconds) / 1000


def measuring(
    played: Played,
    method: str | None,
    batches: int = 20,
    on_policy: bool = False,
    clock: Callable[[], int] = time.perf_counter_ns,
) -> Generator[int, None, Measured]:
    """
    Fill a buffer with what was played, and measure it. Yields the transitions added so far, whenever its turn may end.

    `batches` are compared; `clock` tells nanoseconds.
    """
    prepare_process()
    for part in played.observations.values():  # pages of the files are in memory before memory is measured
        part.reshape(-1).view(np.uint8)[:: mmap.PAGESIZE].sum()
    at_first = resident_bytes_after_release()
    # Libraries and compiled code are loaded by a small buffer first: they come once, however large a buffer is.
    small = make_buffer(played, _WARM_UP_ROWS, method, on_policy)
    for row, transition in zip(range(1, 3 * _WARM_UP_ROWS + 1), played.replay(), strict=False):
        add(small, transition)
        if row % _WARM_UP_ROWS == 0:
            sample(small, BATCH_SIZE)
    del small, transition
    before = resident_bytes_after_release()
    yield 0

    buffer: Any = make_buffer(played, played.rows, method, on_policy)
    times: list[int] = []
    sample_times: list[int] = []
    largest = mmap.PAGESIZE  # less cannot be seen, and a ratio to nothing is none

    def fill(count: int, done: int) -> Iterator[int]:
        nonlocal largest
        for number, transition in zip(range(1, count + 1), played.replay(), strict=False):
            start = clock()
            add(buffer, transition)
            times.append(clock() - start)
            if number % 50 == 0 or number == count:
                largest = max(largest, resident_bytes() - before)
            if number % _ROWS_OF_A_TURN == 0 or number == count:
                yield (done + number) * played.n_envs

    def take_samples() -> Iterator[int]:
        until = _SECONDS_OF_SAMPLING * 1e9
        while len(sample_times) < _TIMED_SAMPLES and (len(sample_times) < _LEAST_SAMPLES or sum(sample_times) < until):
            start = clock()
            sample(buffer, BATCH_SIZE)
            sample_times.append(clock() - start)
            if len(sample_times) % _SAMPLES_OF_A_TURN == 0:
                yield len(times) * played.n_envs

    yield from fill(played.rows, 0)
    stored = _stored_bytes(buffer)
    usage = str(buffer.memory_usage()) if hasattr(buffer, "memory_usage") else None
    digests: list[str] = []

    def compare_batches(count: int) -> Iterator[int]:
        for _ in range(count):
            digests.append(batch_digest(buffer, BATCH_SIZE, len(digests)))
            yield len(times) * played.n_envs

    yield from compare_batches(batches if on_policy else batches // 2)
    # A rollout is read when it is full, and only then overwritten; a replay buffer is read while that happens.
    if on_policy:
        yield from take_samples()
    resident_bytes_after_release()  # what batches took is not memory of the buffer
    yield from fill(played.rows_to_add - played.rows, played.rows)
    if not on_policy:
        yield from compare_batches(batches - batches // 2)
        yield from take_samples()
    return Measured(
        method=method,
        memory_bytes=largest,
        start_up_bytes=before - at_first,
        stored_bytes=stored,
        add_us=median_us(times[: played.rows]),
        add_full_us=median_us(times[played.rows :]),
        sample_us=median_us(sample_times),
        sample_digests=digests,
        usage=usage,
    )


def by_turns(works: Sequence[Generator[int, None, Any]], report: Report) -> list[Any]:
    """
    Do several things a little at a time: a machine that is slow for a while is then slow for all.

    Reports the sum of what they yielded last.
    """
    results: list[Any] = [None] * len(works)
    done = [0] * len(works)
    going_on = list(enumerate(works))
    while going_on:
        for number, work in going_on[:]:
            try:
                done[number] = next(work)
                report(sum(done))
            except StopIteration as end:
                results[number] = end.value
                going_on.remove((number, work))
    return results


def measure(played: Played, method: str | None, batches: int, report: Report) -> Measured:
    """Measure one buffer in this process; others may have their turn whenever something is reported."""
    (figures,) = by_turns([measuring(played, method, batches)], report)
    assert isinstance(figures, Measured)
    return figures


# -- comparing -----------------------------------------------------------------------------------------------------------


class Load:
    """How busy other programs keep the machine, from the moment that this is made."""

    def __init__(self) -> None:
        self._began, self._busy, self._own = self._now()

    def _now(self) -> tuple[float, float, float]:
        times = psutil.cpu_times()
        busy = times.user + times.system + sum(getattr(times, name, 0.0) for name in ("nice", "irq", "softirq", "steal"))
        return time.monotonic(), busy, sum(os.times()[:4])  # children count once they have ended

    def other_cores(self) -> float:
        """How many cores other programs had on average; 0 where the times of our own children are not known."""
        now, busy, own = self._now()
        if os.name != "posix" or now <= self._began:
            return 0.0
        return max(0.0, (busy - self._busy - (own - self._own)) / (now - self._began))


def busy_warning(other_cores: float) -> str | None:
    """A sentence for a machine that was busy; None for one that was not."""
    cores = psutil.cpu_count() or 1
    if other_cores < _BUSY * cores:
        return None
    return (
        f"The machine was busy: other programs had {other_cores:.1f} of its {cores} cores meanwhile. Memory is right, but "
        "times are rough; measure again when it is quiet."
    )


def versions() -> dict[str, str]:
    """The versions that matter, of what is installed."""
    found = {"sb3-extra-buffers": __version__, "python": platform.python_version(), "system": platform.platform()}
    for library in _LIBRARIES:
        with contextlib.suppress(PackageNotFoundError):
            found[library] = version(library)
    return found


@dataclass(frozen=True)
class Results:
    """
    Figures of SB3's buffer and of compressed ones, all of which hold the same `transitions`.

    `raw_bytes` is what the observations of one transition take uncompressed: SB3 keeps both. `spaces` are written out.
    """

    source: Source
    transitions: int
    raw_bytes: int
    spaces: tuple[str, str]
    sb3: Measured
    ours: Sequence[Measured]
    other_cores: float = 0.0

    def equal_batches(self, measured: Measured) -> int:
        """How many sampled batches equal SB3's to the bit."""
        return sum(ours == theirs for ours, theirs in zip(measured.sample_digests, self.sb3.sample_digests, strict=True))

    def identical(self, measured: Measured) -> bool:
        return self.equal_batches(measured) == len(self.sb3.sample_digests) > 0

    @property
    def all_identical(self) -> bool:
        return all(self.identical(measured) for measured in self.ours)

    def ratios(self, measured: Measured) -> dict[str, float]:
        """Memory and times, over SB3's."""
        names = ("memory_bytes", "add_us", "add_full_us", "sample_us")
        return {name: getattr(measured, name) / getattr(self.sb3, name) for name in names}

    def as_json(self) -> dict[str, Any]:
        def figures(measured: Measured) -> dict[str, Any]:
            return {**asdict(measured), "identical": self.identical(measured), "of_sb3": self.ratios(measured)}

        return {
            "source": self.source.title,
            "environment": asdict(self.source.environments) if self.source.recording is None else None,
            "transitions": self.transitions,
            "raw_bytes_per_transition": self.raw_bytes,
            "observation_space": self.spaces[0],
            "action_space": self.spaces[1],
            "other_cores": self.other_cores,
            "sb3": figures(self.sb3),
            "methods": {str(measured.method): figures(measured) for measured in self.ours},
            "made_with": versions(),
        }


def compare(source: Source, size: int, methods: Sequence[str], shown: Stages, batches: int = 20) -> Results:
    """
    Play, and measure SB3's buffer and every method, each in a process of its own.

    Shows two stages, of as many transitions as the buffers hold.
    """
    rows = source.rows(size)
    with source.played(rows, shown.begin(0)) as played:
        shown.end(0)
        sides = [None, *methods]
        done = [0] * len(sides)
        report = shown.begin(1)

        def tell(side: int) -> Report:
            def tell_one(count: int) -> None:
                done[side] = count
                report(sum(done) * rows // (played.rows_to_add * len(sides)))

            return tell_one

        calls = [Call(measure, (played, method, batches), tell(side)) for side, method in enumerate(sides)]
        # All by turns, or as many as there is room for if each were as large as SB3's.
        raw_bytes = 2 * observation_bytes(played.observation_space)
        at_once = max(1, int(0.8 * free_bytes() / (played.transitions * raw_bytes + 2e8)))
        load = Load()
        figures: list[Measured] = []
        for begin in range(0, len(calls), at_once):
            figures += children.run_in_children(*calls[begin : begin + at_once], in_turns=True)
        other_cores = load.other_cores()
        shown.end(1)
    written = (str(played.observation_space), str(played.action_space))
    return Results(source, played.transitions, raw_bytes, written, figures[0], figures[1:], other_cores)
