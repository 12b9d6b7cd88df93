"""A buffer as a value: what is saved or copied is the buffer of one moment, and is found out if it comes back otherwise."""

from __future__ import annotations

from typing import Any

import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import BaseBuffer
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env.base_vec_env import CloudpickleWrapper

from sb3_extra_buffers.storage import StorageError, StoreLock
from sb3_extra_buffers.storage.snapshots import Facts, Snapshots

FORMAT = 2
"""Version of what a saved buffer consists of; what an older version has saved is refused."""


class _BufferSnapshots(Snapshots):
    """Snapshots of what buffers hold: values of torch, Gymnasium and SB3, too."""

    def is_ours(self, cls: type) -> bool:
        # A buffer is the one that is saved, or another one that takes its own state in its turn.
        return super().is_ours(cls) and not issubclass(cls, BaseBuffer)

    def is_packed(self, cls: type) -> bool:
        return cls.__module__.startswith("gymnasium.spaces.")

    def copy_of_others(self, value: Any) -> Any:
        return value.clone() if type(value) is th.Tensor and not value.requires_grad else value

    def facts_of_others(self, value: Any) -> Facts | None:
        kind = value.__class__.__name__
        if isinstance(value, th.device):
            return kind, "", ()  # by now, one that is not here may have become another
        if type(value) is th.Tensor:
            return kind, f"{value.dtype} {tuple(value.shape)}", [value.detach().cpu().reshape(-1).view(th.uint8).numpy()]
        if isinstance(value, spaces.Space):
            inner = [getattr(value, name, None) for name in ("shape", "dtype", "low", "high", "n", "start", "nvec")]
            return kind, "", [*inner, dict(value.spaces) if isinstance(value, spaces.Dict) else None]
        if type(value).__module__ == LinearSchedule.__module__:
            return kind, "", [vars(value)]
        return (kind, "", [value.var]) if isinstance(value, CloudpickleWrapper) else None


_SNAPSHOTS = _BufferSnapshots()


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
            return {**_SNAPSHOTS.freeze(self._state_to_save()), "saved_format": FORMAT}

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
        twin = object.__new__(type(self))
        with self._lock:
            twin.__dict__.update(self.__dict__)
        return twin


class _Sealed:
    """A state with its checksum; pickled or copied, it is that state."""

    __slots__ = ("_state",)

    def __init__(self, state: Any) -> None:
        self._state = state

    def __reduce__(self) -> tuple[Any, ...]:
        return open_state, (_SNAPSHOTS.freeze(self._state, packs=True), _SNAPSHOTS.checksum_of(self._state))


def open_state(state: Any, expected: int) -> Any:
    """Refuse what is not as it was saved."""
    if _SNAPSHOTS.checksum_of(state) != expected:
        raise StorageError("the saved buffer is damaged; load another copy of the file")
    return state
