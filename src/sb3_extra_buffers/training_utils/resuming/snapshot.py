"""All that a run consists of, taken at one step, and what of it ``learn`` would set anew."""

from __future__ import annotations

import contextlib
import copy
import inspect
import io
import pickle
import pkgutil
import random
import secrets
import weakref
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import stable_baselines3
import torch as th
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback, CallbackList
from stable_baselines3.common.save_util import data_to_json, recursive_getattr, save_to_zip_file
from stable_baselines3.common.vec_env import VecEnv

import sb3_extra_buffers
from sb3_extra_buffers._support import ALGORITHMS
from sb3_extra_buffers.compressed.file_saving import Moment, take_moment
from sb3_extra_buffers.training_utils.resuming.environments import capture_envs, capture_normalizer, put_back_envs
from sb3_extra_buffers.training_utils.resuming.folder import MODEL, STATE, CheckpointFolder
from sb3_extra_buffers.training_utils.resuming.state import Captured, UnsavableError, capture, kind_of, put_back

AT_ROLLOUT, AT_END, CUT_SHORT = "a rollout starts", "training has ended", "training was stopped in the middle of a rollout"
"""When checkpoints are made; ``state["when"]`` is one of these."""

VERSIONS = {module.__name__: str(module.__version__) for module in (stable_baselines3, th, np, gymnasium)}
"""Of libraries that models are made with."""


@dataclass
class Run:
    """
    The run that a model belongs to; checkpoints of two runs are never mixed.

    ``damaged`` are checkpoints that could not be read when the model was resumed from an older one, as paths without links.
    ``step`` and ``state`` are those of the checkpoint, until the model has gone on from it.
    """

    name: str = field(default_factory=lambda: secrets.token_hex(8))
    damaged: frozenset[str] = frozenset()
    step: int = 0
    state: dict[str, Any] | None = None


RUNS: weakref.WeakKeyDictionary[BaseAlgorithm, Run] = weakref.WeakKeyDictionary()
"""Kept beside the models: what a model holds itself would be saved with it."""


class Snapshot(NamedTuple):
    """A run at one step; nothing that happens later changes it."""

    manifest: dict[str, Any]
    state: dict[str, Any]
    model: Callable[[], bytes]
    buffer: Moment | None

    def write(self, folder: CheckpointFolder) -> int:
        """Make a checkpoint of it, in whatever thread, and return how many bytes were written."""
        return folder.write(self.manifest, {MODEL: self.model(), STATE: pickle.dumps(self.state)}, self.buffer)


def take_snapshot(model: Any, root: BaseCallback | None, checkpoint: BaseCallback, when: str) -> Snapshot:
    """
    Take a run as it is now.

    ``root`` is the callback that ``learn`` calls, and ``checkpoint`` the one in it that makes checkpoints, which is no part
    of the run.
    """
    normalizer = model.get_vec_normalize_env()
    environments = capture_envs(model.env)
    state = {
        "when": when,
        "randomness": capture_randomness(),
        "environments": environments,
        "normalizer": None if normalizer is None else capture_normalizer(normalizer),
        "extras": _capture_extras(model),
        "callbacks": _capture_callbacks(root, leave=checkpoint),
    }
    buffer = getattr(model, "replay_buffer", None)
    manifest = {
        "run": RUNS[model].name,
        "algorithm": _algorithm_name(type(model)),
        "num_timesteps": model.num_timesteps,
        "total_timesteps": model._total_timesteps,
        "n_envs": model.n_envs,
        "observation_space": str(model.observation_space),
        "action_space": str(model.action_space),
        "normalizes": normalizer is not None,
        "environments": environments.get("reason"),
        "ring": getattr(buffer, "_ring", None) is not None,
        "version": sb3_extra_buffers.__version__,
        "versions": VERSIONS,
    }
    return Snapshot(manifest, state, _freeze_model(model), None if buffer is None else take_moment(buffer))


def go_on(model: Any, root: BaseCallback | None, state: dict[str, Any]) -> None:
    """Put back what the beginning of ``learn`` has set anew, or what was drawn since."""
    _put_back_callbacks(root, state["callbacks"])
    if state["when"] == AT_ROLLOUT:
        _put_back_late(model, state["extras"])
        put_back_randomness(state["randomness"])


# -- random generators that a process shares -----------------------------------------------------------------------------


def capture_randomness() -> dict[str, Any]:
    """Copy the state of every generator that the whole process draws from."""
    state = {"python": random.getstate(), "numpy": np.random.get_state(legacy=False), "torch": th.get_rng_state()}
    if th.cuda.is_available() and th.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["cuda"] = th.cuda.get_rng_state_all()
    return state


