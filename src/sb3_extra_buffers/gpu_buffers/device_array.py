"""What SB3's code takes for the arrays of observations."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch as th

from sb3_extra_buffers.gpu_buffers.dense_store import ObservationStore
from sb3_extra_buffers.gpu_buffers.raw_buffer import Indices


class DeviceArray:
    """
    One side of a store, as ``buffer.observations``: indexing gives tensors on the device.

    :param store: The store
    :param side: Which of its observations
    :param slots: ``(rows, 1)``: the slot of the store that each row shows
    :param flat: Whether it is ``(n_envs * rows, …)``, one environment after the other, as rollout buffers read it
    """

    def __init__(self, store: ObservationStore, side: int, slots: Indices, flat: bool = False) -> None:
        self.store, self.side, self.slots, self.flat = store, side, slots, flat

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
        return DeviceArray(self.store, self.side, self.slots, flat=True)

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
        found = store.read(self.slots[rows, 0], envs, (self.side,))[0].view(*chosen.shape, *store.obs_shape)
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
