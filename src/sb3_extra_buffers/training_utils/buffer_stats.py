"""What a buffer takes and how long it works, beside the other curves of a training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from time import perf_counter, perf_counter_ns
from typing import Any

import numpy as np
from stable_baselines3.common.buffers import BaseBuffer, RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback

from sb3_extra_buffers._support import resident_bytes
from sb3_extra_buffers.storage import MemoryUsage

__all__ = ["BufferStatsCallback"]

_MB = 1e6


class _Timed:
    """
    Stands before a method of one buffer, as an attribute of that buffer, and adds up the time that it takes.

    In a pickle or a copy of the buffer the method itself takes its place.
    """

    def __init__(self, buffer: BaseBuffer, name: str) -> None:
        self.users = 0
        self.calls = 0
        self.nanoseconds = 0
        self.buffer = buffer
        self.name = name
        self.method: Any = getattr(buffer, name)
        self.replaced: Any = vars(buffer).get(name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        start = perf_counter_ns()
        try:
            return self.method(*args, **kwargs)
        finally:
            self.nanoseconds += perf_counter_ns() - start
            self.calls += 1

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self.buffer, self.name)

    @classmethod
    def before(cls, buffer: BaseBuffer, name: str) -> _Timed:
        """Put one before a method, or share the one that is there."""
        timed = vars(buffer).get(name)
        if not isinstance(timed, _Timed):
            timed = cls(buffer, name)
            setattr(buffer, name, timed)
        timed.users += 1
        return timed

    def leave(self) -> None:
        """Take it away, once nobody uses it."""
        self.users -= 1
        if self.users > 0 or vars(self.buffer).get(self.name) is not self:
            return
        if self.replaced is None:
            delattr(self.buffer, self.name)
        else:
            setattr(self.buffer, self.name, self.replaced)


class _TimedBatches(_Timed):
    """The same for a generator: what counts is the time until each batch is there."""

    def __call__(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        batches = iter(self.method(*args, **kwargs))
        while True:
            start = perf_counter_ns()
            try:
                batch = next(batches)
            except StopIteration:
                return
            self.nanoseconds += perf_counter_ns() - start
            self.calls += 1
            yield batch


class _Mean:
    """Mean time of the calls since it was last asked; the last known one if there were none."""

    def __init__(self, timed: _Timed) -> None:
        self.timed = timed
        self._calls = timed.calls
        self._nanoseconds = timed.nanoseconds
        self._last: float | None = None

    def microseconds(self) -> float | None:
        """The mean so far."""
        calls = self.timed.calls - self._calls
        if calls:
            self._last = (self.timed.nanoseconds - self._nanoseconds) / calls / 1000
        return self._last

    def start_again(self) -> None:
        """Forget the calls, not their mean."""
        self.microseconds()
        self._calls, self._nanoseconds = self.timed.calls, self.timed.nanoseconds


def _usage(buffer: BaseBuffer) -> MemoryUsage:
    if hasattr(buffer, "memory_usage"):
        usage: MemoryUsage = buffer.memory_usage()
        return usage
    arrays: list[np.ndarray[Any, Any]] = []
    for name in ("observations", "next_observations"):
        held = getattr(buffer, name, None)
        arrays += [held] if isinstance(held, np.ndarray) else list(held.values()) if isinstance(held, dict) else []
    return MemoryUsage.of_arrays(arrays)


class BufferStatsCallback(BaseCallback):
    """
    Log how much memory a model's buffer takes, and how fast it is::

        model.learn(1_000_000, callback=BufferStatsCallback())

    It works with every buffer of this package, and with SB3's own, whose observations count in full from the start. These
    figures appear in the model's log (TensorBoard, CSV, standard output):

    - ``buffer/rss_mb``: resident memory of the whole process,
    - ``buffer/stored_mb``: memory that the observations in the buffer take,
    - ``buffer/ratio``: how many times smaller that is than the raw observations; 1 for SB3's own buffers,
    - ``buffer/add_us``: mean time of an ``add`` (one step of all environments) since the log was last written,
    - ``buffer/sample_us``: the same for ``sample``, or for a minibatch of a rollout buffer.

    Megabytes are 1,000,000 bytes, times are microseconds. The buffer can be saved at any time; when training ends,
    the callback leaves no trace on it.

    :param every_seconds: How old the figures may be when the log is written, for off-policy algorithms; on-policy
        algorithms get new ones with every rollout
    :param verbose: As for every callback
    """

    def __init__(self, every_seconds: float = 1.0, verbose: int = 0) -> None:
        super().__init__(verbose)
        if not every_seconds >= 0:
            raise ValueError(f"every_seconds must be at least 0, got {every_seconds}")
        self.every_seconds = every_seconds
        self._buffer: BaseBuffer | None = None
        self._add: _Mean | None = None
        self._sample: _Mean | None = None
        self._due = 0.0

    def __getstate__(self) -> dict[str, Any]:
        # The timers belong to a training that runs in this process.
        return {**self.__dict__, "_buffer": None, "_add": None, "_sample": None}

    def _buffer_of_model(self) -> BaseBuffer:
        for name in ("replay_buffer", "rollout_buffer"):
            buffer = getattr(self.model, name, None)
            if isinstance(buffer, BaseBuffer):
                return buffer
        raise TypeError(f"{type(self.model).__name__} has no replay or rollout buffer, so there is nothing to log about it")

    def _attach(self) -> None:
        self._detach()
        self._buffer = self._buffer_of_model()
        self._add = _Mean(_Timed.before(self._buffer, "add"))
        batches = isinstance(self._buffer, RolloutBuffer)
        reading = _TimedBatches.before(self._buffer, "get") if batches else _Timed.before(self._buffer, "sample")
        self._sample = _Mean(reading)
        self._due = 0.0

    def _detach(self) -> None:
        for mean in (self._add, self._sample):
            if mean is not None:
                mean.timed.leave()
        self._buffer = self._add = self._sample = None

    def _on_training_start(self) -> None:
        self._attach()

    def _on_rollout_start(self) -> None:
        if self._buffer_of_model() is not self._buffer:
            self._attach()

    def _on_step(self) -> bool:
        # What was recorded is gone once it was written.
        written = "buffer/stored_mb" not in self.logger.name_to_value
        if written or perf_counter() >= self._due:
            self._record(written)
        return True

    def _on_rollout_end(self) -> None:
        if isinstance(self._buffer, RolloutBuffer):  # the log is written next
            self._record(written=False)

    def _on_training_end(self) -> None:
        self._detach()

    def _record(self, written: bool) -> None:
        assert self._buffer is not None and self._add is not None and self._sample is not None
        if self._buffer.size() == 0:
            return  # nothing to tell; and to ask would load compiled code here that the first add loads anyway
        usage = _usage(self._buffer)
        self.logger.record("buffer/stored_mb", usage.total_bytes / _MB)
        self.logger.record("buffer/ratio", usage.ratio)
        with suppress(ImportError):  # without psutil, only Linux tells it
            self.logger.record("buffer/rss_mb", resident_bytes() / _MB)
        for key, mean in (("buffer/add_us", self._add), ("buffer/sample_us", self._sample)):
            if written:
                mean.start_again()
            microseconds = mean.microseconds()
            if microseconds is not None:
                self.logger.record(key, microseconds)
        self._due = perf_counter() + self.every_seconds