def put_back_randomness(state: dict[str, Any]) -> None:
    """Make every generator draw what it was about to draw."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    th.set_rng_state(state["torch"])
    if "cuda" in state and th.cuda.is_available():
        for device, generator in enumerate(state["cuda"][: th.cuda.device_count()]):
            th.cuda.set_rng_state(generator, device)


# -- the model -----------------------------------------------------------------------------------------------------------


def _algorithm_name(cls: type[Any]) -> str:
    """The package that a class of algorithms comes from, and its name."""
    return f"{cls.__module__.split('.')[0]}.{cls.__qualname__}"


def find_algorithm(name: str, given: type[BaseAlgorithm] | None) -> type[BaseAlgorithm]:
    """Find the class that a checkpoint was made with, by its name and by what the user gives, if anything."""
    if given is not None:
        if name not in [_algorithm_name(cls) for cls in given.__mro__]:
            raise TypeError(
                f"the checkpoint is of {name}, but algorithm is {_algorithm_name(given)}; leave it out or name that class"
            )
        return given
    package, _, short = name.rpartition(".")
    if ALGORITHMS.get(short) != package:
        known = ", ".join(f"{place}.{algorithm}" for algorithm, place in ALGORITHMS.items())
        raise TypeError(
            f"the checkpoint is of {name}, a class of your own; give it to resume: resume(..., algorithm={short}). By "
            f"themselves, these are found: {known}"
        )
    try:
        found: type[BaseAlgorithm] = pkgutil.resolve_name(f"{package}:{short}")
    except ImportError as error:
        raise ImportError(f"the checkpoint is of {name}, which is not installed: {error}") from error
    return found


def _copied(value: Any, copies: dict[Any, th.Tensor]) -> Any:
    """Copy all tensors of nested dicts and lists; those that share their memory share it again."""
    if isinstance(value, th.Tensor):
        key = (value.device, value.data_ptr(), value.dtype, value.shape, value.stride())
        if key not in copies:
            try:
                # By NumPy: torch would wake all of its threads for every tensor, and on a busy machine wait for each of them.
                copies[key] = th.from_numpy(value.detach().numpy().copy(order="K"))
            except TypeError:  # on a device, or of a type that NumPy does not have
                copies[key] = value.detach().clone()
        return copies[key]
    if isinstance(value, dict):
        copied = copy.copy(value)  # with its attributes: modules keep versions there
        copied.update({key: _copied(part, copies) for key, part in value.items()})
        return copied
    if isinstance(value, list):
        return [_copied(part, copies) for part in value]
    return value


def _freeze_model(model: BaseAlgorithm) -> Callable[[], bytes]:
    """Take a model as it is now. The function that is returned makes what ``model.save`` writes, in whatever thread."""
    if type(model).save is not BaseAlgorithm.save:
        file = io.BytesIO()
        model.save(file)
        return file.getvalue
    modules, variables = model._get_torch_save_params()
    excluded = {*model._excluded_save_params(), *[name.split(".")[0] for name in modules + variables]}
    # Small things are written now. Weights are copied, which takes far less time than writing them.
    data = data_to_json({name: value for name, value in vars(model).items() if name not in excluded})
    copies: dict[Any, th.Tensor] = {}
    weights = _copied(model.get_parameters(), copies)
    others = _copied({name: recursive_getattr(model, name) for name in variables}, copies)

    def write() -> bytes:
        file = io.BytesIO()
        save_to_zip_file(file, data=None, params=weights, pytorch_variables=others)
        with zipfile.ZipFile(file, mode="a") as archive:
            archive.writestr("data", data)
        return file.getvalue()

    return write


def _exploration_of(model: Any) -> dict[str, Any]:
    """Attributes of the policy's distribution; whose policy it is depends on the algorithm."""
    attributes: dict[str, Any] = vars(getattr(model, "actor", model.policy).action_dist)
    return attributes


def _capture_extras(model: Any) -> dict[str, Any]:
    """What is not in SB3's file, or is there and gets lost when a model is loaded or begins to learn."""
    logger = model.logger
    logged = {name: value for name, value in logger.name_to_value.items() if isinstance(value, (int, float, str, np.number))}
    matrices = ("exploration_mat", "exploration_matrices")  # drawn when a rollout starts, just before a checkpoint is made
    extras = {
        "action_space": capture(model.action_space),
        "lstm_states": capture(getattr(model, "_last_lstm_states", None)),
        "noise": {name: capture(part) for name, part in _exploration_of(model).items() if name in matrices}
        if model.use_sde
        else {},
        "logs": [logged, *[{name: kept[name] for name in logged if name in kept} for kept in _kept_with_logs(logger)]],
    }
    with contextlib.suppress(UnsavableError):  # somebody's own: it is in SB3's file, and begins anew
        extras["action_noise"] = capture(getattr(model, "action_noise", None))
    return extras


