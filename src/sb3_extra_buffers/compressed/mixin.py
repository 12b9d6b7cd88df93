"""What turns a buffer of SB3 into a compressed one: its observations become ``CompressedArray``, the rest stays SB3's."""

from __future__ import annotations

import inspect
from collections.abc import Generator, Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch as th
from gymnasium import spaces
from stable_baselines3.common.preprocessing import get_obs_shape, is_image_space

from sb3_extra_buffers.compressed import freed_memory
from sb3_extra_buffers.compressed.parents import HollowParent, all_floats, full_signature, hollow, parent_signature
from sb3_extra_buffers.compressed.prefetch import prefetched
from sb3_extra_buffers.storage import HELD, CompressedArray, MemoryUsage, cast_exactly, check_dtypes, make_spec
from sb3_extra_buffers.storage.session import current_session, read_in_session

Observations = CompressedArray | npt.NDArray[Any]

_OPTIONS = """
    :param dtypes: ``elem_type`` to store elements as and ``runs_type`` for run lengths, as ``find_buffer_dtypes`` gives
        them; found from the observation space by default. For Dict observations also a mapping from key to such a dict
    :param compression_method: Name or shorthand of the method, for example ``"zstd-5"``; the default is the best of
        what is installed
    :param compression_kwargs: Options of the method, for example ``{"compresslevel": 5}``
    :param decompression_kwargs: Likewise for decompression
    :param normalize_images: Divide sampled images by 255 (then tell the policy ``normalize_images=False``)
    :param output_dtype: ``"raw"`` samples observations as they are, ``"float"`` as float32
"""


_KNOWN = ("stable_baselines3.", "sb3_contrib.", "sb3_extra_buffers.")
_READING = {"sample", "get", "_get_samples", "_normalize_obs", "_get_real_samples", "_get_virtual_samples", "to_torch"}


def _only_stores(cls: type) -> bool:
    """Whether all that ``add`` of the parents does with observations is to assign them, which is known of SB3's."""
    ours = [place for place, parent in enumerate(cls.__mro__) if issubclass(parent, CompressedBuffer)]
    after = cls.__mro__[max(ours) + 1 :]
    return all(parent.__module__.startswith(_KNOWN) for parent in after if "add" in vars(parent))


def _lets_go(cls: type) -> bool:
    """Whether whoever reads observations leaves them alone once they are a tensor, which is known of SB3's code and ours."""
    return all(parent.__module__.startswith(_KNOWN) for parent in cls.__mro__ if _READING & vars(parent).keys())


