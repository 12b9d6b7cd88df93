"""All that a run consists of, taken at one moment."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import stable_baselines3
import torch as th
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback

import sb3_extra_buffers
from sb3_extra_buffers.compressed.file_saving import Moment, take_moment
from sb3_extra_buffers.training_utils.resuming.callback_states import capture_callbacks, put_back_callbacks
from sb3_extra_buffers.training_utils.resuming.environments import capture_envs, capture_normalizer
from sb3_extra_buffers.training_utils.resuming.folder import MODEL, STATE, CheckpointFolder
from sb3_extra_buffers.training_utils.resuming.models import algorithm_name, capture_extras, freeze_model, put_back_late
from sb3_extra_buffers.training_utils.resuming.randomness import capture_randomness, put_back_randomness
from sb3_extra_buffers.training_utils.resuming.values import values_to_bytes

AT_ROLLOUT, AT_END, CUT_SHORT = "a rollout starts", "training has ended", "training was stopped in the middle of a rollout"
"""When checkpoints are made; ``state["moment"]`` is one of these."""


VERSIONS = {module.__name__: str(module.__version__) for module in (stable_baselines3, th, np, gymnasium)}
"""Of libraries that models are made with."""


class Resumed(NamedTuple):
    """What is known of a model that has come from a checkpoint, and has not gone on yet."""

    step: int
    state: dict[str, Any]


# Kept beside the models: what a model holds itself would be saved with it. They are compared by identity, as SB3's are.
RUNS: weakref.WeakKeyDictionary[BaseAlgorithm, str] = weakref.WeakKeyDictionary()
"""The run that a model belongs to; checkpoints of two runs are never mixed."""
DAMAGED: weakref.WeakKeyDictionary[BaseAlgorithm, frozenset[str]] = weakref.WeakKeyDictionary()
"""Checkpoints that could not be read when a model was resumed from an older one: paths without links."""
RESUMED: weakref.WeakKeyDictionary[BaseAlgorithm, Resumed] = weakref.WeakKeyDictionary()


class Snapshot(NamedTuple):
    """A run at one moment; nothing that happens later changes it."""

    said: dict[str, Any]
    state: dict[str, Any]
    model: Callable[[], bytes]
    buffer: Moment | None

    def write(self, folder: CheckpointFolder) -> int:
        """
        Make a checkpoint of it, in whatever thread.

        :param folder: Where to
        :return: How many bytes were written
        """
        return folder.write(self.said, {MODEL: self.model(), STATE: values_to_bytes(self.state)}, self.buffer)


def take_snapshot(model: Any, root: BaseCallback | None, checkpoint: BaseCallback, moment: str) -> Snapshot:
    """
    Take a run as it is now.

    :param model: The model
    :param root: The callback that ``learn`` calls
    :param checkpoint: The callback that makes checkpoints, which is no part of the run
    :param moment: Which moment it is
    :return: The snapshot
    """
    normalizer = model.get_vec_normalize_env()
    environments = capture_envs(model.env)
    state = {
        "moment": moment,
        "randomness": capture_randomness(),
        "environments": environments,
        "normalizer": None if normalizer is None else capture_normalizer(normalizer),
        "extras": capture_extras(model),
        "callbacks": capture_callbacks(root, leave=checkpoint),
    }
    said = {
        "run": RUNS[model],
        "algorithm": algorithm_name(type(model)),
        "num_timesteps": model.num_timesteps,
        "total_timesteps": model._total_timesteps,
        "n_envs": model.n_envs,
        "observation_space": str(model.observation_space),
        "action_space": str(model.action_space),
        "normalizes": normalizer is not None,
        "environments": environments.get("reason"),
        "version": sb3_extra_buffers.__version__,
        "versions": VERSIONS,
    }
    buffer = getattr(model, "replay_buffer", None)
    return Snapshot(said, state, freeze_model(model), None if buffer is None else take_moment(buffer))


def go_on(model: Any, root: BaseCallback | None, state: dict[str, Any]) -> None:
    """
    Put back what ``learn`` has set anew, or what was drawn since.

    :param model: The model, which has begun to learn
    :param root: The callback that ``learn`` calls
    :param state: The state of a checkpoint
    """
    put_back_callbacks(root, state["callbacks"])
    if state["moment"] == AT_ROLLOUT:
        put_back_late(model, state["extras"])
        put_back_randomness(state["randomness"])
