"""Buffers for Stable-Baselines3 whose observations stay compressed on a torch device, from ``add`` to ``sample``."""

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