class CompressedBuffer(HollowParent):
    """
    Mixin for any buffer of SB3 or SB3-Contrib; put it before the buffer class.

    Everything that the parent does with observations goes through arrays, so the parent's own code runs unchanged.
    """

    raw_below: ClassVar[int] = 512
    """Observations of fewer bytes are not worth compressing and are kept as they are."""

    reads_pairs: ClassVar[bool] = True
    """Whether the parent reads ``observations`` and ``next_observations`` at the same places."""

    _takes_held: ClassVar[bool] = False
    _gives_memory: ClassVar[bool] = False

    observations: Any
    next_observations: Any

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._takes_held = _only_stores(cls)
        cls._gives_memory = _lets_go(cls)
        cls.__signature__ = full_signature(cls, CompressedBuffer)  # type: ignore[attr-defined]
        if cls.__doc__ and ":param dtypes:" not in cls.__doc__:
            cls.__doc__ = cls.__doc__.rstrip() + "\n" + _OPTIONS

    def __init__(
        self,
        *args: Any,
        dtypes: Mapping[str, Any] | None = None,
        compression_method: str | None = None,
        compression_kwargs: Mapping[str, Any] | None = None,
        decompression_kwargs: Mapping[str, Any] | None = None,
        normalize_images: bool = False,
        output_dtype: str = "raw",
        **kwargs: Any,
    ) -> None:
        if output_dtype not in ("raw", "float"):
            raise ValueError(f"output_dtype is {output_dtype!r}; allowed: 'raw', 'float'")
        self.normalize_images = normalize_images
        self.output_dtype = output_dtype
        space, arguments = self._take_over(args, kwargs)
        self._owns_observations = False
        super().__init__(*arguments.args, **arguments.kwargs)
        self._owns_observations = True
        # Rollout buffers of SB3 2.7 keep, and sample, every observation as float32.
        self._parent_floats = all_floats(self.__dict__["observations"])
        self._adopt(space)
        self._arrays: dict[str, dict[str | None, Observations]] = {}
        for name in ("observations", "next_observations"):
            if name in self.__dict__:
                self._arrays[name] = self._make_arrays(
                    self._arrays.get("observations", {}),
                    dtypes,
                    compression_method=compression_method,
                    compression_kwargs=compression_kwargs,
                    decompression_kwargs=decompression_kwargs,
                )
        # What an observation must look like: shape, dtype, dtype it is stored as, and whether SB3 reshapes it itself.
        self._accepted: dict[str | None, tuple[tuple[int, ...], np.dtype[Any], np.dtype[Any], bool]] = {}
        # Arrays that observations can be handed to past the parent, which reshapes those of a Discrete space.
        self._holders: dict[str | None, CompressedArray] = {}
        for key, array in self._arrays["observations"].items():
            stored = array.stored_dtype if isinstance(array, CompressedArray) else array.dtype
            scalar = isinstance(self._spaces()[key], spaces.Discrete)
            self._accepted[key] = (array.shape[1:], array.dtype, stored, scalar)
            if self._takes_held and isinstance(array, CompressedArray) and not scalar:
                self._holders[key] = array
        self._holder = self._holders.get(None)  # the only one, of what is not a Dict
        # What nearly every observation looks like, so that nearly every check is two comparisons.
        self._usual_shape: tuple[int, ...] | None = None
        self._usual_dtype: np.dtype[Any] | None = None
        if None in self._accepted:
            shape, declared, stored, _ = self._accepted[None]
            if stored == declared:
                self._usual_shape, self._usual_dtype = shape, declared
        self._compresses = any(isinstance(array, CompressedArray) for array in self._arrays["observations"].values())
        self._install()

    def _take_over(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[spaces.Space[Any], inspect.BoundArguments]:
        """Replace what the parent must not see in its arguments."""
        bound = parent_signature(type(self), CompressedBuffer).bind(*args, **kwargs)
        space = bound.arguments["observation_space"]
        bound.arguments["observation_space"] = hollow(space)
        if "optimize_memory_usage" in bound.arguments:
            # Frames are shared anyway, terminal observations included; SB3's trick would lose those.
            bound.arguments["optimize_memory_usage"] = False
        return space, bound

    def _make_arrays(
        self, partners: Mapping[str | None, Observations], dtypes: Mapping[str, Any] | None, **options: Any
    ) -> dict[str | None, Observations]:
        arrays: dict[str | None, Observations] = {}
        chosen = self._dtypes_by_key(dtypes)
        for key, space in self._spaces().items():
            obs_shape: Any = get_obs_shape(space)
            shape = (self.buffer_size, self.n_envs, *obs_shape)
            # Checked for small observations, too: a wrong option should not wait for the first image.
            make_spec(
                options["compression_method"],
                *check_dtypes(chosen[key], np.dtype(space.dtype), obs_shape),
                options["compression_kwargs"],
                options["decompression_kwargs"],
            )
            if int(np.prod(obs_shape)) * np.dtype(space.dtype).itemsize < self.raw_below:
                arrays[key] = np.zeros(shape, dtype=space.dtype)
                continue
            partner = partners.get(key)
            arrays[key] = CompressedArray(
                shape,
                np.dtype(space.dtype),
                obs_shape,
                chosen[key],
                **options,
                share_with=partner if isinstance(partner, CompressedArray) else None,
            )
        return arrays

    def _install(self) -> None:
        """Give the parent its arrays, in the form it expects."""
        for name, arrays in self._arrays.items():
            setattr(self, name, dict(arrays) if isinstance(self.observation_space, spaces.Dict) else arrays[None])

    def reset(self) -> None:
        """Reset the buffer; a rollout buffer also forgets its observations."""
        if not self._owns_observations:
            return super().reset()
        if not self._reset_aside(CompressedBuffer):
            return
        for array in self._arrays["observations"].values():
            if isinstance(array, CompressedArray):
                array.clear()
            else:
                array[:] = 0

    def memory_usage(self) -> MemoryUsage:
        """
        Tell what the observations in the buffer take.

        :return: Raw, stored and index bytes, the ratio, and how many frames are stored and shared
        """
        usage = MemoryUsage(0, 0, 0, 0, 0)
        for key, array in self._arrays["observations"].items():
            if isinstance(array, CompressedArray):
                usage += array.memory_usage()  # next_observations live in the same store
            else:
                usage += MemoryUsage.of_arrays(arrays[key][: self.size()] for arrays in self._arrays.values())
        return usage

    def _check_observation(self, obs: Any, name: str) -> None:
        """Refuse what cannot be stored before anything is."""
        if type(obs) is np.ndarray and obs.dtype is self._usual_dtype and obs.shape == self._usual_shape:
            return
        for key, (shape, declared, stored, scalar) in self._accepted.items():
            if key is None:
                value = obs
            elif isinstance(obs, Mapping) and key in obs:
                value = obs[key]
            else:
                given = sorted(obs) if isinstance(obs, Mapping) else type(obs).__name__
                raise ValueError(f"{name} must be a dict with the keys {list(self._accepted)}, not {given}")
            if type(value) is np.ndarray and value.shape == shape and value.dtype == declared == stored:
                continue
            value = np.asarray(value)
            if scalar and value.size == self.n_envs:
                value = value.reshape(shape)
            # With one environment SB3 takes an observation as it is, too.
            if value.shape != shape and not (self.n_envs == 1 and value.shape == shape[1:]):
                label = name if key is None else f"{name}[{key!r}]"
                raise ValueError(
                    f"{label} has shape {value.shape}, but {self.n_envs} environment(s) of {self._spaces()[key]} give {shape}"
                )
            cast_exactly(value, declared, stored)

    def _hand_over(self, obs: Any, next_obs: Any = None) -> tuple[Any, Any]:
        """Give observations to the arrays that they are for; returns what to give to the parent's ``add`` instead."""
        holders = self._holders
        if None in holders:
            return holders[None].hold(obs, next_obs), HELD
        obs, next_obs = dict(obs), None if next_obs is None else dict(next_obs)
        for key, array in holders.items():
            obs[key] = array.hold(obs[key], None if next_obs is None else next_obs[key])
            if next_obs is not None:
                next_obs[key] = HELD
        return obs, next_obs

    @property
    def _on_cpu(self) -> bool:
        return bool(getattr(self.device, "type", self.device) == "cpu")  # SB3 lets it be a string, too

    def to_torch(self, array: Any, copy: bool = True) -> th.Tensor:
        """
        Convert to a tensor; arrays that were decoded for this very sample are not copied again.

        :param array: Array
        :param copy: Whether to copy
        :return: The tensor
        """
        session = current_session()
        if session is None or not copy or type(array) is not np.ndarray:
            return super().to_torch(array, copy)
        on_cpu = self._on_cpu
        if not (session.take_fresh(array) and self._gives_memory):
            if not on_cpu:
                return super().to_torch(array, copy)
            array = array.copy()  # a tensor of a copy is made in a quarter of the time that th.tensor takes
        tensor = th.from_numpy(array)
        return tensor if on_cpu else tensor.to(self.device)

    def _finish(self, samples: Any) -> Any:
        """Apply ``normalize_images`` and ``output_dtype`` to samples."""
        if not self.normalize_images and self.output_dtype == "raw" and not self._parent_floats:
            return samples
        fields = {
            name: self._finish_observation(getattr(samples, name))
            for name in ("observations", "next_observations")
            if hasattr(samples, name)
        }
        return samples._replace(**fields)

    def _finish_observation(self, obs: Any) -> Any:
        if isinstance(obs, dict):
            return {key: self._finish_tensor(tensor, self._spaces()[key]) for key, tensor in obs.items()}
        return self._finish_tensor(obs, self.observation_space)

    def _finish_tensor(self, tensor: th.Tensor, space: spaces.Space[Any]) -> th.Tensor:
        if self.normalize_images and is_image_space(space):
            return tensor.float() / 255.0
        return tensor.float() if self.output_dtype == "float" or self._parent_floats else tensor


class CompressedReplay(CompressedBuffer):
    """Mixin for replay buffers."""

    def add(self, obs: Any, next_obs: Any, *args: Any, **kwargs: Any) -> None:
        """
        Add transitions, see the parent class; what cannot be stored is refused and leaves the buffer as it was.

        :param obs: Observations, one an environment
        :param next_obs: What followed; at the end of an episode its last observation
        :param args: Actions, rewards, dones, infos
        :param kwargs: Likewise
        """
        if self.pos >= self.buffer_size:
            # SB3 counts on and then begins again at 0: between the two the buffer was saved, or Ctrl-C came.
            self.full, self.pos = True, 0
        if self._holder is not None and self._holder.hold_as_is(obs, next_obs):
            obs = next_obs = HELD
        else:
            self._check_observation(obs, "obs")
            self._check_observation(next_obs, "next_obs")
            if self._holders:
                obs, next_obs = self._hand_over(obs, next_obs)
        super().add(obs, next_obs, *args, **kwargs)

    def sample(self, batch_size: int, *args: Any, **kwargs: Any) -> Any:
        """
        Sample transitions, see the parent class.

        :param batch_size: Number of transitions
        :param args: ``env``, to normalize with
        :param kwargs: Likewise
        :return: The samples
        """
        if self.size() == 0:
            raise ValueError("cannot sample from an empty buffer: add transitions first")
        if not self._compresses:
            return self._finish(super().sample(batch_size, *args, **kwargs))
        return self._finish(read_in_session(self.reads_pairs, super().sample, batch_size, *args, **kwargs))


class CompressedRollout(CompressedBuffer):
    """
    Mixin for rollout buffers.

    :param prefetch: Decode the next minibatch on a thread while the caller trains on this one. The minibatches are the
        same; it pays where a core is idle during training, as with a GPU
    :param keep_freed_memory: Call the function of that name, if there are images, on a CPU
    """

    def __init__(self, *args: Any, prefetch: bool = False, keep_freed_memory: bool = True, **kwargs: Any) -> None:
        self.prefetch = prefetch
        super().__init__(*args, **kwargs)
        if keep_freed_memory and self._compresses and self._on_cpu:
            freed_memory.keep_freed_memory()

    def add(self, obs: Any, *args: Any, **kwargs: Any) -> None:
        """
        Add a step, see the parent class; what cannot be stored is refused and leaves the buffer as it was.

        :param obs: Observations, one an environment
        :param args: What the parent takes
        :param kwargs: Likewise
        """
        if self.pos >= self.buffer_size:
            raise ValueError(f"the rollout is full ({self.buffer_size} steps); call reset() before adding more")
        if self._holder is not None and self._holder.hold_as_is(obs):
            obs = HELD
        else:
            self._check_observation(obs, "obs")
            if self._holders:
                obs, _ = self._hand_over(obs)
        super().add(obs, *args, **kwargs)

    def get(self, batch_size: int | None = None) -> Generator[Any, None, None]:
        """
        Iterate over minibatches of the rollout, see the parent class.

        :param batch_size: Size of a minibatch; None for everything at once
        :return: The minibatches
        """
        if not self.full:
            raise RuntimeError(
                f"the rollout is not full: {self.pos} of {self.buffer_size} steps; collect the rest before calling get()"
            )
        batches = super().get(batch_size)  # type: ignore[misc]
        return prefetched(batches) if self.prefetch else batches

    def _get_samples(self, *args: Any, **kwargs: Any) -> Any:
        get_samples = super()._get_samples  # type: ignore[safe-super]
        return self._finish(read_in_session(self.reads_pairs, get_samples, *args, **kwargs))
