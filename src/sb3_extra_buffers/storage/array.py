"""An array of observations that lives compressed."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from sb3_extra_buffers.storage._core import checksum
from sb3_extra_buffers.storage.casting import cast_exactly
from sb3_extra_buffers.storage.dtypes import check_dtypes
from sb3_extra_buffers.storage.errors import StorageError
from sb3_extra_buffers.storage.frames import Frames, make_frames, sum_of
from sb3_extra_buffers.storage.indexing import Cells, as_integer, check_bounds, flat, select, usual_cells
from sb3_extra_buffers.storage.locks import StoreLock
from sb3_extra_buffers.storage.methods import make_spec
from sb3_extra_buffers.storage.pool import output_pool
from sb3_extra_buffers.storage.usage import MemoryUsage


class CompressedArray:
    """
    Looks like an ndarray of shape ``(*leading axes, *obs_shape)``; each observation is stored compressed.

    Reading decodes what the index selects into a new ndarray; writing replaces whole observations. The last leading
    axis is taken as parallel environments: consecutive observations of one share their frames. Cells that were never
    written are zeros. ``swapaxes`` and ``reshape`` of the leading axes give views.

    :param shape: Full shape; or only the leading axes, if it does not end with ``obs_shape``
    :param dtype: Type of the elements
    :param obs_shape: Shape of one observation
    :param dtypes: ``elem_type`` to store elements as and ``runs_type`` for run lengths, as ``find_buffer_dtypes``
        gives; found from ``dtype`` by default
    :param compression_method: Method string; None for ``"delta"``
    :param compression_kwargs: Options of the method
    :param decompression_kwargs: Likewise
    :param share_with: Array of the same observations (``next_obs`` beside ``obs``) whose frames to share; the options
        above and the lock are taken from it
    :param lock: What a thread holds while it reads or writes; one of its own by default
    """

    # Not a ufunc operand: NumPy calls __array__ and gets ndarrays, never the raw memory of this object.
    __array_priority__ = -1

    def __init__(
        self,
        shape: SupportsIndex | tuple[int, ...],
        dtype: npt.DTypeLike,
        obs_shape: tuple[int, ...],
        dtypes: Mapping[str, npt.DTypeLike] | None = None,
        compression_method: str | None = None,
        compression_kwargs: Mapping[str, Any] | None = None,
        decompression_kwargs: Mapping[str, Any] | None = None,
        *,
        share_with: CompressedArray | None = None,
        lock: StoreLock | None = None,
    ) -> None:
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        if self.dtype.hasobject or self.dtype.kind not in "biufc":
            raise TypeError(f"observations must be numbers or booleans, not {self.dtype}")
        self.obs_shape = tuple(int(length) for length in obs_shape)
        lead: tuple[int, ...] = _leading_axes(shape, self.obs_shape)
        self._lead: tuple[int, ...] = lead
        self._view = 0
        self._cells: Cells | None = None
        if share_with is None:
            elem_type, runs_type = check_dtypes(dtypes, self.dtype, self.obs_shape)
            spec = make_spec(compression_method, elem_type, runs_type, compression_kwargs, decompression_kwargs)
            envs = max(math.prod(lead[1:]), 1)
            self._frames = make_frames(max(lead[0], 1), envs, 1, self._frame_shape, elem_type, spec, lock)
        else:
            ours, theirs = (self.dtype, self.obs_shape, lead), (share_with.dtype, share_with.obs_shape, share_with._lead)
            if ours != theirs or share_with._cells is not None:
                raise ValueError(
                    f"arrays that share frames need the same shape, obs_shape and dtype, and must not be views: {share_with!r}"
                )
            share_with._make_room_for_second()
            self._frames, self._view = share_with._frames, 1

    @classmethod
    def of_frames(cls, frames: Frames, view: int, dtype: np.dtype[Any], obs_shape: tuple[int, ...]) -> CompressedArray:
        """
        Make the array that a view of a column of frames is.

        :param frames: The column
        :param view: Which of its views
        :param dtype: Type that elements have outside of it
        :param obs_shape: Shape of one observation, as it is seen
        :return: The array
        """
        array = object.__new__(cls)
        array.dtype, array.obs_shape, array._lead = dtype, obs_shape, (frames.rows, frames.n_envs)
        array._frames, array._view, array._cells = frames, view, None
        return array

    def _make_room_for_second(self) -> None:
        """Make room for an array that shares frames with this one."""
        if self._frames.views == 2:
            raise ValueError(f"frames are shared by two arrays, not more: {self!r}")
        old = self._frames
        wide = make_frames(old.rows, old.n_envs, 2, self._frame_shape, old.dtype, old.spec, old.lock)
        with old.lock:
            if old.usage()[0]:  # what is there already
                for row in range(old.rows):
                    wide.write(row, _decoded_row(old, row))
            self._frames = wide

    @property
    def _frame_shape(self) -> tuple[int, ...]:
        # A column has no notion of scalars, and what has no elements never reaches it.
        return self.obs_shape if self.obs_shape and 0 not in self.obs_shape else (1,)

    # -- what it looks like ---------------------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape, as NumPy means it."""
        return (*self._lead, *self.obs_shape)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self._lead) + len(self.obs_shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes that an ndarray of this shape would take."""
        return self.size * self.dtype.itemsize

    @property
    def compressed_nbytes(self) -> int:
        """Bytes that are taken now, index included, and frames shared with other arrays, too."""
        return self.memory_usage().total_bytes

    @property
    def stored_dtype(self) -> np.dtype[Any]:
        """Type that elements are stored as."""
        return self._frames.dtype

    @property
    def compression_method(self) -> str:
        """The method in use."""
        return self._frames.spec.method

    @property
    def lock(self) -> StoreLock:
        """What a thread holds while it reads or writes; arrays that share frames have the same."""
        return self._frames.lock

    def memory_usage(self) -> MemoryUsage:
        """
        Count what the array takes.

        :return: The figures; what is shared with other arrays is counted with them
        """
        with self._frames.lock:
            return MemoryUsage.of_frames(self._frames, self.dtype)

    def __len__(self) -> int:
        return self._lead[0]

    def __iter__(self) -> Iterator[npt.NDArray[Any]]:
        return (self[row] for row in range(len(self)))

    def __repr__(self) -> str:
        return (
            f"CompressedArray(shape={self.shape}, dtype={self.dtype}, obs_shape={self.obs_shape}, "
            f"compression_method={self.compression_method!r}, {self.memory_usage()})"
        )

    def __bool__(self) -> bool:
        if self.size == 1:
            return bool(np.asarray(self))
        raise ValueError("the truth value of an array with more than one element is ambiguous; use np.any or np.all")

    def __eq__(self, other: object) -> npt.NDArray[np.bool_]:  # type: ignore[override]
        return np.asarray(np.asarray(self) == np.asarray(other))

    def __ne__(self, other: object) -> npt.NDArray[np.bool_]:  # type: ignore[override]
        return np.asarray(np.asarray(self) != np.asarray(other))

    __hash__ = None  # type: ignore[assignment]

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        if copy is False:
            raise ValueError("a CompressedArray has no uncompressed memory to share; decoding it makes a copy")
        whole = self._decode(self._cell_numbers())
        return whole if dtype is None else whole.astype(dtype, copy=False)

    # -- reading and writing --------------------------------------------------------------------------------------

    def __getitem__(self, index: Any) -> npt.NDArray[Any]:
        cells = usual_cells(index, self._lead, self.ndim, self._cells)
        if cells is not None:
            return self._decode(cells)
        selection = select(index, self._cell_numbers(), self.ndim)
        decoded = self._decode(selection.cells)
        return decoded if selection.rest is None else decoded[selection.rest]

    def __setitem__(self, index: Any, value: Any) -> None:
        row = as_integer(index)
        if row is not None and self._cells is None and len(self._lead) == 2:
            obs = self._checked(value, (*self._lead[1:], *self.obs_shape))
            row = int(check_bounds(np.array(row), len(self), 0))
            if obs.size:
                self._frames.write(row, obs.reshape(-1, *self._frame_shape), self._view)
            return
        cells = usual_cells(index, self._lead, self.ndim, self._cells)
        rest = None
        if cells is None:
            cells, rest = select(index, self._cell_numbers(), self.ndim)
        with self._frames.lock:
            if rest is not None:
                value = _changed(self._decode(cells), rest, value)
            obs = self._checked(value, (*cells.shape, *self.obs_shape))
            if obs.size:
                self._write_cells(cells.reshape(-1), obs.reshape(-1, *self._frame_shape))

    def _write_cells(self, cells: Cells, obs: npt.NDArray[Any]) -> None:
        """Write observations to any cells, one after the other; those of a row together, as far as they are distinct."""
        rows, envs = (part.tolist() for part in np.divmod(cells, self._frames.n_envs))
        start = 0
        while start < len(rows):
            stop, seen = start, set[int]()
            while stop < len(rows) and rows[stop] == rows[start] and envs[stop] not in seen:
                seen.add(envs[stop])
                stop += 1
            whole = envs[start:stop] == list(range(self._frames.n_envs))
            self._frames.write(rows[start], obs[start:stop], self._view, envs=None if whole else envs[start:stop])
            start = stop

    def _cell_numbers(self) -> Cells:
        if self._cells is not None:
            return self._cells
        return np.arange(math.prod(self._lead), dtype=np.int64).reshape(self._lead)

    def _decode(self, cells: Cells) -> npt.NDArray[Any]:
        out = self._output(cells.shape)
        if out.size:
            self._frames.read(*self._places(cells), out, self._view)
        return self._declared(out)

    def _places(self, cells: Cells) -> tuple[Cells, Cells]:
        """Rows and environments of cells."""
        rows, envs = np.divmod(flat(cells), self._frames.n_envs)
        return rows, envs

    def _output(self, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        return output_pool.take((*shape, *self.obs_shape), self._frames.dtype)

    def _declared(self, stored: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return stored if stored.dtype == self.dtype else stored.astype(self.dtype)

    def _checked(self, value: Any, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        if type(value) is np.ndarray and value.dtype == self.dtype == self._frames.dtype and value.shape == shape:
            return value
        obs = cast_exactly(np.asarray(value), self.dtype, self._frames.dtype)
        if obs.shape != shape:
            try:
                obs = np.broadcast_to(obs, shape)
            except ValueError:
                raise ValueError(f"observations of shape {obs.shape} do not fit where {shape} is wanted") from None
        return obs

    # -- views and copies -----------------------------------------------------------------------------------------

    def _view_of(self, cells: Cells) -> CompressedArray:
        view = object.__new__(CompressedArray)
        view.__dict__.update(self.__dict__)
        view._cells = cells
        view._lead = cells.shape
        return view

    def swapaxes(self, axis1: int, axis2: int) -> CompressedArray:
        """
        Swap two leading axes.

        :param axis1: One
        :param axis2: The other
        :return: A view
        """
        lead = len(self._lead)
        axes = [axis + self.ndim if axis < 0 else axis for axis in (axis1, axis2)]
        if not all(0 <= axis < lead for axis in axes):
            raise ValueError(
                f"only the leading axes 0 to {lead - 1} can be swapped, not {axis1} and {axis2}: the others are inside "
                "of compressed observations; use np.asarray(array) to decode all of it first"
            )
        return self._view_of(self._cell_numbers().swapaxes(*axes))

    def reshape(self, *shape: Any, order: str = "C") -> CompressedArray:
        """
        Give the leading axes another shape.

        :param shape: New shape, as one tuple or several integers; it must end with ``obs_shape``
        :param order: Only ``"C"``
        :return: A view
        """
        wanted: tuple[int, ...] = tuple(shape[0]) if len(shape) == 1 and not np.isscalar(shape[0]) else tuple(shape)
        if order != "C":
            raise ValueError(f"order {order!r} is not supported, only 'C'")
        n = len(self.obs_shape)
        lead, tail = wanted[: len(wanted) - n], wanted[len(wanted) - n :]
        if tail != self.obs_shape or not lead:
            raise ValueError(
                f"only the leading axes can be reshaped: {wanted} does not end with the observations' {self.obs_shape}; "
                "use np.asarray(array) to decode all of it first"
            )
        return self._view_of(self._cell_numbers().reshape(lead))

    def copy(self) -> CompressedArray:
        """
        Copy the array, still compressed.

        :return: An array that shares nothing with this one
        """
        twin: CompressedArray = copy.deepcopy(self)
        return twin

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_sum": self._own_sum()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._check_loaded()

    def _own_sum(self) -> int:
        """Checksum of what belongs to the array itself; frames have their own."""
        cells = None if self._cells is None else (self._cells.shape, checksum(self._cells.tobytes()))
        return sum_of(self.dtype.str, self.obs_shape, self._lead, self._view, cells)

    def _check_loaded(self) -> None:
        """Refuse what does not fit together. What observations are is not checked: that was done when they were loaded."""
        if self.__dict__.pop("_sum", None) != self._own_sum():
            raise StorageError(
                "the saved observations are damaged: an array is not what was saved; load another copy of the file"
            )
        frames, lead, cells = self._frames, self._lead, self._cells
        sound = self._frame_shape == frames.obs_shape and 0 <= self._view < frames.views
        if cells is None:
            sound &= (max(lead[0], 1), max(math.prod(lead[1:]), 1)) == (frames.rows, frames.n_envs)
        else:
            sound &= cells.dtype == np.int64 and cells.shape == lead
            sound &= cells.size == 0 or (int(cells.min()) >= 0 and int(cells.max()) < frames.rows * frames.n_envs)
        if not sound:
            raise StorageError(
                "the saved observations are damaged: an array is not of the size of its observations; load another copy of "
                "the file"
            )

    def __copy__(self) -> CompressedArray:
        return self.copy()

    def clear(self) -> None:
        """Forget all observations, also those of arrays that share frames with this one; memory is kept for reuse."""
        self._frames.clear()


def _leading_axes(shape: SupportsIndex | tuple[int, ...], obs_shape: tuple[int, ...]) -> tuple[int, ...]:
    full = tuple(int(length) for length in shape) if isinstance(shape, (tuple, list)) else (int(shape),)
    n = len(obs_shape)
    lead = full[: len(full) - n] if n and full[len(full) - n :] == obs_shape and len(full) > n else full
    if not lead or any(length < 0 for length in (*lead, *obs_shape)):
        raise ValueError(f"shape {full} with obs_shape {obs_shape} leaves no valid leading axes")
    return lead


def _decoded_row(frames: Frames, row: int) -> npt.NDArray[Any]:
    out = np.empty((frames.n_envs, *frames.obs_shape), dtype=frames.dtype)
    frames.read(np.full(frames.n_envs, row), np.arange(frames.n_envs), out)
    return out


def _changed(decoded: npt.NDArray[Any], rest: tuple[Any, ...], value: Any) -> npt.NDArray[Any]:
    # Checked as if it were stored by itself, so that a value which would change is refused here, too.
    decoded[rest] = cast_exactly(np.asarray(value), decoded.dtype, decoded.dtype)
    return decoded
