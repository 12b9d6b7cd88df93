"""What a model consists of: SB3's own file, and what SB3 leaves out of it or sets anew when it loads it."""

from __future__ import annotations

import contextlib
import copy
import io
import pkgutil
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.save_util import data_to_json, recursive_getattr, save_to_zip_file

from sb3_extra_buffers.training_utils.resuming.objects import capture, put_back
from sb3_extra_buffers.training_utils.resuming.values import UnsavableError

# A name in a file is looked up here, and never imported.
_ALGORITHMS = {
    **{f"stable_baselines3.{name}": f"stable_baselines3:{name}" for name in ("A2C", "DDPG", "DQN", "PPO", "SAC", "TD3")},
    **{
        f"sb3_contrib.{name}": f"sb3_contrib:{name}"
        for name in ("CrossQ", "MaskablePPO", "QRDQN", "RecurrentPPO", "TQC", "TRPO")
    },
    **{f"sb3_extra_buffers.{name}": f"sb3_extra_buffers:{name}" for name in ("CompressedRecurrentPPO", "PrioritizedDQN")},
}


def algorithm_name(cls: type[Any]) -> str:
    """
    Name a class of algorithms as checkpoints do.

    :param cls: The class
    :return: The package that it comes from, and its name
    """
    return f"{cls.__module__.split('.')[0]}.{cls.__qualname__}"


def find_algorithm(name: str, given: type[BaseAlgorithm] | None) -> type[BaseAlgorithm]:
    """
    Find the class that a checkpoint was made with.

    :param name: What ``algorithm_name`` has returned
    :param given: What the user names, if anything
    :return: The class
    """
    if given is not None:
        if name not in [algorithm_name(cls) for cls in given.__mro__]:
            raise TypeError(
                f"the checkpoint is of {name}, but algorithm is {algorithm_name(given)}; leave it out or name that class"
            )
        return given
    if name not in _ALGORITHMS:
        short = name.rpartition(".")[2]
        raise TypeError(
            f"the checkpoint is of {name}, a class of your own; give it to resume: resume(..., algorithm={short}). By "
            f"themselves, these are found: {', '.join(_ALGORITHMS)}"
        )
    try:
        found: type[BaseAlgorithm] = pkgutil.resolve_name(_ALGORITHMS[name])
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


def freeze_model(model: BaseAlgorithm) -> Callable[[], bytes]:
    """
    Take a model as it is now.

    :param model: The model, which may go on learning
    :return: A function that makes SB3's file of it (what ``model.save`` writes), in whatever thread
    """
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


def _noise_of(model: Any) -> dict[str, Any]:
    """The matrices of state-dependent exploration; they are drawn when a rollout starts, just before a checkpoint is made."""
    if not model.use_sde:
        return {}
    policy = getattr(model, "actor", model.policy)  # whose noise it is depends on the algorithm
    attributes = vars(policy.action_dist)
    return {name: attributes[name] for name in ("exploration_mat", "exploration_matrices") if name in attributes}


def _pending_logs(model: Any) -> dict[str, Any]:
    """What has been recorded and not yet been written."""
    logger = model.logger
    plain = {name: value for name, value in logger.name_to_value.items() if isinstance(value, (int, float, str, np.number))}
    counts = {name: logger.name_to_count[name] for name in plain}
    excluded = {name: logger.name_to_excluded[name] for name in plain if name in logger.name_to_excluded}
    return {"value": capture(plain), "count": counts, "excluded": capture(excluded)}


def capture_extras(model: Any) -> dict[str, Any]:
    """
    Take what is not in SB3's file, or is there and gets lost when a model is loaded or begins to learn.

    :param model: The model
    :return: Plain values
    """
    extras = {
        "action_space": capture(model.action_space),
        "lstm_states": capture(getattr(model, "_last_lstm_states", None)),
        "noise": capture(_noise_of(model)),
        "logs": _pending_logs(model),
    }
    with contextlib.suppress(UnsavableError):  # somebody's own: it is in SB3's file, and begins anew
        extras["action_noise"] = capture(getattr(model, "action_noise", None))
    return extras


def put_back_early(model: Any, extras: dict[str, Any]) -> None:
    """
    Put back what loading a model has lost.

    :param model: The model, with its environment
    :param extras: What ``capture_extras`` has returned
    """
    model.action_space = model.env.action_space  # the same object, as in a model that was not loaded
    put_back(model.action_space, extras["action_space"])
    if extras["lstm_states"] is not None:
        model._last_lstm_states = put_back(model._last_lstm_states, extras["lstm_states"])


def put_back_late(model: Any, extras: dict[str, Any]) -> None:
    """
    Put back what the beginning of ``learn`` has set anew.

    :param model: The model, which has begun to learn
    :param extras: What ``capture_extras`` has returned
    """
    if extras.get("action_noise") is not None:
        put_back(model.action_noise, extras["action_noise"])
    if extras["noise"]:
        policy = getattr(model, "actor", model.policy)
        for name, matrix in extras["noise"].items():
            setattr(policy.action_dist, name, put_back(getattr(policy.action_dist, name, None), matrix))
    logger, logs = model.logger, extras["logs"]
    logger.name_to_value.update(logs["value"])
    logger.name_to_count.update(logs["count"])
    logger.name_to_excluded.update(logs["excluded"])
