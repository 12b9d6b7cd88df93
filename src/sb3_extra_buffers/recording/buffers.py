"""Buffers that record steps of play: frames, rewards, actions, features and where episodes end."""

from __future__ import annotations

import json
import math
import operator
import os
import reprlib
import zlib
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from sb3_extra_buffers.recording.records import Episode, Record
from sb3_extra_buffers.storage import CoderSpec, Frames, MemoryUsage, cast_exactly, check_dtypes, make_frames, make_spec

Array = npt.NDArray[Any]
Numbers = npt.NDArray[np.int64]
FeatureSpec = npt.DTypeLike | tuple[tuple[int, ...], npt.DTypeLike]

# Bits of the column "flags".
_DONE = 1
_TRUNCATED = 2

_BLOCK_BYTES = 4 << 20
_FRAME_BLOCK_ROWS = 1 << 15  # an eighth of it is a chunk, which holds one frame uncompressed
_MOST_AXES = 30  # NumPy has at least 32, of which reading needs two
_RAW_BELOW = 512  # bytes of a frame below which compressing it would not pay, as in our other buffers
SLOWEST, FASTEST = 0.01, 100_000.0


class Column:
    """Rows by their number, counted from the first that was ever written: a ring, or blocks that grow without copying."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], size: int | None, commit: bool = False) -> None:
        self.shape, self.dtype, self._commit = shape, dtype, commit
        self.is_ring = size is not None
        # A ring has one row more than it keeps, so that a new row never overwrites one that still counts.
        self.block_rows = self._rows_of_block() if size is None else size + 1
        self.blocks: list[Any] = [self.make_block()] if self.is_ring else []

    def _rows_of_block(self) -> int:
        return min(max(_BLOCK_BYTES // max(math.prod(self.shape) * self.dtype.itemsize, 1), 16), 1 << 16)

    def make_block(self) -> Any:
        """Make an empty block."""
        block = np.zeros((self.block_rows, *self.shape), self.dtype)
        if self._commit:
            block.fill(0)  # the system promises zeros; writing them makes it commit the memory
        return block

    def _put(self, block: Any, row: int, value: Any) -> None:
        block[row] = value

    def _take(self, block: Any, rows: Numbers) -> Array:
        taken: Array = block[rows]
        return taken

    def write(self, number: int, value: Any) -> None:
        """Write a row: the next one, or the newest again."""
        block, row = (0, number % self.block_rows) if self.is_ring else divmod(number, self.block_rows)
        if block == len(self.blocks):
            self.blocks.append(self.make_block())
        self._put(self.blocks[block], row, value)

    def read(self, numbers: Numbers) -> Array:
        """Read rows that are there, as a copy."""
        if self.is_ring:
            return self._take(self.blocks[0], numbers % self.block_rows)
        blocks, rows = np.divmod(numbers, self.block_rows)
        used = np.unique(blocks)
        if len(used) == 1:
            return self._take(self.blocks[used[0]], rows)
        out = np.empty((len(numbers), *self.shape), self.dtype)
        for block in used:
            out[blocks == block] = self._take(self.blocks[block], rows[blocks == block])
        return out

    def memory_usage(self, rows: int) -> MemoryUsage:
        """Count what the blocks take, of which so many rows are in use."""
        starts = range(0, len(self.blocks) * self.block_rows, self.block_rows)
        return MemoryUsage.of_arrays([block[: max(rows - start, 0)] for start, block in zip(starts, self.blocks, strict=True)])


class FrameColumn(Column):
    """Rows that are compressed frames."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], size: int | None, spec: CoderSpec) -> None:
        self.spec = spec
        super().__init__(shape, dtype, size)

    def _rows_of_block(self) -> int:
        return _FRAME_BLOCK_ROWS

    def make_block(self) -> Frames:
        """Make an empty block."""
        return make_frames(self.block_rows, 1, 1, self.shape, self.spec.elem_type, self.spec)

    def _put(self, block: Frames, row: int, value: Any) -> None:
        block.write(row, cast_exactly(value, self.dtype, self.spec.elem_type)[None])

    def _take(self, block: Frames, rows: Numbers) -> Array:
        out = np.empty((len(rows), *self.shape), self.spec.elem_type)
        if len(rows):
            block.read(rows, np.zeros_like(rows), out)
        return out.astype(self.dtype, copy=False)

    def memory_usage(self, rows: int) -> MemoryUsage:
        """Count what the blocks take."""
        return sum((MemoryUsage.of_frames(block, self.dtype) for block in self.blocks), MemoryUsage.of_arrays([]))


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
        self.frame_shape: tuple[int, ...] | None = _check_shape(frame_shape, "frame_shape")
        self.frame_dtype: np.dtype[Any] = _check_dtype(frame_dtype, "frame_dtype")
        self.action_shape: tuple[int, ...] = _check_shape(action_shape, "action_shape")
        self.action_dtype: np.dtype[Any] = _check_dtype(action_dtype, "action_dtype")
        self.feature_specs = {str(name): _check_feature(name, spec) for name, spec in (features or {}).items()}
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
        self._finals: dict[int, bytes] = {}  # final frames by the number of the last step, compressed
        self._columns = {
            "reward": self._plain_column((), np.dtype(np.float64)),
            "action": self._plain_column(self.action_shape, self.action_dtype),
            "flags": self._plain_column((), np.dtype(np.uint8)),
        }
        self._features = {name: self._plain_column(*spec) for name, spec in self.feature_specs.items()}
        self._frames = self._make_frames()

    def _plain_column(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Column:
        return Column(shape, dtype, self.buffer_size, self.force_alloc_mem)

    def _make_frames(self) -> Column | None:
        if self.frame_shape is None:
            raise ValueError("frame_shape is missing (to record no frames, use FramelessRecordBuffer)")
        return self._plain_column(self.frame_shape, self.frame_dtype)

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
        final = self._packed_final(final_frame)
        number = self._count
        if self._frames is not None:
            self._frames.write(number, picture)
        for name, value in row.items():
            self._columns[name].write(number, value)
        for name, value in kept.items():
            self._features[name].write(number, value)
        # A step counts once all of it is written, and only then the oldest one goes.
        self._count = number + 1
        if final is not None:
            self._finals[number] = final
        if done:
            self._ends.append(number + 1)
        if self.buffer_size is not None and len(self) > self.buffer_size:
            self._forget_oldest()

    def _checked_features(self, features: Mapping[str, Any] | None) -> dict[str, Array]:
        given = features or {}
        if given.keys() != self.feature_specs.keys():
            raise ValueError(
                f"features given: {sorted(given) or 'none'}; this recording has {sorted(self.feature_specs) or 'none'} "
                "(name them when you make the buffer, and give each of them with every step)"
            )
        return {name: as_stored(given[name], *spec, f"feature {name!r}") for name, spec in self.feature_specs.items()}

    def _checked_frame(self, frame: Any, name: str) -> Array | None:
        return as_stored(frame, self.frame_shape or (), self.frame_dtype, name)

    def _packed_final(self, frame: Any) -> bytes | None:
        # There is one of these an episode: it need not be fast, but their number is not known in advance.
        checked = None if frame is None else self._checked_frame(frame, "final_frame")
        return None if checked is None else zlib.compress(np.ascontiguousarray(checked).data, 6)

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
        final = self._packed_final(final_frame)
        if final is not None:
            self._finals[self._count - 1] = final
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

    def _records(self, numbers: Numbers) -> Record:
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

    def _check_here(self, numbers: Numbers) -> None:
        if numbers.size and (numbers.min() < self._first or numbers.max() >= self._count):
            raise IndexError("these steps are gone: the ring has overwritten them since the episode was looked up")

    def _read(self, name: str, numbers: Numbers) -> Array:
        self._check_here(numbers)
        return self._columns[name].read(numbers)

    def _read_frames(self, numbers: Numbers) -> Array | None:
        self._check_here(numbers)
        return None if self._frames is None else self._frames.read(numbers)

    def _read_features(self, numbers: Numbers) -> dict[str, Array]:
        self._check_here(numbers)
        return {name: column.read(numbers) for name, column in self._features.items()}

    def _flags_at(self, number: int) -> tuple[bool, bool]:
        flags = int(self._read("flags", np.array([number], dtype=np.int64))[0])
        return flags & _DONE != 0, flags & _TRUNCATED != 0

    def _final_frame(self, number: int) -> Array | None:
        self._check_here(np.array([number], dtype=np.int64))
        if number not in self._finals:
            return None
        return np.frombuffer(bytearray(zlib.decompress(self._finals[number])), self.frame_dtype).reshape(
            self.frame_shape or ()
        )

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
        columns = [*self._columns.values(), *self._features.values()]
        if self._frames is not None:
            columns.append(self._frames)
        usage = sum((column.memory_usage(len(self)) for column in columns), MemoryUsage.of_arrays([]))
        raw = len(self._finals) * math.prod(self.frame_shape or ()) * self.frame_dtype.itemsize
        return usage + MemoryUsage(raw, sum(map(len, self._finals.values())), 0, len(self._finals), 0)

    # -- files ----------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str], progress: bool = False) -> None:
        """
        Save the recording in one compressed file, for ``load_recording`` to read. It contains no code. The file is written
        whole or not at all: it gets its name only when it is complete.

        :param path: File to write; ``.rec`` is a good suffix. An existing file is replaced
        :param progress: Whether to show a progress bar
        """
        from sb3_extra_buffers.recording.files import save_recording  # which makes buffers, so it imports this module

        save_recording(self, path, progress)


class FramelessRecordBuffer(RecordBuffer):
    """The same without frames: ``add`` accepts them but does not keep them. The parameters are those of ``RecordBuffer``."""

    kind = "frameless"

    def _make_frames(self) -> Column | None:
        self.frame_shape = None
        return None

    def _checked_frame(self, frame: Any, name: str) -> Array | None:
        return None


class DummyRecordBuffer(FramelessRecordBuffer):
    """Records nothing, for code that needs a buffer when no recording is wanted. Takes the arguments of ``RecordBuffer``."""

    kind = "dummy"

    def __init__(self, buffer_size: int | None = None, *args: Any, **kwargs: Any) -> None:
        super().__init__(None, metadata=kwargs.get("metadata"))

    def add(self, *args: Any, **kwargs: Any) -> None:
        """Record nothing."""


class CompressedRecordBuffer(RecordBuffer):
    """
    Keeps frames compressed, bit for bit: hours of play in megabytes.

    The parameters are those of ``RecordBuffer`` (except ``force_alloc_mem``, as there is nothing to commit), and

    :param compression_method: Name or shorthand of the method, for example ``"zstd-5"``; None for ``"delta"``
    :param compression_kwargs: Options of the method
    :param decompression_kwargs: The same for decompression
    :param dtypes: As for ``CompressedArray``
    """

    kind = "compressed"

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
        *,
        compression_method: str | None = None,
        compression_kwargs: Mapping[str, Any] | None = None,
        decompression_kwargs: Mapping[str, Any] | None = None,
        dtypes: Mapping[str, npt.DTypeLike] | None = None,
    ) -> None:
        if force_alloc_mem:
            raise ValueError("force_alloc_mem is for RecordBuffer: compressed frames take memory as they come")
        self._options = dtypes, compression_method, compression_kwargs, decompression_kwargs
        super().__init__(
            buffer_size, frame_shape, frame_dtype, action_shape, action_dtype, features=features, metadata=metadata
        )

    @property
    def compression_method(self) -> str:
        """The method in use; ``"none"`` for frames so small that compressing them would not pay."""
        return self._frames.spec.method if isinstance(self._frames, FrameColumn) else "none"

    def _make_frames(self) -> Column | None:
        if self.frame_shape is None:
            return super()._make_frames()
        # Checked for small frames, too: a wrong option should not wait for the first large one.
        dtypes, method, encoding, decoding = self._options
        spec = make_spec(method, *check_dtypes(dtypes, self.frame_dtype, self.frame_shape), encoding, decoding)
        return frame_column(self.frame_shape, self.frame_dtype, self.buffer_size, spec)


