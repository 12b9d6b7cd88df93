"""Where the observations of a buffer are: a dense tensor, or frames in a heap."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch as th

from sb3_extra_buffers.gpu_buffers.codings import raw_length
from sb3_extra_buffers.gpu_buffers.compression_methods import GpuMethod
from sb3_extra_buffers.gpu_buffers.frames import EMPTY, Cells, FrameTable, FrameWindow
from sb3_extra_buffers.gpu_buffers.raw_buffer import Indices, SharedRawHeap
from sb3_extra_buffers.gpu_buffers.utils import (
    OVERALLOC_FACTOR,
    estimate_total_heap_bytes,
    numpy_dtype_to_torch,
    to_device,
    usable_device,
)
from sb3_extra_buffers.storage import MemoryUsage
from sb3_extra_buffers.storage.layout import FrameLayout
from sb3_extra_buffers.storage.stacks import Doubt, StackSearch

logger = logging.getLogger(__name__)

Array = npt.NDArray[Any]

_MEASURED_ROWS = 64
"""After so many rows the heap is sized by what they took."""
_LAYOUT_TRIES = 48
"""So many changes are looked at to find out whether observations are stacks of frames."""
_ROWS_WHILE_LOOKING = 8
"""Room for so many raw rows is there in the meantime, where the heap is of fixed size."""


class ObservationStore(ABC):
    """
    Observations of ``(slots, n_envs)`` cells, one or two views (``obs``, ``next_obs``) a cell.

    There is one slot more than there are rows. A buffer writes to the slot that no row shows, has the row show it together
    with the rest of an ``add``, and only then releases the slot that the row has shown before.
    Observations go in and come out as ``dtype``, and are stored as ``stored``.
    """

    def __init__(
        self,
        rows: int,
        n_envs: int,
        views: int,
        obs_shape: tuple[int, ...],
        dtype: np.dtype[Any],
        stored: np.dtype[Any],
        device: th.device,
    ) -> None:
        self.rows, self.n_envs, self.views = rows, n_envs, views
        self.obs_shape, self.dtype, self.stored_dtype = obs_shape, dtype, stored
        self.device = device
        self.torch_dtype = numpy_dtype_to_torch(dtype)
        if device.type == "mps" and self.torch_dtype in (th.float64, th.complex128):
            raise TypeError(f"mps has no {self.torch_dtype}; declare the observation space with float32")
        self._stored_torch = numpy_dtype_to_torch(stored)
        elements = int(np.prod(obs_shape))
        self.obs_bytes, self._outside_bytes = elements * stored.itemsize, elements * dtype.itemsize

    def read(self, slots: Indices, envs: Indices, views: tuple[int, ...]) -> tuple[th.Tensor, ...]:
        """Read cells: for each view that is wanted ``(n, *obs_shape)``, on the device."""
        if not len(slots):
            nothing = th.empty((0, *self.obs_shape), dtype=self.torch_dtype, device=self.device)
            return (nothing,) * len(views)
        flat = self._read_bytes(slots, envs, views)
        obs = flat.view(self._stored_torch).view(len(views), len(slots), *self.obs_shape)
        return tuple(obs.to(self.torch_dtype).unbind(0))

    @abstractmethod
    def write(self, slot: int, *observations: Array) -> None:
        """Store ``(n_envs, *obs_shape)`` for each view in a slot that was never written, or has been released."""

    def release(self, slot: int) -> None:  # noqa: B027 (doing nothing is right for most)
        """Give up what is in a slot; called once a row has been written."""

    def recover(self, unused: int) -> None:  # noqa: B027
        """Give up what an interrupted call has written; no row shows the slot ``unused``."""

    @abstractmethod
    def clear(self) -> None:
        """Forget all observations."""

    def compact(self) -> None:  # noqa: B027
        """Pack what is stored."""

    @abstractmethod
    def memory_usage(self, rows: int) -> MemoryUsage:
        """Compute how much memory is used, with so many rows in use."""

    @abstractmethod
    def _read_bytes(self, slots: Indices, envs: Indices, views: tuple[int, ...]) -> th.Tensor:
        """``(len(views) * n, obs_bytes)``, one view after the other."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.device = usable_device(self.device)


