"""What is saved of a buffer: a value, taken at one moment, however long a pickler then takes to write it."""

from __future__ import annotations

import copyreg
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.buffers import BaseBuffer

from sb3_extra_buffers.compressed.sample_view import shallow_copy
from sb3_extra_buffers.storage import StoreLock


class SavedAtOnce(BaseBuffer):
    """
    Mixin for buffers that one thread may save while another one adds.

    ``__getstate__`` returns long before a pickler is done, and some picklers ask for all values before they write the first.
    So nothing in the state belongs to the buffer: arrays are copied and compressed observations are bytes by then.
    """

    _lock: StoreLock

    def __getstate__(self) -> dict[str, Any]:
        inherited = getattr(super(), "__getstate__", None)  # of every object since Python 3.11
        with self._lock:
            state = dict(self.__dict__ if inherited is None else inherited())
            state.pop("_spare_row", None)  # made again when it is needed
            frozen: dict[str, Any] = _frozen(state, {})
            return frozen

    def __copy__(self) -> Any:
        # As of any object: the copy has attributes of its own, their values are the same, and so is the lock.
        with self._lock:
            return shallow_copy(self)


class _Frozen:
    """
    What an object of ours was; pickled or copied, it is that object.

    :param cls: Its class
    """

    __slots__ = ("_cls", "state")

    def __init__(self, cls: type) -> None:
        self._cls = cls
        self.state: Any = None

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return self._cls  # pickle makes sure of that; so what it writes is what it writes for the object itself

    def __reduce__(self) -> tuple[Any, ...]:
        return copyreg.__newobj__, (self._cls,), self.state  # type: ignore[attr-defined]


def _is_ours(cls: type) -> bool:
    return any(parent.__module__.startswith("sb3_extra_buffers.") for parent in cls.__mro__)


def _frozen(value: Any, known: dict[int, tuple[Any, Any]]) -> Any:
    """
    Copy what a buffer may change; what belongs to others stays what it is.

    :param value: Anything
    :param known: What has been copied, by identity: what was one object stays one
    :return: The copy
    """
    if id(value) in known:
        return known[id(value)][1]
    cls = type(value)
    ours = _is_ours(cls)
    copied: Any = value
    if isinstance(value, np.ndarray):
        copied = value.copy(order="K")
    elif cls is th.Tensor and not value.requires_grad:
        copied = value.clone()
    elif cls is tuple or (ours and isinstance(value, tuple)):
        parts = [_frozen(part, known) for part in value]
        copied = tuple(parts) if cls is tuple else cls(*parts)
    elif cls is list:
        known[id(value)] = value, (copied := [])
        copied += [_frozen(part, known) for part in value]
    elif cls is dict or (ours and isinstance(value, dict)):
        known[id(value)] = value, (copied := cls())
        copied.update({key: _frozen(part, known) for key, part in value.items()})
    elif ours and not isinstance(value, BaseBuffer):  # this buffer, or another one that takes its own state in its turn
        copied = _frozen_object(value, known)
    known[id(value)] = value, copied  # with the value itself, or its identity might become another one's
    return copied


def _frozen_object(value: Any, known: dict[int, tuple[Any, Any]]) -> Any:
    maker, args, state, *items = (*value.__reduce_ex__(4), None, None, None)[:5]
    if maker is not copyreg.__newobj__ or len(args) != 1 or items != [None, None]:  # type: ignore[attr-defined]
        return value  # such as a lock: what it is made of does not change
    copied = _Frozen(args[0])
    known[id(value)] = value, copied
    copied.state = _frozen(state, known)
    return copied
