"""How frames become payloads and payloads frames, a whole batch at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch as th

from sb3_extra_buffers.codecs import Codec
from sb3_extra_buffers.gpu_buffers.metadata import SlotMetadata
from sb3_extra_buffers.gpu_buffers.raw_buffer import ByteArray, Indices, SharedRawHeap
from sb3_extra_buffers.gpu_buffers.utils import INTEGERS, to_device

_WORD = 4
CHANGE_BYTES = 8
"""A changed word of ``delta``: its four bytes, then its place in the frame."""


class Encoded(NamedTuple):
    """Payloads of some frames."""

    payload: ByteArray
    """All of their bytes, one payload after the other, on the host."""
    order: Indices | None
    """Which frame each payload is of; None for the order that the frames were given in."""
    lengths: Indices
    """Bytes of each payload."""
    keys: Indices
    """For each payload the cell of its key frame; its own cell if it has none."""


class FrameCoding(ABC):
    """
    Frames to payloads and back; a frame that does not get smaller is kept raw.

    Encoding runs on the host, where an environment's observations are, so that only coded bytes cross the bus and nothing
    has to be read from the device. Decoding runs on the device.
    """

    def __init__(self, frame_bytes: int, heap: SharedRawHeap) -> None:
        self.frame_bytes = frame_bytes
        self.heap = heap
        self.raw_bytes = raw_length(frame_bytes, heap.raw.align)

    @abstractmethod
    def encode(self, frames: ByteArray, envs: Indices, cells: Indices) -> Encoded:
        """Encode ``(n, frame_bytes)``, of different environments, for these cells."""

    @abstractmethod
    def decode(self, cells: Indices, keys: Indices) -> th.Tensor:
        """Decode cells, whose key frames are in ``keys``, to ``(n, frame_bytes)`` on the device."""

    def key_cells(self) -> Indices:
        """The cells that later frames will be coded against; they must stay."""
        return np.empty(0, dtype=np.int64)

    def forget(self) -> None:  # noqa: B027 (most methods know nothing)
        """Code what comes next without reference to earlier frames."""

    def _padded(self, frames: ByteArray) -> ByteArray:
        if self.raw_bytes == self.frame_bytes:
            return np.ascontiguousarray(frames)
        padded = np.zeros((len(frames), self.raw_bytes), dtype=np.uint8)
        padded[:, : self.frame_bytes] = frames
        return padded


def raw_length(frame_bytes: int, align: int) -> int:
    """Bytes that a raw frame takes in a heap with this alignment."""
    return -(-frame_bytes // align) * align


class DeltaCoding(FrameCoding):
    """
    ``delta``: key frames as they are, and for all others the words that differ from the key frame of their environment.

    Decoding a batch is one gather and one scatter. A key frame lasts as long as it pays: until coding the next frame against
    it would take more than what its frames have taken on average so far, the key frame included.
    """

    def __init__(self, frame_bytes: int, heap: SharedRawHeap, n_envs: int) -> None:
        super().__init__(frame_bytes, heap)
        self.n_envs = n_envs
        self.words = self.raw_bytes // _WORD
        self._keys: npt.NDArray[np.int32] = np.zeros((n_envs, self.words), dtype=np.int32)
        self._key_cells = np.full(n_envs, -1, dtype=np.int64)
        self._taken = np.zeros(n_envs, dtype=np.int64)
        self._frames = np.zeros(n_envs, dtype=np.int64)
        self._worth = np.full(n_envs, -1, dtype=np.int64)

    def encode(self, frames: ByteArray, envs: Indices, cells: Indices) -> Encoded:
        words = self._padded(frames).view(np.int32)
        changed = words != (self._keys if len(envs) == self.n_envs else self._keys[envs])
        lengths = changed.sum(axis=1) * CHANGE_BYTES
        fresh = lengths > self._worth[envs]
        if not fresh.any():
            self._count(envs, lengths)
            return Encoded(self._changes(words, changed), None, lengths, self._key_cells[envs])
        changed[fresh] = False
        stay = ~fresh
        self._count(envs[stay], lengths[stay])
        chosen = envs[fresh]
        self._keys[chosen], self._key_cells[chosen] = words[fresh], cells[fresh]
        self._taken[chosen], self._frames[chosen], self._worth[chosen] = self.raw_bytes, 1, self.raw_bytes - CHANGE_BYTES
        order = np.concatenate([np.flatnonzero(stay), np.flatnonzero(fresh)])
        payload = np.concatenate([self._changes(words, changed), words[fresh].reshape(-1).view(np.uint8)])
        return Encoded(payload, order, np.where(fresh, self.raw_bytes, lengths)[order], self._key_cells[envs[order]])

    def _count(self, envs: Indices, lengths: Indices) -> None:
        """Note what frames took, and so up to which length another is worth coding against the same key frame."""
        self._taken[envs] += lengths
        self._frames[envs] += 1
        self._worth[envs] = np.minimum(self._taken[envs] // self._frames[envs], self.raw_bytes - CHANGE_BYTES)

    def _changes(self, words: npt.NDArray[np.int32], changed: npt.NDArray[np.bool_]) -> ByteArray:
        places = np.flatnonzero(changed)
        changes = np.empty((len(places), 2), dtype=np.int32)
        changes[:, 0] = words.reshape(-1)[places]
        changes[:, 1] = places % self.words
        return changes.reshape(-1).view(np.uint8)

    def key_cells(self) -> Indices:
        return self._key_cells[self._key_cells >= 0]

    def decode(self, cells: Indices, keys: Indices) -> th.Tensor:
        heap, raw = self.heap, self.heap.raw
        counts = np.where(keys == cells, 0, heap.lengths_array[cells]) // CHANGE_BYTES
        ends = np.cumsum(counts, dtype=np.int64)
        total = int(ends[-1])
        key_starts, firsts, places, repeats = raw.upload(
            heap.starts_array[keys] // CHANGE_BYTES,
            heap.starts_array[cells] // CHANGE_BYTES - (ends - counts),
            np.arange(len(cells), dtype=np.int64) * self.words,
            counts,
        )
        frames = raw.rows(key_starts, self.raw_bytes // CHANGE_BYTES, CHANGE_BYTES)
        number = th.arange(total, device=raw.device)
        index = th.repeat_interleave(firsts, repeats, output_size=total).add_(number)
        changes = raw.view(CHANGE_BYTES).index_select(0, index).view(th.int32).view(-1, 2)
        where = th.repeat_interleave(places, repeats, output_size=total).add_(changes[:, 1])
        frames.view(th.int32).view(-1).scatter_(0, where, changes[:, 0])
        decoded = frames.view(th.uint8)
        return decoded if self.raw_bytes == self.frame_bytes else decoded[:, : self.frame_bytes].contiguous()

    def forget(self) -> None:
        self._key_cells[:] = -1
        self._worth[:] = -1


class SingleFrameCoding(FrameCoding):
    """Methods that code each frame by itself; a frame is raw if its payload is ``raw_bytes`` long."""

    def encode(self, frames: ByteArray, envs: Indices, cells: Indices) -> Encoded:
        payload, lengths, smaller = self._encode_smaller(frames)
        raw = np.flatnonzero(~smaller)
        if not len(raw):
            return Encoded(payload, None, lengths, cells)
        order = np.concatenate([np.flatnonzero(smaller), raw])
        lengths = np.concatenate([lengths, np.full(len(raw), self.raw_bytes)])
        return Encoded(np.concatenate([payload, self._padded(frames[raw]).reshape(-1)]), order, lengths, cells[order])

    def decode(self, cells: Indices, keys: Indices) -> th.Tensor:
        # Neighbours in a stack and in a batch share frames: each is decoded once.
        cells, places = np.unique(cells, return_inverse=True)
        is_raw = self.heap.lengths_array[cells] == self.raw_bytes
        coded, raw = cells[~is_raw], cells[is_raw]
        parts = []
        if len(coded):
            parts.append(self._decode_smaller(coded))
        if len(raw):
            (starts,) = self.heap.raw.upload(self.heap.starts_array[raw])
            parts.append(self.heap.raw.rows(starts, self.frame_bytes, 1))
        # Coded ones come first now, whatever their numbers.
        rank = np.empty(len(cells), dtype=np.int64)
        rank[~is_raw], rank[is_raw] = np.arange(len(coded)), np.arange(len(coded), len(cells))
        (index,) = self.heap.raw.upload(rank[places.reshape(-1)])
        return (th.cat(parts) if len(parts) > 1 else parts[0]).index_select(0, index)

    @abstractmethod
    def _encode_smaller(self, frames: ByteArray) -> tuple[ByteArray, Indices, npt.NDArray[np.bool_]]:
        """Encode the frames that get smaller: their payloads, the length of each, and which of all frames they are."""

    @abstractmethod
    def _decode_smaller(self, cells: Indices) -> th.Tensor:
        """Decode cells that ``_encode_smaller`` has encoded."""


class ByteCoding(SingleFrameCoding):
    """
    Any codec of ``sb3_extra_buffers.codecs``, a blob a frame.

    Codecs run on the host, so reading copies the blobs of a whole batch to the host, in one transfer, and all frames back in
    another. That transfer is the one place where ``sample`` waits for the device.
    """

    def __init__(self, frame_bytes: int, heap: SharedRawHeap, codec: Codec) -> None:
        super().__init__(frame_bytes, heap)
        self.codec = codec

    def _encode_smaller(self, frames: ByteArray) -> tuple[ByteArray, Indices, npt.NDArray[np.bool_]]:
        blobs = [self.codec.encode(frame) for frame in frames]
        lengths = np.array([len(blob) for blob in blobs])
        smaller = lengths < self.raw_bytes
        payload = np.frombuffer(b"".join(blob for blob in blobs if len(blob) < self.raw_bytes), dtype=np.uint8)
        return payload.copy(), lengths[smaller], smaller

    def _decode_smaller(self, cells: Indices) -> th.Tensor:
        blobs = self.heap.payloads(cells).cpu().numpy()  # here the host waits
        ends = np.cumsum(self.heap.lengths_array[cells])
        frames = np.empty((len(cells), self.frame_bytes), dtype=np.uint8)
        for frame, blob in zip(frames, np.split(blobs, ends[:-1]), strict=True):
            self.codec.decode(blob, frame)
        return to_device(th.from_numpy(frames), self.heap.raw.device)


class RleCoding(SingleFrameCoding):
    """
    ``rle``: runs of equal elements, coded and decoded in torch.

    A payload is the lengths of its runs and their elements, the wider ones first. Elements of 16 bytes (complex numbers) are
    coded as their halves.
    """

    def __init__(self, frame_bytes: int, heap: SharedRawHeap, elem_size: int, run_size: int) -> None:
        super().__init__(frame_bytes, heap)
        self.elem_size, self.run_size = min(elem_size, 8), run_size
        self.elements = frame_bytes // self.elem_size

    @staticmethod
    def alignment(elem_size: int, run_size: int) -> int:
        """How the heap has to be aligned."""
        return max(min(elem_size, 8), run_size)

    def _encode_smaller(self, frames: ByteArray) -> tuple[ByteArray, Indices, npt.NDArray[np.bool_]]:
        values = th.from_numpy(np.ascontiguousarray(frames)).view(INTEGERS[self.elem_size])
        begins = th.ones(values.shape, dtype=th.bool)
        th.ne(values[:, 1:], values[:, :-1], out=begins[:, 1:])
        longest = th.iinfo(INTEGERS[self.run_size]).max
        if longest < self.elements:
            begins[:, ::longest] = True  # no run gets longer than its type can hold
        counts = begins.sum(dim=1)
        align = self.heap.raw.align
        lengths = (counts * (self.elem_size + self.run_size) + align - 1) // align * align
        smaller = lengths < self.raw_bytes
        begins &= smaller[:, None]
        counts, lengths = counts[smaller], lengths[smaller]
        places = begins.view(-1).nonzero().view(-1)
        # A run ends where the next one of its frame begins, or with the frame.
        ends = th.cat([places[1:], places.new_full((1,), values.numel())])[: len(places)]
        frame_end = (places // self.elements + 1) * self.elements
        run_lengths = th.minimum(ends, frame_end) - places
        payload = th.zeros(int(lengths.sum()), dtype=th.uint8)
        bases, totals = (lengths.cumsum(0) - lengths).numpy(), lengths.numpy()
        slots = SlotMetadata.of_runs(bases, totals, self.elem_size, self.run_size)
        within = th.arange(len(places)) - th.repeat_interleave(counts.cumsum(0) - counts, counts)
        for values_of, offsets, size in (
            (run_lengths, slots.pos_runs, self.run_size),
            (values.view(-1)[places], slots.pos_elem, self.elem_size),
        ):
            first = th.from_numpy((slots.byte_start + offsets) // size)
            into = payload[: len(payload) // size * size].view(INTEGERS[size])
            into[th.repeat_interleave(first, counts) + within] = values_of.to(INTEGERS[size])
        return payload.numpy(), totals, smaller.numpy()

    def _decode_smaller(self, cells: Indices) -> th.Tensor:
        raw, device = self.heap.raw, self.heap.raw.device
        slots = SlotMetadata.of_runs(
            self.heap.starts_array[cells], self.heap.lengths_array[cells], self.elem_size, self.run_size
        )
        ends = np.cumsum(slots.run_length)
        total, first = int(ends[-1]), ends - slots.run_length
        runs, elems, counts, firsts = raw.upload(
            (slots.byte_start + slots.pos_runs) // self.run_size - first,
            (slots.byte_start + slots.pos_elem) // self.elem_size - first,
            slots.run_length,
            first,
        )
        number = th.arange(total, device=device)
        lengths = raw.view(self.run_size).index_select(0, th.repeat_interleave(runs, counts, output_size=total).add_(number))
        values = raw.view(self.elem_size).index_select(0, th.repeat_interleave(elems, counts, output_size=total).add_(number))
        # Each run begins where all before it end, frames included. At that place goes the difference between its element and
        # the one before, and the running total over a frame is the frame; integers wrap around, so it is exact.
        begins = lengths.to(th.int64).cumsum(0).sub_(lengths)
        steps = values.clone()
        steps[1:] -= values[:-1]
        steps.index_copy_(0, firsts, values.index_select(0, firsts))
        frames = th.zeros(len(cells) * self.elements, dtype=values.dtype, device=device).scatter_(0, begins, steps)
        frames = frames.view(len(cells), self.elements)
        return frames.cumsum(1, dtype=frames.dtype).view(th.uint8)
