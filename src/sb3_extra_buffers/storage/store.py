"""The observation store: observations in, observations out, each frame kept once."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sb3_extra_buffers.storage.coder import FrameCoder, StreamState
from sb3_extra_buffers.storage.layout import ByteArray, FrameLayout, c_order, find_stack, memory_order
from sb3_extra_buffers.storage.matching import APPENDED, OTHER, REPEAT, SAME
from sb3_extra_buffers.storage.methods import CoderSpec
from sb3_extra_buffers.storage.patterns import MAX_DISTANCE, ROUND, UNWRITTEN, ZERO, PatternTable
from sb3_extra_buffers.storage.records import padded_rows

_BLOCK = 256  # rows
_NOTHING = np.iinfo(np.int64).max
_LAST_PROBE = 1 << 12
_FIRST_CHECK = 1 << 10
_BATCH = 256
# Patterns that the 16 bits of an index number, and what it can number when they are not enough.
_NARROW_LIMIT = 1 << 16
_WIDE_LIMIT = 1 << 32


@dataclass
class FrameIndex:
    """
    What the cells of one array hold: six bytes a cell.

    :param newest: Low 32 bits of the number of the newest frame
    :param pattern: Which frames make the observation, see ``PatternTable``; 16 bits, which real data never exceeds
    """

    newest: npt.NDArray[np.uint32]
    pattern: npt.NDArray[np.uint16] | npt.NDArray[np.uint32]
    # The oldest frame of each stream, by blocks of rows, and which blocks were written since that was found out.
    oldest: npt.NDArray[np.int64]
    written: npt.NDArray[np.bool_]


class FrameStore:
    """
    Frames of ``n_streams`` environments, and the arrays (``FrameIndex``) that are made of them.

    Cell ``c`` of an index belongs to stream ``c % n_streams``.

    :param obs_shape: Shape of one observation, of at least one element
    :param dtype: Type of its elements
    :param n_streams: Number of streams
    :param make_coder: What makes the coder
    """

    def __init__(self, obs_shape: tuple[int, ...], dtype: npt.DTypeLike, n_streams: int, make_coder: CoderSpec) -> None:
        self.dtype = np.dtype(dtype)
        self.obs_shape = obs_shape
        self.n_streams = n_streams
        self.make_coder = make_coder
        self.indexes: list[FrameIndex] = []
        self.writes = 0
        self._all = np.arange(n_streams, dtype=np.int64)
        self._begin(FrameLayout.whole(obs_shape, self.dtype.itemsize))

    def _begin(self, layout: FrameLayout) -> None:
        """Start with an empty log."""
        n, depth = self.n_streams, layout.depth
        self.layout = layout
        # Made at the first use: a coder may have to load compiled code.
        self._coder: FrameCoder | None = None
        self.patterns = PatternTable(depth)
        self.last: ByteArray = np.zeros((n, layout.obs_bytes), dtype=np.uint8)
        self.known: npt.NDArray[np.bool_] = np.zeros(n, dtype=np.bool_)
        self.turned = False
        self.state = StreamState(n, depth)
        self.frames = padded_rows(n, layout.frame_bytes)
        self.status: npt.NDArray[np.int64] = np.zeros(n, dtype=np.int64)
        self.overwritten = 0
        self.check_at = _FIRST_CHECK
        self.must_compact = False
        self.pattern_limit = _NARROW_LIMIT

    @property
    def coder(self) -> FrameCoder:
        """What stores the frames."""
        if self._coder is None:
            self._coder = self.make_coder(self.layout, self.n_streams)
        return self._coder

    def new_index(self, cells: int) -> FrameIndex:
        """
        Make an array of unwritten cells.

        :param cells: How many
        :return: The index; the store keeps what it refers to
        """
        index = self._index_of(cells)
        self.indexes.append(index)
        return index

    def _index_of(self, cells: int) -> FrameIndex:
        blocks = -(-cells // (_BLOCK * self.n_streams))
        return FrameIndex(
            np.zeros(cells, dtype=np.uint32),
            np.zeros(cells, dtype=np.uint16),
            np.full((blocks, self.n_streams), _NOTHING, dtype=np.int64),
            np.zeros(blocks, dtype=np.bool_),
        )

    def clear(self) -> None:
        """Forget all observations; layout and memory stay."""
        for index in self.indexes:
            index.newest[:] = 0
            index.pattern[:] = UNWRITTEN
            index.oldest[:] = _NOTHING
            index.written[:] = False
        before = self._coder
        self._begin(self.layout)
        if before is not None:
            before.log.clear()
            self.coder.log = before.log

    def written_cells(self) -> int:
        """
        Count what is stored.

        :return: Written cells of all arrays
        """
        return sum(int(np.count_nonzero(index.pattern)) for index in self.indexes)

    def bytes_a_cell(self) -> int:
        """
        Tell what the index takes.

        :return: Bytes a cell
        """
        return max((index.newest.itemsize + index.pattern.itemsize for index in self.indexes), default=0)

    def copy_of(self, index: FrameIndex) -> tuple[FrameStore, FrameIndex]:
        """
        Copy one array and the frames.

        :param index: The array
        :return: A store that holds it alone, and its index there
        """
        twin = copy.copy(self)
        twin.indexes = [index]
        twin = copy.deepcopy(twin)
        return twin, twin.indexes[0]

    # -- writing --------------------------------------------------------------------------------------------------

    def write_row(self, index: FrameIndex, row: int, obs: npt.NDArray[Any]) -> None:
        """
        Write one observation of every stream.

        :param index: The array
        :param row: Row of ``n_streams`` cells
        :param obs: ``(n_streams, *obs_shape)`` of the store's dtype, in any memory order
        """
        first = row * self.n_streams
        if index.pattern[first : first + self.n_streams].any():
            self.overwritten += self.n_streams
        self._write(index, slice(first, first + self.n_streams), self._all, obs)
        index.written[row // _BLOCK] = True  # not before: what is reclaimed meanwhile clears it

    def write_cells(self, index: FrameIndex, cells: npt.NDArray[np.int64], obs: npt.NDArray[Any]) -> None:
        """
        Write observations to any cells, one after the other.

        :param index: The array
        :param cells: ``(m,)``
        :param obs: ``(m, *obs_shape)`` of the store's dtype
        """
        streams = cells % self.n_streams
        start = 0
        while start < len(cells):  # as far as streams are distinct
            seen: set[int] = set()
            stop = start
            for stream in streams[start : start + self.n_streams].tolist():
                if stream in seen:
                    break
                seen.add(stream)
                stop += 1
            self.overwritten += int(np.count_nonzero(index.pattern[cells[start:stop]]))
            self._write(index, cells[start:stop], streams[start:stop], obs[start:stop])
            index.written[cells[start:stop] // (self.n_streams * _BLOCK)] = True
            start = stop

    def _write(
        self,
        index: FrameIndex,
        cells: slice | npt.NDArray[np.int64],
        streams: npt.NDArray[np.int64],
        obs: npt.NDArray[Any],
    ) -> None:
        if self.must_compact:
            self._rebuild(self.layout)
        if len(self.patterns) + self.n_streams > self.pattern_limit:
            self._rebuild(self.layout)  # forgets patterns that are no longer in use
        self.writes += 1
        if self.layout.depth == 1 and self._time_to_probe():
            self._probe(streams, obs)
        memory, turned = memory_order(obs, self.layout.axis)
        if memory.__array_interface__["data"][0] % 8 or not memory.flags.writeable:
            memory = memory.copy()  # compiled code takes only one kind of array
        if turned != self.turned:
            self._turn(turned)
        m = len(streams)
        frames, status = self.frames[:m], self.status[:m]
        if self.coder.match(memory, self.last, self.known, streams, turned, self.state, frames, status):
            for row, (stream, what) in enumerate(zip(streams.tolist(), status.tolist(), strict=True)):
                if what == SAME:
                    continue
                if what == OTHER:
                    self._write_other(stream, memory[row : row + 1])
                    continue
                if what == APPENDED:
                    self._enter(stream)
                    continue
                if what == REPEAT:
                    number = int(self.state.slots[stream, -1])
                else:
                    number = self.coder.append(stream, frames[row], self._reclaim, fresh=False)
                self._move_on(stream, number)
        whole = streams is self._all
        state = self.state
        index.newest[cells] = state.entry_newest if whole else state.entry_newest[streams]
        index.pattern[cells] = state.entry_pattern if whole else state.entry_pattern[streams]

    def _move_on(self, stream: int, number: int) -> None:
        """The last observation of a stream, less its oldest frame, plus this one."""
        state = self.state
        slots = state.slots[stream]
        state.runs[stream] = state.runs[stream] + 1 if number == slots[-1] + 1 else 1
        slots[:-1] = slots[1:]
        slots[-1] = number
        state.tail_is_newest[stream] = True
        self._enter(stream)

    def _write_other(self, stream: int, memory: ByteArray) -> None:
        """An observation that does not follow from the last one: look for each of its frames."""
        layout = self.layout
        now = layout.split(c_order(memory, self.turned, layout))[0]
        known: list[tuple[int, ByteArray]] = []
        if self.known[stream]:
            before = layout.split(c_order(self.last[stream : stream + 1], self.turned, layout))[0]
            head = int(self.coder.heads[stream])
            known = [
                (number, frame)
                for number, frame in zip(self.state.slots[stream].tolist(), before, strict=True)
                if number != ZERO and head - number < MAX_DISTANCE
            ]
        slots = []
        for frame in now:
            number = ZERO
            if frame.any():
                number = next((number for number, other in known if np.array_equal(frame, other)), ZERO)
                if number == ZERO:
                    number = self._append(stream, frame)
                    known.append((number, frame))
            slots.append(number)
        self.state.slots[stream] = slots
        self.state.runs[stream] = 0
        self.state.tail_is_newest[stream] = slots[-1] == self.coder.heads[stream]
        self._enter(stream)
        self.last[stream] = memory[0]
        self.known[stream] = True

    def _append(self, stream: int, frame: ByteArray) -> int:
        row = padded_rows(1, self.layout.frame_bytes)[0]
        row[: frame.size] = frame
        return self.coder.append(stream, row, self._reclaim)

    def _enter(self, stream: int) -> None:
        """Make the index entry for the frames of a stream's last observation."""
        slots = self.state.slots[stream].tolist()
        newest = max(slots)
        offsets = tuple([ZERO if number == ZERO else newest - number for number in slots])
        self.state.entry_newest[stream] = max(newest, 0) & ROUND
        self.state.entry_pattern[stream] = self.patterns.intern(offsets)

    def _turn(self, turned: bool) -> None:
        """Bring the last observations into the other memory order."""
        layout = self.layout
        if turned:
            planes = self.last.reshape(self.n_streams, layout.length, -1, layout.itemsize)
            self.last = np.ascontiguousarray(planes.swapaxes(1, 2)).reshape(self.n_streams, -1)
        else:
            self.last = c_order(self.last, True, layout)
        self.turned = turned

    # -- finding the layout ---------------------------------------------------------------------------------------

    def _time_to_probe(self) -> bool:
        return self.writes <= _LAST_PROBE and (self.writes <= 16 or self.writes & (self.writes - 1) == 0)

    def _probe(self, streams: npt.NDArray[np.int64], obs: npt.NDArray[Any]) -> None:
        """Look for a frame stack between the last observations and these; once one is seen, store by frames."""
        known = self.known[streams]
        if not known.any():
            return
        before = c_order(self.last[streams[known]], self.turned, self.layout)
        after = np.ascontiguousarray(obs[known]).reshape(-1).view(np.uint8).reshape(len(before), -1)
        layout = find_stack(self.obs_shape, self.dtype.itemsize, before, after)
        if layout is not None:
            self._rebuild(layout)

    # -- reading --------------------------------------------------------------------------------------------------

    def read(self, cells: npt.NDArray[np.int64], parts: Sequence[tuple[FrameIndex, npt.NDArray[Any]]]) -> None:
        """
        Read observations of one array, or of two at the same cells; frames that they share are decoded once.

        :param cells: ``(m,)``
        :param parts: For each array its index and a C-contiguous output ``(m, *obs_shape)`` of the store's dtype
        """
        if len(cells) == 0:
            return
        outs = [out.reshape(-1).view(np.uint8).reshape(len(cells), -1) for _, out in parts]
        tables = [(index.newest, index.pattern) for index, _ in parts]
        self.coder.read(cells, tables, self.patterns.offsets, outs)

    # -- housekeeping ---------------------------------------------------------------------------------------------

    def _reclaim(self) -> None:
        """Recycle what overwritten cells have left behind."""
        if not self.overwritten:
            return
        self.overwritten = 0
        self.coder.release(self._oldest_frames())
        held = self.coder.stored_frames
        if held > self.check_at:
            # Cells may be overwritten in any order; then old segments stay for the sake of a few frames.
            live = self._count_live()
            self.must_compact = 2 * live < held
            self.check_at = max(_FIRST_CHECK, 2 * live)

    def _oldest_frames(self) -> npt.NDArray[np.int64]:
        """For each stream the oldest frame in use."""
        oldest = self.coder.heads.copy()
        for stream, slots in enumerate(self.state.slots.tolist()):
            oldest[stream] = min((number for number in slots if number != ZERO), default=oldest[stream])
        for index in self.indexes:
            for block in np.flatnonzero(index.written).tolist():
                self._scan_block(index, block)
            index.written[:] = False
            np.minimum(oldest, index.oldest.min(axis=0, initial=_NOTHING), out=oldest)
        return np.maximum(oldest, 0)

    def _scan_block(self, index: FrameIndex, block: int) -> None:
        """Find the oldest frame of each stream in a block of rows."""
        cells = slice(block * _BLOCK * self.n_streams, (block + 1) * _BLOCK * self.n_streams)
        heads = self.coder.heads
        back = self.patterns.reach[index.pattern[cells].reshape(-1, self.n_streams)]
        age = ((heads - index.newest[cells].reshape(-1, self.n_streams)) & ROUND) + back
        index.oldest[block] = np.where(back < 0, _NOTHING, heads - age).min(axis=0)

    def _chronicle(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """All written cells in the order of their frames: index, cell, and the number of the newest frame."""
        which, cells, numbers = [], [], []
        for place, index in enumerate(self.indexes):
            written = np.flatnonzero(index.pattern)
            heads = self.coder.heads[written % self.n_streams]
            which.append(np.full(len(written), place, dtype=np.int64))
            cells.append(written)
            numbers.append(heads - ((heads - index.newest[written]) & ROUND))
        order = np.argsort(np.concatenate(numbers), kind="stable")
        return np.concatenate(which)[order], np.concatenate(cells)[order], np.concatenate(numbers)[order]

    def _count_live(self) -> int:
        """Distinct frames in use, about: each observation counts for its newest one, and those are most of them."""
        _, cells, numbers = self._chronicle()
        return len(np.unique(numbers * self.n_streams + cells % self.n_streams))

    def _rebuild(self, layout: FrameLayout) -> None:
        """Store everything again, under another layout or to be rid of what is no longer in use."""
        fresh = FrameStore(self.obs_shape, self.dtype, self.n_streams, self.make_coder)
        fresh._begin(layout)
        fresh.writes = _LAST_PROBE + 1
        twins = [fresh.new_index(len(index.pattern)) for index in self.indexes]
        fresh.pattern_limit = _WIDE_LIMIT
        for twin in twins:
            twin.pattern = twin.pattern.astype(np.uint32)
        which, cells, _ = self._chronicle()
        for start in range(0, len(cells), _BATCH):
            some = slice(start, start + _BATCH)
            obs = np.empty((len(cells[some]), *self.obs_shape), dtype=self.dtype)
            for place, index in enumerate(self.indexes):
                chosen = which[some] == place
                part = np.empty((int(chosen.sum()), *self.obs_shape), dtype=self.dtype)
                self.read(cells[some][chosen], [(index, part)])
                obs[chosen] = part
            for row, place in enumerate(which[some].tolist()):
                fresh.write_cells(twins[place], cells[start + row : start + row + 1], obs[row : row + 1])
        for stream in np.flatnonzero(self.known).tolist():
            # The last observation of a stream is what the next one is compared with.
            self._remember(fresh, stream)
        narrow = 2 * len(fresh.patterns) <= _NARROW_LIMIT
        if narrow:
            fresh.pattern_limit = _NARROW_LIMIT
        for index, twin in zip(self.indexes, twins, strict=True):
            index.newest, index.pattern = twin.newest, twin.pattern.astype(np.uint16) if narrow else twin.pattern
            index.oldest, index.written = twin.oldest, twin.written
        indexes, writes = self.indexes, self.writes
        self.__dict__.update(fresh.__dict__)
        self.indexes, self.writes = indexes, writes

    def _remember(self, fresh: FrameStore, stream: int) -> None:
        """Make a stream's last observation the last one in a new store, too."""
        memory = c_order(self.last[stream : stream + 1], self.turned, self.layout)
        scrap = fresh._index_of(self.n_streams)
        obs = memory.view(self.dtype).reshape(1, *self.obs_shape)
        fresh.write_cells(scrap, np.array([stream]), obs)
