"""The byte codecs of the CPU side, over the host."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch as th

from sb3_extra_buffers.codecs import Codec
from sb3_extra_buffers.gpu_buffers.frame_coding import SingleFrameCoding
from sb3_extra_buffers.gpu_buffers.raw_buffer import ByteArray, Indices, SharedRawHeap
from sb3_extra_buffers.gpu_buffers.utils import to_device


class ByteCoding(SingleFrameCoding):
    """
    Any codec of ``sb3_extra_buffers.codecs``, a blob a frame.

    No codec runs on the device, so reading fetches the blobs of a whole batch to the host, in one copy, and sends all
    frames back in another. That copy is the one place where ``sample`` waits for the device.

    :param frame_bytes: Bytes of a frame
    :param heap: Where payloads are
    :param codec: The codec
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
