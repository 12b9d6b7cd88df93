"""Collectors, shards and an unchanged learner of SB3's on Ray. Nothing here imports Ray, torch or SB3 before it is needed."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sb3_extra_buffers.distributed.blocks import BlockError, MissingError, ShardLostError
    from sb3_extra_buffers.distributed.buffers import ShardedPrioritizedReplayBuffer, ShardedReplayBuffer
    from sb3_extra_buffers.distributed.fleet import Fleet

__all__ = ["BlockError", "Fleet", "MissingError", "ShardLostError", "ShardedPrioritizedReplayBuffer", "ShardedReplayBuffer"]

# A shard is a process without torch, and it imports this package, too.
_MODULES = {
    "BlockError": "blocks",
    "MissingError": "blocks",
    "ShardLostError": "blocks",
    "Fleet": "fleet",
    "ShardedReplayBuffer": "buffers",
    "ShardedPrioritizedReplayBuffer": "buffers",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
