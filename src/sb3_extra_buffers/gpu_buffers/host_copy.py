"""What a buffer on a device holds, as a compressed buffer on the host would hold it: that is what files hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from sb3_extra_buffers.compressed.fields import Field
from sb3_extra_buffers.gpu_buffers.device_table import DeviceField, DeviceTable
from sb3_extra_buffers.gpu_buffers.raw_buffer import Indices
from sb3_extra_buffers.storage import Frames, StoreLock
from sb3_extra_buffers.storage._core import Table

_OPTIONS = {"compression_method": None, "compression_kwargs": None, "decompression_kwargs": None}
_BLOCK_BYTES = 8 << 20  # of observations that are decoded at a time


class HostCopy:
    """
    The observations of a table on a device, in columns of the host: compressed, or plain where they are small.

    It is coded as a compressed buffer codes by default, whatever the method on the device is, so that files do not depend on
    it. If it is kept, only the rows that were added since have to be copied. ``frames`` are columns that were loaded, by key.
    """

    def __init__(
        self,
        fields: list[DeviceField],
        raw_below: int,
        table: DeviceTable,
        lock: StoreLock,
        wraps: bool,
        frames: Mapping[Any, Frames] | None = None,
    ) -> None:
        self._source, self._wraps = table, wraps
        self._rows, self._n_envs = shape = len(table.slots), fields[0].store.n_envs
        self.fields = [
            Field(field.key, field.space, shape, field.views, raw_below, {"elem_type": field.stored_dtype}, _OPTIONS)
            for field in fields
        ]
        columns: list[Any] = []
        for field in self.fields:
            columns += field.make_columns(lock, wraps, None if frames is None else frames.get(field.key))
        self._table = Table(columns, *shape, lock, wraps)
        self._pos, self._appended = 0, table.appended
        row_bytes = self._n_envs * sum(field.views * max(field.store.obs_bytes, 1) for field in fields)
        self._block_rows = max(_BLOCK_BYTES // row_bytes, 1)

    @property
    def is_coded_by_default(self) -> bool:
        """Whether it is coded like everything that is saved; what was loaded may be coded otherwise."""
        return all(field.frames.spec == field.spec for field in self.fields if field.is_compressed)

    def begin_at(self, pos: int, appended: int) -> None:
        """Note that it is up to date with the device, where ``pos`` comes next and ``appended`` rows have been written."""
        self._pos, self._appended = pos, appended

    def follow(self, pos: int) -> bool:
        """Copy the rows that were added since the last time; False, and no change, if it is not known which these are."""
        added = self._source.appended - self._appended
        reached = self._pos + added
        # A ring may have been reset meanwhile. Then rows from pos on do not count, and those before it are copied.
        if reached != pos and not (self._wraps and added < self._rows and reached % self._rows == pos):
            return False
        self._append(np.arange(self._pos, reached) % self._rows)
        self.begin_at(pos, self._source.appended)
        return True

    def take_all(self, pos: int, full: bool) -> None:
        """Copy all rows, the oldest first, to a copy that is empty."""
        self._append(_rows_by_age(pos, full, self._rows))
        self.begin_at(pos, self._source.appended)

    def _append(self, rows: Indices) -> None:
        for block in self._blocks(rows):
            values = self._source.begin_read(*self._cells(block), tuple(range(self._source.n_observed)), {}).finish()
            for row, of_row in self._by_row(block, [value.cpu().numpy() for value in values]):
                self._table.append(of_row, {"pos": row, "full": False})

    def restore(self, lost: npt.NDArray[np.bool_], pos: int, full: bool) -> None:
        """Write all rows but those that are lost to the device, the oldest first; nothing may be there."""
        rows = _rows_by_age(pos, full, self._rows)
        self._source.restore(self._decoded(rows[~lost[rows]]))

    def _decoded(self, rows: Indices) -> Iterator[tuple[int, tuple[Any, ...]]]:
        declared = [field.dtype for field in self.fields for _ in range(field.views)]
        for block in self._blocks(rows):
            found = self._table.begin_read(*self._cells(block)).finish()
            yield from self._by_row(
                block, [value.astype(dtype, copy=False) for value, dtype in zip(found, declared, strict=True)]
            )

    def _blocks(self, rows: Indices) -> Iterator[Indices]:
        for first in range(0, len(rows), self._block_rows):
            yield rows[first : first + self._block_rows]

    def _cells(self, rows: Indices) -> tuple[Indices, Indices]:
        """All environments of rows, one row after the other."""
        return np.repeat(rows, self._n_envs), np.tile(np.arange(self._n_envs), len(rows))

    def _by_row(self, rows: Indices, values: list[Any]) -> Iterator[tuple[int, tuple[Any, ...]]]:
        for place, row in enumerate(rows.tolist()):
            yield row, tuple(value[place * self._n_envs : (place + 1) * self._n_envs] for value in values)


def _rows_by_age(pos: int, full: bool, rows: int) -> Indices:
    """The rows that are in use, the oldest first."""
    return (np.arange(rows) + pos) % rows if full else np.arange(pos)
