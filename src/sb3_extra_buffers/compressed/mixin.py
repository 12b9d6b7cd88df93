"""What turns a buffer of SB3 into a compressed one: its observations become ``CompressedArray``, the rest stays SB3's."""

from __future__ import annotations

import inspect
from collections.abc import Generator, Mapping
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.type_aliases import ReplayBufferSamples

from sb3_extra_buffers.compressed import freed_memory
from sb3_extra_buffers.compressed.arguments import bind_arguments, check_mappings
from sb3_extra_buffers.compressed.fields import Field
from sb3_extra_buffers.compressed.parents import (
    HollowParent,
    adds_as_replay_buffer,
    all_floats,
    each_while_locked,
    full_signature,
    hollow,
    only_reads,
    only_stores,
    samples_as_replay_buffer,
    write_rest,
)
from sb3_extra_buffers.compressed.prefetch import prefetched
from sb3_extra_buffers.compressed.sample_view import SampleReads, view_for_reading
from sb3_extra_buffers.compressed.whole_adds import blank_row, explain, holds, put_back, remember_row, spare_row, write_row
from sb3_extra_buffers.storage import MemoryUsage, StoreLock
from sb3_extra_buffers.storage._core import is_plain, set_step

_OPTIONS = """
    :param dtypes: ``elem_type`` to store elements as and ``runs_type`` for run lengths, as ``find_buffer_dtypes`` gives
        them; found from the observation space by default. For Dict observations also a mapping from key to such a dict
    :param compression_method: Name or shorthand of the method, for example ``"zstd-5"``; ``"delta"`` by default
    :param compression_kwargs: Options of the method, for example ``{"compresslevel": 5}``
    :param decompression_kwargs: Likewise for decompression
    :param normalize_images: Divide sampled images by 255 (then tell the policy ``normalize_images=False``)
    :param output_dtype: ``"raw"`` samples observations as they are, ``"float"`` as float32
"""

# What ``sample`` may be given besides the number of transitions, if there is no environment.
_NOTHING_TO_NORMALIZE_WITH: tuple[tuple[tuple[Any, ...], dict[str, Any]], ...] = (
    ((), {}),
    ((), {"env": None}),
    ((None,), {}),
)


_STEP_OF_ROLLOUT = ("action", "reward", "episode_start", "value", "log_prob")


