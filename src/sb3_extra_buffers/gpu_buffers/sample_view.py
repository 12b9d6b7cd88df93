"""
What one ``sample`` reads: a view of the buffer, made for the call and gone with it.

SB3's own code runs on the view as it would on the buffer. Only its arrays of observations are others: they decode
``observations`` and ``next_observations`` together, and ``to_torch`` knows which arrays nobody else has.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch as th

from sb3_extra_buffers.compressed.saving import shallow_copy

_WHOLE_AXIS = slice(None)


class ReadableBeside(Protocol):
    """An array of observations that can be decoded together with another one."""

    def __getitem__(self, index: Any) -> Any:
        """
        Read it by itself.

        :param index: Any index
        :return: What is there, in memory of its own
        """

    def read_beside(self, other: Any, rows: npt.NDArray[Any], columns: npt.NDArray[Any]) -> tuple[Any, Any]:
        """
        Read ``self[rows, columns]`` and ``other[rows, columns]``.

        :param other: The other array
        :param rows: Integers
        :param columns: Integers
        :return: Both
        """


class SampleReads:
    """
    What has been decoded for one call.

    :param device: Where tensors go
    """

    __slots__ = ("_device", "_fresh", "_on_cpu")

    def __init__(self, device: th.device | str) -> None:
        self._device = device
        self._on_cpu = getattr(device, "type", device) == "cpu"  # SB3 lets it be a string, too
        self._fresh: list[Any] = []

    def note(self, array: Any) -> Any:
        """
        Remember an array that nobody else has.

        :param array: The array
        :return: The same
        """
        self._fresh.append(array)
        return array

    def to_torch(self, array: Any, copy: bool = True) -> Any:
        """
        Convert to a tensor, or a dict of arrays to a dict of tensors; what was decoded for this call is not copied again.

        :param array: Array or arrays
        :param copy: Whether to copy others
        :return: As many tensors
        """
        if isinstance(array, dict):
            return {key: self.to_torch(part, copy) for key, part in array.items()}
        if type(array) is not np.ndarray:
            return th.tensor(array, device=self._device)
        if copy and not self._take(array):
            array = array.copy()  # a tensor of a copy is made in a quarter of the time that th.tensor takes
        tensor = th.from_numpy(array)
        return tensor if self._on_cpu else tensor.to(self._device)

    def _take(self, array: Any) -> bool:
        """Whether the caller may keep it; nobody may after that."""
        for place, fresh in enumerate(self._fresh):
            if fresh is array:
                del self._fresh[place]
                return True
        return False


class _Pair:
    """
    ``observations`` and ``next_observations``, decoded together where they are read at the same places.

    Each view does that once. What is read after that, such as a goal from elsewhere, is read by itself.
    """

    __slots__ = ("_arrays", "_place", "_reads", "_waiting", "_which")

    def __init__(self, arrays: tuple[ReadableBeside, ReadableBeside], reads: SampleReads) -> None:
        self._arrays = arrays
        self._reads = reads
        self._place: tuple[Any, ...] | None = None
        self._waiting: Any = None
        self._which = 0

    def read(self, which: int, index: Any) -> Any:
        array = self._arrays[which]
        if not _is_cells(index):
            return self._reads.note(array[index])
        rows, columns = index[0], index[1]
        # By content: whoever reads may change an index in place before reading the other array.
        place = (rows.shape, rows.tobytes(), columns.shape, columns.tobytes())
        if self._place is None:
            self._place, self._which = place, 1 - which
            mine, self._waiting = array.read_beside(self._arrays[1 - which], rows, columns)
            return self._reads.note(mine)
        if self._waiting is not None and which == self._which and place == self._place:
            waiting, self._waiting = self._waiting, None
            return self._reads.note(waiting)
        return self._reads.note(array[index])


class _Side:
    """One array of a pair."""

    __slots__ = ("_pair", "_which")

    def __init__(self, pair: _Pair, which: int) -> None:
        self._pair = pair
        self._which = which

    def __getitem__(self, index: Any) -> Any:
        return self._pair.read(self._which, index)


class _Alone:
    """An array that is read by itself."""

    __slots__ = ("_array", "_reads")

    def __init__(self, array: ReadableBeside, reads: SampleReads) -> None:
        self._array = array
        self._reads = reads

    def __getitem__(self, index: Any) -> Any:
        return self._reads.note(self._array[index])


def _is_cells(index: Any) -> bool:
    """Whether it is ``[rows, columns]`` or ``[rows, columns, :]``, two arrays."""
    if type(index) is not tuple or not 2 <= len(index) <= 3:
        return False
    if len(index) == 3 and not (type(index[2]) is slice and index[2] == _WHOLE_AXIS):
        return False
    return type(index[0]) is np.ndarray and type(index[1]) is np.ndarray


def view_for_reading(buffer: Any, paired: bool, reads: SampleReads) -> Any:
    """
    Make a view of a buffer for one call.

    :param buffer: The buffer
    :param paired: Whether ``observations`` and ``next_observations`` are going to be read at the same places
    :param reads: Gets to know what is decoded
    :return: The view
    """
    view = shallow_copy(buffer)
    observations, following = buffer.observations, view.__dict__.get("next_observations")
    if following is None and not isinstance(observations, dict):
        view.observations = _sides(observations, None, paired, reads)[0]
        return view
    if not isinstance(observations, dict):
        view.observations, view.next_observations = _sides(observations, following, paired, reads)
        return view
    sides = {
        key: _sides(array, None if following is None else following[key], paired, reads) for key, array in observations.items()
    }
    view.observations = type(observations)({key: both[0] for key, both in sides.items()})
    if following is not None:
        view.next_observations = type(following)({key: both[1] for key, both in sides.items()})
    return view


def _sides(one: Any, other: Any, paired: bool, reads: SampleReads) -> tuple[Any, Any]:
    if type(one) is np.ndarray:  # so small that it is not compressed
        return one, other
    if other is None:
        return _Alone(one, reads), None
    if not paired:
        return _Alone(one, reads), _Alone(other, reads)
    pair = _Pair((one, other), reads)
    return _Side(pair, 0), _Side(pair, 1)
