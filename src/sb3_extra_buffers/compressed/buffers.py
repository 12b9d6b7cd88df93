"""Where earlier versions had these classes; what they have pickled names them here, and is told that it cannot be read."""

from sb3_extra_buffers.compressed.replay import CompressedDictReplayBuffer, CompressedReplayBuffer
from sb3_extra_buffers.compressed.rollout import CompressedDictRolloutBuffer, CompressedRolloutBuffer

__all__ = ["CompressedDictReplayBuffer", "CompressedDictRolloutBuffer", "CompressedReplayBuffer", "CompressedRolloutBuffer"]