class CompressedBuffer(HollowParent):
    """
    Mixin for any buffer of SB3 or SB3-Contrib; put it before the buffer class.

    Everything that the parent does with observations goes through arrays, so the parent's own code runs unchanged.
    """

    raw_below: ClassVar[int] = 512
    """Observations of fewer bytes are not worth compressing and are kept as they are."""

    reads_pairs: ClassVar[bool] = True
    """Whether the parent reads ``observations`` and ``next_observations`` at the same places."""

    _parents_only_store: ClassVar[bool] = False
    _only_reads: ClassVar[bool] = False
    _adds_as_replay_buffer: ClassVar[bool] = False
    _samples_as_replay_buffer: ClassVar[bool] = False

    observations: Any
    next_observations: Any

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._parents_only_store = only_stores(cls, CompressedBuffer)
        cls._only_reads = only_reads(cls, CompressedBuffer)
        cls._adds_as_replay_buffer = adds_as_replay_buffer(cls, CompressedBuffer)
        cls._samples_as_replay_buffer = samples_as_replay_buffer(cls, CompressedBuffer)
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
        check_mappings(dtypes=dtypes, compression_kwargs=compression_kwargs, decompression_kwargs=decompression_kwargs)
        self.normalize_images = normalize_images
        self.output_dtype = output_dtype
        self._lock = StoreLock()
        space, arguments = self._take_over(args, kwargs)
        self._owns_observations = False
        super().__init__(*arguments.args, **arguments.kwargs)
        self._owns_observations = True
        # Rollout buffers of SB3 2.7 keep, and sample, every observation as float32.
        self._parent_floats = all_floats(self.__dict__["observations"])
        self._adopt(space)
        options = {
            "compression_method": compression_method,
            "compression_kwargs": compression_kwargs,
            "decompression_kwargs": decompression_kwargs,
        }
        chosen, lead = self._dtypes_by_key(dtypes), (self.buffer_size, self.n_envs)
        has_next = "next_observations" in self.__dict__
        self._fields = [
            Field(key, part, lead, has_next, self.raw_below, self._lock, chosen[key], options)
            for key, part in self._spaces().items()
        ]
        self._compressed_fields = [field for field in self._fields if field.is_compressed]
        self._compresses = bool(self._compressed_fields)
        # What nearly every observation that is not a Dict looks like, so that nearly every check is two comparisons.
        self._usual_shape: tuple[int, ...] = ()
        self._usual_dtype: np.dtype[Any] | None = None
        if self._fields[0].key is None and self._fields[0].usual_dtype is not None:
            self._usual_shape, self._usual_dtype = self._fields[0].row_shape, self._fields[0].usual_dtype
        self._install()

    def _take_over(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[spaces.Space[Any], inspect.BoundArguments]:
        """Replace what the parent must not see in its arguments."""
        bound = bind_arguments(type(self), CompressedBuffer, args, kwargs)
        space = bound.arguments["observation_space"]
        bound.arguments["observation_space"] = hollow(space)
        if "optimize_memory_usage" in bound.arguments:
            # Frames are shared anyway, terminal observations included; SB3's trick would lose those.
            bound.arguments["optimize_memory_usage"] = False
        return space, bound

    def _install(self) -> None:
        """Give the parent its arrays, in the form it expects."""
        if self._fields[0].key is None:
            self.observations = self._fields[0].observations
            if self._fields[0].next_observations is not None:
                self.next_observations = self._fields[0].next_observations
            return
        self.observations = {field.key: field.observations for field in self._fields}
        if self._fields[0].next_observations is not None:
            self.next_observations = {field.key: field.next_observations for field in self._fields}

    def reset(self) -> None:
        """Reset the buffer; a rollout buffer also forgets its observations."""
        if not self._owns_observations:
            return super().reset()
        with self._lock:
            if self._reset_aside(CompressedBuffer):
                for field in self._fields:
                    field.clear()

    def memory_usage(self) -> MemoryUsage:
        """
        Tell what the observations in the buffer take.

        :return: Raw, stored and index bytes, the ratio, and how many frames are stored and shared
        """
        with self._lock:
            rows = self.size()
            return sum([field.memory_usage(rows) for field in self._fields], MemoryUsage(0, 0, 0, 0, 0))

    def _accept(self, obs: Any, name: str) -> Any:
        """Refuse what cannot be stored before anything is; gives observations as they are stored, in a dict of their own."""
        if self._fields[0].key is None:
            return self._fields[0].accept(obs, name)
        accepted = {}
        for field in self._fields:
            key = field.key
            try:
                given = obs[key]
            except (KeyError, IndexError, TypeError):
                keys = sorted(obs) if isinstance(obs, Mapping) else type(obs).__name__
                raise ValueError(
                    f"{name} must be a dict with the keys {[field.key for field in self._fields]}, not {keys}"
                ) from None
            usual = is_plain(given, field.usual_dtype, field.row_shape)
            accepted[key] = given if usual else field.accept(given, name)
        return accepted

    def _for_parent(self, obs: Any) -> Any:
        """What the parent is to store in place of observations."""
        if not self._compresses:
            return obs
        if self._fields[0].key is None:
            return self._fields[0].placeholder
        return {field.key: field.placeholder if field.is_compressed else obs[field.key] for field in self._fields}

    def _announce(self, batch_size: Any) -> None:
        """Say how much is going to be read, before anything else is done: a second core takes a moment to wake up."""
        if type(batch_size) is int and batch_size > 0:  # else the parent says what is wrong
            for field in self._compressed_fields:
                pairs = 1 if field.next_observations is None else 2
                field.observations.announce_read(pairs * batch_size)

    def _view(self) -> Any:
        """What one sample reads, see ``sample_view``."""
        reads = SampleReads(self.device)
        view = view_for_reading(self, self.reads_pairs, reads)
        view.to_torch = reads.to_torch
        return view

    @property
    def _on_cpu(self) -> bool:
        return bool(getattr(self.device, "type", self.device) == "cpu")  # SB3 lets it be a string, too

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

    # Arrays that the parent's ``add`` changes elsewhere than in the row: to repeat it, they have to be as before.
    _changed_by_add: ClassVar[tuple[str, ...]] = ()

    actions: Any
    rewards: Any
    dones: Any
    timeouts: Any
    handle_timeout_termination: bool

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: Any, *args: Any, **kwargs: Any) -> None:
        """
        Add transitions, see the parent class; what cannot be stored is refused and leaves the buffer as it was.

        :param obs: Observations, one an environment
        :param next_obs: What followed; at the end of an episode its last observation
        :param action: Actions
        :param reward: Rewards
        :param done: Whether episodes ended
        :param infos: What else environments told
        :param args: What else the parent takes
        :param kwargs: Likewise
        """
        with self._lock:
            if self.pos >= self.buffer_size:
                # SB3 counts on and then begins again at 0: between the two the buffer was saved, or Ctrl-C came.
                self.full, self.pos = True, 0
            dtype, shape = self._usual_dtype, self._usual_shape
            is_usual = is_plain(obs, dtype, shape) and is_plain(next_obs, dtype, shape)
            accepted = (obs, next_obs) if is_usual else (self._accept(obs, "obs"), self._accept(next_obs, "next_obs"))
            if args or kwargs or not self._parents_only_store:
                self._add_as_others_do(obs, next_obs, action, reward, done, infos, *args, **kwargs)
                return
            try:  # everything is looked at first
                if type(infos) is not list and self.handle_timeout_termination:
                    infos = list(infos)  # it is read twice
                self._try_rest(action, reward, done, infos)
            except Exception as error:
                given = {"action": action, "reward": reward, "done": done, "infos": infos}
                explain(error, self.n_envs, given)
                raise
            if is_usual and self._adds_as_replay_buffer:
                self._write_all(obs, next_obs, action, reward, done, infos)
            else:
                self._add_checked(*accepted, action, reward, done, infos)

    @cached_property
    def _spare_row(self) -> tuple[Any, ...]:
        return spare_row(self.actions, self.rewards, self.dones, self.timeouts)

    def _try_rest(self, action: Any, reward: Any, done: Any, infos: Any) -> None:
        """Do what the parent is going to do with all but observations, but elsewhere."""
        actions, rewards, dones, timeouts = self._spare_row
        flags = timeouts if self.handle_timeout_termination else None
        set_step(0, actions, action, rewards, reward, dones, done, flags, infos)

    def _write_all(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: Any) -> None:
        """
        Do what ``ReplayBuffer.add`` does, but copy once.

        SB3 copies everything before it copies it into the buffer. That is nearly all of the time that a vector takes, and
        a good part of what a frame takes that is not in a stack.
        """
        row = self.pos
        try:
            if self._compresses:
                self.observations.write_checked_row(row, obs, self.next_observations, next_obs)
            else:
                self.observations[row] = obs
                self.next_observations[row] = next_obs
            write_rest(self, row, action, reward, done, infos)
        except BaseException:  # there is no memory for observations, or Ctrl-C has come
            if not self._compresses:
                self.observations[row] = obs
                self.next_observations[row] = next_obs
            if holds(self._compressed_fields, row, obs, next_obs):
                write_rest(self, row, action, reward, done, infos)
            raise

    def _add_checked(self, obs: Any, next_obs: Any, *rest: Any) -> None:
        """Add what has been looked at: observations first, then what the parent stores, which can be stored."""
        row, full = self.pos, self.full
        before = [getattr(self, name).copy() for name in self._changed_by_add]
        for_parent = self._for_parent(obs), self._for_parent(next_obs)
        try:
            if self._compresses:
                write_row(self._compressed_fields, row, obs, next_obs, is_visible=full)
            super().add(*for_parent, *rest)
        except BaseException:  # there is no memory for observations, or Ctrl-C has come
            self.pos, self.full = row, full
            for name, value in zip(self._changed_by_add, before, strict=True):
                getattr(self, name)[:] = value
            if holds(self._compressed_fields, row, obs, next_obs):
                super().add(*for_parent, *rest)
            raise

    def _add_as_others_do(self, *args: Any, **kwargs: Any) -> None:
        """Have the parent add, of which nothing is known."""
        row, full = self.pos, self.full
        before = remember_row(self, self._fields, row)
        try:
            super().add(*args, **kwargs)
        except BaseException:
            self.pos, self.full = row, full
            put_back(row, before)
            raise

    def sample(self, batch_size: int, *args: Any, **kwargs: Any) -> Any:
        """
        Sample transitions, see the parent class.

        :param batch_size: Number of transitions
        :param args: ``env``, to normalize with
        :param kwargs: Likewise
        :return: The samples
        """
        with self._lock:
            if not (self.pos or self.full):
                raise ValueError("cannot sample from an empty buffer: add transitions first")
            self._announce(batch_size)
            if self._samples_as_replay_buffer and (args, kwargs) in _NOTHING_TO_NORMALIZE_WITH:
                samples = self._read_all(batch_size)
            elif self._only_reads:
                samples = super(CompressedReplay, self._view()).sample(batch_size, *args, **kwargs)
            else:
                samples = super().sample(batch_size, *args, **kwargs)
        return self._finish(samples)

    def _read_all(self, batch_size: int) -> ReplayBufferSamples:
        """
        Do what ``ReplayBuffer.sample`` does where nothing is normalized, but read observations and what followed at once.

        For a small batch, the Python around it takes as long as decoding.
        """
        rows = np.random.randint(0, self.buffer_size if self.full else self.pos, size=batch_size)
        columns = np.random.randint(0, high=self.n_envs, size=(len(rows),))
        cells = rows, columns
        if self._compresses:
            observations, following = self.observations.read_beside(self.next_observations, rows, columns)
        else:
            observations, following = self.observations[cells], self.next_observations[cells]
        arrays = (
            observations,
            self.actions[cells],
            following,
            (self.dones[cells] * (1 - self.timeouts[cells])).reshape(-1, 1),
            self.rewards[cells].reshape(-1, 1),
        )
        tensors = map(th.from_numpy, arrays)  # nobody else has these arrays
        return ReplayBufferSamples(*(tensors if self._on_cpu else (tensor.to(self.device) for tensor in tensors)))


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
        with self._lock:
            if self.pos >= self.buffer_size:
                raise ValueError(f"the rollout is full ({self.buffer_size} steps); call reset() before adding more")
            row, for_parent = self.pos, obs
            accepted = obs if is_plain(obs, self._usual_dtype, self._usual_shape) else self._accept(obs, "obs")
            try:
                if self._parents_only_store:
                    if self._compresses:
                        write_row(self._compressed_fields, row, accepted)
                    for_parent = self._for_parent(accepted)
                super().add(for_parent, *args, **kwargs)
            except BaseException as error:
                self.pos, self.full = row, False
                blank_row(self, self._reset_twin(CompressedBuffer), self._fields, row)
                if isinstance(error, Exception):
                    explain(error, self.n_envs, dict(zip(_STEP_OF_ROLLOUT, args, strict=False)) | kwargs)
                raise

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
        batches = each_while_locked(super().get(batch_size), self)  # type: ignore[misc]
        # A thread that holds the lock, in a signal handler that has interrupted an ``add``, must not wait for another one.
        return prefetched(batches) if self.prefetch and not self._lock.is_mine() else batches

    def _get_samples(self, batch_inds: Any, *args: Any, **kwargs: Any) -> Any:
        with self._lock:
            self._announce(len(batch_inds))
            if self._only_reads:
                samples = super(CompressedRollout, self._view())._get_samples(batch_inds, *args, **kwargs)  # type: ignore[safe-super]
            else:
                samples = super()._get_samples(batch_inds, *args, **kwargs)  # type: ignore[safe-super]
            return self._finish(samples)
