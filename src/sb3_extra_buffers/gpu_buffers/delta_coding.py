"""``delta``: key frames as they are, and for all others the words that changed; a batch is one gather and one scatter."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch as th

from sb3_extra_buffers.gpu_buffers.frame_coding import Encoded, FrameCoding
from sb3_extra_buffers.gpu_buffers.raw_buffer import ByteArray, Indices, SharedRawHeap

WORD = 4
RECORD = 8
"""A changed word: its four bytes, then its place in the frame."""


class DeltaCoding(FrameCoding):
    """
    Frames coded against the key frame of their environment, never against one another: no frame has to wait for another.

    A key frame lasts as long as it pays: until coding the next frame against it would take more than what its frames have
    taken on average so far, the key frame included.

    :param frame_bytes: Bytes of a frame
    :param heap: Where payloads are, aligned to 8 bytes
    :param n_envs: Number of environments
    """

    def __init__(self, frame_bytes: int, heap: SharedRawHeap, n_envs: int) -> None:
        super().__init__(frame_bytes, heap)
        self.n_envs = n_envs
        self.words = self.raw_bytes // WORD
        self._keys: npt.NDArray[np.int32] = np.zeros((n_envs, self.words), dtype=np.int32)
        self._key_cells = np.full(n_envs, -1, dtype=np.int64)
        self._taken = np.zeros(n_envs, dtype=np.int64)
        self._frames = np.zeros(n_envs, dtype=np.int64)
        self._worth = np.full(n_envs, -1, dtype=np.int64)

    def encode(self, frames: ByteArray, envs: Indices, cells: Indices) -> Encoded:
        words = self._padded(frames).view(np.int32)
        changed = words != (self._keys if len(envs) == self.n_envs else self._keys[envs])
        lengths = changed.sum(axis=1) * RECORD
        fresh = lengths > self._worth[envs]
        if not fresh.any():
            self._count(envs, lengths)
            return Encoded(self._records(words, changed), None, lengths, self._key_cells[envs])
        changed[fresh] = False
        stay = ~fresh
        self._count(envs[stay], lengths[stay])
        chosen = envs[fresh]
        self._keys[chosen], self._key_cells[chosen] = words[fresh], cells[fresh]
        self._taken[chosen], self._frames[chosen], self._worth[chosen] = self.raw_bytes, 1, self.raw_bytes - RECORD
        order = np.concatenate([np.flatnonzero(stay), np.flatnonzero(fresh)])
        payload = np.concatenate([self._records(words, changed), words[fresh].reshape(-1).view(np.uint8)])
        return Encoded(payload, order, np.where(fresh, self.raw_bytes, lengths)[order], self._key_cells[envs[order]])

    def _count(self, envs: Indices, lengths: Indices) -> None:
        """Note what frames took, and so up to which length another is worth coding against the same key frame."""
        self._taken[envs] += lengths
        self._frames[envs] += 1
        self._worth[envs] = np.minimum(self._taken[envs] // self._frames[envs], self.raw_bytes - RECORD)

    def _records(self, words: npt.NDArray[np.int32], changed: npt.NDArray[np.bool_]) -> ByteArray:
        places = np.flatnonzero(changed)
        records = np.empty((len(places), 2), dtype=np.int32)
        records[:, 0] = words.reshape(-1)[places]
        records[:, 1] = places % self.words
        return records.reshape(-1).view(np.uint8)

    def key_cells(self) -> Indices:
        return self._key_cells[self._key_cells >= 0]

    def decode(self, cells: Indices, keys: Indices) -> th.Tensor:
        heap, raw = self.heap, self.heap.raw
        counts = np.where(keys == cells, 0, heap.lengths_array[cells]) // RECORD
        ends = np.cumsum(counts, dtype=np.int64)
        total = int(ends[-1])
        key_starts, records, places, repeats = raw.upload(
            heap.starts_array[keys] // RECORD,
            heap.starts_array[cells] // RECORD - (ends - counts),
            np.arange(len(cells), dtype=np.int64) * self.words,
            counts,
        )
        frames = raw.rows(key_starts, self.raw_bytes // RECORD, RECORD)
        number = th.arange(total, device=raw.device)
        index = th.repeat_interleave(records, repeats, output_size=total).add_(number)
        changes = raw.view(RECORD).index_select(0, index).view(th.int32).view(-1, 2)
        where = th.repeat_interleave(places, repeats, output_size=total).add_(changes[:, 1])
        frames.view(th.int32).view(-1).scatter_(0, where, changes[:, 0])
        decoded = frames.view(th.uint8)
        return decoded if self.raw_bytes == self.frame_bytes else decoded[:, : self.frame_bytes].contiguous()

    def forget(self) -> None:
        self._key_cells[:] = -1
        self._worth[:] = -1
