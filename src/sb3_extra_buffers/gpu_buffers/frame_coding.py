"""What every method does with frames: whole batches in, payloads in the heap, whole batches out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch as th

from sb3_extra_buffers.gpu_buffers.raw_buffer import ByteArray, Indices, SharedRawHeap


class Encoded(NamedTuple):
    """
    Payloads of some frames.

    :param payload: All of their bytes, one payload after the other, on the host
    :param order: Which frame each payload is of; None for all in the order that they were given in
    :param lengths: Bytes of each payload
    :param keys: For each payload the cell of the frame that it is coded against; its own cell if it stands alone
    """

    payload: ByteArray
    order: Indices | None
    lengths: Indices
    keys: Indices


class FrameCoding(ABC):
    """
    Frames to payloads and back.

    Encoding runs on the host, where an environment's observations are, so that only coded bytes cross the bus and nothing
    has to be asked of the device. Decoding runs on the device.

    :param frame_bytes: Bytes of a frame
    :param heap: Where payloads are, a cell a frame
    """

    def __init__(self, frame_bytes: int, heap: SharedRawHeap) -> None:
        self.frame_bytes = frame_bytes
        self.heap = heap
        self.raw_bytes = raw_length(frame_bytes, heap.raw.align)
        """Bytes of a frame that is kept raw."""

    @abstractmethod
    def encode(self, frames: ByteArray, envs: Indices, cells: Indices) -> Encoded:
        """
        Encode frames; what does not get smaller is kept raw.

        :param frames: ``(n, frame_bytes)``
        :param envs: The environment that each is from, each at most once
        :param cells: The cell that each will be in
        :return: Their payloads
        """

    @abstractmethod
    def decode(self, cells: Indices, keys: Indices) -> th.Tensor:
        """
        Decode frames.

        :param cells: Their cells
        :param keys: The cells that they are coded against
        :return: ``(n, frame_bytes)``, on the device
        """

    def key_cells(self) -> Indices:
        """
        Name the cells that frames to come are coded against: they must stay.

        :return: The cells
        """
        return np.empty(0, dtype=np.int64)

    def forget(self) -> None:  # noqa: B027 (most methods know nothing)
        """Code what comes next without reference to anything that was before."""

    def _padded(self, frames: ByteArray) -> ByteArray:
        if self.raw_bytes == self.frame_bytes:
            return np.ascontiguousarray(frames)
        padded = np.zeros((len(frames), self.raw_bytes), dtype=np.uint8)
        padded[:, : self.frame_bytes] = frames
        return padded


class SingleFrameCoding(FrameCoding):
    """Methods that code each frame by itself; that one is raw shows by its length."""

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
        """
        Encode those frames that become smaller than ``raw_bytes``.

        :param frames: ``(n, frame_bytes)``
        :return: Their payloads, the length of each, and for all frames whether they became smaller
        """

    @abstractmethod
    def _decode_smaller(self, cells: Indices) -> th.Tensor:
        """
        Decode frames that were encoded so.

        :param cells: Their cells
        :return: ``(n, frame_bytes)``, on the device
        """


def raw_length(frame_bytes: int, align: int) -> int:
    """
    Tell what a frame takes that is kept raw.

    :param frame_bytes: Bytes of the frame
    :param align: What lengths in the heap are multiples of
    :return: Bytes
    """
    return -(-frame_bytes // align) * align
