"""What all buffers on a device have in common: options, a table whose observations are in stores, saving."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, SupportsIndex, TypedDict

import numpy as np
import numpy.typing as npt
import torch as th
from gymnasium import spaces
from stable_baselines3.common.preprocessing import get_obs_shape
from stable_baselines3.common.utils import get_device

from sb3_extra_buffers.compressed.base import TableBuffer
from sb3_extra_buffers.compressed.fields import Field
from sb3_extra_buffers.gpu_buffers.compression_methods import GpuMethod
from sb3_extra_buffers.gpu_buffers.device_table import DeviceField, DeviceTable
from sb3_extra_buffers.gpu_buffers.host_copy import HostCopy
from sb3_extra_buffers.gpu_buffers.observation_store import DenseObservationStore, ObservationStore, create_observation_store
from sb3_extra_buffers.gpu_buffers.utils import INTEGERS, numpy_dtype_to_torch, torch_dtype_to_numpy, usable_device
from sb3_extra_buffers.storage import MemoryUsage


class GpuOptions(TypedDict, total=False):
    """Options of every buffer on a device."""

    dtypes: Mapping[str, Any] | None
    compression_method: str
    buffer_device: th.device | str | None
    heap_bytes: int | None
    compression_kwargs: Mapping[str, Any] | None
    max_slot_bytes: int | None


_DEFAULTS: dict[str, Any] = {
    "dtypes": None,
    "compression_method": "delta",
    "buffer_device": None,
    "heap_bytes": None,
    "compression_kwargs": None,
    "max_slot_bytes": None,
}

_DESCRIPTIONS = """
    :param dtypes: ``elem_type`` to store elements as and ``runs_type`` for run lengths, as ``find_gpu_buffer_dtypes``
        gives them; found from the observation space by default. For Dict observations also a mapping from key to such a
        dict
    :param compression_method: Name or shorthand of the method: ``"delta"``, ``"rle"``, ``"none"``, or a codec of the CPU
        side such as ``"zstd-5"``
    :param buffer_device: Where observations are kept; the device that samples go to by default
    :param heap_bytes: Bytes for the observations of the full buffer (for Dict observations of each key), a fixed size; by
        default the heap is sized by the first observations and grows
    :param compression_kwargs: Options of the method, for example ``{"compresslevel": 5}``
    :param max_slot_bytes: Deprecated: ``heap_bytes`` divided by the number of cells
