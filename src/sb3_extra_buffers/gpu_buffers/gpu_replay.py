"""Replay buffers whose observations are on a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer
from stable_baselines3.common.vec_env import VecNormalize

from sb3_extra_buffers.compressed.replay import TableReplay
from sb3_extra_buffers.gpu_buffers.base import GpuBuffer

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from sb3_extra_buffers.gpu_buffers.base import GpuOptions


class GpuReplay(GpuBuffer, TableReplay):
    """Mixin for replay buffers."""

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: th.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        **options: Unpack[GpuOptions],
    ) -> None:
        # The parent declares other options, so type checkers must not see these.
        more: dict[str, Any] = {"handle_timeout_termination": handle_timeout_termination, **options}
        super().__init__(buffer_size, observation_space, action_space, device, n_envs, optimize_memory_usage, **more)

    def reset(self) -> None:
        """Begin again at the first row."""
        self._table.change(super().reset)  # not during an ``add``, which has read ``pos``

    def sample(self, batch_size: int, env: VecNormalize | None = None) -> Any:
        """Sample transitions."""
        with self._lock:  # rows must not be overwritten between drawing and reading them
            return super().sample(batch_size, env)


class GpuReplayBuffer(GpuReplay, ReplayBuffer):
    """
    ``ReplayBuffer`` with compressed observations on a device; takes its arguments and samples the same transitions.

    ``optimize_memory_usage`` is accepted in every combination and has no effect: frames are shared anyway, and
    ``next_obs`` is always the true next observation, also at the end of an episode.
    """


class GpuDictReplayBuffer(GpuReplay, DictReplayBuffer):
    """
    ``DictReplayBuffer`` with compressed observations on a device; small keys are kept there as they are.

    ``optimize_memory_usage`` is accepted and has no effect.
    """
