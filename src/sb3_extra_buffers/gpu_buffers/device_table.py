"""A table whose observations are on a device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar, copy_context
from typing import Any

import numpy as np
import numpy.typing as npt
import torch as th

from sb3_extra_buffers.compressed.fields import Field
from sb3_extra_buffers.gpu_buffers.dense_store import Array, ObservationStore
from sb3_extra_buffers.gpu_buffers.device_array import DeviceArray
from sb3_extra_buffers.gpu_buffers.raw_buffer import Indices
from sb3_extra_buffers.storage import MemoryUsage, StoreLock
from sb3_extra_buffers.storage._core import PlainColumn, Table

_changing: ContextVar[DeviceTable | None] = ContextVar("sb3_extra_buffers_changing", default=None)


class DeviceField(Field):
    """
    The observations of one key, or all of them where they are not a Dict, in a store on a device.

    :param key: The key; None where they are not a Dict
    :param space: What an observation is
    :param store: Where they are; it is saved in place of a column of frames
    :param slots: The slot of the store that each row shows
    """

    def __init__(self, key: str | None, space: Any, store: ObservationStore, slots: Indices) -> None:
        # The parent's would make a codec of the host, and columns of a table.
        self.key, self.space, self.views = key, space, store.sides
        self.obs_shape, self.dtype, self.stored_dtype = store.obs_shape, store.dtype, store.stored_dtype
        self.row_shape = (store.n_envs, *store.obs_shape)
        self.is_compressed = True
        self.frames: Any = store
        self.store = store
        self.arrays = tuple(DeviceArray(store, side, slots) for side in range(store.sides))

    def accept(self, obs: Any, view: int) -> npt.NDArray[Any]:
        return super().accept(obs.cpu().numpy() if isinstance(obs, th.Tensor) else obs, view)

    def memory_usage(self, rows: int) -> MemoryUsage:
        return self.store.memory_usage(rows)


class _Done:
    """What ``begin_read`` returns: all has been read by then, while the lock was held."""

    def __init__(self, values: tuple[Any, ...]) -> None:
        self._values = values

    def finish(self) -> tuple[Any, ...]:
        return self._values


class DeviceTable:
    """
    To a buffer the same as ``Table``: rows that are written wholly or not at all. Observations are read as tensors.

    Stores have one slot more than there are rows. A row is written to the slot that no row shows; which one a row shows is a
    plain column, so it changes together with all others, in one step.

    :param fields: The observations; as values of a row they come first
    :param plain: The other columns, by name
    :param slots: ``(rows, 1)``: the slot that each row shows
    :param n_envs: Number of environments
    :param lock: The buffer's
    :param wraps: Whether the row after the last is the first again
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
        self.stores = [field.store for field in fields]
        self.slots = slots
        self.unfinished = False
        """Whether a change has begun that has not come to its end."""
        self.failed = -1
        self._fields, self._lock = fields, lock
        self._views = fields[0].views
        self.n_observed, self._n_plain = len(fields) * self._views, len(plain)
        """How many values of a row are observations."""
        self.names = tuple(plain)
        columns, names = [PlainColumn(slots), *plain.values()], ["slots", *plain]  # which no reset sets to zeros
        self._table = Table(columns, len(slots), n_envs, lock, wraps, names)
        self._spare = self._unused_slot()

    @property
    def appended(self) -> int:
        """How many rows have been written in all."""
        return int(self._table.appended)

    @property
    def attributes(self) -> dict[str, Any]:
        """What the table says of itself where nobody hands over a dict."""
        attributes: dict[str, Any] = self._table.attributes
        return attributes

    # -- writing --------------------------------------------------------------------------------------------------------

    def append(self, values: tuple[Any, ...], attributes: dict[str, Any]) -> None:
        """
        Write a row and go on to the next one.

        :param values: What is in it: observations, two for each key where what followed is kept, then the other columns
        :param attributes: ``pos``, ``full`` and the other columns, which change with the row
        """
        self.failed = -1
        views = self._views
        observed = [
            [field.accept(values[place * views + view], view) for view in range(views)]
            for place, field in enumerate(self._fields)
        ]
        self.change(self._write_row, observed, values[self.n_observed :], attributes)

    def _write_row(self, observed: list[list[Array]], plain: tuple[Any, ...], attributes: dict[str, Any]) -> None:
        row = attributes["pos"] % len(self.slots)
        before = int(self.slots[row, 0])
        for store, sides in zip(self.stores, observed, strict=True):
            store.prepare(*sides)
            store.write(self._spare, *sides)
        try:
            self._table.append((np.array([self._spare]), *plain), attributes)
        except Exception:
            self.failed = self._table.failed - 1 + self.n_observed if self._table.failed > 0 else -1
            raise
        for store in self.stores:
            store.release(before)
        self._spare = before
        if row == len(self.slots) - 1:
            self._compact_stores()

    def restore(self, rows: Iterable[tuple[int, tuple[Any, ...]]]) -> None:
        """
        Write the observations of rows, to a table in which there are none.

        :param rows: Each row once, with its observations in the order in which ``append`` takes them
        """
        self.change(self._restore_rows, rows)

    def _restore_rows(self, rows: Iterable[tuple[int, tuple[Any, ...]]]) -> None:
        views = self._views
        for row, values in rows:
            for place, (field, store) in enumerate(zip(self._fields, self.stores, strict=True)):
                sides = [field.accept(values[place * views + view], view) for view in range(views)]
                store.prepare(*sides)
                store.write(int(self.slots[row, 0]), *sides)  # which no other row shows, and none has shown
                store.release(self._spare)
        self._compact_stores()

    def clear(self, attributes: dict[str, Any], replaced: dict[str, Any]) -> None:
        """
        Forget all rows.

        :param attributes: As for ``append``
        :param replaced: What is put into them at the same time, in one step
        """
        self.change(self._clear_stores, attributes, replaced)

    def _clear_stores(self, attributes: dict[str, Any], replaced: dict[str, Any]) -> None:
        self._table.clear(attributes, replaced)
        for store in self.stores:
            store.clear()

    def compact(self) -> None:
        """Pack the heaps."""
        self.change(self._compact_stores)

    def _compact_stores(self) -> None:
        for store in self.stores:
            store.compact()

    def settle(self) -> None:
        """Bring up to date what is only counted now and then, unless a signal handler asks for it in the midst of a change."""
        if _changing.get() is not self:
            self.change(self._settle_stores)

    def _settle_stores(self) -> None:
        for store in self.stores:
            store.settle()

    # -- interruptions --------------------------------------------------------------------------------------------------

    def change(self, call: Callable[..., None], *args: Any) -> None:
        """
        Make a call that changes something, alone.

        What is half done meanwhile goes on: a signal handler that saves or reads must leave it alone. Once the call has been
        left, by Ctrl-C at any moment, it is to be put in order. The two are told apart by the context, which the
        interpreter itself leaves with the call.

        :param call: The call
        :param args: Its arguments
        """
        with self._lock:
            if _changing.get() is self:
                raise RuntimeError(
                    "the buffer is in use by this very thread: a signal handler may read it or save it, but must not "
                    "change it before it has returned"
                )
            self.recover()
            copy_context().run(self._change_within, call, args)

    def _change_within(self, call: Callable[..., None], args: tuple[Any, ...]) -> None:
        _changing.set(self)
        self.unfinished = True
        try:
            call(*args)
        except BaseException:
            self._put_in_order()
            raise
        self.unfinished = False

    def recover(self) -> None:
        """Put in order what an interruption left, unless that only waits for a signal handler to return."""
        if self.unfinished and _changing.get() is not self:
            self._put_in_order()

    def _put_in_order(self) -> None:
        """A row has been written, or it has not: what no row shows is nothing."""
        self._spare = self._unused_slot()
        for store in self.stores:
            store.recover(self._spare)
        self.unfinished = False

    def _unused_slot(self) -> int:
        return int(np.setdiff1d(np.arange(len(self.slots) + 1), self.slots)[0])

    def take(self, slots: Indices, unfinished: bool) -> None:
        """
        Become what was saved.

        :param slots: The slot that each row shows
        :param unfinished: Whether it was saved in the midst of a change
        """
        self.slots[...] = slots
        self._spare, self.unfinished = self._unused_slot(), unfinished

    # -- reading --------------------------------------------------------------------------------------------------------

    def begin_read(
        self,
        rows: Indices,
        envs: Indices,
        wanted: tuple[int, ...] | None = None,
        attributes: dict[str, Any] | None = None,
    ) -> _Done:
        """
        Read cells.

        :param rows: Rows
        :param envs: Environments, as many
        :param wanted: Which values, by their numbers in a row; None for all
        :param attributes: As for ``append``
        :return: What gives all values that are wanted, in that order
        """
        first = self.n_observed
        chosen = range(first + self._n_plain) if wanted is None else wanted
        plain = tuple(value - first + 1 for value in chosen if value >= first)
        found: dict[int, Any] = {}
        with self._lock:
            self.recover()
            if plain:
                arrays = self._table.begin_read(rows, envs, plain, attributes).finish()
                found.update(zip((value for value in chosen if value >= first), arrays, strict=True))
            slots: npt.NDArray[np.int64] = self.slots[rows, 0]
            for place, store in enumerate(self.stores):
                numbers = [value for value in chosen if value < first and value // self._views == place]
                if numbers:
                    sides = tuple(value % self._views for value in numbers)
                    found.update(zip(numbers, store.read(slots, envs, sides), strict=True))
        return _Done(tuple(found[value] for value in chosen))
