"""What a buffer is given: refused before anything is made of it, with a word on what would be right."""

from __future__ import annotations

import difflib
import inspect
import operator
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from gymnasium import spaces
from stable_baselines3.common.buffers import BaseBuffer, DictReplayBuffer, DictRolloutBuffer, ReplayBuffer, RolloutBuffer
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

import sb3_extra_buffers

FROM_ALGORITHM = frozenset(
    (
        *("buffer_size", "observation_space", "action_space", "device", "n_envs", "optimize_memory_usage", "env"),
        *("gae_lambda", "hidden_state_shape"),
    )
)
"""What the algorithm itself hands to its buffer."""

_KNOWN = ("stable_baselines3.", "sb3_contrib.", "sb3_extra_buffers.")
# Those errors that can be made of a message alone.
_RAISED_AGAIN = (TypeError, ValueError, AttributeError, IndexError, KeyError, OverflowError, RuntimeError)
# What only the one kind of algorithm hands over, and the kind of buffer that takes it.
_KIND_BY_ARGUMENT = {"optimize_memory_usage": ("replay", "DQN, SAC"), "gae_lambda": ("rollout", "PPO, A2C")}
_ADVICE = "compressed_kwargs(algorithm_class, env) chooses the class for you"


def explain_arguments(cls: type, given: Mapping[str, Any], error: str = "") -> str:
    """Say what is wrong with the arguments of a buffer."""
    parameters = inspect.signature(cls).parameters
    taken = parameters.keys()
    is_dict = isinstance(given.get("observation_space"), spaces.Dict)
    for name, (kind, algorithms) in _KIND_BY_ARGUMENT.items():
        if name in given and name not in taken:
            prefix = "Gpu" if cls.__name__.startswith("Gpu") else "Compressed"
            right = f"{prefix}{'Dict' if is_dict else ''}{kind.capitalize()}Buffer"
            return (
                f"{cls.__name__} is not a {kind} buffer, but was given {name!r}, as by {algorithms} and all algorithms that "
                f"need one: use {right} or another {kind} buffer; {_ADVICE}"
            )
    unknown = given.keys() - taken
    if "hidden_state_shape" in unknown:
        return (
            f"{cls.__name__} has no room for the states of an LSTM, which a recurrent algorithm hands over: leave out "
            f"rollout_buffer_class, or use CompressedRecurrent{'Dict' if is_dict else ''}RolloutBuffer"
        )
    if unknown:
        return no_such_option(cls, unknown, taken, is_dict)
    if "hidden_state_shape" in taken - given.keys():
        return (
            f"{cls.__name__} needs hidden_state_shape, which only CompressedRecurrentPPO hands over: use that in place of "
            f"RecurrentPPO, and with other algorithms another buffer; {_ADVICE}"
        )
    for name in taken - given.keys() - FROM_ALGORITHM:
        if parameters[name].default is inspect.Parameter.empty:
            return f"{cls.__name__} needs {name}, which no algorithm hands over: replay_buffer_kwargs=dict({name}=...)"
    return f"{cls.__name__}: {error}; it takes {', '.join(taken)}"


def no_such_option(cls: type, unknown: Iterable[str], taken: Iterable[str], is_dict: bool) -> str:
    """Say that a buffer has no such option, which one may have been meant, and which buffers have it."""
    names, known = sorted(unknown), sorted(taken)
    hints = [hint for name in names if (hint := _hint(name, cls, known, is_dict))]
    said = f"{cls.__name__} has no option {', '.join(map(repr, names))} here"
    listed = ", ".join(name for name in known if name not in FROM_ALGORITHM)
    return f"{said}{''.join(f' ({hint})' for hint in hints)}; it has: {listed}"


def _hint(option: str, cls: type, known: list[str], is_dict: bool) -> str | None:
    if option in inspect.signature(cls).parameters:  # but not here
        return None
    if option in sb3_extra_buffers.BUFFERS_BY_OPTION:
        return f"compressed_kwargs(algorithm_class, env, {option}=...) chooses a class that has {option!r}"
    if others := _others_with(option, cls, is_dict):
        return f"{option!r} is an option of {', '.join(others)}"
    nearest = difflib.get_close_matches(option, known, n=1)
    return f"did you mean {nearest[0]!r}?" if nearest else None


