"""
What a live object holds, as plain values, and back into an object of the same kind.

Nothing is made from a name in a file: a value goes back into the object that the program has made anew, and where there is
none of that kind, that is an error.
"""

from __future__ import annotations

import logging
import random
import struct
import types
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from pathlib import PurePath
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from sb3_extra_buffers.training_utils.resuming.values import KEEP, Captured, UnsavableError

_BIT_GENERATORS = {name: getattr(np.random, name) for name in ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")}
_PLAIN = (type(None), bool, int, float, complex, str, bytes)
# Made again by the program itself, and the same each time.
_CONSTANTS = (
    *(type, types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType, np.dtype, np.ufunc),
    *(th.device, th.dtype, EnvSpec, logging.Logger, PurePath, gym.Env),
)
_ONLY_FOR_SHOW = ("pygame",)  # windows and clocks: an environment goes on without them
_LARGEST = 64 * 2**20
_DEEPEST = 50


def kind_of(value: Any) -> str:
    """
    Name the class of an object.

    :param value: The object
    :return: Module and name
    """
    return f"{type(value).__module__}.{type(value).__qualname__}"


def is_plain_object(value: Any) -> bool:
    """
    Tell whether the attributes of an object are all there is to it.

    :param value: The object
    :return: False if it may hold something outside of Python, or in slots
    """
    cls = type(value)
    # With room for a dict and for weak references, and for nothing else.
    largest = object.__basicsize__ + 2 * struct.calcsize("P")
    return (
        hasattr(value, "__dict__") and cls.__basicsize__ <= largest and not any(vars(c).get("__slots__") for c in cls.__mro__)
    )


class _Capture:
    def __init__(self) -> None:
        self.seen: dict[int, Any] = {}  # with the objects themselves: an identity may become another one's
        self.bytes = 0

    def value(self, value: Any, path: str, depth: int = 0) -> Any:
        if depth > _DEEPEST:
            raise UnsavableError(f"{path} is nested too deeply")
        cls = type(value)
        if cls in _PLAIN:
            return value
        if cls is np.ndarray and not value.dtype.hasobject:
            self._count(value.nbytes, path)
            return value.copy()
        if isinstance(value, np.generic):
            return value
        if isinstance(value, _CONSTANTS) or cls.__module__.split(".")[0] in _ONLY_FOR_SHOW:
            return KEEP
        if isinstance(value, Enum):
            return Captured(kind_of(value), value.name)
        if cls is th.Tensor:
            return Captured("torch.Tensor", self.value(value.detach().cpu().numpy(), path))
        if cls in (list, tuple, deque, set, frozenset):
            self._count(8 * len(value), path)
            parts = [self.value(part, f"{path}[{index}]", depth + 1) for index, part in enumerate(value)]
            return deque(parts, value.maxlen) if cls is deque else cls(parts)
        if cls is dict:
            return self._items(value, path, depth)
        if id(value) in self.seen:
            return KEEP  # it is put back where it came first
        self.seen[id(value)] = value
        if isinstance(value, np.random.Generator):
            return Captured("numpy.random.Generator", self._items(value.bit_generator.state, path, depth))
        if isinstance(value, np.random.RandomState):
            return Captured("numpy.random.RandomState", self._items(dict(value.get_state(legacy=False)), path, depth))
        if isinstance(value, random.Random):
            return Captured(kind_of(value), value.getstate())
        if isinstance(value, spaces.Space):
            return self._space(value, path, depth)
        if isinstance(value, tuple):  # a named one
            return Captured(kind_of(value), [self.value(part, f"{path}[{i}]", depth + 1) for i, part in enumerate(value)])
        if isinstance(value, dict):
            return Captured(kind_of(value), self._items(value, path, depth))
        if is_plain_object(value):
            return Captured(kind_of(value), self.attributes(value, path, depth=depth + 1))
        raise UnsavableError(f"{path} is a {kind_of(value)}")

    def _count(self, size: int, path: str) -> None:
        self.bytes += size
        if self.bytes > _LARGEST:
            raise UnsavableError(f"with {path} it takes more than {_LARGEST >> 20} MB")

    def _items(self, value: Mapping[Any, Any], path: str, depth: int) -> dict[Any, Any]:
        return {
            self.value(key, f"a key of {path}"): self.value(part, f"{path}[{key!r}]", depth + 1) for key, part in value.items()
        }

    def _space(self, space: spaces.Space[Any], path: str, depth: int) -> Captured:
        """Only what it draws with: what it is like does not change."""
        own = vars(space).get("_np_random")
        drawn = None if own is None else self.value(own, path)
        inside = getattr(space, "spaces", ())
        return Captured("space", [drawn, [self.value(part, path, depth + 1) for part in _parts(inside)]])

    def attributes(self, value: Any, path: str, leave: Iterable[str] = (), depth: int = 0) -> dict[str, Any]:
        leave = set(leave)
        captured = {name: self.value(part, f"{path}.{name}", depth) for name, part in vars(value).items() if name not in leave}
        return {name: part for name, part in captured.items() if part is not KEEP}


def _parts(inside: Any) -> list[Any]:
    return list(inside.values()) if isinstance(inside, dict) else list(inside)


def capture(value: Any) -> Any:
    """
    Take what a value holds now.

    :param value: Numbers, texts, arrays, random generators, spaces, containers, and objects made of these
    :return: The same as plain values; what happens to the object does not change them
    """
    return _Capture().value(value, kind_of(value))


def capture_attributes(value: Any, leave: Iterable[str] = ()) -> dict[str, Any]:
    """
    Take the attributes of an object.

    :param value: The object
    :param leave: Names of attributes to leave out
    :return: By name; without those that a program makes again, such as functions
    """
    return _Capture().attributes(value, type(value).__qualname__, leave)


def put_back(current: Any, saved: Any) -> Any:
    """
    Make a value what it was; objects that are there are changed, and not replaced.

    :param current: The value that stands there now
    :param saved: What ``capture`` has returned
    :return: The value that has to stand there
    """
    if saved is KEEP:
        return current
    if isinstance(saved, Captured):
        return _put_back_object(current, saved)
    if type(saved) is np.ndarray:
        same = type(current) is np.ndarray and (current.dtype, current.shape) == (saved.dtype, saved.shape)
        if same and current.flags.writeable:
            current[...] = saved  # others may look at the same array
            return current
        return saved
    if type(saved) in (list, tuple, deque, set, frozenset):
        # What lay at the same place is what objects are put back into.
        there = list(current) if isinstance(current, (list, tuple, deque)) else []
        there += [None] * (len(saved) - len(there))
        parts = [put_back(old, part) for old, part in zip(there, saved, strict=False)]
        return deque(parts, saved.maxlen) if type(saved) is deque else type(saved)(parts)
    if type(saved) is dict:
        there_by_key = current if isinstance(current, dict) else {}
        return {key: put_back(there_by_key.get(key), part) for key, part in saved.items()}
    return saved


def put_back_attributes(current: Any, saved: dict[str, Any]) -> None:
    """
    Make the attributes of an object what they were.

    :param current: The object
    :param saved: What ``capture_attributes`` has returned
    """
    attributes = vars(current)
    attributes.update({name: put_back(attributes.get(name), part) for name, part in saved.items()})


def _put_back_object(current: Any, saved: Captured) -> Any:
    special = _SPECIAL.get(saved.kind)
    if special is not None:
        return special(current, saved.state)
    if kind_of(current) != saved.kind:
        raise UnsavableError(f"a {saved.kind} was saved, but a {kind_of(current)} is there")
    if isinstance(current, Enum):
        return type(current)[saved.state]
    if isinstance(current, random.Random):
        current.setstate(saved.state)
    elif isinstance(current, tuple):
        return type(current)(*[put_back(old, part) for old, part in zip(current, saved.state, strict=True)])
    elif isinstance(current, dict):
        items = {key: put_back(current.get(key), part) for key, part in saved.state.items()}
        current.clear()
        current.update(items)
    else:
        put_back_attributes(current, saved.state)
    return current


def _put_back_generator(current: Any, state: dict[str, Any]) -> Any:
    name = state["bit_generator"]
    if not isinstance(current, np.random.Generator) or current.bit_generator.state["bit_generator"] != name:
        if name not in _BIT_GENERATORS:
            raise UnsavableError(f"there is no bit generator {name}")
        current = np.random.Generator(_BIT_GENERATORS[name]())
    current.bit_generator.state = state
    return current


def _put_back_random_state(current: Any, state: dict[str, Any]) -> Any:
    current = current if isinstance(current, np.random.RandomState) else np.random.RandomState()
    current.set_state(state)
    return current


def _put_back_space(current: Any, state: Any) -> Any:
    if not isinstance(current, spaces.Space):
        raise UnsavableError(f"a space was saved, but a {kind_of(current)} is there")
    generator, inside = state
    if generator is not None:
        current._np_random = put_back(vars(current).get("_np_random"), generator)
    for old, part in zip(_parts(getattr(current, "spaces", ())), inside, strict=True):
        put_back(old, part)
    return current


def _put_back_tensor(current: Any, state: Any) -> Any:
    device = current.device if isinstance(current, th.Tensor) else None
    return th.as_tensor(state, device=device)


_SPECIAL: dict[str, Callable[[Any, Any], Any]] = {
    "numpy.random.Generator": _put_back_generator,
    "numpy.random.RandomState": _put_back_random_state,
    "space": _put_back_space,
    "torch.Tensor": _put_back_tensor,
}
