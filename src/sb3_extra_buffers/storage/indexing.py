"""NumPy's indexing for an array whose leading axes are cells and whose other axes are decoded observations."""

from __future__ import annotations

import math
import operator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Cells = npt.NDArray[np.int64]


class Selection(NamedTuple):
    """
    What an index selects.

    :param cells: The cells, in the shape of the result's leading axes
    :param rest: What to do with the decoded ``(*cells.shape, *obs_shape)``; None for nothing
    """

    cells: Cells
    rest: tuple[Any, ...] | None


def check_bounds(index: npt.NDArray[Any], size: int, axis: int) -> Cells:
    """Resolve negative indices."""
    index = index.astype(np.int64, copy=False)
    if not (index.view(np.uint64) >= size).any():
        return index  # the usual case, at the price of one comparison
    resolved = np.where(index < 0, index + size, index)
    if index.size and (int(resolved.min()) < 0 or int(resolved.max()) >= size):
        wrong = index[(resolved < 0) | (resolved >= size)].flat[0]
        raise IndexError(f"index {wrong} is out of bounds for axis {axis} with size {size}")
    return resolved


def is_full_slice(item: Any) -> bool:
    """Find out whether an index takes a whole axis as it is."""
    return isinstance(item, slice) and item == slice(None)


def _axes_taken(item: Any) -> int:
    if item is None or item is Ellipsis or isinstance(item, (bool, np.bool_)):
        return 0
    if isinstance(item, (list, np.ndarray)):
        array = np.asarray(item)
        return array.ndim if array.dtype == np.bool_ else 1
    return 1


def normalize(index: Any, ndim: int) -> tuple[Any, ...]:
    """Write an index out: a tuple, with slices for an ellipsis."""
    items = index if isinstance(index, tuple) else (index,)
    dots = [place for place, item in enumerate(items) if item is Ellipsis]
    if len(dots) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    taken = sum(_axes_taken(item) for item in items)
    if taken > ndim:
        raise IndexError(f"too many indices: the array is {ndim}-dimensional, but {taken} were indexed")
    if dots and taken < ndim:  # one that stands for no axis stays: for NumPy it still separates advanced indices
        place = dots[0]
        items = (*items[:place], *(slice(None),) * (ndim - taken), *items[place + 1 :])
    return items


def as_index_array(item: Any) -> npt.NDArray[Any] | None:
    """Take an item as an array of integers, where it is one."""
    if isinstance(item, (list, np.ndarray)):
        array = np.asarray(item)
        if array.dtype.kind in "iu" or (array.size == 0 and array.dtype.kind == "f"):
            return array.astype(np.int64, copy=False)
        if array.dtype.kind not in "b":
            raise IndexError(f"an index must be integers or booleans, not {array.dtype}")
    return None


def as_integer(item: Any) -> int | None:
    """Take an item as one integer, where it is one."""
    if isinstance(item, (bool, np.bool_, slice, list)) or item is None:
        return None
    try:
        return operator.index(item)
    except TypeError:
        return None


def select(index: Any, cells: Cells, ndim: int) -> Selection:
    """
    Split an index into cells and the rest.

    The usual forms need only the cells. For everything else the first axis is narrowed, and NumPy itself applies the
    whole index to what has been decoded: all its rules hold, at the price of decoding more than is wanted.
    """
    items = normalize(index, ndim)
    lead = cells.ndim
    usual = all(is_full_slice(item) for item in items[lead:])
    if usual and not any(item is None or item is Ellipsis for item in items[:lead]):
        taken = sum(_axes_taken(item) for item in items[:lead])
        if taken <= lead:
            return Selection(cells[items[:lead]], None)
    if not items:
        return Selection(cells, None)
    first = items[0]
    number = as_integer(first)
    numbers = as_index_array(first)
    if number is not None:
        row = int(check_bounds(np.array(number), len(cells), 0))
        return Selection(cells[row : row + 1], (0, *items[1:]))
    if numbers is not None:
        rows, place = np.unique(check_bounds(numbers, len(cells), 0), return_inverse=True)
        return Selection(cells[rows], (place.reshape(numbers.shape), *items[1:]))
    if isinstance(first, slice):
        return Selection(cells[first], (slice(None), *items[1:]))
    return Selection(cells, items)


def is_integers(index: Any) -> bool:
    """Find out whether an index is an array of integers."""
    return isinstance(index, np.ndarray) and index.dtype.kind in "iu"


def usual_cells(index: Any, lead: tuple[int, ...], ndim: int, view: Cells | None) -> Cells | None:
    """Find the cells of an index of the forms that buffers use, without listing all cells."""
    if isinstance(index, tuple) and len(index) > 2 and all(is_full_slice(item) for item in index[2:]):
        index = index[:2] if len(index) <= ndim else index
    columns = math.prod(lead[1:])
    if isinstance(index, tuple):
        if len(index) != 2 or len(lead) != 2 or view is not None:
            return None
        rows, places = index
        if not (is_integers(rows) and is_integers(places)):
            return None
        cells: Cells = check_bounds(rows, lead[0], 0) * columns + check_bounds(places, columns, 1)
        return cells
    if view is not None:
        if view.ndim == 1 and is_integers(index):
            return np.asarray(view[check_bounds(index, lead[0], 0)])
        return None
    row = as_integer(index)
    if row is not None:
        rows = check_bounds(np.array(row), lead[0], 0)
    elif isinstance(index, slice):
        rows = np.arange(*index.indices(lead[0]), dtype=np.int64)
    elif is_integers(index):
        rows = check_bounds(index, lead[0], 0)
    else:
        return None
    every: Cells = rows[..., None] * columns + np.arange(columns)
    return every.reshape((*rows.shape, *lead[1:]))


def flat(cells: Cells) -> Cells:
    """Put cells into the form that compiled code takes."""
    return np.ascontiguousarray(cells.reshape(-1), dtype=np.int64)
