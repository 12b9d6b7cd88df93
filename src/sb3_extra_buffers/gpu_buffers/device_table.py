"""A table whose observations are on a device, and what SB3's code sees of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar, copy_context
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch as th

from sb3_extra_buffers.compressed.fields import Field
from sb3_extra_buffers.gpu_buffers.observation_store import Array, ObservationStore
from sb3_extra_buffers.gpu_buffers.raw_buffer import Indices
from sb3_extra_buffers.storage import MemoryUsage, StoreLock
from sb3_extra_buffers.storage._core import PlainColumn, Table

_changing: ContextVar[DeviceTable | None] = ContextVar("sb3_extra_buffers_changing", default=None)


class DeviceArray:
    """
    One view of the observations of a store, as ``buffer.observations``: indexing gives tensors on the device.

    ``slots``, ``(rows, 1)``, is the slot of the store that each row shows. A flat array is ``(n_envs * rows, …)``, one
    environment after the other, as rollout buffers read it.
    """

    def __init__(self, store: ObservationStore, view: int, slots: Indices, lock: StoreLock, flat: bool = False) -> None:
        self.store, self.view, self.slots, self.flat, self._lock = store, view, slots, flat, lock

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        store = self.store
        cells = (store.rows * store.n_envs,) if self.flat else (store.rows, store.n_envs)
        return (*cells, *store.obs_shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of its elements."""
        return self.store.dtype

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes that it would take uncompressed."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def flattened(self) -> DeviceArray:
        """The same observations, one environment after the other."""
        return DeviceArray(self.store, self.view, self.slots, self._lock, flat=True)

    def __getitem__(self, index: Any) -> th.Tensor:
        """Any index that NumPy takes for the axes of rows and environments; others are applied to what was read."""
        store = self.store
        own = index if isinstance(index, tuple) else (index,)
        axes = 1 if self.flat else 2
        if _is_cells(own[:axes], axes):
            chosen: Any = own[0]
            rows, envs = np.divmod(chosen, store.rows)[::-1] if self.flat else own[:2]
        else:
            numbers = np.arange(store.rows * store.n_envs)
            cells = numbers if self.flat else numbers.reshape(store.n_envs, store.rows).T
            chosen = np.asarray(cells[own[:axes]])
            envs, rows = np.divmod(chosen.reshape(-1), store.rows)
        with self._lock:
            (found,) = store.read(self.slots[rows, 0], envs, (self.view,))
        found = found.view(*chosen.shape, *store.obs_shape)
        rest = own[axes:]
        return found if rest in ((), (slice(None),)) else found[(slice(None),) * chosen.ndim + rest]

    def __setitem__(self, index: Any, value: Any) -> None:
        raise TypeError("observations on a device are written by the buffer's add(), not by assignment")

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        if copy is False:
            raise ValueError("observations on a device have to be decoded; an array of them is always a copy")
        array: npt.NDArray[Any] = self[:].cpu().numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    def __repr__(self) -> str:
        return f"DeviceArray(shape={self.shape}, dtype={self.dtype}, device={str(self.store.device)!r})"


def _is_cells(index: tuple[Any, ...], axes: int) -> bool:
    """Whether it is integers, one array for each axis: what SB3 reads minibatches with."""
    return (
        len(index) == axes
        and all(isinstance(part, np.ndarray) and part.ndim == 1 and part.dtype.kind in "iu" for part in index)
        and len(index[0]) == len(index[-1])
    )


class DeviceField(Field):
    """The observations of one key, or all of them where they are not a Dict (then the key is None), in a store."""

    def __init__(self, key: str | None, space: Any, store: ObservationStore, slots: Indices, lock: StoreLock) -> None:
        # The parent's would make a codec of the host, and columns of a table.
        self.key, self.space, self.views = key, space, store.views
        self.obs_shape, self.dtype, self.stored_dtype = store.obs_shape, store.dtype, store.stored_dtype
        self.row_shape = (store.n_envs, *store.obs_shape)
        self.is_compressed = True
        self.frames: Any = store
        self.store = store
        self.arrays = tuple(DeviceArray(store, view, slots, lock) for view in range(store.views))

    def accept(self, obs: Any, view: int) -> npt.NDArray[Any]:
        return super().accept(obs.cpu().numpy() if isinstance(obs, th.Tensor) else obs, view)

    def memory_usage(self, rows: int) -> MemoryUsage:
        return self.store.memory_usage(rows)


