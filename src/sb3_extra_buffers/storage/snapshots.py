"""Values of one moment: copies that nobody changes, and checksums by which it is found out if they come back otherwise."""

from __future__ import annotations

import copyreg
from collections.abc import Sequence
from enum import Enum
from functools import partial
from typing import Any

import numpy as np

from sb3_extra_buffers.storage._core import checksum
from sb3_extra_buffers.storage.frames import Frames, FrozenFrames
from sb3_extra_buffers.storage.packing import Packed, can_pack

Facts = tuple[str, str, Sequence[Any]]
"""What a value is, its data as text, and what it consists of."""


class FrozenObject:
    """What an object of ours was; pickled or copied, it is that object."""

    __slots__ = ("_cls", "state")

    def __init__(self, cls: type) -> None:
        self._cls = cls
        self.state: Any = None

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return self._cls  # pickle makes sure of that; so what it writes is what it writes for the object itself

    def __reduce__(self) -> tuple[Any, ...]:
        return copyreg.__newobj__, (self._cls,), self.state  # type: ignore[attr-defined]


class Snapshots:
    """
    Copies and checksums of NumPy's values, of containers, and of objects of ours.

    What belongs to others stays what it is, and is theirs to check. A subclass says which of it is data.
    """

    def is_ours(self, cls: type) -> bool:
        """Tell whether objects are what they hold, and may be taken apart."""
        return any(parent.__module__.startswith("sb3_extra_buffers.") for parent in cls.__mro__)

    def is_packed(self, cls: type) -> bool:
        """Tell whether objects of others are taken apart when they are pickled, so that arrays in them are packed."""
        return False

    def copy_of_others(self, value: Any) -> Any:
        """Copy an object of others that a buffer may change."""
        return value

    def facts_of_others(self, value: Any) -> Facts | None:
        """Find the data in an object of others."""
        return None

    def freeze(self, value: Any, packs: bool = False, known: dict[int, tuple[Any, Any]] | None = None) -> Any:
        """Copy what a buffer may change; what belongs to others stays what it is."""
        known = {} if known is None else known
        if id(value) in known:
            return known[id(value)][1]
        cls, again = type(value), partial(self.freeze, packs=packs, known=known)
        ours = self.is_ours(cls)
        copied: Any = value
        if packs and can_pack(value):
            has_objects = isinstance(value, np.ndarray) and value.dtype.hasobject
            copied = Packed(value, [again(part) for part in value.flat] if has_objects else None)
        elif isinstance(value, np.ndarray):
            copied = value.copy(order="K")
            if value.dtype.hasobject:
                copied.flat = [again(part) for part in value.flat]
        elif isinstance(value, (Frames, FrozenFrames)):
            copied = FrozenFrames(value) if isinstance(value, Frames) else value
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
        elif ours or (packs and self.is_packed(cls)):
            maker, args, state, *items = (*value.__reduce_ex__(4), None, None, None)[:5]
            if maker is copyreg.__newobj__ and len(args) == 1 and items == [None, None]:  # type: ignore[attr-defined]
                known[id(value)] = value, (copied := FrozenObject(args[0]))
                copied.state = again(state)  # of others, such as a lock, what they are made of does not change
        elif not packs:
            copied = self.copy_of_others(value)
        known[id(value)] = value, copied  # with the value itself, or its identity might become another one's
        return copied

    def checksum_of(self, value: Any) -> int:
        """Compute a checksum of all that is data."""
        parts: list[str] = []
        self._collect(value, parts, set())
        return checksum("".join(parts).encode(errors="surrogatepass"))

    def _collect(self, value: Any, parts: list[str], around: set[int]) -> None:
        kind, text, inner = ("inside itself", "", ()) if id(value) in around else self._facts(value)
        parts.append(f"{kind} {text} {len(inner)};")
        around.add(id(value))
        for part in inner:
            self._collect(part, parts, around)
        around.discard(id(value))

    def _facts(self, value: Any) -> Facts:
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
        if isinstance(value, Enum):
            return kind, value.name, ()
        if isinstance(value, (FrozenFrames, Frames)):
            return "Frames", "", ()  # they have checksums themselves
        if (others := self.facts_of_others(value)) is not None:
            return others
        ours = self.is_ours(cls)
        if cls is dict or (ours and isinstance(value, dict)):
            return kind, "", [part for item in value.items() for part in item]
        if cls in (tuple, list) or (ours and isinstance(value, tuple)):
            return kind, "", value
        if cls is partial:
            return kind, "", (value.args, value.keywords)
        if cls is FrozenObject:
            return kind, "", [value.state]
        maker, _, *state = value.__reduce_ex__(4) if ours else (None, None)
        return (kind, "", state[:1]) if maker is copyreg.__newobj__ else ("object", "", ())  # type: ignore[attr-defined]
