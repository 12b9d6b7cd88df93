"""Rollout buffers whose observations live on a device."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from stable_baselines3.common.buffers import BaseBuffer, DictRolloutBuffer, RolloutBuffer

from sb3_extra_buffers.gpu_buffers.base import GpuBuffer
from sb3_extra_buffers.gpu_buffers.device_array import DeviceArray
from sb3_extra_buffers.gpu_buffers.parents import each_while_locked
from sb3_extra_buffers.gpu_buffers.signatures import GpuRolloutArguments


class GpuRollout(GpuBuffer):
    """Mixin for rollout buffers."""

    _names = ("observations",)

    def add(self, obs: Any, *args: Any, **kwargs: Any) -> None:
        """
        Add a step, see the parent class; what cannot be stored is refused and leaves the buffer as it was.

        :param obs: Observations, one an environment
        :param args: What the parent takes
        :param kwargs: Likewise
        """
        with self._lock:
            self._recover()
            if self.pos >= self.buffer_size:
                raise ValueError(f"the rollout is full ({self.buffer_size} steps); call reset() before adding more")
            self._add((self._accepted(obs, "obs"),), args, kwargs)
            if self.full:
                self.compact()

    def get(self, batch_size: int | None = None) -> Generator[Any, None, None]:
        """
        Iterate over minibatches of the rollout, see the parent class.

        :param batch_size: Size of a minibatch; None for everything at once
        :return: The minibatches
        """
        with self._lock:
            self._recover()
            if not self.full:
                raise RuntimeError(
                    f"the rollout is not full: {self.pos} of {self.buffer_size} steps; collect the rest before calling get()"
                )
        return each_while_locked(super().get(batch_size), self)  # type: ignore[misc]

    @staticmethod
    def swap_and_flatten(arr: Any) -> Any:
        """
        Put one environment after the other, see the parent class.

        :param arr: An array, or observations
        :return: The same, with one axis for rows and environments
        """
        return arr.flattened() if isinstance(arr, DeviceArray) else BaseBuffer.swap_and_flatten(arr)


class GpuRolloutBuffer(GpuRolloutArguments, GpuRollout, RolloutBuffer):
    """``RolloutBuffer`` with compressed observations on a device; takes its arguments and yields the same minibatches."""


class GpuDictRolloutBuffer(GpuRolloutArguments, GpuRollout, DictRolloutBuffer):
    """``DictRolloutBuffer`` with compressed observations on a device; small keys are kept there as they are."""
