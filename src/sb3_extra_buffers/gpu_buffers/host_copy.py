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
    it. Kept from one time to the next, it has to take over only the rows that were added since.

    :param fields: The observations on the device
    :param raw_below: Observations of fewer bytes are kept as they are
    :param table: The table on the device
    :param lock: The buffer's
    :param wraps: Whether the row after the last is the first again
    :param frames: Columns that were loaded, by key
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
        self._rows, self._n_envs = len(table.slots), fields[0].store.n_envs
        shape = self._rows, self._n_envs
        self.fields = [
            Field(field.key, field.space, shape, field.views, raw_below, {"elem_type": field.stored_dtype}, _OPTIONS)
            for field in fields
        ]
        self._device_fields = fields
        columns: list[Any] = []
        for field in self.fields:
            columns += field.make_columns(lock, wraps, None if frames is None else frames.get(field.key))
        self._table = Table(columns, *shape, lock, wraps)
        self._pos, self._appended = 0, table.appended
        row_bytes = self._n_envs * sum(field.views * max(field.store.obs_bytes, 1) for field in fields)
        self._block_rows = max(_BLOCK_BYTES // row_bytes, 1)

    @property
    def is_coded_by_default(self) -> bool:
        """Whether it is coded as all that is saved; what was loaded may be coded otherwise."""
        return all(field.frames.spec == field.spec for field in self.fields if field.is_compressed)

    def begin_at(self, pos: int, appended: int) -> None:
        """
        Say up to where it holds what the table on the device holds.

        :param pos: The row that comes next
        :param appended: How many rows had been written to that table by then
        """
        self._pos, self._appended = pos, appended

    def follow(self, pos: int) -> bool:
        """
        Take over the rows that were added to the table on the device since the last time.

        :param pos: The row that comes next there
        :return: Whether they could be told from the others; if not, nothing has been done
        """
        added = self._source.appended - self._appended
        reached = self._pos + added
        # In a ring there may have been resets nevertheless. Then rows from pos on do not count, and those before it are among
        # the rows that are taken over.
        if reached != pos and not (self._wraps and added < self._rows and reached % self._rows == pos):
            return False
        self._append(np.arange(self._pos, reached) % self._rows)
        self.begin_at(pos, self._source.appended)
        return True

    def take_all(self, pos: int, full: bool) -> None:
        """
        Take over all rows, the oldest first; nothing may be in the copy.

        :param pos: The row that comes next on the device
        :param full: Whether all rows are in use there
        """
        self._append(rows_by_age(pos, full, self._rows))
        self.begin_at(pos, self._source.appended)

    def _append(self, rows: Indices) -> None:
        n_envs = self._n_envs
        for block in self._blocks(rows):
            values = self._source.begin_read(*_cells(block, n_envs), tuple(range(self._source.n_observed)), {}).finish()
            on_host = [value.cpu().numpy() for value in values]
            for place, row in enumerate(block.tolist()):
                cells = slice(place * n_envs, (place + 1) * n_envs)
                self._table.append(tuple(value[cells] for value in on_host), {"pos": row, "full": False})

    def restore(self, lost: npt.NDArray[np.bool_], pos: int, full: bool) -> None:
        """
        Write rows to the device, the oldest first; nothing may be there.

        :param lost: Rows that are damaged, and are left out
        :param pos: The row that comes next
        :param full: Whether all rows are in use
        """
        rows = rows_by_age(pos, full, self._rows)
        self._source.restore(self._decoded(rows[~lost[rows]]))

    def _decoded(self, rows: Indices) -> Iterator[tuple[int, tuple[Any, ...]]]:
        n_envs = self._n_envs
        declared = [field.dtype for field in self.fields for _ in range(field.views)]
        for block in self._blocks(rows):
            found = self._table.begin_read(*_cells(block, n_envs)).finish()
            values = [value.astype(dtype, copy=False) for value, dtype in zip(found, declared, strict=True)]
            for place, row in enumerate(block.tolist()):
                yield row, tuple(value[place * n_envs : (place + 1) * n_envs] for value in values)

    def _blocks(self, rows: Indices) -> Iterator[Indices]:
        for first in range(0, len(rows), self._block_rows):
            yield rows[first : first + self._block_rows]


def rows_by_age(pos: int, full: bool, rows: int) -> Indices:
    """
    List the rows that are in use, the oldest first.

    :param pos: The row that comes next
    :param full: Whether all are in use
    :param rows: How many there are
    :return: The rows
    """
    return (np.arange(rows) + pos) % rows if full else np.arange(pos)


def _cells(rows: Indices, n_envs: int) -> tuple[Indices, Indices]:
    """All environments of rows, one row after the other."""
    return np.repeat(rows, n_envs), np.tile(np.arange(n_envs), len(rows))
