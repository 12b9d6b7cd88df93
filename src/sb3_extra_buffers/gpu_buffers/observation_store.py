"""Where the observations of a buffer are: dense tensors, or frames in a heap."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch as th

from sb3_extra_buffers.gpu_buffers.compression_methods import GpuMethod
from sb3_extra_buffers.gpu_buffers.dense_store import Array, DenseObservationStore, ObservationStore
from sb3_extra_buffers.gpu_buffers.frame_coding import raw_length
from sb3_extra_buffers.gpu_buffers.frame_table import EMPTY, FrameTable
from sb3_extra_buffers.gpu_buffers.frame_window import FrameWindow
from sb3_extra_buffers.gpu_buffers.raw_buffer import Indices, SharedRawHeap
from sb3_extra_buffers.gpu_buffers.utils import OVERALLOC_FACTOR, estimate_total_heap_bytes
from sb3_extra_buffers.storage import MemoryUsage
from sb3_extra_buffers.storage.layout import FrameLayout
from sb3_extra_buffers.storage.stacks import Doubt, StackSearch

logger = logging.getLogger(__name__)

__all__ = ["DenseObservationStore", "RawObservationStore", "create_observation_store"]

_MEASURED_ROWS = 64
"""After so many rows the heap is sized by what they took."""
_LAYOUT_TRIES = 48
"""So many changes are looked at to find out whether observations are stacks of frames."""
_ROWS_WHILE_LOOKING = 8
"""Room for so many raw rows is there in the meantime, where the heap is of fixed size."""


class _Frames(NamedTuple):
    """All of a store that depends on how observations split into frames."""

    layout: FrameLayout
    table: FrameTable
    window: FrameWindow
    cells: npt.NDArray[np.int32]
    """``(slots, n_envs, sides, depth)``: the cell in the heap of each frame of each observation."""


class RawObservationStore(ObservationStore):
    """
    Observations as frames, each coded once and kept in a heap of bytes.

    :param args: See ``ObservationStore``
    :param method: How frames are coded
    :param heap_bytes: Bytes of the heap, which then never grows; without it the heap is sized by the first rows
    """

    def __init__(self, *args: Any, method: GpuMethod, heap_bytes: int | None = None) -> None:
        super().__init__(*args)
        self.method, self.heap_bytes = method, heap_bytes
        self._tries_left = _LAYOUT_TRIES
        self._search = StackSearch(self.obs_shape, self.stored_dtype.itemsize)
        self._before: Array | None = None
        self._rows_until_measured = _MEASURED_ROWS if heap_bytes is None and self.rows > _MEASURED_ROWS else 0
        self._rows_written = 0
        self._made: _Frames | None = None

    @property
    def _frames(self) -> _Frames:
        if self._made is None:
            self._made = self._make_frames(FrameLayout.whole(self.obs_shape, self.stored_dtype.itemsize))
        return self._made

    def _make_frames(self, layout: FrameLayout) -> _Frames:
        in_row = self.n_envs * self.sides * layout.depth
        some_rows = _ROWS_WHILE_LOOKING * self._raw_row
        grows, at_most = True, None
        if self.heap_bytes is None:
            capacity = self._estimate(min(self.rows, _MEASURED_ROWS)) + self._raw_row
        elif self._tries_left:
            # A heap that may fill the device is made once the layout is known: there must never be two of them.
            capacity, at_most = min(some_rows, self._final_bytes), self._final_bytes + some_rows
        else:
            capacity, grows = self._final_bytes, False
        heap = SharedRawHeap(2 * in_row, capacity, self.device, self.method.align, grows, at_most)
        table = FrameTable(self.method.make_coding(layout.frame_bytes, heap, self.n_envs))
        cells = np.zeros((self.rows + 1, self.n_envs, self.sides, layout.depth), dtype=np.int32)
        return _Frames(layout, table, FrameWindow(layout, self.n_envs, table), cells)

    @property
    def _raw_row(self) -> int:
        """Bytes of a row, and of the empty frame, that are kept raw."""
        return (self.n_envs * self.sides + 1) * raw_length(self.obs_bytes, self.method.align)

    @property
    def _final_bytes(self) -> int:
        # A row is stored before the one that it takes the place of is given up, so there is room for one more.
        return (self.heap_bytes or 0) + self._raw_row

    def _estimate(self, rows: int) -> int:
        cells = rows * self.n_envs * self.sides
        return estimate_total_heap_bytes(cells, self.obs_shape, self.stored_dtype, self.method.name, self.method.level)

    @property
    def heap(self) -> SharedRawHeap:
        """Where the frames are."""
        return self._frames.table.heap

    @property
    def layout(self) -> FrameLayout:
        """How observations split into frames, as far as that is known."""
        return self._frames.layout

    def prepare(self, *observations: Array) -> None:
        if self._tries_left:
            self._look_for_stack(observations)
        elif self._frames.window.doubt.is_too_great(min(self._rows_written, self.rows) * self.n_envs):
            self._give_stack_up()

    def write(self, slot: int, *observations: Array) -> None:
        self._write(self._frames, slot, observations)
        self._rows_written += 1

    @staticmethod
    def _write(frames: _Frames, slot: int, observations: Iterable[Array]) -> None:
        cells = np.stack([frames.window.place(obs) for obs in observations], axis=1)
        frames.table.hold(cells)
        frames.cells[slot] = cells

    def release(self, slot: int) -> None:
        cells = self._frames.cells[slot]
        before = cells.copy()
        cells[...] = EMPTY
        self._frames.table.drop(before)
        if self._rows_until_measured:
            self._rows_until_measured -= 1
            if not self._rows_until_measured:
                self._size_heap()

    def recover(self, unused: int) -> None:
        self._before = None
        if self._made is not None:
            self._made.cells[unused] = EMPTY
            self._made.window.forget()
            self._made.table.rebuild(self._made.cells)

    def clear(self) -> None:
        self._before = None
        if self._made is None:
            return
        self._made.window.forget()
        self._made.cells[:] = EMPTY
        self._made.table.clear()
        self._rows_written = 0

    def settle(self) -> None:
        if self._made is not None:
            self._made.table.settle()

    def compact(self) -> None:
        self.settle()
        if self._made is not None:
            self._made.table.heap.compact()

    def memory_usage(self, rows: int) -> MemoryUsage:
        frames, cells = self._frames, rows * self.n_envs * self.sides
        index = rows * frames.cells[0].nbytes + frames.table.index_bytes
        stored = frames.table.stored
        shared = max(cells * frames.layout.depth - stored, 0)
        return MemoryUsage(cells * self._outside_bytes, self.heap.data_end, index, stored, shared)

    def _size_heap(self) -> None:
        self._frames.table.settle()
        row = self.heap.live_bytes / _MEASURED_ROWS
        wanted = int(row * self.rows * OVERALLOC_FACTOR)
        logger.info(
            "the first %d rows took %.0f bytes each (estimated were %d): the heap on %s gets %d bytes for %d rows",
            *(_MEASURED_ROWS, row, self._estimate(1), self.device, wanted, self.rows),
        )
        if wanted > self.heap.capacity:
            try:
                self.heap.resize(wanted)
            except RuntimeError as error:  # out of memory: what is there is enough for now
                logger.warning("there is no room on %s for a heap of %d bytes (%s)", self.device, wanted, error)

    def _look_for_stack(self, observations: Iterable[Array]) -> None:
        """Find out from what follows what whether observations are stacks; if so, store again what little there is."""
        for obs in observations:
            flat = np.ascontiguousarray(obs).reshape(self.n_envs, -1).view(np.uint8)
            before, self._before = self._before, flat.copy()
            if before is None or np.array_equal(before, flat):
                continue
            self._tries_left -= 1
            layout = self._search.look(before, flat)
            if layout is not None:
                self._settle_for(layout)
            elif not self._tries_left:
                self._settle_for(self.layout)
            if not self._tries_left:
                self._before = None
                return

    def _settle_for(self, layout: FrameLayout) -> None:
        tries, self._tries_left = self._tries_left, 0
        try:
            if layout != self.layout or self.heap_bytes is not None:
                self._made = self._stored_again(layout)
        except BaseException:
            self._tries_left = tries + 1  # all is as it was, so this is tried again
            raise

    def _give_stack_up(self) -> None:
        """Observations no longer follow one another: store them whole, and once more what is there."""
        if not self._rows_written:
            self._made = None  # the next one is of whole observations
        elif self.heap_bytes is None:
            try:
                self._made = self._stored_again(FrameLayout.whole(self.obs_shape, self.stored_dtype.itemsize))
            except (MemoryError, RuntimeError) as error:
                logger.warning("no memory to store observations on %s again, so they stay as frames (%s)", self.device, error)
                self._frames.window.doubt = Doubt(self.layout, self.n_envs)
        # Else there would be two heaps that may each fill the device. A rollout buffer will be empty soon.

    def _stored_again(self, layout: FrameLayout) -> _Frames:
        frames = self._make_frames(layout)
        for slot in map(int, np.flatnonzero(self._frames.cells.any(axis=(1, 2, 3)))):
            sides = self.read(np.full(self.n_envs, slot), np.arange(self.n_envs), tuple(range(self.sides)))
            self._write(frames, slot, [side.cpu().numpy().astype(self.stored_dtype) for side in sides])
        return frames

    def _read_bytes(self, slots: Indices, envs: Indices, sides: tuple[int, ...]) -> th.Tensor:
        frames, layout = self._frames, self._frames.layout
        cells = frames.cells[slots, envs]
        cells = np.concatenate([cells[:, side].reshape(-1) for side in sides])
        decoded = frames.table.read(cells)
        if layout.outer > 1:
            decoded = decoded.view(-1, layout.depth, layout.outer, layout.part_bytes).transpose(1, 2).contiguous()
        return decoded.view(len(sides) * len(slots), self.obs_bytes)


def create_observation_store(
    rows: int,
    n_envs: int,
    obs_shape: tuple[int, ...],
    dtype: npt.DTypeLike,
    compression_method: str = "delta",
    *,
    sides: int = 2,
    dtypes: Mapping[str, Any] | None = None,
    device: th.device | str = "cpu",
    heap_bytes: int | None = None,
    compression_kwargs: Mapping[str, Any] | None = None,
) -> ObservationStore:
    """
    Make the store that goes with a method.

    :param rows: Number of rows
    :param n_envs: Number of environments
    :param obs_shape: Shape of one observation
    :param dtype: Type of its elements
    :param compression_method: Name or shorthand of the method
    :param sides: Observations in a cell: 2 with ``next_obs``
    :param dtypes: ``elem_type`` and ``runs_type``, as ``find_gpu_buffer_dtypes`` gives them
    :param device: Where observations are kept
    :param heap_bytes: Bytes of the heap
    :param compression_kwargs: Options of the method
    :return: Dense for ``none``, else with a heap
    """
    method = GpuMethod.parse(compression_method, dtypes, dtype, obs_shape, compression_kwargs)
    common = (rows, n_envs, sides, obs_shape, np.dtype(dtype), method.elem_type, th.device(device))
    if method.name == "none":
        return DenseObservationStore(*common)
    if heap_bytes is not None and heap_bytes < 1:
        raise ValueError(f"heap_bytes is {heap_bytes}; it must be at least 1, or None for a heap that grows")
    return RawObservationStore(*common, method=method, heap_bytes=heap_bytes)
