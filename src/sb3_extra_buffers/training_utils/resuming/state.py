"""
What live objects hold, as plain values that can be pickled, and back into objects of the same kind.

Values go back into the objects that the program has made anew: what a checkpoint does not hold, such as functions and
windows, stays as the program has made it.
"""

from __future__ import annotations

import copy
import logging
import random
import struct
import types
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import PurePath
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec


class UnsavableError(TypeError):
    """A value that a checkpoint cannot hold."""


@dataclass(frozen=True)
class Captured:
    """What an object held, with the name of its class. It is only put back into an object of that class."""

    kind: str
    state: Any


class _Keep:
    """Stands for what a program makes again by itself, such as a function."""

    def __reduce__(self) -> str:
        return "KEEP"  # one object in every process: it is recognised by its identity


KEEP = _Keep()

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
    """Module and name of the class of an object."""
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _is_plain_object(value: Any) -> bool:
    """Whether the attributes of an object are all there is to it: nothing outside of Python, and nothing in slots."""
    cls = type(value)
    # With room for a dict and for weak references, and for nothing else.
    largest = object.__basicsize__ + 2 * struct.calcsize("P")
    return (
        hasattr(value, "__dict__") and cls.__basicsize__ <= largest and not any(vars(c).get("__slots__") for c in cls.__mro__)
    )


def _parts(inside: Any) -> list[Any]:
    return list(inside.values()) if isinstance(inside, dict) else list(inside)


class _Capture:
    """One pass over an object and all that it refers to."""

    def __init__(self) -> None:
        self.seen: dict[int, Any] = {}  # with the objects themselves: an identity may become another one's
        self.bytes = 0

    def value(self, value: Any, path: str, depth: int = 0) -> Any:
        if depth > _DEEPEST:
            raise UnsavableError(f"{path} is nested too deeply")
        cls = type(value)
        if cls in _PLAIN or isinstance(value, np.generic):
            return value
        if cls is np.ndarray and not value.dtype.hasobject:
            self._count(value.nbytes, path)
            return value.copy()
        if cls is th.Tensor:
            self._count(value.nbytes, path)
            return value.detach().cpu().clone()
        if isinstance(value, _CONSTANTS) or cls.__module__.split(".")[0] in _ONLY_FOR_SHOW:
            return KEEP
        if isinstance(value, Enum):
            return Captured(kind_of(value), value.name)
        if cls in (list, tuple, deque, set, frozenset):
            self._count(8 * len(value), path)
            parts = [self.value(part, f"{path}[{index}]", depth + 1) for index, part in enumerate(value)]
            return deque(parts, value.maxlen) if cls is deque else cls(parts)
        if cls is dict:
            return self._items(value, path, depth)
        if id(value) in self.seen:
            return KEEP  # it is put back where it came first
        self.seen[id(value)] = value
        if isinstance(value, (np.random.Generator, np.random.RandomState)):
            return copy.deepcopy(value)
        if isinstance(value, random.Random):
            return Captured(kind_of(value), value.getstate())
        if isinstance(value, spaces.Space):  # only what it draws with: the rest does not change
            inner = [self.value(part, path, depth + 1) for part in _parts(getattr(value, "spaces", ()))]
            return Captured("space", [self.value(vars(value).get("_np_random"), path), inner])
        if isinstance(value, tuple):  # a named one
            return Captured(kind_of(value), [self.value(part, f"{path}[{i}]", depth + 1) for i, part in enumerate(value)])
        if isinstance(value, dict):
            return Captured(kind_of(value), self._items(value, path, depth))
        if _is_plain_object(value):
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

    def attributes(self, value: Any, path: str, leave: Iterable[str] = (), depth: int = 0) -> dict[str, Any]:
        leave = set(leave)
        captured = {name: self.value(part, f"{path}.{name}", depth) for name, part in vars(value).items() if name not in leave}
        return {name: part for name, part in captured.items() if part is not KEEP}


def capture(value: Any) -> Any:
    """
    Copy what a value holds: numbers, texts, arrays, random generators, spaces, containers, and objects made of these.

    Raises ``UnsavableError`` for anything else, with the path to it.
    """
    return _Capture().value(value, kind_of(value))


def capture_attributes(value: Any, leave: Iterable[str] = ()) -> dict[str, Any]:
    """Copy the attributes of an object, except for some, and for those that a program makes again, such as functions."""
    return _Capture().attributes(value, type(value).__qualname__, leave)


def put_back(current: Any, saved: Any) -> Any:
    """Return the value that ``capture`` has copied. Objects and arrays that are there now are changed, and not replaced."""
    if saved is KEEP:
        return current
    if isinstance(saved, Captured):
        return _put_back_object(current, saved)
    if isinstance(saved, (np.random.Generator, np.random.RandomState)):
        return _put_back_generator(current, saved)
    if isinstance(saved, th.Tensor):
        return saved.to(current.device if isinstance(current, th.Tensor) else saved.device, copy=True)
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
    """Make the attributes of an object what ``capture_attributes`` has copied."""
    attributes = vars(current)
    attributes.update({name: put_back(attributes.get(name), part) for name, part in saved.items()})


def _put_back_generator(current: Any, saved: Any) -> Any:
    if isinstance(saved, np.random.RandomState) and isinstance(current, np.random.RandomState):
        current.set_state(saved.get_state(legacy=False))
        return current
    kinds = [type(getattr(generator, "bit_generator", None)) for generator in (current, saved)]
    if isinstance(current, np.random.Generator) and kinds[0] is kinds[1]:
        current.bit_generator.state = saved.bit_generator.state
        return current
    return copy.deepcopy(saved)


def _put_back_object(current: Any, saved: Captured) -> Any:
    if saved.kind == "space" and isinstance(current, spaces.Space):
        generator, inside = saved.state
        if generator is not None:
            current._np_random = put_back(vars(current).get("_np_random"), generator)
        for old, part in zip(_parts(getattr(current, "spaces", ())), inside, strict=True):
            put_back(old, part)
        return current
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
