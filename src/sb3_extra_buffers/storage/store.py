"""The observation store: observations in, observations out, each frame kept once."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sb3_extra_buffers.storage.coder import FrameCoder, Write
from sb3_extra_buffers.storage.frame_index import FrameIndex
from sb3_extra_buffers.storage.layout import ByteArray, FrameLayout, c_order, memory_order
from sb3_extra_buffers.storage.liveness import chronicle, count_live, oldest_frames
from sb3_extra_buffers.storage.loading import check_store
from sb3_extra_buffers.storage.locks import StoreLock
from sb3_extra_buffers.storage.matching import APPENDED, FRAME, OTHER, REPEAT
from sb3_extra_buffers.storage.methods import CoderSpec
from sb3_extra_buffers.storage.patterns import MAX_DISTANCE, ROUND, ZERO
from sb3_extra_buffers.storage.records import padded_rows
from sb3_extra_buffers.storage.stacks import Doubt, StackSearch, is_padded
from sb3_extra_buffers.storage.streams import NO_CELLS, all_cells

_FIRST_CHECK = 1 << 10
_FEW_SEGMENTS = 3
_BATCH = 256
# Patterns that the 16 bits of an index number, and what it can number when they are not enough.
_NARROW_LIMIT = 1 << 16
_WIDE_LIMIT = 1 << 32


def _bytes_of(array: npt.NDArray[Any]) -> ByteArray:
    flat = array.reshape(-1)
    return flat if flat.dtype == np.uint8 else flat.view(np.uint8)


class FrameStore:
    """
    Frames of ``n_streams`` environments, and the arrays (``FrameIndex``) that are made of them.

    Cell ``c`` of an index belongs to stream ``c % n_streams``.

    :param obs_shape: Shape of one observation, of at least one element
    :param dtype: Type of its elements
    :param n_streams: Number of streams
    :param make_coder: What makes the coder
    :param lock: Held by whoever reads or writes; one of its own by default
    """

    def __init__(
        self,
        obs_shape: tuple[int, ...],
        dtype: npt.DTypeLike,
        n_streams: int,
        make_coder: CoderSpec,
        lock: StoreLock | None = None,
    ) -> None:
        self.lock = StoreLock() if lock is None else lock
        self.dtype = np.dtype(dtype)
        self.obs_shape = obs_shape
        self.n_streams = n_streams
        self.make_coder = make_coder
        self.indexes: list[FrameIndex] = []
        self.writes = 0
        # Set while a write is under way. If it is set when the next one begins, after Ctrl-C or in a loaded store, what the
        # store knows of the last observations may be half of one write and half of another, and must not be built on.
        self.unfinished = False
        # What this store is about to become, see ``_rebuild``.
        self._successor: tuple[FrameStore, list[FrameIndex]] | None = None
        self.search = StackSearch(obs_shape, self.dtype.itemsize)
        self.next_probe = 1  # which write to look for a frame stack at; 0 for none
        self._begin(FrameLayout.whole(obs_shape, self.dtype.itemsize))

    def _begin(self, layout: FrameLayout) -> None:
        """Start with an empty log."""
        self.layout = layout
        if layout.depth > 1:
            self.next_probe = 0
        # Made at the first use: a coder may have to load compiled code.
        self._coder: FrameCoder | None = None
        self.check_at = _FIRST_CHECK
        self.must_compact = False
        self.doubt = Doubt(layout, self.n_streams)
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
        index = FrameIndex(cells, self.n_streams)
        self.indexes.append(index)
        return index

    def clear(self) -> None:
        """Forget all observations; layout and memory stay."""
        with self.lock:
            self._settle()
            for index in self.indexes:
                index.clear()
            before, doubt = self._coder, self.doubt
            self._begin(self.layout)
            self.doubt = doubt  # a rollout may be too short to show that its layout does not pay
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
        return max((index.bytes_a_cell for index in self.indexes), default=0)

    def copy_of(self, index: FrameIndex) -> tuple[FrameStore, FrameIndex]:
        """
        Copy one array and the frames.

        :param index: The array
        :return: A store that holds it alone, and its index there
        """
        with self.lock:
            twin = copy.copy(self)
            twin.indexes = [index]
            twin = copy.deepcopy(twin)
            return twin, twin.indexes[0]

    # -- writing --------------------------------------------------------------------------------------------------

    def write_row(self, row: int, parts: Sequence[tuple[FrameIndex, npt.NDArray[Any]]]) -> None:
        """
        Write one observation of every stream, into one array or the same row of two, one after the other.

        :param row: Row of ``n_streams`` cells
        :param parts: For each array its index and ``(n_streams, *obs_shape)`` of the store's dtype, in any memory order
        """
        with self.lock:
            self._write(parts, row * self.n_streams, NO_CELLS)

    def write_cells(self, index: FrameIndex, cells: npt.NDArray[np.int64], obs: npt.NDArray[Any]) -> None:
        """
        Write observations to any cells, one after the other.

        :param index: The array
        :param cells: ``(m,)``
        :param obs: ``(m, *obs_shape)`` of the store's dtype
        """
        cells = np.ascontiguousarray(cells, dtype=np.int64)  # compiled code gets the address
        streams = cells % self.n_streams
        start = 0
        with self.lock:
            while start < len(cells):  # as far as streams are distinct
                seen: set[int] = set()
                stop = start
                for stream in streams[start : start + self.n_streams].tolist():
                    if stream in seen:
                        break
                    seen.add(stream)
                    stop += 1
                self._write([(index, obs[start:stop])], 0, cells[start:stop])
                start = stop

    def _write(self, parts: Sequence[tuple[FrameIndex, npt.NDArray[Any]]], base: int, cells: npt.NDArray[np.int64]) -> None:
        if self._successor is not None:
            self._settle()
        if self.unfinished:
            self.coder.forget_last()
        self.unfinished = True
        if self.must_compact:
            self._compact()
        writes: list[Write] = []
        for index, obs in parts:
            self.writes += 1
            if self.writes == self.next_probe:
                self._put(writes, base, cells)
                writes = []
                self._probe(all_cells(base, cells, self.n_streams) % self.n_streams, obs)
            memory, turned = memory_order(obs, self.layout)
            if turned != self.coder.state.turned:
                self._put(writes, base, cells)
                writes = []
                self._turn(turned)
            writes.append((index, memory))
        self._put(writes, base, cells)
        self.unfinished = False

    def _put(self, writes: Sequence[Write], base: int, cells: npt.NDArray[np.int64]) -> None:
        part = 0
        while part < len(writes):
            part = self.coder.put(writes, part, base, cells)
            if part < len(writes):
                index, memory = writes[part]
                self._help(index, memory, all_cells(base, cells, self.n_streams))
                part += 1

    def _help(self, index: FrameIndex, memory: ByteArray, cells: npt.NDArray[np.int64]) -> None:
        """Do what the coder has left to do of one write."""
        coder, state = self.coder, self.coder.state
        streams = cells % self.n_streams
        rows = memory.reshape(len(cells), -1)
        for row, (stream, what) in enumerate(zip(streams.tolist(), state.status.tolist(), strict=False)):
            if what == OTHER:
                self._write_other(stream, rows[row : row + 1])
            elif what == APPENDED:
                self._enter(stream)
            elif what == REPEAT:
                self._move_on(stream, int(state.slots[stream, -1]))
            elif what == FRAME:
                self._move_on(stream, coder.append(stream, state.frames[row], self._reclaim, fresh=False))
        index.enter(cells, state.entry_newest[streams], state.entry_pattern[streams])
        if self.doubt.is_too_great(self._most_held()):
            self.must_compact = True
        # One write is up to two observations of each stream. Compacting forgets patterns that are no longer in use.
        if len(coder.patterns) + 2 * self.n_streams > self.pattern_limit:
            self.must_compact = True

    def _move_on(self, stream: int, number: int) -> None:
        """The last observation of a stream, less its oldest frame, plus this one."""
        state = self.coder.state
        slots = state.slots[stream]
        state.runs[stream] = state.runs[stream] + 1 if number == slots[-1] + 1 else 1
        slots[:-1] = slots[1:]
        slots[-1] = number
        state.tail_is_newest[stream] = True
        self._enter(stream)

    def _write_other(self, stream: int, memory: ByteArray) -> None:
        """An observation that does not follow from the last one: look for each of its frames."""
        layout, state = self.layout, self.coder.state
        now = layout.split(c_order(memory, state.turned, layout))[0]
        known: dict[bytes, int] = {}
        if state.known[stream]:
            if not is_padded(now):
                self.doubt.note_stray(self.writes)
            before = layout.split(c_order(state.last[stream : stream + 1], state.turned, layout))[0]
            head = int(self.coder.heads[stream])
            known = {
                frame.tobytes(): number
                for number, frame in zip(state.slots[stream].tolist(), before, strict=True)
                if number != ZERO and head - number < MAX_DISTANCE
            }
        slots = []
        for frame in now:
            number = ZERO
            if frame.any():
                content = frame.tobytes()
                number = known.get(content, ZERO)
                if number == ZERO:
                    number = known[content] = self._append(stream, frame)
                    if (state.slots[stream] == ZERO).all():
                        state.slots[stream, -1] = number  # in use, though no entry says so yet
            slots.append(number)
        state.slots[stream] = slots
        state.runs[stream] = 0
        state.tail_is_newest[stream] = slots[-1] == self.coder.heads[stream]
        self._enter(stream)
        state.last[stream] = memory[0]
        state.known[stream] = True

    def _append(self, stream: int, frame: ByteArray) -> int:
        row = padded_rows(1, self.layout.frame_bytes)[0]
        row[: frame.size] = frame
        return self.coder.append(stream, row, self._reclaim)

    def _enter(self, stream: int) -> None:
        """Make the index entry for the frames of a stream's last observation."""
        state = self.coder.state
        slots = state.slots[stream].tolist()
        newest = max(slots)
        offsets = tuple([ZERO if number == ZERO else newest - number for number in slots])
        state.entry_newest[stream] = max(newest, 0) & ROUND
        state.entry_pattern[stream] = self.coder.patterns.intern(offsets)

    def _turn(self, turned: bool) -> None:
        """Bring the last observations into the other memory order."""
        layout, last, state = self.layout, self.coder.last, self.coder.state
        if turned:
            planes = last.reshape(self.n_streams, layout.length, -1, layout.itemsize)
            state.last[...] = planes.swapaxes(1, 2).reshape(self.n_streams, -1)
        else:
            state.last[...] = c_order(last, True, layout)
        state.turned = turned

    # -- finding the layout ---------------------------------------------------------------------------------------

    def _probe(self, streams: npt.NDArray[np.int64], obs: npt.NDArray[Any]) -> None:
        """Look for a frame stack between the last observations and these; once there is one, store by frames."""
        known = self.coder.state.known[streams]
        layout = None
        if known.any():
            before = c_order(self.coder.last[streams[known]], self.coder.state.turned, self.layout)
            after = np.ascontiguousarray(obs[known]).reshape(-1).view(np.uint8).reshape(len(before), -1)
            layout = self.search.look(before, after)
        self.next_probe = self.search.next_look(self.writes)
        if layout is not None:
            self._rebuild(layout)
            self.next_probe = 0

    # -- reading --------------------------------------------------------------------------------------------------

    def read(self, cells: npt.NDArray[np.int64], parts: Sequence[tuple[FrameIndex, npt.NDArray[Any]]]) -> None:
        """
        Read observations of one array, or of two at the same cells; frames that they share are decoded once.

        :param cells: ``(m,)``
        :param parts: For each array its index and a C-contiguous output ``(m, *obs_shape)`` of the store's dtype
        """
        if len(cells):
            cells = np.ascontiguousarray(cells)  # for another kind of array compiled code would be compiled again
            with self.lock:
                if self._successor is not None:
                    self._settle()
                self.coder.read(cells, [index for index, _ in parts], [_bytes_of(out) for _, out in parts])

    def read_pairs(
        self,
        rows: npt.NDArray[np.int64],
        columns: npt.NDArray[np.int64],
        n_rows: int,
        parts: Sequence[tuple[FrameIndex, npt.NDArray[Any]]],
    ) -> bool:
        """
        Read observations at rows and columns.

        :param rows: ``(m,)``
        :param columns: ``(m,)``
        :param n_rows: Number of rows
        :param parts: As for ``read``
        :return: False, and nothing read, where an index is negative or out of bounds
        """
        outs = [_bytes_of(out) for _, out in parts]
        with self.lock:
            if self._successor is not None:
                self._settle()
            return self.coder.read_pairs(rows, columns, n_rows, [index for index, _ in parts], outs)

    # -- housekeeping ---------------------------------------------------------------------------------------------

    def _reclaim(self) -> None:
        """Recycle what overwritten cells have left behind."""
        if not sum([index.take_overwritten() for index in self.indexes]):
            return
        self.coder.release(oldest_frames(self))
        # A ring leaves frames behind in the segment that it is about to leave and in the one that it fills. They go by
        # themselves, and a log of so few segments would not be smaller without them.
        if len(self.coder.log.order) <= _FEW_SEGMENTS:
            return
        held = self.coder.stored_frames
        if held > self.check_at:
            # Cells may be overwritten in any order; then old segments stay for the sake of a few frames.
            live = count_live(self)
            self.must_compact = 2 * live < held
            self.check_at = max(_FIRST_CHECK, 2 * live)

    def _compact(self) -> None:
        """Be rid of what is no longer in use; and of a layout that does not pay."""
        layout = self.layout
        if not self.doubt.is_too_great(self._most_held()):
            self._rebuild(layout)
            return
        try:
            self._rebuild(FrameLayout.whole(self.obs_shape, self.dtype.itemsize))
        except MemoryError:  # so it stays as it is, until as many strays have come again
            self.must_compact, self.doubt = False, Doubt(layout, self.n_streams)
            return
        self.search.reject(layout)
        self.next_probe = self.search.next_look(self.writes)

    def _most_held(self) -> int:
        """No fewer observations than are held, found without counting them."""
        return min(self.writes * self.n_streams, sum([len(index.pattern) for index in self.indexes]))

    def _rebuild(self, layout: FrameLayout) -> None:
        """Store everything again, under another layout or to be rid of what is no longer in use."""
        fresh = FrameStore(self.obs_shape, self.dtype, self.n_streams, self.make_coder, self.lock)
        fresh._begin(layout)
        fresh.next_probe = 0
        doubt = self.doubt if layout == self.layout else fresh.doubt
        fresh.doubt = Doubt(self.layout.whole(self.obs_shape, self.dtype.itemsize), self.n_streams)  # none before all is there
        twins = [fresh.new_index(len(index.pattern)) for index in self.indexes]
        fresh.pattern_limit = _WIDE_LIMIT
        for twin in twins:
            twin.widen()
        which, cells, _ = chronicle(self)
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
        for stream in np.flatnonzero(self.coder.state.known).tolist():
            # The last observation of a stream is what the next one is compared with.
            self._remember(fresh, stream)
        fresh.doubt = doubt
        count = len(fresh.coder.patterns)
        narrow = 2 * count <= _NARROW_LIMIT
        fresh.pattern_limit = _NARROW_LIMIT if narrow else 2 * count + 4 * self.n_streams
        fresh.check_at = max(_FIRST_CHECK, 2 * fresh.coder.stored_frames)  # not again before there is as much to gain
        if narrow:
            for twin in twins:
                twin.narrow()
        self._successor = (fresh, twins)
        self._settle()

    def _settle(self) -> None:
        """Become the successor, if there is one; before anything else is done, for an interrupt may have come between."""
        if self._successor is None:
            return
        fresh, twins = self._successor
        for index, twin in zip(self.indexes, twins, strict=True):
            index.become(twin)
        kept = {name: self.__dict__[name] for name in ("lock", "indexes", "writes", "search", "next_probe", "unfinished")}
        self.__dict__.update(fresh.__dict__, **kept)  # in one step, and with it the successor is none any more

    def __getstate__(self) -> dict[str, Any]:
        self._settle()
        return self.__dict__

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        check_store(self)

    def _remember(self, fresh: FrameStore, stream: int) -> None:
        """Make a stream's last observation the last one in a new store, too."""
        memory = c_order(self.coder.last[stream : stream + 1], self.coder.state.turned, self.layout)
        scrap = FrameIndex(self.n_streams, self.n_streams)
        obs = np.ascontiguousarray(memory).view(self.dtype).reshape(1, *self.obs_shape)
        fresh.write_cells(scrap, np.array([stream]), obs)
