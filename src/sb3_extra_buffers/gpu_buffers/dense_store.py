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
    Observations of ``(rows, n_envs)`` cells; one or several of them (``obs``, ``next_obs``) a cell.

    A row is written in steps, so that a buffer can do the rest of an ``add`` in between, or take it back: ``stage`` stores
    without touching any row, ``publish`` makes a row show what was staged, by one assignment, and ``release`` gives up
    what the row showed before. Until then ``restore`` undoes all of it.

    :param rows: Number of rows
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

    def read(self, rows: Indices, envs: Indices, sides: tuple[int, ...]) -> tuple[th.Tensor, ...]:
        """
        Read observations.

        :param rows: Rows
        :param envs: Environments, as many
        :param sides: Which observations of these cells
        :return: For each side ``(n, *obs_shape)``, on the device
        """
        flat = self._read_bytes(rows, envs, sides)
        obs = flat.view(self._stored_torch).view(len(sides), len(rows), *self.obs_shape)
        return tuple(obs.to(self.torch_dtype).unbind(0))

    def prepare(self, *observations: Array) -> None:  # noqa: B027 (nothing to do is right for most)
        """
        Look at observations that will be staged next; all that is stored stays as it is seen from outside.

        :param observations: As ``stage`` takes them
        """

    @abstractmethod
    def stage(self, *observations: Array) -> Any:
        """
        Store observations, without showing them.

        :param observations: For each side ``(n_envs, *obs_shape)``, of the type that they are stored as
        :return: What to publish
        """

    @abstractmethod
    def publish(self, row: int, staged: Any) -> None:
        """
        Show what was staged.

        :param row: The row to show it in
        :param staged: What ``stage`` returned
        """

    @abstractmethod
    def previous(self, row: int) -> Any:
        """
        Tell what a row shows.

        :param row: The row
        :return: What ``restore`` and ``release`` take
        """

    @abstractmethod
    def restore(self, row: int, previous: Any) -> None:
        """
        Take back everything since the last ``release``.

        :param row: The row
        :param previous: What it shall show again
        """

    @abstractmethod
    def release(self, previous: Any) -> None:
        """
        Give up what a row showed before.

        :param previous: What ``previous`` returned
        """

    @abstractmethod
    def clear(self) -> None:
        """Forget all observations."""

    def recover(self) -> None:  # noqa: B027
        """Put in order what an interruption left, if anything."""

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
    def _read_bytes(self, rows: Indices, envs: Indices, sides: tuple[int, ...]) -> th.Tensor:
        """
        Read the bytes of observations.

        :param rows: Rows
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

    It has one row more than the buffer: a row is written to the one that is spare, which then takes the place of the old.

    :param args: See ``ObservationStore``
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        shape = (self.rows + 1, self.sides, self.n_envs, self.obs_bytes)
        self.data = th.zeros(shape, dtype=th.uint8, device=self.device)
        self._places = np.arange(self.rows)
        self._spare = self.rows

    def stage(self, *observations: Array) -> int:
        for side, obs in enumerate(observations):
            flat = np.ascontiguousarray(obs).reshape(self.n_envs, -1).view(np.uint8)
            given = th.from_numpy(flat if flat.flags.writeable else flat.copy())
            self.data[self._spare, side].copy_(to_device(given, self.device))
        return self._spare

    def previous(self, row: int) -> int:
        return int(self._places[row])

    def publish(self, row: int, staged: int) -> None:
        self._places[row] = staged

    def restore(self, row: int, previous: int) -> None:
        self._places[row] = previous
        # All places but one are shown by some row.
        self._spare = int(np.setdiff1d(np.arange(self.rows + 1), self._places)[0])

    def release(self, previous: int) -> None:
        self._spare = previous

    def clear(self) -> None:
        self.data.zero_()

    def memory_usage(self, rows: int) -> MemoryUsage:
        cells = rows * self.n_envs * self.sides
        return MemoryUsage(cells * self._outside_bytes, cells * self.obs_bytes, rows * self._places.itemsize, 0, 0)

    def _read_bytes(self, rows: Indices, envs: Indices, sides: tuple[int, ...]) -> th.Tensor:
        first = self._places[rows] * (self.sides * self.n_envs) + envs
        places = np.concatenate([first + side * self.n_envs for side in sides])
        return self.data.view(-1, self.obs_bytes).index_select(0, to_device(th.from_numpy(places), self.device))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "data": self.data.cpu()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.data = self.data.to(self.device)
