"""A column of frames: what is known of observations in Python, over the compiled column that holds them."""

from __future__ import annotations

import pickle
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from sb3_extra_buffers.storage._core import BLOCK_ROWS, Chunk, FrameColumn, checksum
from sb3_extra_buffers.storage.errors import StorageError
from sb3_extra_buffers.storage.layout import FrameLayout
from sb3_extra_buffers.storage.locks import StoreLock
from sb3_extra_buffers.storage.methods import CoderSpec
from sb3_extra_buffers.storage.stacks import StackSearch

Observations = npt.NDArray[Any]

_FORMAT = 2
_MOST_ROWS = 512
_MOST_RING_ROWS = 4096


def rows_of_chunk(rows: int, wraps: bool) -> int:
    """
    Choose how many rows a chunk has.

    In a larger chunk, more changes are found to have happened before. But a chunk is given back once its last row is written
    over, so a ring takes up to one chunk more than its rows do. The core ends a chunk early once it has enough bytes: half a
    megabyte if frames are small.
    """
    if not wraps:
        return min(rows, _MOST_ROWS)
    return min(-(-max(rows // 8, 1) // BLOCK_ROWS) * BLOCK_ROWS, _MOST_RING_ROWS)


class Frames(FrameColumn):
    """
    A column of frames that looks for frame stacks by itself, and can be copied and pickled; ``make_frames`` makes one.

    :param args: What ``FrameColumn`` takes, in its order
    :param spec: How frames are coded: what the codecs among ``args`` were made of
    """

    def __init__(self, *args: Any, spec: CoderSpec) -> None:
        self.spec = spec
        self.chunk_rows: int = args[3]
        self.obs_shape: tuple[int, ...] = self.layout.obs_shape
        self.search = StackSearch(self.obs_shape, self.dtype.itemsize)
        self.next_look = 1

    # -- the layout -----------------------------------------------------------------------------------------------

    def revise_layout(self, envs: Any, obs: tuple[Observations, ...]) -> None:
        """
        Look for a frame stack, or give one up that does not pay; called before observations are written.

        :param envs: Whose observations these are
        :param obs: Arrays of observations, one for each view
        """
        if self.layout_fails:
            self._give_up_layout()
        for place, part in enumerate(obs):
            if not self.next_look:
                return
            self.writes += 1
            if self.writes == self.next_look:
                self._look(envs, part, obs[place - 1] if place else None)

    def _look(self, envs: Any, obs: Observations, before: Observations | None) -> None:
        """Look for a frame stack between observations and those before them; once there is one, store by frames."""
        after = _bytes_of(obs)
        if before is None:
            last = [self.last_observation(env) for env in envs]
            known = [place for place, memory in enumerate(last) if memory is not None]
            after = after[known]
            earlier = np.array([last[place] for place in known], dtype=np.uint8).reshape(after.shape)
        else:
            earlier = _bytes_of(before)
        layout = self.search.look(earlier, after) if len(after) else None
        self.next_look = self.search.next_look(self.writes)
        if layout is not None and self._adopt(layout):  # else there was no memory for it, and there may be some later
            self.next_look = 0

    def _give_up_layout(self) -> None:
        self.layout_fails = False
        failed = self.layout
        if self._adopt(FrameLayout.whole(self.obs_shape, self.dtype.itemsize)):
            self.search.reject(failed)
            self.writes = max(self.writes, 1)
            self.next_look = self.search.next_look(self.writes)

    def _adopt(self, layout: FrameLayout) -> bool:
        """Take another layout; returns whether that was possible. If not, all stays as it is."""
        try:
            self.set_layout(layout)
        except (MemoryError, StorageError):
            return False
        return True

    def chunks(self) -> tuple[list[Chunk], Chunk | None]:
        """
        List all chunks, at one moment.

        :return: Sealed ones in the order of their rows, and a sealed copy of the open one, None where it has no row
        """
        sealed, last = self.spans()
        return list({id(chunk): chunk for chunk, *_ in sealed}.values()), None if last is None else last[0]

    # -- copies ---------------------------------------------------------------------------------------------------

    @property
    def head(self) -> tuple[Any, ...]:
        """What the column is, apart from what is in it."""
        shape = self.rows, self.n_envs, self.views, self.chunk_rows
        return shape, self.obs_shape, self.dtype, self.spec, (self.layout.axis, self.layout.group)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return FrozenFrames(self).__reduce_ex__(protocol)


class FrozenFrames:
    """
    What a column of frames held at one moment; pickled or copied, it is such a column.

    Chunks never change, so nothing is copied before a pickler wants it.
    """

    __slots__ = ("_lock", "head", "looks", "open", "spans")

    def __init__(self, frames: Frames) -> None:
        with frames.lock:
            sealed, last = frames.spans()
            self.looks = frames.writes, frames.next_look
            self.head = frames.head
        self.open = None if last is None else last[0]
        spans = [] if last is None else [last]
        shared = -1 if last is None else last[2] + last[3] - 1  # a row of which some cells may be in a sealed chunk
        for chunk, chunk_row, first, rows in sealed:
            before = min(max(shared - first, 0), rows) if shared < first + rows else 0
            if before:
                spans.append((chunk, chunk_row, first, before))
            spans.append((chunk, chunk_row + before, first + before, rows - before))
        self.spans = sorted(spans, key=itemgetter(2))  # the open one comes first, if that row is its only one
        self._lock = frames.lock

    @property
    def chunks(self) -> list[Chunk]:
        """All chunks, each once."""
        return list({id(chunk): chunk for chunk, *_ in self.spans}.values())

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        # From protocol 5 on a pickler writes them from where they are.
        pack: Any = pickle.PickleBuffer if protocol >= 5 else bytes
        chunks = self.chunks
        numbers = {id(chunk): number for number, chunk in enumerate(chunks)}
        places = tuple((numbers[id(chunk)], *rest) for chunk, *rest in self.spans)
        shape, obs_shape, dtype, spec, split = self.head
        described: tuple[Any, ...] = (shape, obs_shape, dtype.str, spec, split, self.looks, places)
        head_sum = _sum_of_head(described, len(chunks))
        return restore_frames, (_FORMAT, *described, head_sum, self._lock, tuple(map(pack, chunks)))


def check_places(places: Any, rows: int) -> list[tuple[Any, int, int, int]]:
    """Check which rows spans have: they are sorted, and only one may begin with the last row of the span before it."""
    found: list[tuple[Any, int, int, int]] = []
    stop = shared = 0
    for chunk, *numbers in places:
        chunk_row, first, count = numbers
        if any(type(number) is not int for number in numbers) or min(numbers) < 0 or not 0 < count <= rows - first:
            raise ValueError(f"{count} rows of a chunk from row {first} on do not fit {rows} rows")
        shared += first < stop
        if first < stop - 1 or shared > 1:
            raise ValueError(f"rows are there twice from row {first} on")
        stop = first + count
        found.append((chunk, chunk_row, first, count))
    return found


def adopt_span(frames: Frames, places: list[tuple[Any, int, int, int]], number: int, chunk: Chunk) -> None:
    """Have a column adopt a span. That after it comes first, if it has the last row, too."""
    _, chunk_row, first, rows = places[number]
    if is_shared(places, number):
        rows -= 1
        if rows:
            frames.adopt(chunk, first, chunk_row, rows)
        frames.adopt_row(chunk, first + rows, chunk_row + rows)
    else:
        frames.adopt(chunk, first, chunk_row, rows)


def is_shared(places: list[tuple[Any, int, int, int]], number: int) -> bool:
    """Tell whether the last row of a span lacks cells, which the next span has."""
    return 0 <= number < len(places) - 1 and places[number + 1][2] < places[number][2] + places[number][3]


def sum_of(*values: Any) -> int:
    """Compute a checksum of plain values; chunks have their own."""
    return checksum(repr(values).encode())


def _sum_of_head(described: tuple[Any, ...], n_chunks: int) -> int:
    """The checksum of all that says what chunks mean."""
    shape, obs_shape, dtype, spec, split, looks, places = described
    numbers = [int(number) for part in (shape, obs_shape, split, looks, *places, (n_chunks,)) for number in part]
    types = [np.dtype(kind).str for kind in (dtype, spec.elem_type, spec.runs_type)]
    options = [
        (name, value if isinstance(value, (bool, int, float, str, bytes)) else None)  # others may look different when loaded
        for options in (spec.compression_kwargs, spec.decompression_kwargs)
        for name, value in sorted(options.items())
    ]
    return sum_of(numbers, types, spec.method, spec.fallback, options)


def restore_frames(version: int, *state: Any) -> Frames:
    """Make a column of what another one held. Nothing of it is trusted."""
    if version != _FORMAT:
        raise StorageError(
            f"the saved observations have format {version}, but this version reads format {_FORMAT}: load them with the "
            "version of sb3-extra-buffers that saved them"
        )
    try:
        shape, obs_shape, dtype, spec, split, looks, places, head_sum, lock, chunks = state
        if head_sum != _sum_of_head((shape, obs_shape, dtype, spec, split, looks, places), len(chunks)):
            raise ValueError("their description is not what was saved")
        rows, n_envs, views, chunk_rows = shape
        layout = FrameLayout(tuple(obs_shape), np.dtype(dtype).itemsize, *split)
        if layout.length % layout.group:
            raise ValueError(f"{layout.length} planes do not split into frames of {layout.group}")
        frames = frames_of(rows, n_envs, views, chunk_rows, layout, np.dtype(dtype), spec, lock)
        frames.writes, frames.next_look = looks
        held = [Chunk(chunk if type(chunk) is bytes else bytes(memoryview(chunk))) for chunk in chunks]
        spans = check_places(places, rows)
        if any(type(span[0]) is not int or not 0 <= span[0] < len(held) for span in spans):
            raise ValueError("a chunk is missing")
    except (TypeError, ValueError, IndexError, ZeroDivisionError, OverflowError, AttributeError) as error:
        raise StorageError(f"the saved observations are damaged: {error}; load another copy of the file") from error
    for number in reversed(range(len(spans))):
        adopt_span(frames, spans, number, held[spans[number][0]])
    return frames


def make_frames(
    rows: int,
    n_envs: int,
    views: int,
    obs_shape: tuple[int, ...],
    dtype: npt.DTypeLike,
    spec: CoderSpec,
    lock: StoreLock | None = None,
    wraps: bool = True,
) -> Frames:
    """
    Make an empty column of frames.

    :param rows: Number of rows
    :param n_envs: Number of environments
    :param views: 1, or 2 where what followed is kept, too
    :param obs_shape: Shape of one observation, of at least one element
    :param dtype: Type of its elements
    :param spec: How frames are coded
    :param lock: Held by every call; a new one by default
    :param wraps: Whether rows are written over in their order, as in a ring
    :return: The column
    """
    dtype = np.dtype(dtype)
    layout = FrameLayout.whole(obs_shape, dtype.itemsize)
    lock = StoreLock() if lock is None else lock
    return frames_of(rows, n_envs, views, rows_of_chunk(rows, wraps), layout, dtype, spec, lock)


def frames_of(
    rows: int,
    n_envs: int,
    views: int,
    chunk_rows: int,
    layout: FrameLayout,
    dtype: np.dtype[Any],
    spec: CoderSpec,
    lock: StoreLock,
) -> Frames:
    codec, group_codec = spec.codecs()
    shape = rows, n_envs, views, chunk_rows
    return Frames(*shape, layout, dtype, codec, group_codec, spec.references, spec.shift, lock, spec=spec)


def _bytes_of(obs: Observations) -> npt.NDArray[np.uint8]:
    """Observations as rows of bytes, in C order."""
    return np.ascontiguousarray(obs).reshape(len(obs), -1).view(np.uint8)
