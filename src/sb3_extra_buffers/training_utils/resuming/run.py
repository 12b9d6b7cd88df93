"""Go on with a run from its last checkpoint."""

from __future__ import annotations

import io
import os
import pickle
import warnings
from collections.abc import Mapping
from typing import Any

import torch as th
from stable_baselines3.common.base_class import BaseAlgorithm, maybe_make_env
from stable_baselines3.common.type_aliases import GymEnv
from stable_baselines3.common.vec_env import VecEnv, unwrap_vec_normalize
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from sb3_extra_buffers.compressed.file_loading import fill_buffer
from sb3_extra_buffers.storage import StorageError
from sb3_extra_buffers.storage.directory import SavedDirectory
from sb3_extra_buffers.storage.errors import OtherFormatError
from sb3_extra_buffers.training_utils.resuming.callback import wait_for_all
from sb3_extra_buffers.training_utils.resuming.environments import put_back_envs, put_back_normalizer
from sb3_extra_buffers.training_utils.resuming.folder import (
    BUFFER,
    MODEL,
    STATE,
    Checkpoint,
    checkpoints_in,
    read_file,
    read_manifest,
    reading,
)
from sb3_extra_buffers.training_utils.resuming.snapshot import (
    CUT_SHORT,
    RUNS,
    VERSIONS,
    Run,
    find_algorithm,
    put_back_early,
    put_back_randomness,
)

__all__ = ["resume"]


def resume(
    path: str | os.PathLike[str],
    env: GymEnv | str,
    *,
    algorithm: type[BaseAlgorithm] | None = None,
    device: th.device | str = "auto",
    custom_objects: dict[str, Any] | None = None,
) -> Any:
    """
    Load the last checkpoint of a run, and make everything what it was.

    Then call ``model.learn(total - model.num_timesteps, callback=..., reset_num_timesteps=False)`` with the callbacks of the
    run, a ``ResumableCheckpoint`` for the same folder among them: it puts back what ``learn`` sets anew, such as the other
    callbacks.

    If the last checkpoint is damaged, the one before it is loaded, and a warning says so. If environments cannot go on in the
    middle of an episode, they start new ones, and a warning says why.

    ``model.zip``, which is in SB3's own format, and ``state.pkl`` contain pickles, which can run code: resume only from
    checkpoints of your own.

    :param path: Folder of the checkpoints
    :param env: Environments, made in the same way as those of the run
    :param algorithm: Class of the model, if it is one of your own; those of SB3, of SB3-Contrib and of this package are found
    :param device: Device of the model
    :param custom_objects: Passed to SB3's ``load``
    :return: The model
    """
    path = os.fspath(path)
    wait_for_all()  # the last checkpoint of a training in this process may still be on its way
    found = checkpoints_in(path)
    if not found:
        raise FileNotFoundError(f"there is no complete checkpoint in {path}; start the run anew")
    errors: dict[str, str] = {}  # not the errors, which would keep all that was loaded
    for checkpoint in found:
        try:
            model = _load(checkpoint, env, algorithm, device, custom_objects)
        except OtherFormatError:
            raise
        except StorageError as error:
            errors[os.path.realpath(checkpoint.path)] = str(error)
            continue
        if errors:
            RUNS[model].damaged = frozenset(errors)
            warnings.warn(
                f"the last checkpoint in {path} is damaged ({next(iter(errors.values()))}); the run goes on from "
                f"{os.path.basename(checkpoint.path)}, at step {model.num_timesteps:,}",
                stacklevel=2,
            )
        return model
    raise StorageError(f"none of the {len(found)} checkpoints in {path} can be read: {next(iter(errors.values()))}")


