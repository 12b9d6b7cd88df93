"""What all buffers that take the observations out of SB3's hands have in common: a parent that must not allocate them."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Generator, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.preprocessing import get_obs_shape

from sb3_extra_buffers.compressed.arguments import check_space, explain_arguments
from sb3_extra_buffers.compressed.saving import SavedAtOnce, shallow_copy

_KNOWN = ("stable_baselines3.", "sb3_contrib.", "sb3_extra_buffers.")
# It keeps what it finds out about a minibatch as attributes of the buffer, and copies observations by itself.
_LEAVES_TRACES = "sb3_contrib.common.recurrent."
# What runs between the call of ``sample`` or ``_get_samples`` and its return.
_READING = {"_get_samples", "_get_real_samples", "_get_virtual_samples", "_sample_goals", "_normalize_obs", "to_torch"}


def only_reads(cls: type, mixin: type) -> bool:
    """
    Tell whether all that a sample does with the buffer is to read it, and with observations to make tensors of them.

    :param cls: A buffer class
    :param mixin: What makes it ours
    :return: Whether that is known, as it is of SB3's classes
    """
    readers = [parent for parent in cls.__mro__ if _READING & vars(parent).keys()]
    readers += [parent for parent in _after(cls, mixin) if "sample" in vars(parent)]
    return all(parent.__module__.startswith(_KNOWN) and not parent.__module__.startswith(_LEAVES_TRACES) for parent in readers)


def _after(cls: type, mixin: type) -> tuple[type, ...]:
    ours = [place for place, parent in enumerate(cls.__mro__) if issubclass(parent, mixin)]
    return cls.__mro__[max(ours, default=0) + 1 :]


def hollow(space: spaces.Space[Any]) -> spaces.Space[Any]:
    """
    Make a space whose observations take no memory, so that the parent class can allocate them.

    :param space: The real one
    :return: One of the same kind, Dict or not
    """
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: hollow(part) for key, part in space.spaces.items()})
    return spaces.Box(0, 0, shape=(0,), dtype=np.uint8)


def all_floats(arrays: Any) -> bool:
    """
    Tell whether a parent made floats of a hollow space, which is of bytes.

    :param arrays: Its observations, an array or a dict of them
    :return: Whether it did
    """
    return all(array.dtype == np.float32 for array in (arrays.values() if isinstance(arrays, dict) else [arrays]))


def parent_signature(cls: type, mixin: type) -> inspect.Signature:
    """
    Find out what the SB3 class takes: its own keyword arguments and those of the class that it passes the others on to.

    :param cls: A buffer class
    :param mixin: What makes it ours
    :return: The signature without what is ours
    """
    parameters: dict[str, inspect.Parameter] = {}
    for parent in cls.__mro__:
        if issubclass(parent, mixin) or "__init__" not in vars(parent):
            continue
        own = list(inspect.signature(parent).parameters.values())
        named = [p for p in own if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        if len(named) == len(own):
            parameters = {p.name: p for p in named} | parameters
            break
        parameters = {p.name: p.replace(kind=p.KEYWORD_ONLY) for p in named} | parameters
    return inspect.Signature(sorted(parameters.values(), key=lambda p: p.kind))


def bind_arguments(cls: type, mixin: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> inspect.BoundArguments:
    """
    Bind what is meant for the parent of a buffer, or say what is wrong with it.

    :param cls: The buffer class
    :param mixin: What makes it ours
    :param args: Positional arguments
    :param kwargs: Keyword arguments, without those that the mixin takes itself
    :return: The arguments by name
    """
    signature = parent_signature(cls, mixin)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        given = dict(zip(signature.parameters, args, strict=False)) | kwargs
        raise TypeError(explain_arguments(cls, given, str(error))) from None
    check_space(cls, bound.arguments["observation_space"])
    return bound


def full_signature(cls: type, mixin: type) -> inspect.Signature:
    """
    Find out what a buffer class takes, ours and the parent's.

    :param cls: A buffer class
    :param mixin: What makes it ours
    :return: The signature
    """
    parameters = dict(parent_signature(cls, mixin).parameters)
    for parent in reversed(cls.__mro__):
        if issubclass(parent, mixin) and "__init__" in vars(parent):
            ours = inspect.signature(parent.__init__).parameters.values()
            parameters |= {p.name: p for p in ours if p.kind is p.KEYWORD_ONLY}
    return inspect.Signature(list(parameters.values()))


class HollowParent(SavedAtOnce):
    """
    Mixin for buffers whose parent was made with a hollow space.

    One lock guards all of a buffer: whoever adds to it, samples, resets or saves it holds the lock meanwhile.
    """

    def _adopt(self, space: spaces.Space[Any]) -> None:
        self.observation_space = space
        self.obs_shape = get_obs_shape(space)  # type: ignore[assignment]

    def _spaces(self) -> dict[str | None, spaces.Space[Any]]:
        if isinstance(self.observation_space, spaces.Dict):
            return dict(self.observation_space.spaces.items())
        return {None: self.observation_space}

    def _dtypes_by_key(self, dtypes: Mapping[str, Any] | None) -> dict[str | None, Mapping[str, Any] | None]:
        """One choice of types for all keys, or one for some of them."""
        keys = self._spaces().keys()
        if dtypes is None or not any(isinstance(value, Mapping) for value in dtypes.values()):
            return dict.fromkeys(keys, dtypes)
        if not dtypes.keys() <= keys:
            raise ValueError(f"dtypes has the keys {list(dtypes)}, but the observation space has {list(keys)}")
        return {key: dtypes.get(key) if key is not None else None for key in keys}

    @abstractmethod
    def _install(self) -> None:
        """Give the parent its arrays of observations, in the form it expects."""

    def _reset_aside(self, cls: type) -> bool:
        """
        Have the parent reset itself, without seeing the real space.

        It does so in a copy, and what it has done is taken over in one step: whenever Ctrl-C comes, this buffer is either
        not reset or reset.

        :param cls: The class whose parent is meant
        :return: Whether it has forgotten its observations, as rollout buffers do
        """
        twin = self._reset_twin(cls)
        twin._adopt(self.observation_space)
        made = twin.__dict__["observations"]
        forgets: bool = made is not self.__dict__["observations"]
        if forgets:
            twin._parent_floats = all_floats(made)  # it may be another SB3 than the one that made a buffer which was loaded
            twin._install()
        self.__dict__.update(twin.__dict__)
        return forgets

    def _reset_twin(self, cls: type) -> Any:
        """A copy of which the parent has been reset, with a hollow space."""
        twin = shallow_copy(self)
        twin._adopt(hollow(self.observation_space))
        super(cls, twin).reset()  # type: ignore[arg-type]
        return twin


def each_while_locked(batches: Generator[Any, None, None], buffer: Any) -> Generator[Any, None, None]:
    """
    Make the minibatches of a rollout, each while the lock of the buffer is held, but not between them.

    :param batches: Minibatches
    :param buffer: The buffer that makes them
    :return: The same
    """
    batch = None
    while True:
        with buffer._lock:
            if not buffer.full or (batch is not None and not buffer.generator_ready):
                raise RuntimeError("the rollout was reset before all of its minibatches were read; call get() again")
            batch = next(batches, None)
        if batch is None:
            return
        yield batch