"""


def find_gpu_buffer_dtypes(
    obs_shape: SupportsIndex | Iterable[SupportsIndex],
    elem_dtype: npt.DTypeLike | th.dtype = th.uint8,
    compression_method: str = "rle",
) -> dict[str, th.dtype]:
    """
    Find the types that a buffer stores with.

    :param obs_shape: Shape of one observation
    :param elem_dtype: Type of its elements, of torch or NumPy
    :param compression_method: Name or shorthand of the method
    :return: ``elem_type`` and ``runs_type``
    """
    shape = tuple(map(int, obs_shape)) if isinstance(obs_shape, Iterable) else (int(obs_shape),)
    method = GpuMethod.parse(compression_method, None, torch_dtype_to_numpy(elem_dtype), shape)
    return {"elem_type": numpy_dtype_to_torch(elem_dtype), "runs_type": INTEGERS[method.run_size]}


class GpuBuffer(TableBuffer):
    """Mixin for the buffers of SB3; put it before ``TableReplay`` or ``TableRollout``, and both before the buffer class."""

    _option_defaults: ClassVar[Mapping[str, Any]] = _DEFAULTS
    _option_descriptions: ClassVar[str] = _DESCRIPTIONS
    _handed_in: ClassVar[tuple[str, ...]] = ("buffer_device",)
    _takes_any_coder: ClassVar[bool] = True
    _host_copy: HostCopy | None = None

    _fields: list[DeviceField]  # type: ignore[assignment]
    _table: Any

    def _set_up(
        self, rows: int, space: spaces.Space[Any], action_space: spaces.Space[Any], device: Any, n_envs: int, options: Any
    ) -> None:
        super()._set_up(rows, space, action_space, device, n_envs, options)
        self.compression_method: str = self._options["compression_method"]
        self._options["dtypes"] = _types_of_numpy(self._options["dtypes"])
        where = self._options.pop("buffer_device")
        self.buffer_device = th.device(self.device) if where is None else get_device(where)

    @property
    def _stores(self) -> dict[str | None, ObservationStore]:
        return {field.key: field.store for field in self._fields}

    def _build_table(self, frames: Mapping[Any, Any] | None = None) -> None:
        """Make the table and the arrays that show its observations, with stores that were loaded, if there are any."""
        stores = self._make_stores() if frames is None else frames
        slots = np.arange(1, self.buffer_size + 1).reshape(-1, 1)  # slot 0 is for the first row, 1 for the second …
        self._fields = [DeviceField(key, space, stores[key], slots, self._lock) for key, space in self._spaces().items()]
        self._n_observed = len(self._fields) * self._views
        self._table = DeviceTable(self._fields, self._plain_columns(), slots, self.n_envs, self._lock, self._wraps)
        self.__dict__.update(self._shown_observations())

    def _make_stores(self) -> dict[str | None, ObservationStore]:
        chosen, heap_bytes = self._dtypes_by_key(self._options["dtypes"]), self._options["heap_bytes"]
        if self._options["max_slot_bytes"] is not None:
            heap_bytes = self._heap_of_slots(self._options["max_slot_bytes"], heap_bytes)
            self._options |= {"heap_bytes": heap_bytes, "max_slot_bytes": None}
        return {key: self._make_store(space, chosen[key], heap_bytes) for key, space in self._spaces().items()}

    def _heap_of_slots(self, max_slot_bytes: int, heap_bytes: int | None) -> int:
        warnings.warn(
            "max_slot_bytes is deprecated; use heap_bytes, or leave it out so that the heap grows",
            DeprecationWarning,
            6,
        )
        if heap_bytes is not None:
            raise ValueError("heap_bytes and max_slot_bytes cannot both be given; leave out max_slot_bytes, it is deprecated")
        if max_slot_bytes < 1:
            raise ValueError(f"max_slot_bytes must be positive, got {max_slot_bytes}")
        return -(-max_slot_bytes // 8) * 8 * self.buffer_size * self.n_envs * self._views

    def _make_store(
        self, space: spaces.Space[Any], dtypes: Mapping[str, Any] | None, heap_bytes: int | None
    ) -> ObservationStore:
        obs_shape: Any = get_obs_shape(space)
        dtype, shape = np.dtype(space.dtype), (self.buffer_size, self.n_envs)
        name, kwargs = self.compression_method, self._options["compression_kwargs"]
        # Checked for small observations, too: a wrong option should not wait for the first image.
        method = GpuMethod.parse(name, dtypes, dtype, obs_shape, kwargs)
        if math.prod(obs_shape) * dtype.itemsize < self.raw_below:
            return DenseObservationStore(*shape, self._views, obs_shape, dtype, method.elem_type, self.buffer_device)
        return create_observation_store(
            *(*shape, obs_shape, dtype, name),
            views=self._views,
            dtypes=dtypes,
            device=self.buffer_device,
            heap_bytes=heap_bytes,
            compression_kwargs=kwargs,
        )

    def compact(self) -> None:
        """Pack the heap. This happens by itself, when a full buffer begins again at its start or a rollout is full."""
        self._table.compact()

    def memory_usage(self) -> MemoryUsage:
        """Compute how much memory the observations in the buffer use."""
        with self._lock:
            return super().memory_usage() + MemoryUsage(0, 0, self._table.slots[: self.size()].nbytes, 0, 0)

    # -- values that come out -------------------------------------------------------------------------------------------

    def _arrays_by_key(self, arrays: Any) -> Any:
        """Tensors, one for each key, in the types of the observation space."""
        if self._fields[0].key is None:
            return arrays[0]
        return {field.key: tensor for field, tensor in zip(self._fields, arrays, strict=True)}

    @staticmethod
    def _normalize_obs(obs: Any, env: Any = None) -> Any:
        if env is None:
            return obs
        # VecNormalize computes in NumPy and in double precision: here the host waits for the device.
        host = {key: value.cpu().numpy() for key, value in obs.items()} if isinstance(obs, dict) else obs.cpu().numpy()
        return env.normalize_obs(host)

    def to_torch(self, array: Any, copy: bool = True) -> th.Tensor:
        """Convert to a tensor on ``device``; observations are tensors already and move only if they are elsewhere."""
        return array.to(self.device) if isinstance(array, th.Tensor) else super().to_torch(array, copy)

    # -- saving ---------------------------------------------------------------------------------------------------------

    def _state_to_save(self) -> dict[str, Any]:
        state = {**super()._state_to_save(), "_slots": self._table.slots}
        state.pop("_host_copy", None)  # made again when it is needed
        return state

    def _take_saved_state(self, state: dict[str, Any]) -> None:
        slots = state.pop("_slots")
        super()._take_saved_state(state)
        self._table.slots[...] = slots
        self.device, self.buffer_device = usable_device(self.device), usable_device(self.buffer_device)

    # -- files ----------------------------------------------------------------------------------------------------------

    def _make_host_copy(self, frames: Mapping[Any, Any] | None = None) -> HostCopy:
        return HostCopy(self._fields, self.raw_below, self._table, self._lock, self._wraps, frames)

    def _fields_in_files(self) -> list[Field]:
        """The observations as they are in files: those of a copy on the host, which is updated."""
        pos, full = (self._values_to_save()[name] for name in ("pos", "full"))
        copy, self._host_copy = self._host_copy, None  # an interrupted copy cannot be used
        if copy is None or not copy.follow(pos):
            copy = self._make_host_copy()
            copy.take_all(pos, full)
        self._host_copy = copy
        return copy.fields

    def _take_frames(self, frames: Mapping[Any, Any]) -> None:
        self._host_copy = self._make_host_copy(frames)

    def _take_values(self, values: Mapping[str, Any]) -> None:
        super()._take_values(values)
        if self._host_copy is not None:
            self._host_copy.begin_at(self.pos, self._table.appended)

    def _finish_loading(self, lost: list[tuple[int, int]] | None) -> None:
        copy, self._host_copy = self._host_copy, None
        assert copy is not None
        is_lost = np.zeros(self.buffer_size, np.bool_)
        for first, stop in lost or ():
            is_lost[first:stop] = True
        copy.restore(is_lost, self.pos, self.full)
        if not lost and copy.is_coded_by_default:
            self._host_copy = copy


def _types_of_numpy(dtypes: Mapping[str, Any] | None) -> Any:
    """A choice of types, those of torch as NumPy's, so that files can hold them."""
    if dtypes is None:
        return None
    return {
        key: _types_of_numpy(part) if isinstance(part, Mapping) else torch_dtype_to_numpy(part) for key, part in dtypes.items()
    }
