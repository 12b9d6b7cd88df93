"""A buffer as a value: what is saved or copied is the buffer of one moment, and is found out if it comes back otherwise."""

from __future__ import annotations

import copyreg
from collections.abc import Sequence
from enum import Enum
from functools import partial
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import BaseBuffer
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env.base_vec_env import CloudpickleWrapper

from sb3_extra_buffers.storage import Frames, StorageError, StoreLock
from sb3_extra_buffers.storage._core import checksum
from sb3_extra_buffers.storage.frames import FrozenFrames, freeze_frames
from sb3_extra_buffers.storage.packing import Packed, can_pack

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
            return {**_frozen(self._state_to_save(), {}), "saved_format": FORMAT}

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        if (version := state.pop("saved_format", None)) != FORMAT:
            raise StorageError(
                f"this {type(self).__name__} was saved by another version of sb3-extra-buffers (format {version}, not "
                f"{FORMAT}); load it with the version that saved it"
            )
        self._take_saved_state(state)

    def __reduce_ex__(self, protocol: Any) -> Any:
        # The state is sealed once all subclasses have added to it or left out what they like, and checked before they see it.
        reduced = super().__reduce_ex__(protocol)
        return (*reduced[:2], _Sealed(reduced[2]), *reduced[3:]) if len(reduced) > 2 else reduced

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


class _Sealed:
    """
    A state with its checksum; pickled or copied, it is that state.

    :param state: The state
    """

    __slots__ = ("_state",)

    def __init__(self, state: Any) -> None:
        self._state = state

    def __reduce__(self) -> tuple[Any, ...]:
        return open_state, (_frozen(self._state, {}, packs=True), checksum_of(self._state))


def open_state(state: Any, expected: int) -> Any:
    """
    Refuse what is not as it was saved.

    :param state: What was loaded
    :param expected: The checksum of what was saved
    :return: The same
    """
    if checksum_of(state) != expected:
        raise StorageError("the saved buffer is damaged; load another copy of the file")
    return state


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


def _frozen(value: Any, known: dict[int, tuple[Any, Any]], packs: bool = False) -> Any:
    """
    Copy what a buffer may change; what belongs to others stays what it is.

    :param value: Anything
    :param known: What has been copied, by identity: what was one object stays one
    :param packs: Whether it is a copy already, and is brought into the form in which it is pickled
    :return: The copy
    """
    if id(value) in known:
        return known[id(value)][1]
    cls, again = type(value), partial(_frozen, known=known, packs=packs)
    ours = _is_ours(cls)
    copied: Any = value
    if packs and can_pack(value):
        has_objects = isinstance(value, np.ndarray) and value.dtype.hasobject
        copied = Packed(value, [again(part) for part in value.flat] if has_objects else None)
    elif isinstance(value, np.ndarray):
        copied = value.copy(order="K")
        if value.dtype.hasobject:
            copied.flat = [again(part) for part in value.flat]
    elif isinstance(value, (Frames, FrozenFrames)):
        copied = freeze_frames(value) if isinstance(value, Frames) else value
    elif cls is th.Tensor and not value.requires_grad:
        copied = value if packs else value.clone()
    elif cls is tuple or (ours and isinstance(value, tuple)):
        parts = [again(part) for part in value]
        copied = tuple(parts) if cls is tuple else cls(*parts)
    elif cls is list:
        known[id(value)] = value, (copied := [])
        copied += [again(part) for part in value]
    elif cls is dict or (ours and isinstance(value, dict)):
        known[id(value)] = value, (copied := cls())
        copied.update({key: again(part) for key, part in value.items()})
    elif cls is partial:  # recurrent buffers have some, over arrays
        copied = partial(value.func, *again(value.args), **again(value.keywords))
    elif (ours and not isinstance(value, BaseBuffer)) or (packs and cls.__module__.startswith("gymnasium.spaces.")):
        # A buffer is this one, or another one that takes its own state in its turn.
        maker, args, state, *items = (*value.__reduce_ex__(4), None, None, None)[:5]
        if maker is copyreg.__newobj__ and len(args) == 1 and items == [None, None]:  # type: ignore[attr-defined]
            known[id(value)] = value, (copied := _Frozen(args[0]))
            copied.state = again(state)  # of others, such as a lock, what they are made of does not change
    known[id(value)] = value, copied  # with the value itself, or its identity might become another one's
    return copied


def checksum_of(value: Any) -> int:
    """
    Compute a checksum of all that is data; objects of others are theirs to check.

    :param value: Anything
    :return: The same for what comes back from a file as for what was saved, whatever versions others have
    """
    parts: list[str] = []
    _collect(value, parts, set())
    return checksum("".join(parts).encode(errors="surrogatepass"))


def _collect(value: Any, parts: list[str], around: set[int]) -> None:
    kind, text, inner = ("inside itself", "", ()) if id(value) in around else _facts(value)
    parts.append(f"{kind} {text} {len(inner)};")
    around.add(id(value))
    for part in inner:
        _collect(part, parts, around)
    around.discard(id(value))


def _facts(value: Any) -> tuple[str, str, Sequence[Any]]:
    """What a value is, its data as text, and what it consists of."""
    cls, kind = type(value), value.__class__.__name__
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            return "ndarray", str(value.shape), value.reshape(-1).tolist()
        data = checksum(np.ascontiguousarray(value).reshape(-1).view(np.uint8)) if value.size else 0
        return "ndarray", f"{value.dtype.str} {value.shape} {data}", ()
    if isinstance(value, np.generic):
        return kind, f"{value.dtype.str} {value.tobytes().hex()}", ()
    if isinstance(value, np.dtype):
        return "dtype", value.str, ()
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        return kind, repr(value), ()
    if isinstance(value, th.device):
        return kind, "", ()  # by now, one that is not here may have become another
    if isinstance(value, Enum):
        return kind, value.name, ()
    if cls is th.Tensor:
        return kind, f"{value.dtype} {tuple(value.shape)}", [value.detach().cpu().reshape(-1).view(th.uint8).numpy()]
    if isinstance(value, (FrozenFrames, Frames)):
        return "Frames", "", ()  # they have checksums themselves
    if isinstance(value, spaces.Space):
        inner = [getattr(value, name, None) for name in ("shape", "dtype", "low", "high", "n", "start", "nvec")]
        return kind, "", [*inner, dict(value.spaces) if isinstance(value, spaces.Dict) else None]
    if cls.__module__ == LinearSchedule.__module__:
        return kind, "", [vars(value)]
    if isinstance(value, CloudpickleWrapper):
        return kind, "", [value.var]
    ours = _is_ours(cls)
    if cls is dict or (ours and isinstance(value, dict)):
        return kind, "", [part for item in value.items() for part in item]
    if cls in (tuple, list) or (ours and isinstance(value, tuple)):
        return kind, "", value
    if cls is partial:
        return kind, "", (value.args, value.keywords)
    if cls is not _Frozen and ours and not isinstance(value, BaseBuffer):
        maker, _, *state = value.__reduce_ex__(4)
        return (kind, "", state[:1]) if maker is copyreg.__newobj__ else ("object", "", ())  # type: ignore[attr-defined]
    return (kind, "", [value.state]) if cls is _Frozen else ("object", "", ())
