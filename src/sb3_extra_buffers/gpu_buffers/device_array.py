"""What SB3's code takes for the arrays of observations."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch as th

from sb3_extra_buffers.gpu_buffers.dense_store import ObservationStore
from sb3_extra_buffers.gpu_buffers.raw_buffer import Indices

STAGED = np.dtype([("staged", np.uint8)])
"""
Type of what SB3's ``add`` gets in place of observations that are stored already; assigning it to a row changes nothing.
"""


class DeviceArray:
    """
    One side of a store, as ``buffer.observations``: indexing gives tensors on the device.

    :param store: The store
    :param side: Which of its observations
    :param flat: Whether it is ``(n_envs * rows, …)``, one environment after the other, as rollout buffers read it
    """

    def __init__(self, store: ObservationStore, side: int, flat: bool = False) -> None:
        self.store, self.side, self.flat = store, side, flat

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
        """
        Put one environment after the other.

        :return: The same observations
        """
        return DeviceArray(self.store, self.side, flat=True)

    def __getitem__(self, index: Any) -> th.Tensor:
        if isinstance(index, tuple) and len(index) == 3 and index[2] == slice(None):
            index = index[:2]
        if self.flat or not _is_pair(index):
            return self._read_any(index)
        rows, envs = index
        return self.store.read(rows, envs, (self.side,))[0]

    def read_beside(self, other: DeviceArray, rows: Indices, columns: Indices) -> tuple[th.Tensor, th.Tensor]:
        """
        Read ``self[rows, columns]`` and ``other[rows, columns]``, decoding once what they share.

        :param other: Another side of the same store
        :param rows: Integers
        :param columns: Integers, as many
        :return: Both
        """
        if self.flat or other.flat or not _is_pair((rows, columns)):
            return self[rows, columns], other[rows, columns]
        mine, others = self.store.read(rows, columns, (self.side, other.side))
        return mine, others

    def _read_any(self, index: Any) -> th.Tensor:
        """Any index that NumPy takes for the axes of rows and environments; others are applied to what was read."""
        store = self.store
        own = index if isinstance(index, tuple) else (index,)
        axes = 1 if self.flat else 2
        if self.flat and len(own) == 1 and isinstance(own[0], np.ndarray) and own[0].dtype.kind in "iu":
            envs, rows = np.divmod(own[0], store.rows)
            return store.read(rows, envs, (self.side,))[0]
        numbers = np.arange(store.rows * store.n_envs)
        cells = numbers if self.flat else numbers.reshape(store.n_envs, store.rows).T
        chosen: Indices = np.asarray(cells[own[:axes]])
        envs, rows = np.divmod(chosen.reshape(-1), store.rows)
        found = store.read(rows, envs, (self.side,))[0] if chosen.size else self._nothing()
        found = found.view(*chosen.shape, *store.obs_shape)
        rest = own[axes:]
        return found[(slice(None),) * chosen.ndim + rest] if rest else found

    def _nothing(self) -> th.Tensor:
        return th.empty((0, *self.store.obs_shape), dtype=self.store.torch_dtype, device=self.store.device)

    def __setitem__(self, index: Any, value: Any) -> None:
        if getattr(value, "dtype", None) != STAGED:
            raise TypeError("observations on a device are written by the buffer's add(), not by assignment")

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        if copy is False:
            raise ValueError("observations on a device have to be decoded; an array of them is always a copy")
        array: npt.NDArray[Any] = self[:].cpu().numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    def __repr__(self) -> str:
        return f"DeviceArray(shape={self.shape}, dtype={self.dtype}, device={str(self.store.device)!r})"


def _is_pair(index: Any) -> bool:
    return (
        isinstance(index, tuple)
        and len(index) == 2
        and all(isinstance(part, np.ndarray) and part.ndim == 1 and part.dtype.kind in "iu" for part in index)
        and len(index[0]) == len(index[1]) > 0
    )
