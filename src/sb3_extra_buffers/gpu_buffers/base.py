"""What turns a buffer of SB3 into one whose observations live on a device; the rest stays SB3's."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar, copy_context
from typing import Any, ClassVar, NamedTuple, SupportsIndex

import numpy as np
import numpy.typing as npt
import torch as th
from gymnasium import spaces
from stable_baselines3.common.preprocessing import get_obs_shape
from stable_baselines3.common.utils import get_device

from sb3_extra_buffers.compressed.arguments import check_mappings
from sb3_extra_buffers.gpu_buffers.compression_methods import GpuMethod
from sb3_extra_buffers.gpu_buffers.dense_store import DenseObservationStore, ObservationStore
from sb3_extra_buffers.gpu_buffers.device_array import STAGED, DeviceArray
from sb3_extra_buffers.gpu_buffers.observation_store import create_observation_store
from sb3_extra_buffers.gpu_buffers.parents import (
    HollowParent,
    all_floats,
    bind_arguments,
    full_signature,
    hollow,
    only_reads,
)
from sb3_extra_buffers.gpu_buffers.raw_buffer import usable_device
from sb3_extra_buffers.gpu_buffers.sample_view import SampleReads, view_for_reading
from sb3_extra_buffers.gpu_buffers.utils import numpy_dtype_to_torch, torch_dtype_to_numpy
from sb3_extra_buffers.storage import MemoryUsage, StoreLock, cast_exactly

DEFAULT_METHOD = "delta"

_OPTIONS = """
    :param dtypes: ``elem_type`` to store elements as and ``runs_type`` for run lengths, as ``find_gpu_buffer_dtypes``
        gives them; found from the observation space by default. For Dict observations also a mapping from key to such a
        dict
    :param compression_method: Name or shorthand of the method: ``"delta"``, ``"rle"``, ``"none"``, or a codec of the CPU
        side such as ``"zstd-5"``
    :param buffer_device: Where observations are kept; the device that samples go to by default
    :param heap_bytes: Bytes for the observations of the full buffer (for Dict observations of each key), which then never
        become more; by default the heap is sized by the first observations and grows
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
    runs = {1: th.uint8, 2: th.int16, 4: th.int32, 8: th.int64}[method.run_size]
    return {"elem_type": numpy_dtype_to_torch(elem_dtype), "runs_type": runs}


_Observations = list[tuple[ObservationStore, list[npt.NDArray[Any]]]]

_changing: ContextVar[GpuBuffer | None] = ContextVar("sb3_extra_buffers_changing", default=None)


class _Undo(NamedTuple):
    """What to go back to if an ``add`` does not come to its end."""

    row: int
    pos: int
    full: bool
    fields: dict[str, npt.NDArray[Any]]
    shown: list[tuple[ObservationStore, Any]]


