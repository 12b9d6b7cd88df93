"""Buffers for Stable-Baselines3 whose observations stay compressed on a torch device, from ``add`` to ``sample``."""

from typing import Any

from gymnasium import spaces
from stable_baselines3.common.buffers import BaseBuffer
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from sb3_extra_buffers.codecs import has_zstd
from sb3_extra_buffers.gpu_buffers.base import find_gpu_buffer_dtypes
from sb3_extra_buffers.gpu_buffers.gpu_replay import GpuDictReplayBuffer, GpuReplayBuffer
from sb3_extra_buffers.gpu_buffers.gpu_rollout import GpuDictRolloutBuffer, GpuRolloutBuffer
from sb3_extra_buffers.gpu_buffers.raw_buffer import HeapFullError

__all__ = [
    "GpuDictReplayBuffer",
    "GpuDictRolloutBuffer",
    "GpuReplayBuffer",
    "GpuRolloutBuffer",
    "HeapFullError",
    "find_gpu_buffer_dtypes",
    "has_zstd",
]


def gpu_buffer_class(algorithm_class: type, observation_space: spaces.Space[Any]) -> type[BaseBuffer]:
    """Find the buffer class for an algorithm; ``compressed_buffer_for`` calls this if it is given ``buffer_device``."""
    is_dict = isinstance(observation_space, spaces.Dict)
    names = {parent.__name__ for parent in algorithm_class.__mro__}
    if names & {"MaskablePPO", "RecurrentPPO"} or hasattr(algorithm_class, "compressed_buffers"):
        raise TypeError(
            f"{algorithm_class.__name__} has a buffer class of its own, and there is none on a device; leave out buffer_device"
        )
    if issubclass(algorithm_class, OffPolicyAlgorithm):
        return GpuDictReplayBuffer if is_dict else GpuReplayBuffer
    return GpuDictRolloutBuffer if is_dict else GpuRolloutBuffer
