"""SB3's four core buffers, compressed."""

from __future__ import annotations

from stable_baselines3.common.buffers import DictReplayBuffer, DictRolloutBuffer, ReplayBuffer, RolloutBuffer

from sb3_extra_buffers.compressed.mixin import CompressedReplay, CompressedRollout
from sb3_extra_buffers.compressed.signatures import ReplayArguments, RolloutArguments


class CompressedReplayBuffer(ReplayArguments, CompressedReplay, ReplayBuffer):
    """
    ``ReplayBuffer`` with compressed observations; takes its arguments and samples the same transitions.

    ``optimize_memory_usage`` is accepted in every combination and has no effect: frames are shared anyway, and
    ``next_obs`` is always the true next observation, also at the end of an episode.
    """


class CompressedDictReplayBuffer(ReplayArguments, CompressedReplay, DictReplayBuffer):
    """
    ``DictReplayBuffer`` with compressed observations; small keys are stored as they are.

    ``optimize_memory_usage`` is accepted and has no effect.
    """


class CompressedRolloutBuffer(RolloutArguments, CompressedRollout, RolloutBuffer):
    """``RolloutBuffer`` with compressed observations; takes its arguments and yields the same minibatches."""


class CompressedDictRolloutBuffer(RolloutArguments, CompressedRollout, DictRolloutBuffer):
    """``DictRolloutBuffer`` with compressed observations; small keys are stored as they are."""