class GpuBuffer(HollowParent):
    """
    Mixin for SB3's buffers; put it before the buffer class.

    The parent's own code draws random numbers and handles everything but observations. Those are in stores, one a key,
    that look like arrays to it.
    """

    raw_below: ClassVar[int] = 512
    """Observations of fewer bytes are not worth compressing and are kept as they are."""

    _names: ClassVar[tuple[str, ...]]
    """The parent's arrays of observations."""
    _row_fields: ClassVar[tuple[str, ...]] = ()
    """The parent's other arrays, where a row that is written again was visible before."""

    _only_reads: ClassVar[bool] = False

    observations: Any
    next_observations: Any

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._only_reads = only_reads(cls, GpuBuffer)
        cls.__signature__ = full_signature(cls, GpuBuffer)  # type: ignore[attr-defined]
        if cls.__doc__ and ":param dtypes:" not in cls.__doc__:
            cls.__doc__ = cls.__doc__.rstrip() + "\n" + _OPTIONS

    def __init__(
        self,
        *args: Any,
        dtypes: Mapping[str, Any] | None = None,
        compression_method: str = DEFAULT_METHOD,
        buffer_device: th.device | str | None = None,
        heap_bytes: int | None = None,
        compression_kwargs: Mapping[str, Any] | None = None,
        max_slot_bytes: int | None = None,
        **kwargs: Any,
    ) -> None:
        check_mappings(dtypes=dtypes, compression_kwargs=compression_kwargs)
        bound = bind_arguments(type(self), GpuBuffer, args, kwargs)
        space = bound.arguments["observation_space"]
        bound.arguments["observation_space"] = hollow(space)
        if "optimize_memory_usage" in bound.arguments:
            # Frames are shared anyway, terminal observations included; SB3's trick would lose those.
            bound.arguments["optimize_memory_usage"] = False
        self._lock = StoreLock()
        self._stores: dict[str | None, ObservationStore] = {}
        self._undo: _Undo | None = None
        super().__init__(*bound.args, **bound.kwargs)
        # Rollout buffers of SB3 2.7 keep, and sample, every observation as float32.
        self._parent_floats = all_floats(self.__dict__["observations"])
        self._adopt(space)
        self.compression_method = compression_method
        self.buffer_device = get_device("auto" if buffer_device is None else buffer_device)
        if buffer_device is None:
            self.buffer_device = th.device(self.device)
        sides = len(self._names)
        if max_slot_bytes is not None:
            heap_bytes = self._heap_of_slots(max_slot_bytes, heap_bytes, sides)
        for key, choice in self._dtypes_by_key(dtypes).items():
            part = self._spaces()[key]
            self._stores[key] = self._make_store(part, choice, sides, heap_bytes, compression_kwargs)
        self._markers = {
            key: np.empty(self.n_envs if isinstance(space, spaces.Discrete) else 0, dtype=STAGED)
            for key, space in self._spaces().items()
        }
        self._install()

    def _heap_of_slots(self, max_slot_bytes: int, heap_bytes: int | None, sides: int) -> int:
        warnings.warn(
            "max_slot_bytes is deprecated: payloads share one heap, so give heap_bytes, or nothing at all",
            DeprecationWarning,
            3,
        )
        if heap_bytes is not None:
            raise ValueError("heap_bytes and max_slot_bytes cannot both be given; max_slot_bytes is deprecated")
        if max_slot_bytes < 1:
            raise ValueError(f"max_slot_bytes is {max_slot_bytes}; it must be at least 1")
        return -(-max_slot_bytes // 8) * 8 * self.buffer_size * self.n_envs * sides

    def _make_store(
        self,
        space: spaces.Space[Any],
        dtypes: Mapping[str, Any] | None,
        sides: int,
        heap_bytes: int | None,
        compression_kwargs: Mapping[str, Any] | None,
    ) -> ObservationStore:
        obs_shape: Any = get_obs_shape(space)
        dtype = np.dtype(space.dtype)
        # Checked for small observations, too: a wrong option should not wait for the first image.
        method = GpuMethod.parse(self.compression_method, dtypes, dtype, obs_shape, compression_kwargs)
        if int(np.prod(obs_shape)) * dtype.itemsize < self.raw_below:
            common = (self.buffer_size, self.n_envs, sides, obs_shape, dtype, method.elem_type, self.buffer_device)
            return DenseObservationStore(*common)
        return create_observation_store(
            self.buffer_size,
            self.n_envs,
            obs_shape,
            dtype,
            self.compression_method,
            sides=sides,
            dtypes=dtypes,
            device=self.buffer_device,
            heap_bytes=heap_bytes,
            compression_kwargs=compression_kwargs,
        )

    def _install(self) -> None:
        """Give the parent its arrays, in the form it expects."""
        arrays = {key: [DeviceArray(store, side) for side in range(store.sides)] for key, store in self._stores.items()}
        for side, name in enumerate(self._names):
            by_key = {key: both[side] for key, both in arrays.items()}
            setattr(self, name, by_key if isinstance(self.observation_space, spaces.Dict) else by_key[None])

    def _accepted(self, obs: Any, name: str) -> dict[str | None, npt.NDArray[Any]]:
        """Observations by key, as they are stored; what cannot be is refused before anything is."""
        accepted: dict[str | None, npt.NDArray[Any]] = {}
        for key, store in self._stores.items():
            if key is None:
                value, label = obs, name
            elif isinstance(obs, Mapping) and key in obs:
                value, label = obs[key], f"{name}[{key!r}]"
            else:
                given = sorted(obs) if isinstance(obs, Mapping) else type(obs).__name__
                raise ValueError(f"{name} must be a dict with the keys {list(self._stores)}, not {given}")
            accepted[key] = self._accepted_array(np.asarray(value), store, key, label)
        return accepted

    def _accepted_array(
        self, value: npt.NDArray[Any], store: ObservationStore, key: str | None, label: str
    ) -> npt.NDArray[Any]:
        shape = (self.n_envs, *store.obs_shape)
        if value.shape == shape and value.dtype == store.dtype == store.stored_dtype:
            return value
        scalar = isinstance(self._spaces()[key], spaces.Discrete)
        if value.shape != shape and ((scalar and value.size == self.n_envs) or (self.n_envs, *value.shape) == (1, *shape[1:])):
            value = value.reshape(shape)
        if value.shape != shape:
            raise ValueError(
                f"{label} has shape {value.shape}, but {self.n_envs} environment(s) of {self._spaces()[key]} give {shape}"
            )
        return cast_exactly(value, store.dtype, store.stored_dtype)

    def _add(self, observations: tuple[dict[str | None, npt.NDArray[Any]], ...], rest: tuple[Any, ...], kwargs: Any) -> None:
        """Store observations and have the parent store the rest, wholly or not at all."""
        self._recover()
        by_store = [(store, [side[key] for side in observations]) for key, store in self._stores.items()]
        for store, sides in by_store:
            store.prepare(*sides)
        self._change(self._add_row, by_store, rest, kwargs)

    def _add_row(self, by_store: _Observations, rest: tuple[Any, ...], kwargs: Any) -> None:
        row = self.pos
        fields = {name: getattr(self, name)[row].copy() for name in self._row_fields}
        shown = [(store, store.previous(row)) for store in self._stores.values()]
        self._undo = _Undo(row, row, self.full, fields, shown)
        try:
            staged = [(store, store.stage(*sides)) for store, sides in by_store]
            for store, new in staged:
                store.publish(row, new)
            super().add(*[self._for_parent() for _ in self._names], *rest, **kwargs)
            # All is written. From here on an interruption leads to this state, not back to the one before.
            self._undo = _Undo(row, self.pos, self.full, {}, staged)
            for store, before in shown:
                store.release(before)
        except BaseException:
            self._put_in_order()
            raise
        self._undo = None

    def _change(self, call: Callable[..., None], *args: Any) -> None:
        """
        Make a call that changes the buffer.

        What is half done meanwhile goes on: a signal handler that saves or reads must leave it alone. Once the call has been
        left, by Ctrl-C at any moment, it is to be put in order. The two are told apart by the context, which the
        interpreter itself leaves with the call.
        """
        copy_context().run(self._change_within, call, args)

    def _change_within(self, call: Callable[..., None], args: tuple[Any, ...]) -> None:
        _changing.set(self)
        call(*args)

    def _for_parent(self) -> Any:
        """What the parent's ``add`` gets: of Discrete observations it wants as many as there are, to reshape them."""
        if not isinstance(self.observation_space, spaces.Dict):
            return self._markers[None]
        return dict(self._markers)

    def _recover(self) -> None:
        """Put in order what an interruption left, unless it only waits for a signal handler to return."""
        if _changing.get() is not self:
            self._put_in_order()

    def _put_in_order(self) -> None:
        """An ``add`` has happened, or it has not."""
        undo = self._undo
        if undo is not None:
            for store, before in undo.shown:
                store.restore(undo.row, before)
            for name, value in undo.fields.items():
                getattr(self, name)[undo.row] = value
            self.pos, self.full = undo.pos, undo.full
            self._undo = None
        for store in self._stores.values():
            store.recover()

    def reset(self) -> None:
        """Reset the buffer; a rollout buffer also forgets its observations."""
        if not self._stores:  # the parent is still being made
            return super().reset()
        with self._lock:
            self._recover()
            if self._reset_aside(GpuBuffer):
                self._change(self._clear)

    def _clear(self) -> None:
        for store in self._stores.values():
            store.clear()

    def compact(self) -> None:
        """Pack the heap. This happens by itself, when a full buffer begins again at its start or a rollout is full."""
        with self._lock:
            self._recover()
            self._change(self._compact)

    def _compact(self) -> None:
        for store in self._stores.values():
            store.compact()

    def memory_usage(self) -> MemoryUsage:
        """
        Tell what the observations in the buffer take.

        :return: Raw, stored and index bytes, the ratio, and how many frames are stored and shared
        """
        with self._lock:
            self._recover()
            if _changing.get() is not self:
                self._change(self._settle)
            usage = MemoryUsage(0, 0, 0, 0, 0)
            for store in self._stores.values():
                usage += store.memory_usage(self.size())
            return usage

    def _settle(self) -> None:
        for store in self._stores.values():
            store.settle()

    def _get_samples(self, *args: Any, **kwargs: Any) -> Any:
        with self._lock:
            self._recover()
            if self._only_reads:
                view = view_for_reading(self, True, SampleReads(self.device))
                return super(GpuBuffer, view)._get_samples(*args, **kwargs)  # type: ignore[safe-super]
            return super()._get_samples(*args, **kwargs)  # type: ignore[safe-super]

    @staticmethod
    def _normalize_obs(obs: Any, env: Any = None) -> Any:
        if env is None:
            return obs
        # VecNormalize computes in NumPy and in double precision: here the host waits for the device.
        host = {key: value.cpu().numpy() for key, value in obs.items()} if isinstance(obs, dict) else obs.cpu().numpy()
        return env.normalize_obs(host)

    def to_torch(self, array: Any, copy: bool = True) -> th.Tensor:
        """
        Convert to a tensor on ``device``; observations are tensors already and move only if they are elsewhere.

        :param array: Array or tensor
        :param copy: Whether to copy an array
        :return: The tensor
        """
        if not isinstance(array, th.Tensor):
            return super().to_torch(array, copy)
        tensor = array.to(self.device)
        return tensor.float() if self._parent_floats else tensor

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:
            self._recover()
            return super().__getstate__()

    def __setstate__(self, state: dict[str, Any]) -> None:
        getattr(super(), "__setstate__", self.__dict__.update)(state)
        self.device, self.buffer_device = usable_device(self.device), usable_device(self.buffer_device)

    def __copy__(self) -> Any:
        with self._lock:
            self._recover()
            return super().__copy__()
