"""Which frames of an observation are stored already, decided by comparing bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sb3_extra_buffers.gpu_buffers.frame_table import EMPTY, FrameTable
from sb3_extra_buffers.gpu_buffers.raw_buffer import ByteArray
from sb3_extra_buffers.storage.layout import FrameLayout, c_order, memory_order
from sb3_extra_buffers.storage.stacks import Doubt

Cells = npt.NDArray[np.int32]


def _words(data: ByteArray) -> npt.NDArray[Any]:
    """The same bytes in larger pieces, where they divide evenly: eight are compared as fast as one."""
    return data.view(np.int64) if data.shape[-1] % 8 == 0 and data.flags.c_contiguous else data


def _equal(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    same: npt.NDArray[np.bool_] = (one == other).all(axis=-1)
    return same


class FrameWindow:
    """
    The last observation of every environment, and where its frames are.

    After an interruption it is told to ``forget``: what it knows may be half of one thing and half of another.

    :param layout: How an observation splits into frames
    :param n_envs: Number of environments
    :param table: Where frames go that are not known
    """

    def __init__(self, layout: FrameLayout, n_envs: int, table: FrameTable) -> None:
        self.layout, self.n_envs, self.table = layout, n_envs, table
        self._none = np.zeros(n_envs, dtype=bool)
        self.doubt = Doubt(layout, n_envs)
        """What speaks against the layout; it is not forgotten."""
        self._places = 0
        self.forget()

    def forget(self) -> None:
        """Know nothing; the next observation is stored in full."""
        self._memory: ByteArray | None = None
        self._spare: ByteArray = np.empty((self.n_envs, self.layout.obs_bytes), dtype=np.uint8)
        self._turned = False
        self._was_same = False
        self._newest: ByteArray = np.zeros((self.n_envs, self.layout.frame_bytes), dtype=np.uint8)
        self._cells: Cells = np.zeros((self.n_envs, self.layout.depth), dtype=np.int32)

    def place(self, obs: npt.NDArray[Any]) -> Cells:
        """
        Find the frames of observations; those that are new are stored.

        :param obs: ``(n_envs, *obs_shape)``
        :return: ``(n_envs, depth)``, the cell of each frame
        """
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
        self._places += 1
        if cells is None:
            cells = self._anywhere(memory, turned)
            if before is not None:
                self._note_strays(cells)
            self._newest = self._frames(memory, turned)[:, -1].copy()
            spare[:] = memory
        # Now the spare memory is equal to what was given, which the caller may write to.
        self._spare = np.empty_like(spare) if before is None else before
        self._memory, self._turned, self._cells = spare, turned, cells
        return cells

    def _frames(self, memory: ByteArray, turned: bool) -> ByteArray:
        return self.layout.split(c_order(memory, turned, self.layout))

    def _one_further(
        self, memory: ByteArray, before: ByteArray, expected: ByteArray, same: npt.NDArray[np.bool_]
    ) -> Cells | None:
        """Place observations that are the last ones, or those with one frame more; None if any is neither."""
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

    def _anywhere(self, memory: ByteArray, turned: bool) -> Cells:
        """Place any observations: an episode began, or it is no stack."""
        frames = self._frames(memory, turned)
        words = _words(frames)
        cells = np.full(frames.shape[:2], -1, dtype=np.int32)
        if self._memory is not None:
            before = _words(self._frames(self._memory, self._turned))
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
            self.doubt.note_stray(self._places)

    def _store(self, frames: ByteArray, envs: npt.NDArray[np.intp]) -> Cells:
        cells = np.full(len(envs), EMPTY, dtype=np.int32)
        some = np.flatnonzero(_words(frames).any(axis=1))
        if len(some) == len(envs):
            return self.table.add(frames, envs)
        if len(some):
            cells[some] = self.table.add(frames[some], envs[some])
        return cells
