"""What callbacks have counted and kept so far."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback, CallbackList
from stable_baselines3.common.vec_env import VecEnv

from sb3_extra_buffers.training_utils.resuming.environments import capture_envs, put_back_envs
from sb3_extra_buffers.training_utils.resuming.objects import capture, kind_of, put_back
from sb3_extra_buffers.training_utils.resuming.values import Captured, UnsavableError

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


def _settings_of(callback: BaseCallback) -> set[str]:
    """Attributes that were given when the callback was made; who goes on with another value means it."""
    return {name for cls in type(callback).__mro__ for name in inspect.signature(cls).parameters}


def _has_protocol(callback: BaseCallback) -> bool:
    return all(callable(getattr(callback, name, None)) for name in ("get_state", "set_state"))


def _holds_objects(value: Any) -> bool:
    if isinstance(value, Captured):
        return not value.kind.startswith("numpy.random.")
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return any(_holds_objects(part) for part in inner)


def _capture_callback(callback: BaseCallback) -> dict[str, Any]:
    if _has_protocol(callback):
        return {"own": capture(callback.get_state())}  # type: ignore[attr-defined]
    leave = _GIVEN | _settings_of(callback)
    attributes = {}
    for name, value in vars(callback).items():
        if name in leave or isinstance(value, (BaseCallback, VecEnv)):
            continue
        try:
            captured = capture(value)
        except UnsavableError:
            continue  # a window, a file, a network: the callback makes it again
        if not _holds_objects(captured):
            attributes[name] = captured
    saved: dict[str, Any] = {"attributes": attributes}
    evaluated = vars(callback).get("eval_env")
    if isinstance(evaluated, VecEnv):
        with contextlib.suppress(OSError, EOFError):  # it may have been closed
            saved["eval_env"] = capture_envs(evaluated)
    return saved


def capture_callbacks(root: BaseCallback | None, leave: BaseCallback) -> dict[str, Any]:
    """
    Take the state of all callbacks of a training.

    :param root: The callback that ``learn`` calls, with all others inside
    :param leave: One to leave out
    :return: Plain values, by class and number
    """
    return {name: _capture_callback(callback) for name, callback in _named(root).items() if callback is not leave}


def put_back_callbacks(root: BaseCallback | None, saved: dict[str, Any]) -> None:
    """
    Put the state of callbacks back. One that was not there before starts anew; how each is set up stays as it is.

    :param root: The callback that ``learn`` calls
    :param saved: What ``capture_callbacks`` has returned
    """
    for name, callback in _named(root).items():
        state = saved.get(name, {})
        if "own" in state and _has_protocol(callback):
            callback.set_state(state["own"])  # type: ignore[attr-defined]
        attributes = vars(callback)
        attributes.update({key: put_back(attributes.get(key), part) for key, part in state.get("attributes", {}).items()})
        if "eval_env" in state and isinstance(attributes.get("eval_env"), VecEnv):
            put_back_envs(attributes["eval_env"], state["eval_env"])