def frame_column(shape: tuple[int, ...], dtype: np.dtype[Any], size: int | None, spec: CoderSpec) -> Column:
    """Make a column of frames: compressed, unless they are too small for that to pay."""
    if math.prod(shape) * dtype.itemsize < _RAW_BELOW:
        return Column(shape, dtype, size)
    return FrameColumn(shape, dtype, size, spec)


def add_episode(
    recording: RecordBuffer,
    frames: Iterator[Array] | None,
    actions: Array,
    rewards: Array,
    features: Mapping[str, Array],
    done: bool,
    truncated: bool,
    final_frame: Array | None,
    is_open: bool,
) -> None:
    """Add all steps of an episode, which may still be running (``is_open``)."""
    for step in range(len(rewards)):
        over = done and step == len(rewards) - 1
        recording.add(
            None if frames is None else next(frames),
            rewards[step],
            actions[step],
            {name: values[step] for name, values in features.items()},
            over,
            truncated=over and truncated,
            final_frame=final_frame if over else None,
        )
    if not is_open:
        recording.end_episode(final_frame)


# -- checks -----------------------------------------------------------------------------------------------------------


def _check_shape(shape: tuple[int, ...] | None, name: str) -> Any:
    if shape is None:
        return None
    try:
        sizes = tuple(operator.index(size) for size in shape)
    except TypeError:
        raise TypeError(f"{name} is {shape!r}; it must be a tuple of sizes, or () for a number") from None
    if any(size < 1 for size in sizes):
        raise ValueError(f"{name} is {sizes}; sizes start at 1")
    if len(sizes) > _MOST_AXES:
        raise ValueError(f"{name} has {len(sizes)} dimensions; allowed: at most {_MOST_AXES}")
    return sizes