class DeviceTable:
    """
    The interface of ``Table``: rows that are written completely or not at all. Observations are read as tensors.

    Stores have one slot more than there are rows. A row is written to the slot that no row shows. Which slot a row shows is a
    plain column, so it changes together with all others, in one step. Reading uses nothing but these slots. So an interrupted
    call harms no reader, and the next change gives up what it has left in the stores.
    """

    def __init__(
        self,
        fields: Sequence[DeviceField],
        plain: Mapping[str, PlainColumn],
        slots: Indices,
        n_envs: int,
        lock: StoreLock,
        wraps: bool,
    ) -> None:
        self.slots = slots
        self.failed = -1
        """Which value of the row could not be stored when ``append`` last failed; -1 where none is to blame."""
        self.names = tuple(plain)
        self._fields, self._stores, self._lock = fields, [field.store for field in fields], lock
        self._views = fields[0].views
        self.n_observed, self._n_plain = len(fields) * self._views, len(plain)
        """How many values of a row are observations; they come first."""
        columns, names = [PlainColumn(slots), *plain.values()], ["slots", *plain]  # which no reset sets to zeros
        self._table = Table(columns, len(slots), n_envs, lock, wraps, names)
        self._spare = 0
        self._unfinished = True  # rows may have been loaded

    @property
    def appended(self) -> int:
        """How many rows have been written in all."""
        return int(self._table.appended)

    @property
    def attributes(self) -> dict[str, Any]:
        """``pos``, ``full`` and the other columns, where no dict is given."""
        attributes: dict[str, Any] = self._table.attributes
        return attributes

    def append(self, values: tuple[Any, ...], attributes: dict[str, Any]) -> None:
        """Write the next row: observations, all views of a key together, then the other columns."""
        self.failed = -1
        self.change(self._write_row, self._accepted(values), values[self.n_observed :], attributes)

    def _accepted(self, values: tuple[Any, ...]) -> list[list[Array]]:
        views = self._views
        return [
            [field.accept(values[place * views + view], view) for view in range(views)]
            for place, field in enumerate(self._fields)
        ]

    def _write_row(self, observed: list[list[Array]], plain: tuple[Any, ...], attributes: dict[str, Any]) -> None:
        row = attributes["pos"] % len(self.slots)
        before = int(self.slots[row, 0])
        for store, views in zip(self._stores, observed, strict=True):
            store.write(self._spare, *views)
        try:
            self._table.append((np.array([self._spare]), *plain), attributes)
        except Exception:
            self.failed = self._table.failed - 1 + self.n_observed if self._table.failed > 0 else -1
            raise
        for store in self._stores:
            store.release(before)
        self._spare = before
        if row == len(self.slots) - 1:
            self._compact_stores()

    def restore(self, rows: Iterable[tuple[int, tuple[Any, ...]]]) -> None:
        """Write the observations of rows, each once, to a table without any."""
        self.change(self._restore_rows, rows)

    def _restore_rows(self, rows: Iterable[tuple[int, tuple[Any, ...]]]) -> None:
        for row, values in rows:
            for store, views in zip(self._stores, self._accepted(values), strict=True):
                store.write(int(self.slots[row, 0]), *views)  # which no other row shows, and none has shown
                store.release(self._spare)
        self._compact_stores()

    def clear(self, attributes: dict[str, Any], replaced: dict[str, Any]) -> None:
        """Forget all rows, and put ``replaced`` into the attributes in the same step."""
        self.change(self._clear_stores, attributes, replaced)

    def _clear_stores(self, attributes: dict[str, Any], replaced: dict[str, Any]) -> None:
        self._table.clear(attributes, replaced)
        for store in self._stores:
            store.clear()

    def compact(self) -> None:
        """Pack the heaps."""
        self.change(self._compact_stores)

    def _compact_stores(self) -> None:
        for store in self._stores:
            store.compact()

    def change(self, call: Callable[..., None], *args: Any) -> None:
        """
        Make a call that changes something; refuse it from a signal handler that has interrupted another one.

        The context says which of the two it is: whichever way a call is left, the interpreter leaves its context.
        """
        with self._lock:
            if _changing.get() is self:
                raise RuntimeError(
                    "the buffer is in use by this very thread: a signal handler may read it or save it, but must not "
                    "change it before it has returned"
                )
            copy_context().run(self._change_within, call, args)

    def _change_within(self, call: Callable[..., None], args: tuple[Any, ...]) -> None:
        _changing.set(self)
        if self._unfinished:
            n_slots = len(self.slots) + 1
            self._spare = n_slots * (n_slots - 1) // 2 - int(self.slots.sum())  # the one that no row shows
            for store in self._stores:
                store.recover(self._spare)
        self._unfinished = True
        call(*args)
        self._unfinished = False

    def begin_read(
        self,
        rows: Indices,
        envs: Indices,
        wanted: tuple[int, ...] | None = None,
        attributes: dict[str, Any] | None = None,
    ) -> Any:
        """Read cells: the values that are wanted, by their numbers in a row, or all; ``finish()`` of the result gives them."""
        first = self.n_observed
        chosen = range(first + self._n_plain) if wanted is None else wanted
        plain = tuple(value - first + 1 for value in chosen if value >= first)
        found: dict[int, Any] = {}
        with self._lock:
            if plain:
                arrays = self._table.begin_read(rows, envs, plain, attributes).finish()
                found.update(zip((value for value in chosen if value >= first), arrays, strict=True))
            slots: npt.NDArray[np.int64] = self.slots[rows, 0]
            for place, store in enumerate(self._stores):
                numbers = [value for value in chosen if value < first and value // self._views == place]
                if numbers:
                    views = tuple(value % self._views for value in numbers)
                    found.update(zip(numbers, store.read(slots, envs, views), strict=True))
        values = tuple(found[value] for value in chosen)
        return SimpleNamespace(finish=lambda: values)  # all was read while the lock was held
