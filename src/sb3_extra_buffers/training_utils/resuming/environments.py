"""What environments are in the middle of: the games themselves, their wrappers, and what vectorized environments keep."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize

from sb3_extra_buffers.training_utils.resuming.state import (
    UnsavableError,
    capture,
    capture_attributes,
    kind_of,
    put_back_attributes,
)

__all__ = ["ResumableEnv"]

# Of every environment: what it is made of and how it is shown, none of which changes.
_NEVER_CHANGES = (
    *("env", "venv", "spec", "metadata", "render_mode", "class_attributes", "num_envs"),
    *("_saved_kwargs", "_cached_spec", "_metadata", "_ezpickle_args", "_ezpickle_kwargs"),
)
# By the class that has them: files that are written to, clocks, and arrays that the next step fills anew.
_LEFT_AS_THEY_ARE = {
    "stable_baselines3.common.monitor.Monitor": ("results_writer", "t_start"),
    "stable_baselines3.common.vec_env.vec_monitor.VecMonitor": ("results_writer", "t_start"),
    "stable_baselines3.common.vec_env.dummy_vec_env.DummyVecEnv": ("envs", "keys", "actions", "buf_infos", "reset_infos"),
    "stable_baselines3.common.vec_env.vec_normalize.VecNormalize": (
        *("training", "norm_obs", "norm_reward", "norm_obs_keys", "clip_obs", "clip_reward", "gamma", "epsilon"),
    ),
    "gymnasium.wrappers.common.PassiveEnvChecker": ("_previous_data",),
}
_ALE = "ale_py.env.AtariEnv"


class ResumableEnv(gym.Wrapper[Any, Any, Any, Any]):
    """
    Let the state of an environment be taken and put back from outside, with that of all wrappers inside this one.

    Environments in worker processes (``SubprocVecEnv``) need it to go on in the middle of an episode; put it around each, as
    the outermost wrapper. With ``DummyVecEnv`` there is no need to.

    :param env: The environment
    """

    def get_state(self) -> dict[str, Any]:
        """
        Take the state.

        :return: Plain values and arrays
        """
        return capture_env(self.env)

    def set_state(self, state: dict[str, Any]) -> None:
        """
        Put a state back.

        :param state: What ``get_state`` has returned, in this process or another one
        """
        put_back_env(self.env, state)


def _layers(env: Any, inner: str) -> Iterator[Any]:
    """A wrapper, what it wraps, and so on."""
    while env is not None:
        yield env
        env = vars(env).get(inner)


def _has_protocol(layer: Any) -> bool:
    """Whether a layer takes care of its state itself; methods that it only passes on do not count."""
    return all(callable(getattr(type(layer), name, None)) for name in ("get_state", "set_state"))


def _capture_layer(layer: Any) -> dict[str, Any]:
    kind = kind_of(layer)
    if isinstance(layer, ResumableEnv):
        return {"kind": kind}
    if _has_protocol(layer):
        # Others have a get_state with another meaning, and the generator beside it.
        return {"kind": kind, "own": capture(layer.get_state()), **_capture_generators(layer)}
    if kind == _ALE:
        # Complete with the emulator's own generator, which decides which actions stick.
        emulator = layer.clone_state(include_rng=True).__getstate__()
        return {"kind": kind, "ale": bytes(emulator), **_capture_generators(layer)}
    return {"kind": kind, "attributes": capture_attributes(layer, (*_NEVER_CHANGES, *_LEFT_AS_THEY_ARE.get(kind, ())))}


def _put_back_layer(layer: Any, saved: dict[str, Any]) -> None:
    if kind_of(layer) != saved["kind"]:
        raise UnsavableError(f"{saved['kind']} was saved, but {kind_of(layer)} is in its place")
    if "own" in saved:
        layer.set_state(saved["own"])
    if "ale" in saved:
        import ale_py

        layer.restore_state(ale_py.ALEState(saved["ale"]))
    _put_back_generators(layer, saved)
    put_back_attributes(layer, saved.get("attributes", {}))


def _capture_generators(layer: Any) -> dict[str, Any]:
    """What a layer draws with: its own generator, and those of its spaces."""
    names = ("_np_random", "_action_space", "_observation_space", "action_space", "observation_space")
    attributes = vars(layer)
    return {"generators": {name: capture(attributes[name]) for name in names if attributes.get(name) is not None}}


def _put_back_generators(layer: Any, saved: dict[str, Any]) -> None:
    put_back_attributes(layer, saved.get("generators", {}))


def capture_env(env: gym.Env[Any, Any]) -> dict[str, Any]:
    """Take the state of one environment: ``layers``, the outermost first; or ``generators``, and a ``reason`` why not."""
    layers = list(_layers(env, "env"))
    try:
        return {"layers": [_capture_layer(layer) for layer in layers]}
    except Exception as error:  # whatever a get_state of somebody's may raise: training goes on without
        reason = str(error) if isinstance(error, UnsavableError) else f"{type(error).__name__}: {error}"
        return {"generators": [_capture_generators(layer) for layer in layers], "reason": reason}


def put_back_env(env: gym.Env[Any, Any], saved: dict[str, Any]) -> None:
    """Put the state of one environment back."""
    layers = list(_layers(env, "env"))
    if "layers" in saved:
        if len(layers) != len(saved["layers"]):
            kinds = [layer["kind"] for layer in saved["layers"]]
            raise UnsavableError(f"{kinds} were saved, but {[kind_of(layer) for layer in layers]} are there")
        # The innermost one first: wrappers may look at it.
        for layer, part in reversed(list(zip(layers, saved["layers"], strict=True))):
            _put_back_layer(layer, part)
    elif len(layers) == len(saved["generators"]):
        for layer, part in zip(layers, saved["generators"], strict=True):
            _put_back_generators(layer, part)


def capture_envs(venv: VecEnv) -> dict[str, Any]:
    """Take the state of vectorized environments, with a ``reason`` if they cannot go on in the middle of an episode."""
    *wrappers, base = _layers(venv, "venv")
    saved: dict[str, Any] = {"seeds": list(base._seeds), "kinds": [kind_of(layer) for layer in (*wrappers, base)]}
    if isinstance(base, DummyVecEnv):
        saved["envs"] = [capture_env(env) for env in base.envs]
    elif _are_resumable(base):
        saved["envs"] = base.env_method("get_state")
    else:
        saved["reason"] = (
            f"environments in a {type(base).__name__} need a ResumableEnv around each of them, as outermost wrapper"
        )
    reasons = [env["reason"] for env in saved.get("envs", ()) if "reason" in env]
    if reasons:
        saved["reason"] = f"{reasons[0]}; give the environment or a wrapper get_state and set_state methods"
    try:
        saved["wrappers"] = [_capture_layer(layer) for layer in wrappers]
    except UnsavableError as error:
        saved.setdefault("reason", str(error))
    return saved


def _are_resumable(base: VecEnv) -> bool:
    """Whether each environment has our wrapper around it, and no other one around that."""
    try:
        # The text names wrappers from the outermost on, and can be had from another process whatever the classes are.
        return all(str(text).startswith(f"<{ResumableEnv.__name__}<") for text in base.env_method("__str__"))
    except (AttributeError, NotImplementedError):  # of a vectorized environment that is none of SB3's
        return False


def put_back_envs(venv: VecEnv, saved: dict[str, Any]) -> str | None:
    """Put a state back. Return None if the environments go on in the middle of episodes, or else why they have to be reset."""
    *wrappers, base = _layers(venv, "venv")
    base._seeds = list(saved["seeds"])  # what loading a model with a seed has set would be used at the next reset
    kinds = [kind_of(layer) for layer in (*wrappers, base)]
    if kinds != saved["kinds"]:
        return f"the environments were {saved['kinds']}, and are {kinds} now"
    reason: str | None = saved.get("reason")
    try:
        if "envs" in saved:
            _put_back_each(base, saved["envs"])
        if reason is None:
            for layer, part in zip(wrappers, saved["wrappers"], strict=True):
                _put_back_layer(layer, part)
    except Exception as error:  # of an environment that is not like the one before, in whatever way
        return reason or f"{type(error).__name__}: {error}"
    return reason


def _put_back_each(base: VecEnv, states: list[Any]) -> None:
    if isinstance(base, DummyVecEnv):
        for env, state in zip(base.envs, states, strict=True):
            put_back_env(env, state)
    else:
        for index, state in enumerate(states):
            base.env_method("set_state", state, indices=[index])


_STATISTICS = ("obs_rms", "ret_rms", "returns")


def capture_normalizer(normalizer: VecNormalize) -> dict[str, Any]:
    """Take the statistics of a normalizer."""
    attributes = vars(normalizer)
    return {name: capture(attributes[name]) for name in _STATISTICS if name in attributes}


def put_back_normalizer(normalizer: VecNormalize, saved: dict[str, Any]) -> None:
    """Put the statistics of a normalizer back; how it is set up stays as it is."""
    put_back_attributes(normalizer, saved)
