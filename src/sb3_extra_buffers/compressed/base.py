"""What all compressed buffers are: a table, whose columns are the attributes that SB3's buffers have."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import stable_baselines3
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import BaseBuffer
from stable_baselines3.common.preprocessing import is_image_space

from sb3_extra_buffers.compressed.arguments import check_space, explain_arguments
from sb3_extra_buffers.compressed.fields import Field
from sb3_extra_buffers.compressed.files import SavedToFiles
from sb3_extra_buffers.compressed.options import DEFAULTS, DESCRIPTIONS, check_options, signature_with_options
from sb3_extra_buffers.compressed.saving import SavedAtOnce
from sb3_extra_buffers.storage import MemoryUsage, StoreLock
from sb3_extra_buffers.storage._core import PlainColumn, Table

TESTED_VERSIONS = ("2.7", "2.8", "2.9")
"""Versions of SB3 that all tests are run with."""


def warn_of_untested_version(version: str) -> None:
    """Warn once where SB3 may store or sample something that we do not know of."""
    if ".".join(version.split(".")[:2]) not in TESTED_VERSIONS:
        warnings.warn(
            f"sb3-extra-buffers has been tested with Stable-Baselines3 {', '.join(TESTED_VERSIONS)}, not with {version}; "
            "should its buffers have changed, ours have not followed yet",
            stacklevel=2,
        )


warn_of_untested_version(stable_baselines3.__version__)


def from_the_end(indices: Any, length: int) -> Any:
    """Count negative indices from the end, as NumPy does."""
    indices = np.asarray(indices)
    return np.where(indices < 0, indices + length, indices) if indices.size and indices.min() < 0 else indices


class _Shown:
    """An attribute that shows observations. What is assigned to it is stored; the table and SB3 set it in ``__dict__``."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, buffer: Any, owner: type | None = None) -> Any:
        if buffer is None:
            return self
        if self.name not in buffer.__dict__:
            raise AttributeError(f"{type(buffer).__name__!r} object has no attribute {self.name!r}")
        return buffer.__dict__[self.name]

    def __set__(self, buffer: Any, value: Any) -> None:
        shown = buffer.__dict__.get(self.name)
        if shown is not None and value is not shown:
            _store(self.name, shown, value)
        else:
            buffer.__dict__[self.name] = value


class _ShownByKey(dict[Any, Any]):
    """Observations by key. What is assigned to a key is stored."""

    def __setitem__(self, key: Any, value: Any) -> None:
        shown = self[key]
        if type(value) is type(shown) and np.shape(value) == (np.prod(np.shape(shown)[:2]), *np.shape(shown)[2:]):
            super().__setitem__(key, value)  # SB3's ``get`` puts one environment after the other
        elif value is not shown:
            _store(f"observations[{key!r}]", shown, value)

    def __reduce__(self) -> Any:
        return dict, (dict(self),)


def _store(name: str, shown: Any, value: Any) -> None:
    """Store values in place of all that are shown."""
    if isinstance(shown, dict):
        if not isinstance(value, Mapping) or value.keys() != shown.keys():
            raise ValueError(f"{name} must be a dict with the keys {list(shown)}, not {_keys_of(value)}")
        for key, part in value.items():
            _store(f"{name}[{key!r}]", shown[key], part)
    elif np.shape(value) != np.shape(shown):
        raise ValueError(f"{name} has shape {np.shape(shown)}; an array of shape {np.shape(value)} cannot be stored there")
    else:
        shown[...] = value


def _keys_of(value: Any) -> Any:
    return list(value) if isinstance(value, Mapping) else type(value).__name__


