"""What reads of one ``sample`` have in common: arrays that are read at the same cells are decoded together."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from sb3_extra_buffers.storage.array import CompressedArray

_local = threading.local()


def current_session() -> ReadSession | None:
    """
    Find the session of this thread.

    :return: The session, if one is open
    """
    return getattr(_local, "session", None)


class ReadSession:
    """
    While it is open, this thread's reads go through it.

    SB3 reads ``next_observations`` and then ``observations`` at the same rows and columns; at the first read both are
    decoded, at the second the other one is handed out. It also knows which arrays are fresh, owned by nobody yet, so
    that they can become tensors without a copy.

    :param paired: Whether to expect that; otherwise each array is read by itself
    """

    __slots__ = ("_fresh", "_outer", "_paired", "_waiting")

    def __init__(self, paired: bool = True) -> None:
        self._paired = paired
        self._waiting: dict[int, tuple[Any, Any, npt.NDArray[Any]]] = {}
        self._fresh: list[npt.NDArray[Any]] = []

    def __enter__(self) -> ReadSession:
        self._outer = current_session()
        _local.session = self
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        _local.session = self._outer

    def read(
        self, array: CompressedArray, rows: npt.NDArray[np.int64], columns: npt.NDArray[np.int64]
    ) -> npt.NDArray[Any] | None:
        """
        Read an array together with its partner.

        :param array: The array
        :param rows: First index, as the caller gave it
        :param columns: Second index, likewise
        :return: What was asked for; None where the array has no partner
        """
        waiting = self._waiting.pop(id(array), None)
        if waiting is not None and waiting[0] is rows and waiting[1] is columns:
            return self.note_fresh(waiting[2])
        partner = array.partner if self._paired else None
        if partner is None:
            return None
        mine, other = array.read_with(partner, rows, columns)
        self._waiting[id(partner)] = (rows, columns, other)
        return self.note_fresh(mine)

    def note_fresh(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """
        Remember an array that nobody else has.

        :param array: The array
        :return: The same
        """
        self._fresh.append(array)
        return array

    def take_fresh(self, array: npt.NDArray[Any]) -> bool:
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
