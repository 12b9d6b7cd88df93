"""The right buffer for an algorithm and an environment, for those who do not want to know class names."""

from __future__ import annotations

import inspect
import pkgutil
import sys
from collections.abc import Callable
from typing import Any

import gymnasium as gym
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.buffers import BaseBuffer
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import VecEnv

import sb3_extra_buffers
from sb3_extra_buffers import compressed
from sb3_extra_buffers.compressed.arguments import FROM_ALGORITHM, check_goals, no_such_option, takes_dict
from sb3_extra_buffers.compressed.her import CompressedHerReplayBuffer
from sb3_extra_buffers.compressed.n_step import CompressedDictNStepReplayBuffer, CompressedNStepReplayBuffer
from sb3_extra_buffers.compressed.replay import CompressedDictReplayBuffer, CompressedReplayBuffer
from sb3_extra_buffers.compressed.rollout import CompressedDictRolloutBuffer, CompressedRolloutBuffer

BufferPair = tuple[type[BaseBuffer], type[BaseBuffer]]
"""A class, and the one for Dict observations."""

_HER_OPTIONS = {"n_sampled_goal", "goal_selection_strategy", "copy_info_dict"}
_PRIORITY_OPTIONS = {"alpha", "beta", "eps"}


def compressed_buffer_for(
    algorithm_class: type[BaseAlgorithm], observation_space: spaces.Space[Any], **options: Any
) -> tuple[type[BaseBuffer], dict[str, Any]]:
    """
    Find the compressed buffer that goes with an algorithm.

    An off-policy algorithm that needs buffers of its own names them in a class attribute ``compressed_buffers``: the one
    for Dict observations second, the one for all others first. ``PrioritizedDQN`` does.

    :param algorithm_class: An algorithm of SB3, SB3-Contrib or SBX, ``PrioritizedDQN``, or a subclass of one
    :param observation_space: What it observes
    :param options: ``n_steps`` with ``gamma`` for n-step returns, ``her=True`` or any option of ``HerReplayBuffer`` for
        hindsight experience replay; ``buffer_device`` for observations that are kept there; all others are options of
        the buffer, for example ``compression_method``, or ``alpha`` where it has priorities
    :return: The class, and what to pass as ``replay_buffer_kwargs`` or ``rollout_buffer_kwargs``
    """
    kwargs = dict(options)
    is_dict = isinstance(observation_space, spaces.Dict)
    find_elsewhere = _finder_for(kwargs)
    if find_elsewhere is not None and _is_subclass(algorithm_class, (OffPolicyAlgorithm, OnPolicyAlgorithm)):
        buffer_class = find_elsewhere(algorithm_class, observation_space)
    elif _is_subclass(algorithm_class, OffPolicyAlgorithm):
        buffer_class = _replay_classes(algorithm_class, observation_space, kwargs)[is_dict]
    elif _is_subclass(algorithm_class, OnPolicyAlgorithm):
        buffer_class = _rollout_classes(algorithm_class)[is_dict]
    elif _is_subclass(algorithm_class, BaseAlgorithm):
        raise TypeError(f"{algorithm_class.__name__} has no buffer of observations, so there is nothing to compress")
    else:
        raise TypeError(f"expected an algorithm class such as DQN or PPO, not {algorithm_class!r}")
    _check_options(buffer_class, kwargs)
    if "n_steps" in kwargs:
        kwargs.setdefault("gamma", _default_gamma(algorithm_class))
    return buffer_class, kwargs


def compressed_kwargs(
    algorithm_class: type[BaseAlgorithm], env: gym.Env[Any, Any] | VecEnv | spaces.Space[Any], **options: Any
) -> dict[str, Any]:
    """
    Find the arguments that make an algorithm use its compressed buffer::

        model = DQN("CnnPolicy", env, **compressed_kwargs(DQN, env))

    :param algorithm_class: As ``compressed_buffer_for`` takes it; instead of ``RecurrentPPO``, which takes no buffer
        class, ``CompressedRecurrentPPO``
    :param env: The environment, or its observation space
    :param options: As ``compressed_buffer_for`` takes them. With ``n_steps``, ``gamma`` is given here and not to the
        algorithm: both have to use the same, so the algorithm gets it from the result
    :return: Keyword arguments of the algorithm
    """
    space = env if isinstance(env, spaces.Space) else getattr(env, "observation_space", None)
    if not isinstance(space, spaces.Space):
        raise TypeError(f"expected an environment or its observation space, not {env!r}")
    buffer_class, kwargs = compressed_buffer_for(algorithm_class, space, **options)
    if _has_fixed_buffer(algorithm_class):
        raise TypeError(
            f"{algorithm_class.__name__} takes no buffer class; "
            "use sb3_extra_buffers.compressed.CompressedRecurrentPPO, which is RecurrentPPO that does"
        )
    kind = "replay" if issubclass(algorithm_class, OffPolicyAlgorithm) else "rollout"
    arguments = {f"{kind}_buffer_class": buffer_class, f"{kind}_buffer_kwargs": kwargs}
    # With n_steps=1 the buffer needs none, but what was asked for holds for the algorithm all the same.
    gamma = kwargs.get("gamma", options.get("gamma"))
    if gamma is not None:
        arguments["gamma"] = gamma
    return arguments


