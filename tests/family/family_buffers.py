"""Our classes with everything compressed, however small, beside the ones they stand for."""

from __future__ import annotations

from typing import Any

from sb3_contrib.common.maskable.buffers import MaskableDictRolloutBuffer, MaskableRolloutBuffer
from sb3_contrib.common.recurrent.buffers import RecurrentDictRolloutBuffer, RecurrentRolloutBuffer
from stable_baselines3.common.buffers import (
    DictReplayBuffer,
    DictRolloutBuffer,
    NStepReplayBuffer,
    ReplayBuffer,
    RolloutBuffer,
)
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from sb3_extra_buffers import compressed


def _small(cls: type[Any]) -> type[Any]:
    """A subclass that keeps nothing raw, and that pickle finds here."""
    name = cls.__name__.replace("Compressed", "Small")
    return type(name, (cls,), {"raw_below": 0, "__module__": __name__, "__doc__": cls.__doc__})


SmallReplayBuffer = _small(compressed.CompressedReplayBuffer)
SmallDictReplayBuffer = _small(compressed.CompressedDictReplayBuffer)
SmallNStepReplayBuffer = _small(compressed.CompressedNStepReplayBuffer)
SmallDictNStepReplayBuffer = _small(compressed.CompressedDictNStepReplayBuffer)
SmallHerReplayBuffer = _small(compressed.CompressedHerReplayBuffer)
SmallRolloutBuffer = _small(compressed.CompressedRolloutBuffer)
SmallDictRolloutBuffer = _small(compressed.CompressedDictRolloutBuffer)
SmallMaskableRolloutBuffer = _small(compressed.CompressedMaskableRolloutBuffer)
SmallMaskableDictRolloutBuffer = _small(compressed.CompressedMaskableDictRolloutBuffer)
SmallRecurrentRolloutBuffer = _small(compressed.CompressedRecurrentRolloutBuffer)
SmallRecurrentDictRolloutBuffer = _small(compressed.CompressedRecurrentDictRolloutBuffer)

ORACLES: dict[type[Any], type[Any]] = {
    SmallReplayBuffer: ReplayBuffer,
    SmallDictReplayBuffer: DictReplayBuffer,
    SmallNStepReplayBuffer: NStepReplayBuffer,
    SmallHerReplayBuffer: HerReplayBuffer,
    SmallRolloutBuffer: RolloutBuffer,
    SmallDictRolloutBuffer: DictRolloutBuffer,
    SmallMaskableRolloutBuffer: MaskableRolloutBuffer,
    SmallMaskableDictRolloutBuffer: MaskableDictRolloutBuffer,
    SmallRecurrentRolloutBuffer: RecurrentRolloutBuffer,
    SmallRecurrentDictRolloutBuffer: RecurrentDictRolloutBuffer,
}
