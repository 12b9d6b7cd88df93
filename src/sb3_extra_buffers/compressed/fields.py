"""One key of the observations: the arrays that hold it, and what an observation must look like to go into them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from stable_baselines3.common.preprocessing import get_obs_shape

from sb3_extra_buffers.storage import (
    NOTHING_TO_STORE,
    CompressedArray,
    MemoryUsage,
    StoreLock,
    cast_exactly,
    check_dtypes,
    make_spec,
)


class Field:
    """
    The observations of one key, or all of them where they are not a Dict.

    :param key: The key; None where they are not a Dict
    :param space: What an observation is
    :param lead: Number of rows and of environments
    :param has_next: Whether what followed is kept, too
    :param raw_below: Observations of fewer bytes are kept as they are
    :param lock: Lock of the buffer
    :param dtypes: As for ``CompressedArray``
    :param options: Likewise: the method and its options
    """

    def __init__(
        self,
        key: str | None,
        space: spaces.Space[Any],
        lead: tuple[int, int],
        has_next: bool,
        raw_below: int,
        lock: StoreLock,
        dtypes: Mapping[str, Any] | None,
        options: Mapping[str, Any],
    ) -> None:
        self.key = key
        self.space = space
        obs_shape: Any = get_obs_shape(space)
        self.dtype: np.dtype[Any] = np.dtype(space.dtype)
        self.row_shape: tuple[int, ...] = (lead[1], *obs_shape)
        elem_type, runs_type = check_dtypes(dtypes, self.dtype, obs_shape)
        # Checked for small observations, too: a wrong option should not wait for the first image.
        make_spec(
            options["compression_method"],
            elem_type,
            runs_type,
            options["compression_kwargs"],
            options["decompression_kwargs"],
        )
        self.is_compressed = int(np.prod(obs_shape)) * self.dtype.itemsize >= raw_below
        self.stored_dtype: np.dtype[Any] = elem_type if self.is_compressed else self.dtype
        # What nearly every observation has, so that nearly every check is two comparisons; None where all are cast.
        self.usual_dtype = self.dtype if self.stored_dtype == self.dtype else None
        # SB3 reshapes observations of a Discrete space, to as many as there are environments.
        self._is_scalar = isinstance(space, spaces.Discrete)
        self.placeholder = np.empty(lead[1], dtype=NOTHING_TO_STORE.dtype) if self._is_scalar else NOTHING_TO_STORE
        self.observations: Any
        self.next_observations: Any = None
        shape = (*lead, *obs_shape)
        if self.is_compressed:
            self.observations = CompressedArray(shape, self.dtype, obs_shape, dtypes, **options, lock=lock)
            if has_next:
                self.next_observations = CompressedArray(shape, self.dtype, obs_shape, share_with=self.observations)
        else:
            self.observations = np.zeros(shape, dtype=self.dtype)
            if has_next:
                self.next_observations = np.zeros(shape, dtype=self.dtype)

    def accept(self, obs: Any, name: str) -> npt.NDArray[Any]:
        """
        Refuse what cannot be stored.

        :param obs: Observations, one of each environment
        :param name: What to call them in an error
        :return: The same, as they are stored
        """
        shape = self.row_shape
        if type(obs) is np.ndarray and obs.shape == shape and obs.dtype == self.dtype == self.stored_dtype:
            return obs
        values = np.asarray(obs)
        if values.shape != shape:
            # With one environment SB3 takes an observation as it is, too.
            as_it_is = shape[0] == 1 and values.shape == shape[1:]
            if not as_it_is and not (self._is_scalar and values.size == shape[0]):
                raise ValueError(
                    f"{self._label(name)} has shape {values.shape}, but {shape[0]} environment(s) of {self.space} give {shape}"
                )
            values = values.reshape(shape)
        return cast_exactly(values, self.dtype, self.stored_dtype)

    def part_of(self, obs: Any) -> Any:
        """
        Find what is of this key.

        :param obs: Observations of all keys, in a dict, or of the only one
        :return: Those of this one
        """
        return obs if self.key is None else obs[self.key]

    def _label(self, name: str) -> str:
        return name if self.key is None else f"{name}[{self.key!r}]"

    def clear(self) -> None:
        """Forget all observations."""
        if self.is_compressed:
            self.observations.clear()
            return
        self.observations[:] = 0
        if self.next_observations is not None:
            self.next_observations[:] = 0

    def memory_usage(self, rows: int) -> MemoryUsage:
        """
        Tell what they take.

        :param rows: How many rows are in use
        :return: The figures
        """
        if self.is_compressed:
            usage: MemoryUsage = self.observations.memory_usage()  # what followed lives in the same store
            return usage
        both = (self.observations, self.next_observations)
        return MemoryUsage.of_arrays(array[:rows] for array in both if array is not None)
