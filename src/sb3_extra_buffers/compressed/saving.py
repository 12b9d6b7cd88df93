"""A buffer as a value: what is saved or copied is the buffer of one moment, and is found out if it comes back otherwise."""

from __future__ import annotations

import copyreg
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import BaseBuffer

from sb3_extra_buffers.storage import Frames, StorageError, StoreLock
from sb3_extra_buffers.storage._core import checksum
from sb3_extra_buffers.storage.frames import freeze_frames

FORMAT = 2
"""Version of what a saved buffer consists of; what an older version has saved is refused."""


class SavedAtOnce(BaseBuffer):
    """
    Mixin for buffers that one thread may save while another one adds.

    ``__getstate__`` returns long before a pickler is done, and some picklers ask for all values before they write the first.
    So nothing in the state belongs to the buffer: arrays are copied by then, and compressed observations never change.
    """

    _lock: StoreLock

    def _state_to_save(self) -> dict[str, Any]:
        """The attributes that are saved; called while the lock is held."""
        inherited = getattr(super(), "__getstate__", None)  # of every object since Python 3.11
        return dict(self.__dict__ if inherited is None else inherited())

    def _take_saved_state(self, state: dict[str, Any]) -> None:
        """Become what was saved."""
        inherited = getattr(super(), "__setstate__", None)
        if inherited is None:
            self.__dict__.update(state)
        else:
            inherited(state)

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:
            state: dict[str, Any] = _frozen(self._state_to_save(), {})
        return {**state, "saved_format": FORMAT, "saved_checksum": _checksum_of(state)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        version, expected = state.pop("saved_format", None), state.pop("saved_checksum", None)
        if version != FORMAT:
            raise StorageError(
                f"this {type(self).__name__} was saved by another version of sb3-extra-buffers (format {version}, not {FORMAT}); "
                "load it with the version that saved it"
            )
        if _checksum_of(state) != expected:
            raise StorageError(f"the saved {type(self).__name__} is damaged; load another copy of the file")
        self._take_saved_state(state)

    def __copy__(self) -> Any:
        # As of any object: the copy has attributes of its own, their values are the same, and so is the lock.
        with self._lock:
            return shallow_copy(self)


def shallow_copy(buffer: Any) -> Any:
    """
    Make a buffer that has the attributes of another one; to set one of them leaves the other as it is.

    :param buffer: The buffer
    :return: The copy; arrays are the same
    """
    twin = object.__new__(type(buffer))
    twin.__dict__.update(buffer.__dict__)
    return twin


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
    elif isinstance(value, Frames):
        copied = freeze_frames(value)
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


def _checksum_of(value: Any) -> int:
    """A checksum of all that is data; objects of others are theirs to check."""
    parts: list[bytes] = []
    _collect(value, parts, set())
    return checksum(b"".join(parts))


def _collect(value: Any, parts: list[bytes], seen: set[int]) -> None:
    parts.append(type(value).__name__.encode() if value is None or isinstance(value, (tuple, list, dict)) else b";")
    if isinstance(value, np.ndarray):
        parts.append(f"{value.dtype.str}{value.shape}".encode())
        if value.dtype.hasobject:
            _collect(value.tolist(), parts, seen)
        else:
            parts.append(str(checksum(np.ascontiguousarray(value).reshape(-1).view(np.uint8))).encode())
    elif isinstance(value, np.generic):
        parts.append(value.dtype.str.encode() + value.tobytes())
    elif isinstance(value, np.dtype):
        parts.append(value.str.encode())
    elif isinstance(value, (bool, int, float, complex, str, bytes, th.device)):
        parts.append(repr(value).encode(errors="surrogatepass"))
    elif isinstance(value, (tuple, list, dict)) and id(value) not in seen:
        seen.add(id(value))
        for part in value.items() if isinstance(value, dict) else value:
            _collect(part, parts, seen)
    elif isinstance(value, spaces.Box):
        _collect((value.low, value.high, value.dtype), parts, seen)
    elif isinstance(value, spaces.Space):
        parts.append(repr(value).encode())
