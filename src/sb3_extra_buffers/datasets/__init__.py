"""Data sets for offline learning: what buffers have saved, opened to be read."""

from sb3_extra_buffers.datasets.dataset import OfflineDataset, Transition, open_dataset
from sb3_extra_buffers.datasets.episodes import OfflineEpisode
from sb3_extra_buffers.datasets.filling import prefill
from sb3_extra_buffers.datasets.mixed import MixedDictReplayBuffer, MixedReplayBuffer

__all__ = [
    "MixedDictReplayBuffer",
    "MixedReplayBuffer",
    "OfflineDataset",
    "OfflineEpisode",
    "Transition",
    "open_dataset",
    "prefill",
]
