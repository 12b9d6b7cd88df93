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

    def _add_empty(self) -> None:
        self.add(np.zeros((1, self.coding.frame_bytes), dtype=np.uint8), np.zeros(1, dtype=np.int64))
        self.refs[EMPTY] = _FOR_EVER

    @property
    def stored(self) -> int:
        """Number of frames."""
        return self.heap.n_cells - self._n_free

    def add(self, frames: ByteArray, envs: Indices) -> npt.NDArray[np.int32]:
        """
        Store frames, to which nothing refers as yet.

        :param frames: ``(n, frame_bytes)``
        :param envs: The environment that each is from, each at most once
        :return: Their cells
        """
        while self._n_free < len(frames):
            self._grow()
        self._n_free -= len(frames)
        cells = self._free[self._n_free : self._n_free + len(frames)].copy()
        encoded = self.coding.encode(frames, envs, cells)
        stored = cells if encoded.order is None else cells[encoded.order]
        self.heap.write(stored, encoded.payload, encoded.lengths)
        self.keys[stored] = encoded.keys
        alone = encoded.keys == stored
        if not alone.any():
            np.add.at(self.refs, encoded.keys, 1)
            return cells
        np.add.at(self.refs, encoded.keys[~alone], 1)
        roots = self.coding.key_cells()
        np.add.at(self.refs, roots, 1)
        before, self._roots = self._roots, roots
        self.drop(before)
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
        np.add.at(self.refs, cells.reshape(-1), 1)

    def drop(self, cells: Indices) -> None:
        """
        Refer to frames no longer; those that nothing refers to are gone.

        :param cells: Their cells, each as often as it was referred to
        """
        cells = cells.reshape(-1)
        np.subtract.at(self.refs, cells, 1)
        dead = cells[self.refs[cells] == 0]
        if not len(dead):
            return
        dead = np.array(list(set(dead.tolist())))  # a frame is in a row several times; np.unique takes longer for a few
        self._give_back(dead)
        keys = self.keys[dead]
        keys = keys[keys != dead]
        np.subtract.at(self.refs, keys, 1)
        dead_keys = keys[self.refs[keys] == 0]
        if len(dead_keys):
            self._give_back(np.unique(dead_keys))  # key frames are coded against nothing, so it ends here

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
