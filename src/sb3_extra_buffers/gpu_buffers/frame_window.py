"""Which frames of an observation are stored already, decided by comparing bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sb3_extra_buffers.gpu_buffers.frame_table import EMPTY, FrameTable
from sb3_extra_buffers.gpu_buffers.raw_buffer import ByteArray
from sb3_extra_buffers.storage.layout import FrameLayout, c_order, memory_order

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
        self.forget()

    def forget(self) -> None:
        """Know nothing; the next observation is stored in full."""
        self._memory: npt.NDArray[Any] | None = None
        self._turned = False
        self._frames: npt.NDArray[Any] | None = None
        self._cells: Cells = np.zeros((self.n_envs, self.layout.depth), dtype=np.int32)

    def place(self, obs: npt.NDArray[Any]) -> Cells:
        """
        Find the frames of observations; those that are new are stored.

        :param obs: ``(n_envs, *obs_shape)``
        :return: ``(n_envs, depth)``, the cell of each frame
        """
        memory, turned = memory_order(obs, self.layout)
        memory = memory.reshape(self.n_envs, -1)
        words = _words(memory)
        same = np.zeros(self.n_envs, dtype=bool)
        if self._memory is not None and self._turned == turned:
            same = _equal(words, self._memory)
            if same.all():
                return self._cells
        frames = self.layout.split(c_order(memory, turned, self.layout))
        if np.may_share_memory(frames, obs):
            frames = frames.copy()  # the caller may write to what it gave us
        cells = self._place_frames(frames, same)
        self._frames, self._cells, self._turned, self._memory = _words(frames), cells, turned, words.copy()
        return cells

    def _place_frames(self, frames: ByteArray, same: npt.NDArray[np.bool_]) -> Cells:
        words = _words(frames)
        cells = np.full(frames.shape[:2], -1, dtype=np.int32)
        if self._frames is not None:
            before, known = self._frames, self._cells
            cells[:, :-1] = np.where(_equal(words[:, :-1], before[:, 1:]), known[:, 1:], -1)
            cells[:, -1] = np.where(_equal(words[:, -1], before[:, -1]), known[:, -1], -1)
            cells[same] = known[same]
            if (cells[:, :-1] < 0).any():  # not one frame further: look everywhere
                for old in range(self.layout.depth):
                    found = (cells < 0) & _equal(words, before[:, old : old + 1])
                    cells = np.where(found, known[:, old : old + 1], cells)
        unknown = cells < 0
        for column in np.flatnonzero(unknown.any(axis=0)):
            envs = np.flatnonzero(unknown[:, column])
            blank = ~words[envs, column].any(axis=-1)
            cells[envs[blank], column] = EMPTY
            envs = envs[~blank]
            if column:  # a reset that repeats its first frame
                again = _equal(words[envs, column], words[envs, column - 1])
                cells[envs[again], column] = cells[envs[again], column - 1]
                envs = envs[~again]
            if len(envs):
                cells[envs, column] = self.table.add(frames[envs, column], envs)
        return cells