class TableBuffer(SavedToFiles, SavedAtOnce):
    """
    Mixin for the buffers of SB3 and SB3-Contrib; put it before the buffer class.

    Rows go into a table, and are read from there. To everybody else, ``observations`` and the other columns look like the
    arrays of SB3's buffer.
    """

    raw_below: ClassVar[int] = 512
    """Observations of fewer bytes are not worth compressing and are kept as they are."""

    _option_defaults: ClassVar[Mapping[str, Any]] = DEFAULTS
    _option_descriptions: ClassVar[str] = DESCRIPTIONS
    _copies_to_torch: ClassVar[bool] = False
    _views: ClassVar[int]
    _wraps: ClassVar[bool]

    observations: Any = _Shown()
    next_observations: Any = _Shown()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.__signature__ = signature_with_options(cls.__init__, cls._option_defaults)  # type: ignore[attr-defined]
        cls._copies_to_torch = cls.to_torch is not BaseBuffer.to_torch  # somebody else's may do anything with an array
        if cls.__doc__ and ":param dtypes:" not in cls.__doc__:
            cls.__doc__ = cls.__doc__.rstrip() + "\n" + cls._option_descriptions

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        if (args or kwargs) and cls.__init__.__module__.startswith("sb3_extra_buffers."):
            try:
                inspect.signature(cls.__init__).bind(None, *args, **kwargs)
            except TypeError as error:
                given = dict(zip(inspect.signature(cls).parameters, args, strict=False)) | kwargs
                raise TypeError(explain_arguments(cls, given, str(error))) from None
        return super().__new__(cls)

    def _set_up(
        self, rows: int, space: spaces.Space[Any], action_space: spaces.Space[Any], device: Any, n_envs: int, options: Any
    ) -> None:
        """Do what all constructors begin with."""
        chosen = check_options(type(self), options, self._option_defaults, space)
        check_space(type(self), space)
        BaseBuffer.__init__(self, rows, space, action_space, device, n_envs=n_envs)
        self.normalize_images: bool = chosen.get("normalize_images", False)
        self.output_dtype: str = chosen.get("output_dtype", "raw")
        self._options = chosen
        self._lock = StoreLock()

    # -- the table ------------------------------------------------------------------------------------------------------

    def _plain_columns(self) -> dict[str, PlainColumn]:
        """The columns after the observations, by the names of the attributes that their arrays are, in the order of values."""
        raise NotImplementedError

    def _build_table(self, frames: Mapping[Any, Any] | None = None) -> None:
        """Make the table and the arrays that show its observations; of frames that were loaded, if there are any."""
        chosen, shape = self._dtypes_by_key(self._options["dtypes"]), (self.buffer_size, self.n_envs)
        self._fields = [
            Field(key, space, shape, self._views, self.raw_below, chosen[key], self._options)
            for key, space in self._spaces().items()
        ]
        columns: list[Any] = []
        for field in self._fields:
            columns += field.make_columns(self._lock, self._wraps, None if frames is None else frames.get(field.key))
        plain = self._plain_columns()
        names = [None] * len(columns) + list(plain)
        self._n_observed = len(self._fields) * self._views
        self._table = Table([*columns, *plain.values()], *shape, self._lock, self._wraps, names)
        self.__dict__.update(self._shown_observations())

    def _shown_observations(self) -> dict[str, Any]:
        """The attributes in which SB3 has arrays of observations."""
        shown: dict[str, Any] = {}
        for view, name in enumerate(("observations", "next_observations")[: self._views]):
            parts = {field.key: field.arrays[view] for field in self._fields}
            shown[name] = parts[None] if None in parts else _ShownByKey(parts)  # None: they are not a Dict
        return shown

    def _spaces(self) -> dict[Any, spaces.Space[Any]]:
        if isinstance(self.observation_space, spaces.Dict):
            return dict(self.observation_space.spaces.items())
        return {None: self.observation_space}

    def _dtypes_by_key(self, dtypes: Mapping[str, Any] | None) -> dict[Any, Mapping[str, Any] | None]:
        """One choice of types for all keys, or one for some of them."""
        keys = self._spaces().keys()
        if dtypes is None or not any(isinstance(value, Mapping) for value in dtypes.values()):
            return dict.fromkeys(keys, dtypes)
        if not dtypes.keys() <= keys:
            raise ValueError(f"dtypes has the keys {list(dtypes)}, but the observation space has {list(keys)}")
        return {key: dtypes.get(key) for key in keys}

    def memory_usage(self) -> MemoryUsage:
        """Tell what the observations in the buffer take."""
        with self._lock:
            rows = self.size()
            return sum([field.memory_usage(rows) for field in self._fields], MemoryUsage(0, 0, 0, 0, 0))

    # -- values that go in ----------------------------------------------------------------------------------------------

    def _observation_values(self, *views: Any) -> tuple[Any, ...]:
        """Observations in the order of the table's values."""
        if self._fields[0].key is None:
            return views
        try:
            return tuple([obs[field.key] for field in self._fields for obs in views])
        except (KeyError, IndexError, TypeError):
            wanted = [field.key for field in self._fields]
            for name, obs in zip(("obs", "next_obs"), views, strict=False):
                if not (isinstance(obs, Mapping) and set(wanted) <= obs.keys()):
                    given = sorted(obs) if isinstance(obs, Mapping) else type(obs).__name__
                    raise ValueError(f"{name} must be a dict with the keys {wanted}, not {given}") from None
            raise

    # -- values that come out -------------------------------------------------------------------------------------------

    def _arrays_by_key(self, arrays: Any) -> Any:
        """Observations as they were read, one array for each key, in the types that they are declared with."""
        declared = [
            array if array.dtype == field.dtype else array.astype(field.dtype)
            for field, array in zip(self._fields, arrays, strict=True)
        ]
        if self._fields[0].key is None:
            return declared[0]
        return {field.key: array for field, array in zip(self._fields, declared, strict=True)}

    def _tensor(self, array: Any) -> Any:
        """A tensor of an array that nobody else has, or a dict of them."""
        if isinstance(array, dict):
            return {key: self._tensor(part) for key, part in array.items()}
        if self._copies_to_torch or type(array) is not np.ndarray:
            return self.to_torch(array)
        tensor = th.from_numpy(array)
        return tensor if self._on_cpu else tensor.to(self.device)

    @property
    def _on_cpu(self) -> bool:
        return bool(getattr(self.device, "type", self.device) == "cpu")  # SB3 lets it be a string, too

    def _convert_samples(self, samples: Any, as_floats: bool = False) -> Any:
        """Apply ``normalize_images`` and ``output_dtype`` to samples."""
        as_floats = as_floats or self.output_dtype == "float"
        if not self.normalize_images and not as_floats:
            return samples

        def finish(tensor: th.Tensor, space: spaces.Space[Any]) -> th.Tensor:
            if self.normalize_images and is_image_space(space):
                return tensor.float() / 255.0
            return tensor.float() if as_floats else tensor

        def finish_all(obs: Any) -> Any:
            if isinstance(obs, dict):
                return {key: finish(tensor, self._spaces()[key]) for key, tensor in obs.items()}
            return finish(obs, self.observation_space)

        names = [name for name in ("observations", "next_observations") if hasattr(samples, name)]
        return samples._replace(**{name: finish_all(getattr(samples, name)) for name in names})

    # -- saving ---------------------------------------------------------------------------------------------------------

    def _state_to_save(self) -> dict[str, Any]:
        state = super()._state_to_save()
        for name in ("_table", "_fields", "_n_observed", "observations", "next_observations"):
            state.pop(name, None)  # made again of what follows
        state["_frames"] = {field.key: field.frames for field in self._fields if field.is_compressed}
        state["_small"] = {field.key: field.arrays for field in self._fields if not field.is_compressed}
        return state

    def _take_saved_state(self, state: dict[str, Any]) -> None:
        frames, small = state.pop("_frames"), state.pop("_small")
        super()._take_saved_state(state)
        self._build_table(frames)
        for field in self._fields:
            for array, saved in zip(field.arrays, small.get(field.key, ()), strict=not field.is_compressed):
                array[...] = saved