def _check_dtype(dtype: npt.DTypeLike, name: str) -> np.dtype[Any]:
    found = np.dtype(dtype)
    if found.kind not in "biufc":
        raise TypeError(f"{name} is {found}; only numbers and booleans can be recorded")
    return found


def _check_feature(name: str, spec: FeatureSpec) -> tuple[tuple[int, ...], np.dtype[Any]]:
    shape, dtype = spec if isinstance(spec, tuple) else ((), spec)
    return _check_shape(shape, f"the shape of feature {name!r}"), _check_dtype(dtype, f"the type of feature {name!r}")


def check_metadata(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    """Check that JSON can hold metadata; returns what it makes of it."""
    try:
        text = json.dumps(dict(metadata or {}), allow_nan=False, ensure_ascii=False)
        plain: dict[str, Any] = json.loads(text.encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"metadata must be something that JSON can hold: {error}") from error
    fps = plain.get("fps")
    if isinstance(fps, (int, float)) and frames_per_second(fps) is None:
        raise ValueError(f'metadata["fps"] is {reprlib.repr(fps)}; allowed: {SLOWEST} to {FASTEST:,.0f}, or None')
    return plain


def frames_per_second(value: Any) -> float | None:
    """Make a number of frames per second of a value; None if no video can have it."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not SLOWEST <= value <= FASTEST:
        return None
    return float(value)


def as_stored(value: Any, shape: tuple[int, ...], dtype: np.dtype[Any], name: str) -> Array:
    """Bring a value to the shape and type that it is stored as, or refuse it if that changes it."""
    array = value if type(value) is np.ndarray else np.asarray(value)
    if array.shape != shape:
        if shape or array.size != 1:
            raise ValueError(f"{name} has shape {array.shape}, but this recording was made for {shape}")
        array = array.reshape(())
    if array.dtype == dtype:
        return array
    try:
        return cast_exactly(array, dtype, dtype)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name} of type {array.dtype} cannot be recorded as {dtype} exactly: {error}") from error