def _load(
    checkpoint: Checkpoint,
    env: GymEnv | str,
    algorithm: type[BaseAlgorithm] | None,
    device: th.device | str,
    custom_objects: dict[str, Any] | None,
) -> Any:
    manifest = read_manifest(checkpoint)
    packed, file = read_file(checkpoint, manifest, STATE), io.BytesIO(read_file(checkpoint, manifest, MODEL))
    cls = find_algorithm(manifest["algorithm"], algorithm)
    venv = cls._wrap_env(maybe_make_env(env, 0), 0)
    _check_env(venv, manifest, checkpoint.path)
    buffer = os.path.join(checkpoint.path, BUFFER)
    if manifest["ring"]:
        # A ring on disk is emptied before it is filled, so all of what is to fill it has to be there.
        with reading(buffer):
            saved = SavedDirectory(buffer)
            for name in saved.parts:
                saved.read(name)
    try:
        state = pickle.loads(packed)
        model: Any = cls.load(file, env=venv, device=device, custom_objects=custom_objects, force_reset=False)
    except Exception as error:
        _blame_versions(manifest["versions"], checkpoint.path, error)
        raise
    if manifest["buffer"]:
        model.replay_buffer = _load_buffer(model, buffer)
    put_back_early(model, state["extras"])
    reason = put_back_envs(model.env, state["environments"])
    if state["when"] == CUT_SHORT:  # the environments are one step ahead of what the model knows
        reason = reason or CUT_SHORT
    if state["normalizer"] is not None:
        put_back_normalizer(model.get_vec_normalize_env(), state["normalizer"])
    if reason is not None:
        _start_new_episodes(model)
        warnings.warn(f"environments start new episodes: {reason}", stacklevel=4)
    put_back_randomness(state["randomness"])
    RUNS[model] = Run(manifest["run"], step=model.num_timesteps, state=state)
    return model


def _check_env(venv: VecEnv, manifest: dict[str, Any], where: str) -> None:
    """Refuse environments that are not like those of the run."""
    facts = {
        "n_envs": venv.num_envs,
        "observation_space": str(venv.observation_space),
        "action_space": str(venv.action_space),
    }
    for name, now in facts.items():
        if manifest[name] != now:
            raise ValueError(
                f"the environments do not fit {where}: {name} was {manifest[name]}, and is {now}; make them as before"
            )
    normalizes = unwrap_vec_normalize(venv) is not None
    if manifest["normalizes"] != normalizes:
        advice = "leave VecNormalize out" if normalizes else "wrap them in VecNormalize"
        raise ValueError(f"the environments do not fit {where}: {advice}, as before")


def _blame_versions(before: Mapping[str, str], where: str, error: Exception) -> None:
    """If others have made the model, say so: what they pickle changes from version to version."""
    differ = {name: (then, VERSIONS[name]) for name, then in before.items() if VERSIONS.get(name, then) != then}
    if differ:
        told = ", ".join(f"{name} {then} (this is {now})" for name, (then, now) in differ.items())
        raise RuntimeError(
            f"the model in {where} cannot be loaded: {error}. It was made with {told}; install these versions, or pass "
            "custom_objects for what has changed"
        ) from error


def _load_buffer(model: Any, path: str) -> Any:
    made = model.replay_buffer  # by SB3, just now: of the right class, and with a schedule that no file holds
    with reading(path):
        if made._ring is not None:  # a ring on disk, which may be further than the checkpoint: it goes back
            with made._lock:  # its thread must not write what is half filled
                made.reset()
                fill_buffer(made, SavedDirectory(path))
            made.flush()
            return made
        handed_in = {}
        if isinstance(made, HerReplayBuffer):
            handed_in["env"] = model.env
        if getattr(made, "_beta_schedule", None) is not None:
            handed_in["beta"] = made._beta_schedule.var
        if hasattr(made, "buffer_device"):
            handed_in["buffer_device"] = made.buffer_device
        return type(made).load(path, device=model.device, **handed_in)


def _start_new_episodes(model: Any) -> None:
    """The episodes that were going on are over; what comes next has nothing to do with them."""
    model._last_obs = None  # learn() resets the environments then
    buffer = getattr(model, "replay_buffer", None)
    if buffer is None or buffer.size() == 0:
        return
    if isinstance(buffer, HerReplayBuffer):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # SB3's advice is to leave that, which is for episodes that go on
            buffer.truncate_last_trajectory()
    elif buffer.handle_timeout_termination:
        # As if a time limit had ended them: returns over several steps stop there, and values are still bootstrapped.
        last = (buffer.pos - 1) % buffer.buffer_size
        cut = ~buffer.dones[last].astype(bool)
        buffer.dones[last, cut] = 1
        buffer.timeouts[last, cut] = 1
