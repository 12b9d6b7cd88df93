"""What it takes for an ``add`` to happen wholly or not at all: rows aside, rows put back, errors that say what was given."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from sb3_extra_buffers.compressed.fields import Field
from sb3_extra_buffers.compressed.masks import PackedMasks
from sb3_extra_buffers.storage import StorageError

# Those that can be made of a message alone.
_SAID_AGAIN = (TypeError, ValueError, AttributeError, IndexError, KeyError, OverflowError, RuntimeError)


def spare_row(*columns: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], ...]:
    """
    Make arrays of one row, to see whether something can be stored.

    :param columns: Arrays
    :return: As many, of the same types and shapes but for the number of rows
    """
    return tuple(np.zeros((1, *column.shape[1:]), dtype=column.dtype) for column in columns)


def explain(error: Exception, n_envs: int, given: Mapping[str, Any]) -> None:
    """
    Raise an error of the same kind that says what cannot be stored; do nothing where the error is not about that.

    :param error: What NumPy, torch or Python have to say
    :param n_envs: Number of environments
    :param given: What was to be stored, by name
    """
    if type(error) in _SAID_AGAIN:
        what = ", ".join(f"{name} {_form(value)}" for name, value in given.items())
        raise type(error)(
            f"this step cannot be stored, and the buffer is as it was: {error}. "
            f"It needs one of each for {n_envs} environment(s), and was given {what}"
        ) from error


def _form(value: Any) -> str:
    if hasattr(value, "shape"):
        return f"of shape {tuple(value.shape)}"
    if isinstance(value, (list, tuple)):
        return f"as a {type(value).__name__} of {len(value)}"
    return f"as {type(value).__name__}"


def holds(fields: Iterable[Field], row: int, obs: Any, next_obs: Any = None) -> bool:
    """
    Tell whether compressed observations are in a row.

    :param fields: Where they would be
    :param row: Number of the row
    :param obs: Observations as they are stored, one an environment; for Dict observations a dict of them
    :param next_obs: What followed; None where that is not kept
    :return: Whether all of them are
    """
    with contextlib.suppress(Exception):  # what cannot be read is not there
        return all(
            _is_row(array, row, field.part_of(given), field)
            for field in fields
            for array, given in ((field.observations, obs), (field.next_observations, next_obs))
            if given is not None
        )
    return False


def _is_row(array: Any, row: int, given: npt.NDArray[Any], field: Field) -> bool:
    stored: npt.NDArray[Any] = array[row].astype(field.stored_dtype)
    return stored.tobytes() == given.tobytes()  # NaN is itself, too


def write_row(fields: list[Field], row: int, obs: Any, next_obs: Any = None, is_visible: bool = False) -> None:
    """
    Store compressed observations, wholly or not at all.

    :param fields: Where they go, one at least
    :param row: Number of the row
    :param obs: As ``holds`` takes them
    :param next_obs: Likewise
    :param is_visible: Whether what is in the row can be sampled
    """
    # Each store writes wholly or not at all. Where there are several, what the first ones held is to be written again.
    before = _rows(_arrays_of(fields[:-1]), row) if is_visible else []
    try:
        for field in fields:
            if next_obs is None:
                field.observations.write_row(row, field.part_of(obs))
            else:
                field.observations.write_row(row, field.part_of(obs), field.next_observations, field.part_of(next_obs))
    except BaseException:
        if not holds(fields, row, obs, next_obs):
            put_back(row, before)
        raise


def remember_row(buffer: Any, fields: Iterable[Field], row: int) -> list[tuple[Any, npt.NDArray[Any]]]:
    """
    Read a row of everything that has one, before somebody else's code writes to it.

    :param buffer: The buffer
    :param fields: Its observations; compressed ones are read only where they could be sampled
    :param row: Number of the row
    :return: Arrays and their rows
    """
    arrays = [array for array in vars(buffer).values() if type(array) is np.ndarray and array.flags.writeable]
    arrays += _arrays_of(field for field in fields if buffer.full or not field.is_compressed)
    return _rows([array for array in arrays if array.ndim and len(array) == buffer.buffer_size], row)


def _arrays_of(fields: Iterable[Field]) -> list[Any]:
    return [array for field in fields for array in (field.observations, field.next_observations) if array is not None]


def _rows(arrays: list[Any], row: int) -> list[tuple[Any, npt.NDArray[Any]]]:
    return [(array, array[row].copy()) for array in arrays]


def put_back(row: int, remembered: Iterable[tuple[Any, npt.NDArray[Any]]]) -> None:
    """
    Write a row as it was.

    :param row: Number of the row
    :param remembered: What ``remember_row`` gave
    """
    for array, before in remembered:
        array[row] = before


def blank_row(buffer: Any, fresh: Any, fields: Iterable[Field], row: int) -> None:
    """
    Make a row of a rollout what it is in a new one: who writes to it next need not write all of it, such as masks.

    :param buffer: The buffer
    :param fresh: A copy of it that has been reset
    :param fields: Its observations
    :param row: Number of the row
    """
    for name, column in vars(fresh).items():
        mine: Any = vars(buffer).get(name)
        if mine is not column and isinstance(column, (np.ndarray, PackedMasks)) and mine.shape == column.shape:
            mine[row] = column[row]
    for field in fields:
        with contextlib.suppress(MemoryError, StorageError):  # then it has not been written, and nobody can read it yet
            field.observations[row] = 0
