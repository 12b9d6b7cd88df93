"""Data sets for offline learning: what buffers have saved, opened to be read, and the ways there and back."""

from sb3_extra_buffers.datasets.converting import convert, export_pickle, replay_from_pickle
from sb3_extra_buffers.datasets.dataset import OfflineDataset, Transition, open_dataset
from sb3_extra_buffers.datasets.filling import prefill
from sb3_extra_buffers.datasets.mixed import MixedDictReplayBuffer, MixedReplayBuffer
from sb3_extra_buffers.datasets.npz_files import export_npz, replay_from_npz
from sb3_extra_buffers.datasets.played import replay_from_minari, replay_from_recording
from sb3_extra_buffers.recording.rows import OfflineEpisode

__all__ = [
    "MixedDictReplayBuffer",
    "MixedReplayBuffer",
    "OfflineDataset",
    "OfflineEpisode",
    "Transition",
    "convert",
    "export_npz",
    "export_pickle",
    "open_dataset",
    "prefill",
    "replay_from_minari",
    "replay_from_npz",
    "replay_from_pickle",
    "replay_from_recording",
]
