"""Buffers for Stable-Baselines3 that keep observations losslessly compressed."""

from sb3_extra_buffers.codecs import has_igzip, has_lz4, has_numba, has_zstd, init_jit
from sb3_extra_buffers.compressed.buffers import (
    CompressedDictReplayBuffer,
    CompressedDictRolloutBuffer,
    CompressedReplayBuffer,
    CompressedRolloutBuffer,
)
from sb3_extra_buffers.compressed.dtypes import find_buffer_dtypes
from sb3_extra_buffers.storage import CompressedArray, MemoryUsage, StorageError, find_smallest_dtype

__all__ = [
    "CompressedArray",
    "CompressedDictReplayBuffer",
    "CompressedDictRolloutBuffer",
    "CompressedReplayBuffer",
    "CompressedRolloutBuffer",
    "MemoryUsage",
    "StorageError",
    "find_buffer_dtypes",
    "find_smallest_dtype",
    "has_igzip",
    "has_lz4",
    "has_numba",
    "has_zstd",
    "init_jit",
]