class DenseObservationStore(ObservationStore):
    """Observations as they are, in one tensor."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        shape = (self.rows + 1, self.views, self.n_envs, self.obs_bytes)
        self.data = th.zeros(shape, dtype=th.uint8, device=self.device)

    def write(self, slot: int, *observations: Array) -> None:
        for view, obs in enumerate(observations):
            flat = np.ascontiguousarray(obs).reshape(self.n_envs, -1).view(np.uint8)
            given = th.from_numpy(flat if flat.flags.writeable else flat.copy())
            self.data[slot, view].copy_(to_device(given, self.device))

    def clear(self) -> None:
        self.data.zero_()

    def memory_usage(self, rows: int) -> MemoryUsage:
        cells = rows * self.n_envs * self.views
        return MemoryUsage(cells * self._outside_bytes, cells * self.obs_bytes, 0, 0, 0)

    def _read_bytes(self, slots: Indices, envs: Indices, views: tuple[int, ...]) -> th.Tensor:
        first = slots * (self.views * self.n_envs) + envs
        places = np.concatenate([first + view * self.n_envs for view in views])
        return self.data.view(-1, self.obs_bytes).index_select(0, to_device(th.from_numpy(places), self.device))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "data": self.data.cpu()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.data = self.data.to(self.device)


class _Frames(NamedTuple):
    """All of a store that depends on how observations split into frames."""

    table: FrameTable
    window: FrameWindow


class RawObservationStore(ObservationStore):
    """Observations as frames, each coded once and kept in a heap of bytes."""

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
            self._made = self._make_frames(self._whole, not self._tries_left)
        return self._made

    @property
    def _whole(self) -> FrameLayout:
        return FrameLayout.whole(self.obs_shape, self.stored_dtype.itemsize)

    def _make_frames(self, layout: FrameLayout, final: bool) -> _Frames:
        some_rows = _ROWS_WHILE_LOOKING * self._raw_row
        grows, at_most = True, None
        if self.heap_bytes is None:
            capacity = self._estimate(min(self.rows, _MEASURED_ROWS)) + self._raw_row
        elif final:
            capacity, grows = self._final_bytes, False
        else:
            # A heap that may fill the device is made once the layout is known: there must never be two of them.
            capacity, at_most = min(some_rows, self._final_bytes), self._final_bytes + some_rows
        n_cells = 2 * self.n_envs * self.views * layout.depth
        heap = SharedRawHeap(n_cells, capacity, self.device, self.method.align, grows, at_most)
        return self._with_heap(layout, heap, np.zeros((self.rows + 1, self.n_envs, self.views, layout.depth), dtype=np.int32))

    def _with_heap(self, layout: FrameLayout, heap: SharedRawHeap, *saved: Cells) -> _Frames:
        table = FrameTable(self.method.make_coding(layout.frame_bytes, heap, self.n_envs), *saved)
        return _Frames(table, FrameWindow(layout, self.n_envs, table))

    @property
    def _raw_row(self) -> int:
        """Bytes of a row, and of the empty frame, that are kept raw."""
        return (self.n_envs * self.views + 1) * raw_length(self.obs_bytes, self.method.align)

    @property
    def _final_bytes(self) -> int:
        # A row is stored before the one that it replaces is given up, so there is room for one more.
        return (self.heap_bytes or 0) + self._raw_row

    def _estimate(self, rows: int) -> int:
        cells = rows * self.n_envs * self.views
        return estimate_total_heap_bytes(cells, self.obs_shape, self.stored_dtype, self.method.name, self.method.level)

    @property
    def heap(self) -> SharedRawHeap:
        """Where the frames are."""
        return self._frames.table.heap

    @property
    def layout(self) -> FrameLayout:
        """How observations split into frames, as far as that is known."""
        return self._frames.window.layout

    def write(self, slot: int, *observations: Array) -> None:
        if self._tries_left:
            self._look_for_stack(observations)
        elif self._frames.window.doubt.is_too_great(min(self._rows_written, self.rows) * self.n_envs):
            self._give_stack_up()
        self._write(self._frames, slot, observations)
        self._rows_written += 1

    @staticmethod
    def _write(frames: _Frames, slot: int, observations: Iterable[Array]) -> None:
        frames.table.refer(slot, np.stack([frames.window.find(obs) for obs in observations], axis=1))

    def release(self, slot: int) -> None:
        self._frames.table.cells[slot] = EMPTY
        if self._rows_until_measured:
            self._rows_until_measured -= 1
            if not self._rows_until_measured:
                self._size_heap()

    def recover(self, unused: int) -> None:
        self._before = None
        if self._made is not None:
            self._made.table.cells[unused] = EMPTY
            self._made.window.forget()

    def clear(self) -> None:
        self._before = None
        if self._made is not None:
            self._made.table.cells[:] = EMPTY
            self._made.window.forget()
            self._rows_written = 0
            self._made.table.compact()

    def compact(self) -> None:
        if self._made is not None:
            self._made.table.compact()

    def memory_usage(self, rows: int) -> MemoryUsage:
        table, cells = self._frames.table, rows * self.n_envs * self.views
        stored = int(np.count_nonzero(table.in_use()))
        index = rows * table.cells[0].nbytes + stored * table.cell_bytes
        shared = max(cells * self.layout.depth - stored, 0)
        return MemoryUsage(cells * self._outside_bytes, self.heap.data_end, index, stored, shared)

    def _size_heap(self) -> None:
        self._frames.table.sweep()
        row = self.heap.live_bytes / _MEASURED_ROWS
        wanted = int(row * self.rows * OVERALLOC_FACTOR)
        logger.info(
            "the first %d rows took %.0f bytes each (estimated were %d): the heap on %s gets %d bytes for %d rows",
            *(_MEASURED_ROWS, row, self._estimate(1), self.device, wanted, self.rows),
        )
        if wanted > self.heap.capacity:
            try:
                self.heap.resize(wanted)
            except RuntimeError as error:  # out of memory: the heap that is there is enough for now
                logger.warning("%s has no memory for a heap of %d bytes (%s)", self.device, wanted, error)

    def _look_for_stack(self, observations: Iterable[Array]) -> None:
        """Find out from what follows what whether observations are stacks; if so, store again what little there is."""
        for obs in observations:
            flat = np.ascontiguousarray(obs).reshape(self.n_envs, -1).view(np.uint8)
            before, self._before = self._before, flat.copy()
            if before is None or np.array_equal(before, flat):
                continue
            layout = self._search.look(before, flat)
            if layout is None and self._tries_left > 1:
                self._tries_left -= 1
                continue
            layout, made = layout or self.layout, self._made
            if layout != self.layout or self.heap_bytes is not None:
                made = self._stored_again(layout)
            self.__dict__.update(_made=made, _tries_left=0, _before=None)  # in one step
            return

    def _give_stack_up(self) -> None:
        """Observations no longer follow one another: store them whole, and once more what is there."""
        if not self._rows_written:
            self._made = None  # the next one is of whole observations
        elif self.heap_bytes is None:
            try:
                self._made = self._stored_again(self._whole)
            except (MemoryError, RuntimeError) as error:
                logger.warning("no memory to store observations on %s again, so they stay as frames (%s)", self.device, error)
                self._frames.window.doubt = Doubt(self.layout, self.n_envs)
        # Else there would be two heaps that may each fill the device. A rollout buffer will be empty soon.

    def _stored_again(self, layout: FrameLayout) -> _Frames:
        frames = self._make_frames(layout, final=True)
        for slot in map(int, np.flatnonzero(self._frames.table.cells.any(axis=(1, 2, 3)))):
            views = self.read(np.full(self.n_envs, slot), np.arange(self.n_envs), tuple(range(self.views)))
            self._write(frames, slot, [view.cpu().numpy().astype(self.stored_dtype) for view in views])
        return frames

    def _read_bytes(self, slots: Indices, envs: Indices, views: tuple[int, ...]) -> th.Tensor:
        table, layout = self._frames.table, self.layout
        cells: Cells = table.cells[slots, envs]
        cells = np.concatenate([cells[:, view].reshape(-1) for view in views])
        decoded = table.read(cells)
        if layout.outer > 1:
            decoded = decoded.view(-1, layout.depth, layout.outer, layout.part_bytes).transpose(1, 2).contiguous()
        return decoded.view(len(views) * len(slots), self.obs_bytes)

    def __getstate__(self) -> dict[str, Any]:
        state = {**self.__dict__, "_made": None, "_before": None}
        if self._made is not None:
            table = self._made.table
            state["_made"] = [self.layout, table.heap, table.cells, table.keys]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if state["_made"] is not None:
            self._made = self._with_heap(*state["_made"])


def create_observation_store(
    rows: int,
    n_envs: int,
    obs_shape: tuple[int, ...],
    dtype: npt.DTypeLike,
    compression_method: str = "delta",
    *,
    views: int = 2,
    dtypes: Mapping[str, Any] | None = None,
    device: th.device | str = "cpu",
    heap_bytes: int | None = None,
    compression_kwargs: Mapping[str, Any] | None = None,
) -> ObservationStore:
    """Make the store that goes with a method."""
    method = GpuMethod.parse(compression_method, dtypes, dtype, obs_shape, compression_kwargs)
    common = (rows, n_envs, views, obs_shape, np.dtype(dtype), method.elem_type, th.device(device))
    if method.name == "none":
        return DenseObservationStore(*common)
    if heap_bytes is not None and heap_bytes < 1:
        raise ValueError(f"heap_bytes must be positive, or None for a heap that grows, got {heap_bytes}")
    return RawObservationStore(*common, method=method, heap_bytes=heap_bytes)