def _kept_with_logs(logger: Any) -> list[dict[str, Any]]:
    return [logger.name_to_count, logger.name_to_excluded]


def put_back_early(model: Any, extras: dict[str, Any]) -> None:
    """Put back what loading a model has lost."""
    model.action_space = model.env.action_space  # the same object, as in a model that was not loaded
    put_back(model.action_space, extras["action_space"])
    if extras["lstm_states"] is not None:
        model._last_lstm_states = put_back(model._last_lstm_states, extras["lstm_states"])


def _put_back_late(model: Any, extras: dict[str, Any]) -> None:
    """Put back what the beginning of ``learn`` has set anew."""
    if extras.get("action_noise") is not None:
        put_back(model.action_noise, extras["action_noise"])
    if extras["noise"]:
        exploration = _exploration_of(model)
        exploration.update({name: put_back(exploration.get(name), part) for name, part in extras["noise"].items()})
    for kept, part in zip([model.logger.name_to_value, *_kept_with_logs(model.logger)], extras["logs"], strict=True):
        kept.update(part)


# -- callbacks -----------------------------------------------------------------------------------------------------------

# What every callback is given anew.
_GIVEN = {"model", "locals", "globals", "parent", "logger", "training_env", "verbose"}


def _all_callbacks(root: BaseCallback | None) -> Iterator[BaseCallback]:
    """A callback and all that it calls, in the order in which they were given."""
    if root is None:
        return
    yield root
    inner = root.callbacks if isinstance(root, CallbackList) else vars(root).values()
    for callback in inner:
        if isinstance(callback, BaseCallback) and callback is not root.parent:
            yield from _all_callbacks(callback)


def _named(root: BaseCallback | None) -> dict[str, BaseCallback]:
    """Callbacks by class, and by number where several are of one class."""
    named: dict[str, BaseCallback] = {}
    for callback in _all_callbacks(root):
        number = 1
        while (name := f"{kind_of(callback)} {number}") in named:
            number += 1
        named[name] = callback
    return named


def _has_protocol(callback: BaseCallback) -> bool:
    return all(callable(getattr(callback, name, None)) for name in ("get_state", "set_state"))


def _holds_objects(value: Any) -> bool:
    if isinstance(value, Captured):
        return True
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return any(_holds_objects(part) for part in inner)


def _capture_callback(callback: BaseCallback) -> dict[str, Any]:
    if _has_protocol(callback):
        return {"own": capture(callback.get_state())}  # type: ignore[attr-defined]
    # A setting that is given another value is meant to have it.
    settings = {name for cls in type(callback).__mro__ for name in inspect.signature(cls).parameters}
    attributes = {}
    for name, value in vars(callback).items():
        if name in _GIVEN | settings or isinstance(value, (BaseCallback, VecEnv)):
            continue
        with contextlib.suppress(UnsavableError):  # a window, a file, a network: the callback makes it again
            captured = capture(value)
            if not _holds_objects(captured):
                attributes[name] = captured
    saved: dict[str, Any] = {"attributes": attributes}
    evaluated = vars(callback).get("eval_env")
    if isinstance(evaluated, VecEnv):
        with contextlib.suppress(OSError, EOFError):  # it may have been closed
            saved["eval_env"] = capture_envs(evaluated)
    return saved


def _capture_callbacks(root: BaseCallback | None, leave: BaseCallback) -> dict[str, Any]:
    return {name: _capture_callback(callback) for name, callback in _named(root).items() if callback is not leave}


def _put_back_callbacks(root: BaseCallback | None, saved: dict[str, Any]) -> None:
    """A callback that was not there before starts anew; the settings of each stay as they are."""
    for name, callback in _named(root).items():
        state = saved.get(name, {})
        if "own" in state and _has_protocol(callback):
            callback.set_state(state["own"])  # type: ignore[attr-defined]
        attributes = vars(callback)
        attributes.update({key: put_back(attributes.get(key), part) for key, part in state.get("attributes", {}).items()})
        if "eval_env" in state and isinstance(attributes.get("eval_env"), VecEnv):
            put_back_envs(attributes["eval_env"], state["eval_env"])