def _finder_for(options: dict[str, Any]) -> Callable[..., type[BaseBuffer]] | None:
    """What finds the class where an option asks for buffers of a higher layer."""
    place = next((name for option, name in sb3_extra_buffers.BUFFERS_BY_OPTION.items() if option in options), None)
    return None if place is None else pkgutil.resolve_name(place)


def _is_subclass(cls: Any, parent: type | tuple[type, ...]) -> bool:
    return isinstance(cls, type) and issubclass(cls, parent)


def _replay_classes(algorithm_class: type, space: spaces.Space[Any], kwargs: dict[str, Any]) -> BufferPair:
    own: BufferPair | None = getattr(algorithm_class, "compressed_buffers", None)
    if kwargs.get("n_steps") == 1:  # as in SB3: not n-step
        del kwargs["n_steps"]
        kwargs.pop("gamma", None)
    if kwargs.pop("her", bool(_HER_OPTIONS & kwargs.keys())):
        check_goals(space)
        if "n_steps" in kwargs:
            raise ValueError("HER and n-step returns cannot be combined")
        if own is not None:
            raise ValueError(f"HER and {algorithm_class.__name__} cannot be combined: it needs a {own[1].__name__}")
        return CompressedHerReplayBuffer, CompressedHerReplayBuffer
    if own is not None:
        return own
    if priority_options := sorted(_PRIORITY_OPTIONS & kwargs.keys()):
        raise TypeError(
            f"{algorithm_class.__name__} uses no priorities, so it has no {', '.join(map(repr, priority_options))}; "
            "use sb3_extra_buffers.training_utils.prioritized_dqn.PrioritizedDQN, which is DQN that does"
        )
    if "n_steps" in kwargs:
        return CompressedNStepReplayBuffer, CompressedDictNStepReplayBuffer
    return CompressedReplayBuffer, CompressedDictReplayBuffer


def _rollout_classes(algorithm_class: type) -> BufferPair:
    if _is_contrib(algorithm_class, "MaskablePPO"):
        return compressed.CompressedMaskableRolloutBuffer, compressed.CompressedMaskableDictRolloutBuffer
    if _is_contrib(algorithm_class, "RecurrentPPO"):
        return compressed.CompressedRecurrentRolloutBuffer, compressed.CompressedRecurrentDictRolloutBuffer
    return CompressedRolloutBuffer, CompressedDictRolloutBuffer


def _is_contrib(algorithm_class: type, name: str) -> bool:
    # Whoever has such a class has imported sb3-contrib already.
    parent = getattr(sys.modules.get("sb3_contrib"), name, None)
    return parent is not None and issubclass(algorithm_class, parent)


def _has_fixed_buffer(algorithm_class: type) -> bool:
    is_recurrent = _is_contrib(algorithm_class, "RecurrentPPO")
    return is_recurrent and not issubclass(algorithm_class, compressed.CompressedRecurrentPPO)


def _check_options(buffer_class: type[BaseBuffer], kwargs: dict[str, Any]) -> None:
    taken = inspect.signature(buffer_class).parameters.keys() - FROM_ALGORITHM
    if "n_steps" not in kwargs:
        taken -= {"gamma"}  # which the algorithm hands over, or which nothing would use
    unknown = kwargs.keys() - taken
    if unknown:
        raise TypeError(no_such_option(buffer_class, unknown, taken, takes_dict(buffer_class)))


def _default_gamma(algorithm_class: type) -> float:
    for cls in algorithm_class.__mro__:
        if "__init__" not in vars(cls):
            continue
        parameters = inspect.signature(vars(cls)["__init__"]).parameters
        if "gamma" in parameters:
            if parameters["gamma"].default is inspect.Parameter.empty:
                break
            return float(parameters["gamma"].default)
        if all(parameter.kind is not parameter.VAR_KEYWORD for parameter in parameters.values()):
            break  # it takes no more than it names, so the default of its parent is not its own
    raise TypeError(f"n-step returns of {algorithm_class.__name__} need `gamma`, which it has no default for")
