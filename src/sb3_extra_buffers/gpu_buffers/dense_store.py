"""What a store of observations is, and the one that keeps them as they are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt
import torch as th

from sb3_extra_buffers.gpu_buffers.raw_buffer import Indices, usable_device
from sb3_extra_buffers.gpu_buffers.utils import numpy_dtype_to_torch, to_device
from sb3_extra_buffers.storage import MemoryUsage

Array = npt.NDArray[Any]


class ObservationStore(ABC):
    """
    Observations of ``(slots, n_envs)`` cells; one or several of them (``obs``, ``next_obs``) a cell.

    There is one slot more than there are rows. So a buffer writes to the slot that no row shows, has the row show it together
    with the rest of an ``add``, and only then releases the slot that the row has shown before.

    :param rows: Number of rows; slots are one more
    :param n_envs: Number of environments
    :param sides: Observations in a cell
    :param obs_shape: Shape of one observation
    :param dtype: Type that observations have outside
    :param stored: Type that they are stored as
    :param device: Where they are
    """

    def __init__(
        self,
        rows: int,
        n_envs: int,
        sides: int,
        obs_shape: tuple[int, ...],
        dtype: np.dtype[Any],
        stored: np.dtype[Any],
        device: th.device,
    ) -> None:
        self.rows, self.n_envs, self.sides = rows, n_envs, sides
        self.obs_shape, self.dtype, self.stored_dtype = obs_shape, dtype, stored
        self.device = device
        self.torch_dtype = numpy_dtype_to_torch(dtype)
        if device.type == "mps" and self.torch_dtype in (th.float64, th.complex128):
            raise TypeError(f"mps has no {self.torch_dtype}; declare the observation space with float32")
        self._stored_torch = numpy_dtype_to_torch(stored)
        elements = int(np.prod(obs_shape))
        self.obs_bytes, self._outside_bytes = elements * stored.itemsize, elements * dtype.itemsize

    def read(self, slots: Indices, envs: Indices, sides: tuple[int, ...]) -> tuple[th.Tensor, ...]:
        """
        Read observations.

        :param slots: Slots
        :param envs: Environments, as many
        :param sides: Which observations of these cells
        :return: For each side ``(n, *obs_shape)``, on the device
        """
        if not len(slots):
            nothing = th.empty((0, *self.obs_shape), dtype=self.torch_dtype, device=self.device)
            return (nothing,) * len(sides)
        flat = self._read_bytes(slots, envs, sides)
        obs = flat.view(self._stored_torch).view(len(sides), len(slots), *self.obs_shape)
        return tuple(obs.to(self.torch_dtype).unbind(0))

    def prepare(self, *observations: Array) -> None:  # noqa: B027 (nothing to do is right for most)
        """
        Look at observations that will be written next; all that is stored stays as it is seen from outside.

        :param observations: As ``write`` takes them
        """

    @abstractmethod
    def write(self, slot: int, *observations: Array) -> None:
        """
        Store observations.

        :param slot: Where: a slot that was never written, or has been released
        :param observations: For each side ``(n_envs, *obs_shape)``, of the type that they are stored as
        """

    def release(self, slot: int) -> None:  # noqa: B027
        """
        Give up what is in a slot.

        :param slot: The slot
        """

    def recover(self, unused: int) -> None:  # noqa: B027
        """
        Put in order what an interruption left.

        :param unused: The slot that no row shows; what is in it is given up
        """

    @abstractmethod
    def clear(self) -> None:
        """Forget all observations."""

    def settle(self) -> None:  # noqa: B027
        """Bring up to date what is only counted now and then."""

    def compact(self) -> None:  # noqa: B027
        """Pack what is stored."""

    @abstractmethod
    def memory_usage(self, rows: int) -> MemoryUsage:
        """
        Tell what is taken.

        :param rows: How many rows are written
        :return: The figures
        """

    @abstractmethod
    def _read_bytes(self, slots: Indices, envs: Indices, sides: tuple[int, ...]) -> th.Tensor:
        """
        Read the bytes of observations.

        :param slots: Slots
        :param envs: Environments, as many
        :param sides: Which observations of these cells
        :return: ``(len(sides) * n, obs_bytes)``, one side after the other
        """

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.device = usable_device(self.device)


class DenseObservationStore(ObservationStore):
    """
    Observations as they are, in one tensor.

    :param args: See ``ObservationStore``
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        shape = (self.rows + 1, self.sides, self.n_envs, self.obs_bytes)
        self.data = th.zeros(shape, dtype=th.uint8, device=self.device)

    def write(self, slot: int, *observations: Array) -> None:
        for side, obs in enumerate(observations):
            flat = np.ascontiguousarray(obs).reshape(self.n_envs, -1).view(np.uint8)
            given = th.from_numpy(flat if flat.flags.writeable else flat.copy())
            self.data[slot, side].copy_(to_device(given, self.device))

    def clear(self) -> None:
        self.data.zero_()

    def memory_usage(self, rows: int) -> MemoryUsage:
        cells = rows * self.n_envs * self.sides
        return MemoryUsage(cells * self._outside_bytes, cells * self.obs_bytes, 0, 0, 0)

    def _read_bytes(self, slots: Indices, envs: Indices, sides: tuple[int, ...]) -> th.Tensor:
        first = slots * (self.sides * self.n_envs) + envs
        places = np.concatenate([first + side * self.n_envs for side in sides])
        return self.data.view(-1, self.obs_bytes).index_select(0, to_device(th.from_numpy(places), self.device))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "data": self.data.cpu()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.data = self.data.to(self.device)
