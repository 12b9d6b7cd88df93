"""Frames that are stored once and referenced from many observations."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch as th

from sb3_extra_buffers.gpu_buffers.codings import FrameCoding
from sb3_extra_buffers.gpu_buffers.raw_buffer import ByteArray, Indices
from sb3_extra_buffers.storage.layout import FrameLayout, c_order, memory_order
from sb3_extra_buffers.storage.stacks import Doubt

Cells = npt.NDArray[np.int32]

EMPTY = 0
"""The cell of the frame that is all zeros: what was never written, and the padding of a frame stack."""
_SWEPT_SLOTS = 4096  # at once: NumPy copies the indices


class FrameTable:
    """
    The frames of all slots, in the cells of a heap.

    No references are counted. Which cells are free is found out from ``cells`` when the free ones run out, or the heap is
    full. So whatever an interruption leaves behind is unused memory until then, and nothing else.
    """

    cells: Cells
    """``(slots, n_envs, views, depth)``: the cell of each frame of each observation."""
    keys: Cells
    """For each cell that of its key frame, or the cell itself."""

    def __init__(self, coding: FrameCoding, cells: Cells, keys: Cells | None = None) -> None:
        self.coding, self.heap, self.cells = coding, coding.heap, cells
        self._fresh: list[Indices] = []
        self._free: Cells = np.empty(0, dtype=np.int32)
        if keys is not None:  # frames that were saved
            self.keys = keys
            return
        self.keys = np.arange(self.heap.n_cells, dtype=np.int32)
        empty = np.array([EMPTY])
        encoded = coding.encode(np.zeros((1, coding.frame_bytes), dtype=np.uint8), np.zeros(1, np.int64), empty)
        self.heap.write(empty, encoded.payload, encoded.lengths)
        self.forget()

    def add(self, frames: ByteArray, envs: Indices) -> Cells:
        """Store ``(n, frame_bytes)`` of different environments; the slot that will refer to them is written later."""
        count = len(frames)
        if len(self._free) < count:
            self.sweep()
            while len(self._free) < max(count, self.heap.n_cells // 8):  # else there would soon be another sweep
                self._grow()
        cells = self._free[-count:]
        self._free = self._free[:-count]
        self._fresh.append(cells)
        encoded = self.coding.encode(frames, envs, cells)
        stored = cells if encoded.order is None else cells[encoded.order]
        self.keys[stored] = encoded.keys
        if self.heap.data_end + len(encoded.payload) > self.heap.capacity:
            self.sweep()  # before anything is moved or refused
        self.heap.write(stored, encoded.payload, encoded.lengths)
        return cells

    def refer(self, slot: int, cells: Indices) -> None:
        """Have a slot refer to frames; of those that were added before, others are given up."""
        self.cells[slot] = cells
        self._fresh = []

    def _grow(self) -> None:
        count = len(self.keys)
        self.heap.add_cells(2 * count - self.heap.n_cells)
        more = np.arange(count, 2 * count, dtype=np.int32)
        self.keys = np.concatenate([self.keys, more])
        self._free = np.concatenate([more[::-1], self._free])

    def in_use(self) -> npt.NDArray[np.bool_]:
        """For each cell whether something needs it: a slot, a write that has begun, or a frame whose key frame it is."""
        used = np.zeros(len(self.keys), dtype=bool)
        used[EMPTY] = True
        for first in range(0, len(self.cells), _SWEPT_SLOTS):
            used[self.cells[first : first + _SWEPT_SLOTS]] = True
        for cells in (self.coding.key_cells(), *self._fresh):
            used[cells] = True
        used[self.keys[used]] = True  # key frames have none themselves
        return used

    def sweep(self) -> None:
        """Find out which cells are free."""
        free = np.flatnonzero(~self.in_use())[::-1].astype(np.int32)
        self.heap.clear(free)
        self._free = free

    def read(self, cells: Indices) -> th.Tensor:
        """Read frames as ``(n, frame_bytes)``, on the device."""
        self.heap.recover()
        return self.coding.decode(cells, self.keys[cells])

    def compact(self) -> None:
        """Pack the heap."""
        self.sweep()
        self.heap.compact()

    def forget(self) -> None:
        """Give up what was added and is in no slot; what comes next is stored without reference to it."""
        self._fresh = []
        self.coding.forget()

    @property
    def cell_bytes(self) -> int:
        """Bytes that it takes to find the frame of a cell."""
        tables = (self.keys, self._free, self.heap.starts_array, self.heap.lengths_array)
        return sum(table.itemsize for table in tables)


def _words(data: ByteArray) -> npt.NDArray[Any]:
    """The same bytes in larger units, where they divide evenly: eight are compared as fast as one."""
    return data.view(np.int64) if data.shape[-1] % 8 == 0 and data.flags.c_contiguous else data


def _equal(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    same: npt.NDArray[np.bool_] = (one == other).all(axis=-1)
    return same


class FrameWindow:
    """The last observation of every environment and the cells of its frames: what is known need not be stored again."""

    def __init__(self, layout: FrameLayout, n_envs: int, table: FrameTable) -> None:
        self.layout, self.n_envs, self.table = layout, n_envs, table
        self._none = np.zeros(n_envs, dtype=bool)
        self.doubt = Doubt(layout, n_envs)
        self._n_found = 0
        self.forget()

    def forget(self) -> None:
        """Know nothing; the next observation is stored in full. What speaks against the layout is not forgotten."""
        self._memory: ByteArray | None = None
        self._spare: ByteArray = np.empty((self.n_envs, self.layout.obs_bytes), dtype=np.uint8)
        self._turned = False
        self._was_same = False
        self._newest: ByteArray = np.zeros((self.n_envs, self.layout.frame_bytes), dtype=np.uint8)
        self._cells: Cells = np.zeros((self.n_envs, self.layout.depth), dtype=np.int32)
        self.table.forget()

    def find(self, obs: npt.NDArray[Any]) -> Cells:
        """Find the cells of ``(n_envs, *obs_shape)`` as ``(n_envs, depth)``; frames that are not known are stored."""
        memory, turned = memory_order(obs, self.layout)
        memory = memory.reshape(self.n_envs, -1)
        before, spare = self._memory, self._spare
        cells = None
        if before is not None and self._turned == turned:
            # `obs` is nearly always what `next_obs` was, and `next_obs` one frame further: each is tried first in its turn.
            if self._was_same:
                cells = self._one_further(memory, before, spare, self._none)
            if cells is None:
                same = _equal(_words(memory), _words(before))
                if same.all():
                    self._was_same = True
                    return self._cells
                cells = self._one_further(memory, before, spare, same)
            self._was_same = False
        self._n_found += 1
        if cells is None:
            cells = self._search(memory, turned)
            if before is not None:
                self._note_strays(cells)
            self._newest = self._split(memory, turned)[:, -1].copy()
            spare[:] = memory
        # Now the spare memory is equal to what was given, which the caller may write to.
        self._spare = np.empty_like(spare) if before is None else before
        self._memory, self._turned, self._cells = spare, turned, cells
        return cells

    def _split(self, memory: ByteArray, turned: bool) -> ByteArray:
        return self.layout.split(c_order(memory, turned, self.layout))

    def _one_further(
        self, memory: ByteArray, before: ByteArray, expected: ByteArray, same: npt.NDArray[np.bool_]
    ) -> Cells | None:
        """The cells of observations that are the last ones, or those with one frame more; None if any is neither."""
        layout, turned, n_envs = self.layout, self._turned, self.n_envs
        # Bytes that one frame has next to each other, as observations lie in memory.
        part = layout.group * layout.itemsize if turned else layout.part_bytes
        by_frame = (n_envs, layout.obs_bytes // (part * layout.depth), layout.depth, part)
        latest = memory.reshape(by_frame)[:, :, -1]
        expected[:, : layout.obs_bytes - part] = before[:, part:]
        expected.reshape(by_frame)[:, :, -1] = latest
        if same.any():
            expected[same] = before[same]
        if not np.array_equal(_words(expected), _words(memory)):
            return None
        if turned and layout.group > 1:
            latest = latest.reshape(n_envs, -1, layout.group, layout.itemsize).swapaxes(1, 2)
        newest = np.empty_like(self._newest)
        newest.reshape(latest.shape)[...] = latest
        known = self._cells
        cells = np.empty_like(known)
        cells[:, :-1] = known[:, 1:]
        cells[:, -1] = known[:, -1]
        cells[same] = known[same]
        envs = np.flatnonzero(~_equal(_words(newest), _words(self._newest)))
        if len(envs):
            cells[envs, -1] = self._store(newest if len(envs) == n_envs else newest[envs], envs)
        self._newest = newest
        return cells

    def _search(self, memory: ByteArray, turned: bool) -> Cells:
        """The cells of any observations: an episode began, or it is no stack."""
        frames = self._split(memory, turned)
        words = _words(frames)
        cells = np.full(frames.shape[:2], -1, dtype=np.int32)
        if self._memory is not None:
            before = _words(self._split(self._memory, self._turned))
            for old in range(self.layout.depth):
                found = (cells < 0) & _equal(words, before[:, old : old + 1])
                cells = np.where(found, self._cells[:, old : old + 1], cells)
        for column in np.flatnonzero((cells < 0).any(axis=0)):
            envs = np.flatnonzero(cells[:, column] < 0)
            if column:  # a reset that repeats its first frame
                again = _equal(words[envs, column], words[envs, column - 1])
                cells[envs[again], column] = cells[envs[again], column - 1]
                envs = envs[~again]
            if len(envs):
                cells[envs, column] = self._store(frames[envs, column], envs)
        return cells

    def _note_strays(self, cells: Cells) -> None:
        """Count the observations that are neither one frame further nor the first of an episode."""
        known, older = self._cells, cells[:, :-1]
        expected = (cells == known).all(axis=1) | (older == known[:, 1:]).all(axis=1)
        expected |= (older == EMPTY).all(axis=1) | (older == cells[:, -1:]).all(axis=1)
        for _ in range(np.count_nonzero(~expected)):
            self.doubt.note_stray(self._n_found)

    def _store(self, frames: ByteArray, envs: npt.NDArray[np.intp]) -> Cells:
        cells = np.full(len(envs), EMPTY, dtype=np.int32)
        some = np.flatnonzero(_words(frames).any(axis=1))
        if len(some) == len(envs):
            return self.table.add(frames, envs)
        if len(some):
            cells[some] = self.table.add(frames[some], envs[some])
        return cells
