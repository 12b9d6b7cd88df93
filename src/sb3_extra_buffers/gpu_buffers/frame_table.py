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
        self._add_empty()

    def _clear_tables(self) -> None:
        count = self.heap.n_cells
        self.keys = np.arange(count, dtype=np.int32)
        self.refs = np.zeros(count, dtype=np.int32)
        self._free = np.arange(count, dtype=np.int32)[::-1].copy()  # a stack; EMPTY is taken first
        self._n_free = count
        self._roots: Indices = np.empty(0, dtype=np.int64)
        self._held: list[Indices] = []
        self._dropped: list[Indices] = []

    def _add_empty(self) -> None:
        self.add(np.zeros((1, self.coding.frame_bytes), dtype=np.uint8), np.zeros(1, dtype=np.int64))
        self.refs[EMPTY] = _FOR_EVER

    @property
    def stored(self) -> int:
        """Number of frames."""
        self.settle()
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
        Refer to frames.

        :param cells: Their cells, each as often as it is referred to
        """
        self._held.append(cells.reshape(-1))

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
        dead = np.unique(dropped[self.refs[dropped] == 0])
        self._give_back(dead)
        keys = self.keys[dead]
        keys = keys[keys != dead]
        np.subtract.at(self.refs, keys, 1)
        self._give_back(np.unique(keys[self.refs[keys] == 0]))  # key frames are coded against nothing, so it ends here

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
        self._roots = np.empty(0, dtype=np.int64)
        self._held, self._dropped = [], []
        count = self.heap.n_cells
        refs = np.bincount(held.reshape(-1), minlength=count)
        refs[EMPTY] += _FOR_EVER
        cells = np.flatnonzero(refs)
        keys = self.keys[cells]
        refs += np.bincount(keys[keys != cells], minlength=count)
        self.refs = refs.astype(np.int32)
        gone = np.flatnonzero(refs == 0)[::-1]
        self.heap.clear(gone)
        self.keys = np.concatenate([self.keys[:count], np.arange(len(self.keys), count, dtype=np.int32)])
        self._free = np.concatenate([gone, np.zeros(count - len(gone), dtype=np.int64)]).astype(np.int32)
        self._n_free = len(gone)

    def clear(self) -> None:
        """Forget all frames."""
        self.coding.forget()
        self.heap.clear_all()
        self._clear_tables()
        self._add_empty()

    @property
    def index_bytes(self) -> int:
        """Bytes that it takes to find the frames."""
        tables = (self.keys, self.refs, self._free, self.heap.starts_array, self.heap.lengths_array)
        return self.stored * sum(table.itemsize for table in tables)
