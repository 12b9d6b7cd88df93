"""Frames that are stored once and referred to from many places."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch as th

from sb3_extra_buffers.gpu_buffers.frame_coding import FrameCoding
from sb3_extra_buffers.gpu_buffers.raw_buffer import ByteArray, Indices

EMPTY = 0
"""The cell of the frame that is all zeros: what was never written, and the padding of a frame stack."""
_FOR_EVER = 1 << 30
_AT_ONCE = 16


class FrameTable:
    """
    Frames by cell: how often each is referred to, and what it is coded against.

    Everything here but the frames themselves follows from who refers to what, so it can be made again (``rebuild``) after
    an interruption.

    :param coding: How frames become payloads; its heap has the cells
    """

    def __init__(self, coding: FrameCoding) -> None:
        self.coding, self.heap = coding, coding.heap
        self._clear_tables()
        self._write_empty()

    def _clear_tables(self) -> None:
        count = self.heap.n_cells
        self.keys = np.arange(count, dtype=np.int32)
        self.refs = np.zeros(count, dtype=np.int32)
        self.refs[EMPTY] = _FOR_EVER
        self._free = np.arange(count, dtype=np.int32)[::-1].copy()  # a stack, without EMPTY at its end
        self._n_free = count - 1
        self._roots: Indices = np.empty(0, dtype=np.int64)
        self._held: list[Indices] = []
        self._dropped: list[Indices] = []
        self._fresh: list[Indices] = []

    def _write_empty(self) -> None:
        cells = np.array([EMPTY])
        self.coding.forget()
        encoded = self.coding.encode(np.zeros((1, self.coding.frame_bytes), dtype=np.uint8), np.zeros(1, np.int64), cells)
        self.heap.write(cells, encoded.payload, encoded.lengths)
        self.coding.forget()

    @property
    def stored(self) -> int:
        """Number of frames; exact after ``settle``."""
        return self.heap.n_cells - self._n_free

    def add(self, frames: ByteArray, envs: Indices) -> npt.NDArray[np.int32]:
        """
        Store frames, to which nothing refers as yet.

        :param frames: ``(n, frame_bytes)``
        :param envs: The environment that each is from, each at most once
        :return: Their cells
        """
        if self._n_free < len(frames):
            self.settle()
        while self._n_free < len(frames):
            self._grow()
        self._n_free -= len(frames)
        cells = self._free[self._n_free : self._n_free + len(frames)].copy()
        encoded = self.coding.encode(frames, envs, cells)
        if self.heap.data_end + len(encoded.payload) > self.heap.capacity:
            self.settle()  # before anything is moved or refused
        stored = cells if encoded.order is None else cells[encoded.order]
        self.heap.write(stored, encoded.payload, encoded.lengths)
        self.keys[stored] = encoded.keys
        self._fresh.append(cells)
        alone = encoded.keys == stored
        if not alone.any():
            self._held.append(encoded.keys)
            return cells
        self._held.append(encoded.keys[~alone])
        roots = self.coding.key_cells()
        self._held.append(roots)
        self._dropped.append(self._roots)
        self._roots = roots
        return cells

    def _grow(self) -> None:
        count = self.heap.n_cells
        self.heap.add_cells(count)
        more = np.arange(count, 2 * count, dtype=np.int32)
        self.keys = np.concatenate([self.keys, more])
        self.refs = np.concatenate([self.refs, np.zeros(count, dtype=np.int32)])
        free = np.concatenate([more[::-1], self._free[: self._n_free]])
        self._free = np.concatenate([free, np.zeros(2 * count - len(free), dtype=np.int32)])
        self._n_free += count

    def hold(self, cells: Indices) -> None:
        """
        Refer to frames; those that were added since the last time and are not among them may be gone from now on.

        :param cells: Their cells, each as often as it is referred to
        """
        self._held.append(cells.reshape(-1))
        self._fresh = []

    def drop(self, cells: Indices) -> None:
        """
        Refer to frames no longer; those that nothing refers to will be gone.

        :param cells: Their cells, each as often as it was referred to
        """
        self._dropped.append(cells.reshape(-1))
        if len(self._dropped) >= _AT_ONCE:
            self.settle()

    def settle(self) -> None:
        """Count references; that of many rows at once takes hardly longer than that of one."""
        if not self._dropped:
            return
        dropped = np.concatenate(self._dropped)
        np.add.at(self.refs, np.concatenate(self._held), 1)
        np.subtract.at(self.refs, dropped, 1)
        self._held, self._dropped = [], []
        dead = self._unused(dropped)
        self._give_back(dead)
        keys = self.keys[dead]
        keys = keys[keys != dead]
        np.subtract.at(self.refs, keys, 1)
        self._give_back(self._unused(keys))  # key frames are coded against nothing, so it ends here

    def _unused(self, cells: Indices) -> Indices:
        unused = np.unique(cells[self.refs[cells] == 0])
        # An observation that is being put together is not referred to before all of its frames are there.
        return np.setdiff1d(unused, np.concatenate(self._fresh)) if self._fresh and len(unused) else unused

    def _give_back(self, cells: Indices) -> None:
        self.heap.clear(cells)
        self._free[self._n_free : self._n_free + len(cells)] = cells
        self._n_free += len(cells)

    def read(self, cells: Indices) -> th.Tensor:
        """
        Read frames.

        :param cells: Their cells
        :return: ``(n, frame_bytes)``, on the device
        """
        self.heap.recover()
        return self.coding.decode(cells, self.keys[cells])

    def rebuild(self, held: Indices) -> None:
        """
        Find out anew what is in use.

        :param held: The cells that are referred to, each as often as it is
        """
        self.heap.recover()
        self.coding.forget()
        count = self.heap.n_cells
        keys = np.arange(count, dtype=np.int32)
        keys[: len(self.keys)] = self.keys
        self.keys = keys  # at once: without what it is coded against a frame would be lost
        refs = np.bincount(held.reshape(-1), minlength=count)
        refs[EMPTY] += _FOR_EVER
        cells = np.flatnonzero(refs)
        needed = keys[cells]
        refs += np.bincount(needed[needed != cells], minlength=count)
        self.refs = refs.astype(np.int32)
        self._roots, self._held, self._dropped, self._fresh = np.empty(0, dtype=np.int64), [], [], []
        self._free, self._n_free = np.zeros(count, dtype=np.int32), 0
        self._give_back(np.flatnonzero(refs == 0)[::-1])
        if not self.heap.lengths_array[EMPTY]:
            self._write_empty()

    def clear(self) -> None:
        """Forget all frames."""
        self.heap.clear_all()
        self._clear_tables()
        self._write_empty()

    @property
    def index_bytes(self) -> int:
        """Bytes that it takes to find the frames."""
        tables = (self.keys, self.refs, self._free, self.heap.starts_array, self.heap.lengths_array)
        return self.stored * sum(table.itemsize for table in tables)
