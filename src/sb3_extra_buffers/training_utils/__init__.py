"""Helpers around training: environments made ready for the buffers, evaluation, warming up, and what to watch meanwhile."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sb3_extra_buffers.training_utils.atari import make_env
    from sb3_extra_buffers.training_utils.buffer_stats import BufferStatsCallback
    from sb3_extra_buffers.training_utils.callbacks import CompressRollouts
    from sb3_extra_buffers.training_utils.evaluation import Evaluation, eval_model
    from sb3_extra_buffers.training_utils.prioritized_dqn import PrioritizedDQN
    from sb3_extra_buffers.training_utils.resuming.callback import ResumableCheckpoint
    from sb3_extra_buffers.training_utils.resuming.environments import ResumableEnv
    from sb3_extra_buffers.training_utils.resuming.run import resume
    from sb3_extra_buffers.training_utils.warming import warm_up, warmup

__all__ = [
    "BufferStatsCallback",
    "CompressRollouts",
    "Evaluation",
    "PrioritizedDQN",
    "ResumableCheckpoint",
    "ResumableEnv",
    "eval_model",
    "make_env",
    "resume",
    "warm_up",
    "warmup",
]

_MODULES = {
    "BufferStatsCallback": "buffer_stats",
    "CompressRollouts": "callbacks",
    "Evaluation": "evaluation",
    "PrioritizedDQN": "prioritized_dqn",
    "eval_model": "evaluation",
    "ResumableCheckpoint": "resuming.callback",
    "ResumableEnv": "resuming.environments",
    "make_env": "atari",
    "resume": "resuming.run",
    "warm_up": "warming",
    "warmup": "warming",
}


def __getattr__(name: str) -> Any:
    # Each is imported at first use: who only wants make_env does not load DQN.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
