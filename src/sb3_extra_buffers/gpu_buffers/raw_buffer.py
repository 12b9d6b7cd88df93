"""The byte heap: payloads packed one after the other on a device; the start and length of each cell are on the host."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch as th

from sb3_extra_buffers.gpu_buffers.utils import INTEGERS, to_device, usable_device

logger = logging.getLogger(__name__)

ByteArray = npt.NDArray[np.uint8]
Indices = npt.NDArray[np.integer[Any]]

_CHUNK_BYTES = 4 << 20
"""How much compaction moves at once; a move needs several times as much temporary memory."""


class HeapFullError(RuntimeError):
    """A payload does not fit into a heap of fixed size; nothing was written, and nothing was lost."""


class _Memory(NamedTuple):
    data: th.Tensor
    array: ByteArray | None  # the same bytes, on the CPU: NumPy copies a few bytes in a tenth of the time
    capacity: int


class RawBuffer:
    """Bytes on a device."""

    def __init__(self, capacity: int, device: th.device | str = "cpu", align: int = 1) -> None:
        if align not in INTEGERS:
            raise ValueError(f"align must be 1, 2, 4 or 8, got {align}")
        if capacity < 0:
            raise ValueError(f"capacity must not be negative, got {capacity}")
        self.align = align
        self.device = th.device(device)
        self._memory = self._allocate(capacity)

    def _allocate(self, capacity: int) -> _Memory:
        capacity = -(-capacity // 8) * 8
        data = th.empty(capacity, dtype=th.uint8, device=self.device)
        return _Memory(data, data.numpy() if self.device.type == "cpu" else None, capacity)

    @property
    def data(self) -> th.Tensor:
        """All bytes."""
        return self._memory.data

    @property
    def capacity(self) -> int:
        """Number of bytes."""
        return self._memory.capacity

    def view(self, itemsize: int) -> th.Tensor:
        """View the bytes as integers."""
        return self.data.view(INTEGERS[itemsize])

    def put(self, start: int, payload: th.Tensor | ByteArray) -> None:
        """Copy bytes into the buffer."""
        array = self._memory.array
        if array is not None and isinstance(payload, np.ndarray):
            array[start : start + len(payload)] = payload
            return
        given = to_device(th.from_numpy(payload), self.device) if isinstance(payload, np.ndarray) else payload
        self.data[start : start + len(given)].copy_(given)

    def resize(self, capacity: int, used: int) -> None:
        """Move to a tensor of another size."""
        memory = self._allocate(max(capacity, used))
        memory.data[:used] = self.data[:used]
        self._memory = memory

    def upload(self, *values: Indices) -> th.Tensor:
        """Copy integers to the device, in one transfer."""
        return to_device(th.from_numpy(np.stack(values).astype(np.int64, copy=False)), self.device)

    def ranges(self, starts: Indices, lengths: Indices) -> th.Tensor:
        """Read ranges of different lengths, one after the other."""
        counts = lengths.astype(np.int64) // self.align
        ends = np.cumsum(counts)
        total = int(ends[-1]) if len(ends) else 0
        shifts, repeats = self.upload(starts // self.align - (ends - counts), counts)
        places = th.repeat_interleave(shifts, repeats, output_size=total) + th.arange(total, device=self.device)
        return self.view(self.align).index_select(0, places).view(th.uint8)

    def rows(self, starts: th.Tensor, length: int, itemsize: int) -> th.Tensor:
        """Read ranges of the same length."""
        units = self.view(itemsize)
        if self.device.type == "mps":  # which would make a copy of overlapping rows
            return units[starts[:, None] + th.arange(length, device=self.device)]
        # Every unit begins a row of this view: selecting rows copies whole ranges, without an index for each unit.
        return units.as_strided((len(units) - length + 1, length), (1, 1)).index_select(0, starts)

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("a RawBuffer does not know which of its bytes are in use; pickle its SharedRawHeap")


class _Change(NamedTuple):
    """A change of a heap. Making it twice does no harm, so it can be finished after an interruption."""

    place: int
    payload: th.Tensor | ByteArray
    cells: Indices
    starts: Indices
    lengths: Indices
    data_end: int


class SharedRawHeap:
    """
    Payloads of many cells in one ``RawBuffer``.

    New payloads go to the end. What they replace stays where it is until ``compact``, which runs by itself when a write
    does not fit. Starts and lengths are kept on the host, so that no size has to be read from the device.

    A write is complete or did not happen, also when Ctrl-C comes between two of its steps: the next call finishes it.
    """

    data_end: int
    """Where the next payload goes."""

    def __init__(
        self,
        n_cells: int,
        heap_bytes: int,
        device: th.device | str = "cpu",
        align: int = 1,
        grows: bool = False,
        at_most: int | None = None,
    ) -> None:
        self.raw = RawBuffer(heap_bytes, device, align)
        self.grows, self.at_most = grows, at_most
        self.data_end = 0
        self._unfinished: _Change | None = None
        self.starts_array = np.zeros(n_cells, dtype=np.int64)
        self.lengths_array = np.zeros(n_cells, dtype=np.int32)

    @property
    def start_idx(self) -> th.Tensor:
        """Where each cell's payload begins, on the host."""
        return th.from_numpy(self.starts_array)

    @property
    def lengths(self) -> th.Tensor:
        """Bytes of each cell's payload, on the host; 0 for an empty cell."""
        return th.from_numpy(self.lengths_array)

    @property
    def n_cells(self) -> int:
        """Number of cells."""
        return len(self.lengths_array)

    @property
    def capacity(self) -> int:
        """Bytes that fit."""
        return self.raw.capacity

    @property
    def live_bytes(self) -> int:
        """Bytes of all payloads."""
        return int(self.lengths_array.sum(dtype=np.int64))

    def add_cells(self, count: int) -> None:
        """Make room for more cells; the new ones are empty."""
        self.recover()
        n_cells = self.n_cells
        self.starts_array = np.concatenate([self.starts_array[:n_cells], np.zeros(count, dtype=np.int64)])
        self.lengths_array = np.concatenate([self.lengths_array, np.zeros(count, dtype=np.int32)])

    def write(self, cells: Indices, payload: th.Tensor | ByteArray, lengths: Indices) -> None:
        """Give cells new payloads; when this raises, all are as they were."""
        self.recover()
        lengths = np.asarray(lengths, dtype=np.int64)
        ends = np.cumsum(lengths)
        count = len(payload)
        if count != (ends[-1] if len(ends) else 0) or len(cells) != len(lengths) or (lengths % self.raw.align).any():
            raise ValueError(
                f"lengths must be one for each of the {len(cells)} cells, multiples of {self.raw.align}, and add up to "
                f"{count} bytes, got {lengths.tolist()}"
            )
        self.reserve(count)
        begin = self.data_end
        self._change(_Change(begin, payload, cells, ends - lengths + begin, lengths, begin + count))

    def clear(self, cells: Indices) -> None:
        """Empty cells."""
        self.recover()
        self.lengths_array[cells] = 0

    def clear_all(self) -> None:
        """Empty all cells, and begin again at the start."""
        self.recover()
        self.lengths_array[:] = 0
        self.data_end = 0

    def payloads(self, cells: Indices) -> th.Tensor:
        """Read payloads."""
        self.recover()
        return self.raw.ranges(self.starts_array[cells], self.lengths_array[cells])

    def reserve(self, count: int) -> None:
        """Make sure that so many bytes fit, by compaction, then by growing."""
        if self.data_end + count <= self.capacity:
            return
        self.compact()
        needed = self.data_end + count
        if self.grows:
            # A quarter is left free, else the next few writes would compact all of it again.
            capacity = self.capacity
            while needed > capacity - capacity // 4:
                capacity = max(2 * capacity, 64)
            if self.at_most is not None:
                capacity = min(capacity, max(self.at_most, self.capacity))
            if capacity > self.capacity:
                logger.info("heap on %s grows from %d to %d bytes", self.raw.device, self.capacity, capacity)
                self.raw.resize(capacity, self.data_end)
        if needed > self.capacity:
            raise HeapFullError(
                f"the heap is full: {count} bytes more are needed, and {self.data_end} of {self.capacity} are in use "
                f"after compaction. Set heap_bytes to {-(-needed * 5 // 4)} or more, or leave it out so that the heap "
                "can grow. Nothing was written, and what was stored before is still there."
            )

    def compact(self) -> None:
        """Pack all payloads without gaps, in the order they lie in; ``data_end`` is the sum of the lengths afterwards."""
        self.recover()
        cells = np.flatnonzero(self.lengths_array)
        cells = cells[np.argsort(self.starts_array[cells], kind="stable")]
        lengths = self.lengths_array[cells].astype(np.int64)
        ends = np.cumsum(lengths)
        total = int(ends[-1]) if len(ends) else 0
        if total == self.data_end:
            return
        starts = ends - lengths
        moved = starts != self.starts_array[cells]
        begin = int(moved.argmax()) if moved.any() else len(cells)
        while begin < len(cells):
            stop = max(int(np.searchsorted(ends, starts[begin] + _CHUNK_BYTES, side="right")), begin + 1)
            some = slice(begin, stop)
            # Read before anything is written: a range may overlap the place it goes to.
            payload = self.raw.ranges(self.starts_array[cells[some]], lengths[some])
            self._change(_Change(int(starts[begin]), payload, cells[some], starts[some], lengths[some], self.data_end))
            begin = stop
        self.data_end = total

    def resize(self, capacity: int) -> None:
        """Make the heap larger or smaller, but never smaller than what is in it."""
        self.recover()
        self.raw.resize(capacity, self.data_end)

    def recover(self) -> None:
        """Finish what was interrupted, if anything was."""
        if (change := self._unfinished) is not None:
            self._finish(change)

    def _change(self, change: _Change) -> None:
        self._unfinished = change
        self._finish(change)

    def _finish(self, change: _Change) -> None:
        self.raw.put(change.place, change.payload)
        self.starts_array[change.cells] = change.starts
        self.lengths_array[change.cells] = change.lengths
        self.data_end = change.data_end
        self._unfinished = None

    def __getstate__(self) -> dict[str, Any]:
        self.recover()
        state: dict[str, Any] = {"n": self.data_end, "capacity": self.capacity, "align": self.raw.align}
        state |= {"grows": self.grows, "at_most": self.at_most}
        tables = {"starts": self.starts_array, "lengths": self.lengths_array}
        return {**state, **tables, "device": self.raw.device, "bytes": self.raw.data[: self.data_end].cpu().numpy()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.raw = RawBuffer(state["capacity"], usable_device(state["device"]), state["align"])
        self.grows, self.at_most = state["grows"], state["at_most"]
        self.data_end, self._unfinished = state["n"], None
        self.starts_array, self.lengths_array = state["starts"].copy(), state["lengths"].copy()
        self.raw.put(0, state["bytes"])
