"""Rollout buffers whose observations are on a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import BaseBuffer, DictRolloutBuffer, RolloutBuffer

from sb3_extra_buffers.compressed.rollout import TableRollout
from sb3_extra_buffers.gpu_buffers.base import GpuBuffer
from sb3_extra_buffers.gpu_buffers.device_table import DeviceArray

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from sb3_extra_buffers.gpu_buffers.base import GpuOptions


class GpuRollout(GpuBuffer, TableRollout):
    """Mixin for rollout buffers."""

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: th.device | str = "auto",
        gae_lambda: float = 1,
        gamma: float = 0.99,
        n_envs: int = 1,
        **options: Unpack[GpuOptions],
    ) -> None:
        # The parent declares other options, so type checkers must not see these.
        more: dict[str, Any] = {"n_envs": n_envs, **options}
        super().__init__(buffer_size, observation_space, action_space, device, gae_lambda, gamma, **more)

    @staticmethod
    def swap_and_flatten(arr: Any) -> Any:
        """Put one environment after the other, see the parent class."""
        return arr.flattened() if isinstance(arr, DeviceArray) else BaseBuffer.swap_and_flatten(arr)


class GpuRolloutBuffer(GpuRollout, RolloutBuffer):
    """``RolloutBuffer`` with compressed observations on a device; takes its arguments and yields the same minibatches."""


class GpuDictRolloutBuffer(GpuRollout, DictRolloutBuffer):
    """``DictRolloutBuffer`` with compressed observations on a device; small keys are kept there as they are."""
