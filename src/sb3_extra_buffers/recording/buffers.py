"""Buffers that record steps of play: frames, rewards, actions, features and where episodes end."""

from __future__ import annotations

import math
import operator
import os
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from sb3_extra_buffers.recording.checks import FeatureSpec, as_stored, check_dtype, check_feature, check_metadata, check_shape
from sb3_extra_buffers.recording.columns import Column, Rows, chunk_rows
from sb3_extra_buffers.recording.records import Episode, Record
from sb3_extra_buffers.storage import MemoryUsage

# Bits of what is noted with each step.
_DONE = 1
_TRUNCATED = 2


class RecordBuffer:
    """
    Records steps as plain arrays.

    A step is the frame that was seen, the action taken, the reward that followed, and whether the episode ended with it. The
    frame that is seen after an episode's last action belongs to no step; pass it as ``final_frame``.

    :param buffer_size: Number of steps to keep (the newest ones); None keeps all of them, and memory grows accordingly
    :param frame_shape: Shape of a frame
    :param frame_dtype: Type of its elements
    :param action_shape: Shape of an action, ``()`` for a number
    :param action_dtype: Type of its elements
    :param features: What else to record, by name: the type of a number, or ``(shape, type)`` of an array
    :param force_alloc_mem: Commit all memory of a ring now, so that it cannot run out later
    :param metadata: Anything else to say about the recording that JSON can hold. The keys ``"env_id"``, ``"fps"``,
        ``"action_meanings"`` (a list of names), ``"action_space"`` and ``"frames"`` (``"render"`` or ``"observation"``) are
        used by exports and by the viewer
    """

    kind: ClassVar[str] = "dense"
    """What a saved recording is called, so that loading makes the same class again."""

    def __init__(
        self,
        buffer_size: int | None,
        frame_shape: tuple[int, ...] | None = None,
        frame_dtype: npt.DTypeLike = np.uint8,
        action_shape: tuple[int, ...] = (),
        action_dtype: npt.DTypeLike = np.int64,
        features: Mapping[str, FeatureSpec] | None = None,
        force_alloc_mem: bool = False,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        buffer_size = None if buffer_size is None else operator.index(buffer_size)
        if buffer_size is not None and buffer_size < 1:
            raise ValueError(
                f"buffer_size is {buffer_size}; allowed: a number of steps from 1 on, or None to keep all of them"
            )
        if force_alloc_mem and buffer_size is None:
            raise ValueError("force_alloc_mem needs a buffer_size: an unbounded recording has no size to allocate")
        self.buffer_size = buffer_size
        self.frame_shape: tuple[int, ...] | None = check_shape(frame_shape, "frame_shape")
        self.frame_dtype: np.dtype[Any] = check_dtype(frame_dtype, "frame_dtype")
        self.action_shape: tuple[int, ...] = check_shape(action_shape, "action_shape")
        self.action_dtype: np.dtype[Any] = check_dtype(action_dtype, "action_dtype")
        self.feature_specs = {str(name): check_feature(name, spec) for name, spec in (features or {}).items()}
        self.metadata: dict[str, Any] = check_metadata(metadata)
        self.force_alloc_mem = force_alloc_mem
        self._start_over()

    def _start_over(self) -> None:
        # Steps are counted from the first one ever recorded; those from _first on are here.
        self._first = 0
        self._count = 0
        self._ends: deque[int] = deque()  # for each episode that is over, the number of the step after its last
        self._episodes_gone = 0
        self._is_cut = False
        self._finals: dict[int, Any] = {}  # what was seen after a step, by its number
        self._columns = {
            "reward": self._dense_column((), np.dtype(np.float64)),
            "action": self._dense_column(self.action_shape, self.action_dtype),
            "flags": self._dense_column((), np.dtype(np.uint8)),
        }
        self._features = {name: self._dense_column(*spec) for name, spec in self.feature_specs.items()}
        self._frames = self._make_frames()

    def _dense_column(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Column:
        def make(rows: int) -> Rows:
            array = np.zeros((rows, *shape), dtype)
            if self.force_alloc_mem:
                array.fill(0)  # zeros are promised by the system; writing them makes it keep the promise
            return array

        return Column(self.buffer_size, chunk_rows(shape, dtype), make)

    def _make_frames(self) -> Column | None:
        if self.frame_shape is None:
            raise ValueError("frame_shape is missing (to record no frames, use FramelessRecordBuffer)")
        return self._dense_column(self.frame_shape, self.frame_dtype)

    # -- writing --------------------------------------------------------------------------------------------------

    def add(
        self,
        frame: Any,
        reward: float,
        action: Any,
        features: Mapping[str, Any] | None = None,
        done: bool = False,
        *,
        truncated: bool = False,
        final_frame: Any = None,
    ) -> None:
        """
        Record a step. Whatever cannot be stored is refused, and leaves the recording as it was.

        :param frame: What was seen before the action
        :param reward: The reward that followed
        :param action: The action
        :param features: A value for each feature
        :param done: Whether the episode ended with this step
        :param truncated: Whether a time limit ended the episode; implies ``done``
        :param final_frame: What was seen afterwards, at the end of an episode
        """
        done = bool(done) or bool(truncated)
        if final_frame is not None and not done:
            raise ValueError("final_frame only makes sense at the end of an episode, but neither done nor truncated is true")
        # Everything is checked before anything is written.
        row = {
            "reward": as_stored(reward, (), np.dtype(np.float64), "reward"),
            "action": as_stored(action, self.action_shape, self.action_dtype, "action"),
            "flags": np.uint8(done * _DONE + bool(truncated) * _TRUNCATED),
        }
        kept = self._checked_features(features)
        picture = self._checked_frame(frame, "frame")
        final = None if final_frame is None else self._keep_final(self._checked_frame(final_frame, "final_frame"))
        if self._count - self._first == self.buffer_size:
            self._forget_oldest()
        number = self._count
        if self._frames is not None:
            self._frames.write(number, picture)
        for name, value in row.items():
            self._columns[name].write(number, value)
        for name, value in kept.items():
            self._features[name].write(number, value)
        # A step counts once all of it is written.
        self._count = number + 1
        if final is not None:
            self._finals[number] = final
        if done:
            self._ends.append(number + 1)

    def _checked_features(self, features: Mapping[str, Any] | None) -> dict[str, npt.NDArray[Any]]:
        given = features or {}
        if given.keys() != self.feature_specs.keys():
            raise ValueError(
                f"features given: {sorted(given) or 'none'}; this recording has {sorted(self.feature_specs) or 'none'} "
                "(name them when you make the buffer, and give each of them with every step)"
            )
        return {name: as_stored(given[name], *spec, f"feature {name!r}") for name, spec in self.feature_specs.items()}

    def _checked_frame(self, frame: Any, name: str) -> npt.NDArray[Any] | None:
        return as_stored(frame, self.frame_shape or (), self.frame_dtype, name)

    def _keep_final(self, frame: npt.NDArray[Any] | None) -> Any:
        return None if frame is None else frame.copy()

    def _kept_final(self, kept: Any) -> npt.NDArray[Any]:
        frame: npt.NDArray[Any] = kept.copy()
        return frame

    def _forget_oldest(self) -> None:
        self._finals.pop(self._first, None)
        self._first += 1
        self._is_cut = True
        if self._ends and self._ends[0] == self._first:
            self._ends.popleft()
            self._episodes_gone += 1
            self._is_cut = False

    def end_episode(self, final_frame: Any = None) -> None:
        """
        Let the next step begin a new episode even though the last one was not over, because the environment was reset early.

        :param final_frame: What was seen last
        """
        if not self.is_open:
            return
        if final_frame is not None:
            kept = self._keep_final(self._checked_frame(final_frame, "final_frame"))
            if kept is not None:
                self._finals[self._count - 1] = kept
        self._ends.append(self._count)

    def clear(self) -> None:
        """Forget all steps."""
        self._start_over()

    # -- reading --------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._count - self._first

    def __repr__(self) -> str:
        size = "unbounded" if self.buffer_size is None else f"ring of {self.buffer_size:,}"
        return f"{type(self).__name__}({len(self):,} steps, {self.n_episodes:,} episodes, {size}, {self.memory_usage()})"

    def __getitem__(self, index: Any) -> Record:
        if isinstance(index, slice):
            return self._records(self._first + np.arange(*index.indices(len(self)), dtype=np.int64))
        places = np.asarray(index)
        if places.size == 0:
            places = places.astype(np.int64)
        if places.dtype == np.bool_ and places.shape == (len(self),):
            places = np.flatnonzero(places)
        if places.dtype.kind not in "iu" or places.ndim > 1:
            raise TypeError(
                f"use an integer for one step, a slice or a one-dimensional array of integers for several, not {index!r}"
            )
        places = places.astype(np.int64)
        outside = places[(places < -len(self)) | (places >= len(self))]
        if outside.size:
            raise IndexError(f"there is no step {outside.flat[0]}: the recording has {len(self)}")
        return self._records(self._first + np.where(places < 0, places + len(self), places))

    def __iter__(self) -> Iterator[Record]:
        for number in range(self._first, self._count):
            yield self._records(np.array(number, dtype=np.int64))

    def _records(self, numbers: npt.NDArray[np.int64]) -> Record:
        several = np.atleast_1d(numbers)
        flags = self._read("flags", several)
        frames = self._read_frames(several)
        record = Record(
            frames,
            self._read("reward", several),
            self._read("action", several),
            self._read_features(several),
            (flags & _DONE) != 0,
            (flags & _TRUNCATED) != 0,
        )
        if numbers.ndim:
            return record
        features = {name: values[0] for name, values in record.features.items()}
        frame = None if frames is None else frames[0]
        return Record(frame, record.reward[0], record.action[0], features, bool(record.done[0]), bool(record.truncated[0]))

    def _check_here(self, numbers: npt.NDArray[np.int64]) -> None:
        if numbers.size and (numbers.min() < self._first or numbers.max() >= self._count):
            raise IndexError("these steps are gone: the ring has overwritten them since the episode was looked up")

    def _read(self, name: str, numbers: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        self._check_here(numbers)
        return self._columns[name].read(numbers)

    def _read_frames(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[Any] | None:
        self._check_here(numbers)
        return None if self._frames is None else self._frames.read(numbers)

    def _read_features(self, numbers: npt.NDArray[np.int64]) -> dict[str, npt.NDArray[Any]]:
        self._check_here(numbers)
        return {name: column.read(numbers) for name, column in self._features.items()}

    def _flags_at(self, number: int) -> tuple[bool, bool]:
        flags = int(self._read("flags", np.array([number], dtype=np.int64))[0])
        return flags & _DONE != 0, flags & _TRUNCATED != 0

    def _final_frame(self, number: int) -> npt.NDArray[Any] | None:
        self._check_here(np.array([number], dtype=np.int64))
        return self._kept_final(self._finals[number]) if number in self._finals else None

    @property
    def n_episodes(self) -> int:
        """Number of episodes that are there, whole or in part."""
        return len(self._ends) + self.is_open

    @property
    def is_open(self) -> bool:
        """Whether the newest episode is still running: neither over nor given up."""
        return len(self) > 0 and not (self._ends and self._ends[-1] == self._count)

    def episodes(self) -> Iterator[Episode]:
        """
        Iterate over the episodes, oldest first. In a ring, the beginning of the oldest one may be gone (``is_cut``); the
        newest one may still be running (not ``done``).

        :return: Views of them
        """
        start, is_cut = self._first, self._is_cut
        stops = [*self._ends, self._count] if self.is_open else list(self._ends)
        for place, stop in enumerate(stops):
            yield Episode(self, self._episodes_gone + place, start, stop, is_cut)
            start, is_cut = stop, False

    def episode(self, index: int) -> Episode:
        """
        Get one episode.

        :param index: Its position among those that are still there; negative numbers count from the end
        :return: A view of it
        """
        episodes = list(self.episodes())
        if not -len(episodes) <= index < len(episodes):
            raise IndexError(f"there is no episode {index}: the recording has {len(episodes)}")
        return episodes[index]

    def memory_usage(self) -> MemoryUsage:
        """
        Report how much memory the recording takes.

        :return: The figures, of frames and everything else
        """
        usage = MemoryUsage.of_arrays([])
        for column in (*self._columns.values(), *self._features.values()):
            usage += column.memory_usage(len(self))
        if self._frames is not None:
            usage += self._frames.memory_usage(len(self))
            stored = sum(len(kept) if isinstance(kept, bytes) else kept.nbytes for kept in self._finals.values())
            raw = len(self._finals) * math.prod(self.frame_shape or ()) * self.frame_dtype.itemsize
            usage += MemoryUsage(raw, stored, 0, len(self._finals), 0)
        return usage

    # -- files ----------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str], progress: bool = False) -> None:
        """
        Save the recording in one compressed file, for ``load_recording`` to read. It contains no code. The file is written
        whole or not at all: it gets its name only when it is complete.

        :param path: File to write; ``.rec`` is a good suffix. An existing file is replaced
        :param progress: Whether to show a progress bar
        """
        # Files know how to make a buffer, so they come after it.
        from sb3_extra_buffers.recording.files import save_recording

        save_recording(self, path, progress)


class FramelessRecordBuffer(RecordBuffer):
    """The same without frames: ``add`` accepts them but does not keep them. The parameters are those of ``RecordBuffer``."""

    kind = "frameless"

    def _make_frames(self) -> Column | None:
        self.frame_shape = None
        return None

    def _checked_frame(self, frame: Any, name: str) -> npt.NDArray[Any] | None:
        return None


class DummyRecordBuffer(FramelessRecordBuffer):
    """Records nothing, for code that needs a buffer when no recording is wanted. Takes the arguments of ``RecordBuffer``."""

    kind = "dummy"

    def __init__(self, buffer_size: int | None = None, *args: Any, **kwargs: Any) -> None:
        metadata = kwargs.get("metadata")
        super().__init__(None, metadata=metadata)

    def add(self, *args: Any, **kwargs: Any) -> None:
        """Record nothing."""
