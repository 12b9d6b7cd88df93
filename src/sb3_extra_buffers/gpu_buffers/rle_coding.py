"""``rle``: run-length coding in torch, a whole batch at a time both ways."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch as th

from sb3_extra_buffers.gpu_buffers.frame_coding import SingleFrameCoding
from sb3_extra_buffers.gpu_buffers.metadata import SlotMetadata
from sb3_extra_buffers.gpu_buffers.raw_buffer import ByteArray, Indices, SharedRawHeap

_INTEGERS = {1: th.uint8, 2: th.int16, 4: th.int32, 8: th.int64}


class RleCoding(SingleFrameCoding):
    """
    Runs of equal elements.

    A payload is the lengths of its runs and their elements, the wider ones first.

    :param frame_bytes: Bytes of a frame
    :param heap: Where payloads are, aligned to the wider of element and run length
    :param elem_size: Bytes an element; of 16 (complex) the halves are elements
    :param run_size: Bytes a run length, 1, 2, 4 or 8
    """

    def __init__(self, frame_bytes: int, heap: SharedRawHeap, elem_size: int, run_size: int) -> None:
        super().__init__(frame_bytes, heap)
        self.elem_size, self.run_size = min(elem_size, 8), run_size
        self.elements = frame_bytes // self.elem_size

    @staticmethod
    def alignment(elem_size: int, run_size: int) -> int:
        """
        Tell how the heap has to be aligned.

        :param elem_size: Bytes an element
        :param run_size: Bytes a run length
        :return: Bytes
        """
        return max(min(elem_size, 8), run_size)

    def _encode_smaller(self, frames: ByteArray) -> tuple[ByteArray, Indices, npt.NDArray[np.bool_]]:
        values = th.from_numpy(np.ascontiguousarray(frames)).view(_INTEGERS[self.elem_size])
        begins = th.ones(values.shape, dtype=th.bool)
        th.ne(values[:, 1:], values[:, :-1], out=begins[:, 1:])
        longest = th.iinfo(_INTEGERS[self.run_size]).max
        if longest < self.elements:
            begins[:, ::longest] = True  # no run gets longer than its type can say
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
            into = payload[: len(payload) // size * size].view(_INTEGERS[size])
            into[th.repeat_interleave(first, counts) + within] = values_of.to(_INTEGERS[size])
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
        # Each run begins where all before it end, frames included. There goes by how much its element is more than the
        # last one, and the running total over a frame is the frame; integers wrap around, so it is exact.
        begins = lengths.to(th.int64).cumsum(0).sub_(lengths)
        steps = values.clone()
        steps[1:] -= values[:-1]
        steps.index_copy_(0, firsts, values.index_select(0, firsts))
        frames = th.zeros(len(cells) * self.elements, dtype=values.dtype, device=device).scatter_(0, begins, steps)
        frames = frames.view(len(cells), self.elements)
        return frames.cumsum(1, dtype=frames.dtype).view(th.uint8)
