"""Drop-in Stable-Baselines3 buffers that keep observations losslessly compressed."""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

__version__ = "1.1.0"

# Buffers of higher layers, by the option that asks for them: lower layers look them up here and import none by themselves.
BUFFERS_BY_OPTION = {"buffer_device": "sb3_extra_buffers.gpu_buffers:gpu_buffer_class"}

if TYPE_CHECKING:
    # Type checkers find every public name here, and see nothing of `__getattr__`: to them it would make any name right.
    from sb3_extra_buffers.compressed import *  # noqa: F403
    from sb3_extra_buffers.datasets import *  # noqa: F403
    from sb3_extra_buffers.gpu_buffers import *  # noqa: F403
    from sb3_extra_buffers.recording import *  # noqa: F403
    from sb3_extra_buffers.training_utils import *  # noqa: F403
else:
    # Names are imported at first use: asking for the version or for one codec must not cost the import of torch.
    _NAMES = {
        "compressed": """
            CompressedArray CompressedReplayBuffer CompressedDictReplayBuffer CompressedRolloutBuffer
            CompressedDictRolloutBuffer CompressedNStepReplayBuffer CompressedDictNStepReplayBuffer
            CompressedHerReplayBuffer PrioritizedReplayBuffer CompressedPrioritizedReplayBuffer
            CompressedDictPrioritizedReplayBuffer PrioritizedReplayBufferSamples CompressedMaskableRolloutBuffer
            CompressedMaskableDictRolloutBuffer CompressedRecurrentRolloutBuffer CompressedRecurrentDictRolloutBuffer
            CompressedRecurrentPPO MemoryUsage StorageError compressed_buffer_for compressed_kwargs find_buffer_dtypes
            find_smallest_dtype has_igzip has_lz4 has_numba has_zstd init_jit keep_freed_memory load_buffer
        """,
        "gpu_buffers": """
            GpuReplayBuffer GpuDictReplayBuffer GpuRolloutBuffer GpuDictRolloutBuffer HeapFullError find_gpu_buffer_dtypes
        """,
        "recording": """
            RecordBuffer CompressedRecordBuffer FramelessRecordBuffer DummyRecordBuffer Episode Record RecordCallback
            RecordWrapper VecRecordWrapper RecordingError RecordingInfo is_recording load_recording recording_info
            export_contact_sheet export_video export_minari import_minari write_viewer
        """,
        "datasets": """
            OfflineDataset OfflineEpisode Transition MixedReplayBuffer MixedDictReplayBuffer convert export_npz export_pickle
            open_dataset prefill replay_from_minari replay_from_npz replay_from_pickle replay_from_recording
        """,
        "training_utils": """
            PrioritizedDQN CompressRollouts BufferStatsCallback Evaluation ResumableCheckpoint ResumableEnv eval_model make_env
            resume warm_up warmup
        """,
    }
    _PLACES = {name: package for package, names in _NAMES.items() for name in names.split()}

    _CONTRIB = {name for name in _PLACES if name.startswith(("CompressedMaskable", "CompressedRecurrent"))}

    def _names_here() -> list[str]:
        """All names, but those that need sb3-contrib where it is not installed, so that a star import takes the others."""
        try:
            has_contrib = find_spec("sb3_contrib") is not None
        except (ImportError, ValueError):
            has_contrib = False
        return ["__version__", *(name for name in _PLACES if name not in _CONTRIB or has_contrib)]

    def __getattr__(name: str) -> Any:
        if name == "__all__":
            return _names_here()
        if name not in _PLACES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *_names_here()})
