"""Buffers for Stable-Baselines3 that keep observations losslessly compressed."""

from typing import TYPE_CHECKING, Any

from sb3_extra_buffers.codecs import has_igzip, has_lz4, has_numba, has_zstd, init_jit
from sb3_extra_buffers.codecs._optional import has_contrib, install_hint
from sb3_extra_buffers.compressed.choose import compressed_buffer_for, compressed_kwargs
from sb3_extra_buffers.compressed.file_loading import load_buffer
from sb3_extra_buffers.compressed.her import CompressedHerReplayBuffer
from sb3_extra_buffers.compressed.n_step import CompressedDictNStepReplayBuffer, CompressedNStepReplayBuffer
from sb3_extra_buffers.compressed.prioritized import (
    CompressedDictPrioritizedReplayBuffer,
    CompressedPrioritizedReplayBuffer,
    PrioritizedReplayBuffer,
    PrioritizedReplayBufferSamples,
)
from sb3_extra_buffers.compressed.replay import CompressedDictReplayBuffer, CompressedReplayBuffer
from sb3_extra_buffers.compressed.rollout import CompressedDictRolloutBuffer, CompressedRolloutBuffer
from sb3_extra_buffers.storage import CompressedArray, MemoryUsage, StorageError, find_buffer_dtypes, find_smallest_dtype
from sb3_extra_buffers.storage.freed_memory import keep_freed_memory

if TYPE_CHECKING:
    from sb3_extra_buffers.compressed.contrib import (
        CompressedMaskableDictRolloutBuffer,
        CompressedMaskableRolloutBuffer,
        CompressedRecurrentDictRolloutBuffer,
        CompressedRecurrentPPO,
        CompressedRecurrentRolloutBuffer,
    )

__all__ = [
    "CompressedArray",
    "CompressedDictNStepReplayBuffer",
    "CompressedDictPrioritizedReplayBuffer",
    "CompressedDictReplayBuffer",
    "CompressedDictRolloutBuffer",
    "CompressedHerReplayBuffer",
    "CompressedMaskableDictRolloutBuffer",
    "CompressedMaskableRolloutBuffer",
    "CompressedNStepReplayBuffer",
    "CompressedPrioritizedReplayBuffer",
    "CompressedRecurrentDictRolloutBuffer",
    "CompressedRecurrentPPO",
    "CompressedRecurrentRolloutBuffer",
    "CompressedReplayBuffer",
    "CompressedRolloutBuffer",
    "MemoryUsage",
    "PrioritizedReplayBuffer",
    "PrioritizedReplayBufferSamples",
    "StorageError",
    "compressed_buffer_for",
    "compressed_kwargs",
    "find_buffer_dtypes",
    "find_smallest_dtype",
    "has_igzip",
    "has_lz4",
    "has_numba",
    "has_zstd",
    "init_jit",
    "keep_freed_memory",
    "load_buffer",
]


if not TYPE_CHECKING:  # to type checkers it would make any name right
    # What is in __all__ and not imported above needs sb3-contrib, which is optional and slow to import.
    _CONTRIB = tuple(name for name in __all__ if name not in globals())
    if not has_contrib():  # so that a star import takes the others
        __all__ = [name for name in __all__ if name not in _CONTRIB]

    def __getattr__(name: str) -> Any:
        if name not in _CONTRIB:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            import sb3_contrib  # noqa: F401
        except ImportError as error:
            raise ImportError(f"{name} needs sb3-contrib: {install_hint('contrib')}") from error
        from sb3_extra_buffers.compressed import contrib

        return getattr(contrib, name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__, *_CONTRIB})