def _others_with(option: str, cls: type, is_dict: bool) -> list[str]:
    """Compressed buffers for the same algorithms and observations that have an option."""
    from sb3_extra_buffers import compressed

    kind = RolloutBuffer if issubclass(cls, RolloutBuffer) else ReplayBuffer
    return [
        name
        for name, other in vars(compressed).items()
        if isinstance(other, type)
        and issubclass(other, kind)
        and takes_dict(other) == is_dict
        and option in inspect.signature(other).parameters
    ]


def check_size(buffer_size: Any) -> int:
    """Refuse a ``buffer_size`` that is not a positive integer."""
    try:
        size = operator.index(buffer_size)
    except TypeError:
        advice = f": write {int(buffer_size)}" if isinstance(buffer_size, float) and buffer_size.is_integer() else ""
        raise TypeError(f"buffer_size must be an integer, got {buffer_size!r}{advice}") from None
    if size < 1:
        raise ValueError(f"buffer_size must be at least 1, got {size}")
    return size


def explain_size(error: Exception, buffer_size: int) -> None:
    """Name ``buffer_size`` where it is more than there can be memory for; do nothing where it is not to blame."""
    if isinstance(error, MemoryError) or buffer_size > sys.maxsize // 64:
        raise MemoryError(
            f"buffer_size={buffer_size:,} needs more memory than there is, for actions, rewards and dones alone: "
            f"choose a smaller one ({error})"
        ) from error


def takes_dict(cls: type) -> bool:
    """Tell whether a buffer class is for Dict observations."""
    return issubclass(cls, (DictReplayBuffer, DictRolloutBuffer))


def check_space(cls: type, space: Any) -> None:
    """Refuse observations that a buffer class is not for."""
    if not isinstance(space, spaces.Space):
        raise TypeError(f"observation_space must be a space of Gymnasium, not {space!r}")
    if issubclass(cls, HerReplayBuffer):
        check_goals(space)
    elif takes_dict(cls) != isinstance(space, spaces.Dict) and _is_known(cls):
        kind = "Dict observations only" if takes_dict(cls) else "observations that are not a Dict"
        advice = f"use {twin}; {_ADVICE}" if (twin := _twin(cls)) else _ADVICE
        raise ValueError(f"{cls.__name__} takes {kind}, but the observation space is {space}: {advice}")


def _is_known(cls: type) -> bool:
    """Whether it is made of SB3's, SB3-Contrib's and our classes alone; what others make may take other observations."""
    return all(parent.__module__.startswith(_KNOWN) for parent in cls.__mro__ if issubclass(parent, BaseBuffer))


def check_goals(space: spaces.Space[Any]) -> None:
    """Refuse observations that hindsight experience replay cannot use."""
    if not isinstance(space, spaces.Dict) or not {"achieved_goal", "desired_goal"} <= space.spaces.keys():
        raise ValueError(f"HER needs Dict observations with 'achieved_goal' and 'desired_goal', not {space}")


def _twin(cls: type) -> str | None:
    """The class of ours that does the same with, or without, Dict observations."""
    for parent in cls.__mro__:
        plain = parent.__name__.replace("Dict", "")
        for name in dir(sb3_extra_buffers):
            if name != parent.__name__ and name.replace("Dict", "") == plain:
                return name
    return None


def explain_step(error: Exception, n_envs: int, given: Mapping[str, Any]) -> None:
    """Raise an error of the same kind that says what cannot be stored; do nothing where the error is not about that."""
    if type(error) in _RAISED_AGAIN:
        what = ", ".join(f"{name} {_form(value)}" for name, value in given.items())
        raise type(error)(
            f"this step cannot be stored, and the buffer is as it was: {error}. "
            f"It needs one of each for {n_envs} environment(s), and was given {what}"
        ) from error


def _form(value: Any) -> str:
    if hasattr(value, "shape"):
        return f"of shape {tuple(value.shape)}"
    if isinstance(value, (list, tuple)):
        return f"as a {type(value).__name__} of {len(value)}"
    return f"as {type(value).__name__}"
