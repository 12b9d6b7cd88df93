"""What reads of one ``sample`` have in common: arrays that are read at the same cells are decoded together."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar, copy_context
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

Result = TypeVar("Result")

_session: ContextVar[ReadSession | None] = ContextVar("sb3_extra_buffers_session", default=None)


def current_session() -> ReadSession | None:
    """
    Find the session that is open.

    :return: The session of this call, in this thread; None outside of one
    """
    return _session.get()


def read_in_session(paired: bool, call: Callable[..., Result], *args: Any, **kwargs: Any) -> Result:
    """
    Make a call whose reads have a session.

    The session ends with the call however that ends, by Ctrl-C at any moment, too: it belongs to a context that the
    interpreter itself enters and leaves, and no code of ours has to run for that.

    :param paired: Whether to expect pairs, see ``ReadSession``
    :param call: What to call
    :param args: With what
    :param kwargs: Likewise
    :return: What it returns
    """
    return copy_context().run(_with_session, ReadSession(paired), call, args, kwargs)


def _with_session(session: ReadSession, call: Callable[..., Result], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Result:
    _session.set(session)
    return call(*args, **kwargs)


class PairedArray(Protocol):
    """What can be read in a session: an array that may have a partner."""

    @property
    def partner(self) -> Any:
        """What is nearly always read at the same places, if there is such an array."""

    def read_with(self, other: Any, rows: npt.NDArray[np.int64], columns: npt.NDArray[np.int64]) -> tuple[Any, Any]:
        """
        Read ``self[rows, columns]`` and ``other[rows, columns]``.

        :param other: The partner
        :param rows: Integers
        :param columns: Integers
        :return: Both
        """


class ReadSession:
    """
    While it is open, reads go through it.

    SB3 reads ``next_observations`` and then ``observations`` at the same rows and columns; at the first read both are
    decoded, at the second the other one is handed out. It also knows which arrays are fresh, owned by nobody yet, so
    that they can become tensors without a copy.

    :param paired: Whether to expect that; otherwise each array is read by itself
    """

    __slots__ = ("_fresh", "_paired", "_waiting")

    def __init__(self, paired: bool = True) -> None:
        self._paired = paired
        self._waiting: dict[int, tuple[tuple[Any, ...], Any]] = {}
        self._fresh: list[Any] = []

    def read(self, array: PairedArray, rows: npt.NDArray[np.int64], columns: npt.NDArray[np.int64]) -> Any:
        """
        Read an array together with its partner.

        :param array: The array
        :param rows: First index, as the caller gave it
        :param columns: Second index, likewise
        :return: What was asked for; None where the array has no partner
        """
        partner = array.partner if self._paired else None
        if partner is None:
            return None
        # By content: whoever reads may change an index in place before reading the other array.
        place = (rows.dtype, rows.shape, rows.tobytes(), columns.dtype, columns.shape, columns.tobytes())
        waiting = self._waiting.pop(id(array), None)
        if waiting is not None and waiting[0] == place:
            return self.note_fresh(waiting[1])
        mine, other = array.read_with(partner, rows, columns)
        self._waiting[id(partner)] = (place, other)
        return self.note_fresh(mine)

    def note_fresh(self, array: Any) -> Any:
        """
        Remember an array that nobody else has.

        :param array: The array
        :return: The same
        """
        self._fresh.append(array)
        return array

    def take_fresh(self, array: Any) -> bool:
        """
        Claim an array; only the first claim is granted.

        :param array: The array
        :return: Whether the caller may keep it
        """
        for place, fresh in enumerate(self._fresh):
            if fresh is array:
                del self._fresh[place]
                return True
        return False
