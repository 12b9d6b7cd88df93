"""Rollout buffers: rows are added until the table is full, and read in an order that is drawn anew each time."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import DictRolloutBuffer, RolloutBuffer
from stable_baselines3.common.type_aliases import DictRolloutBufferSamples, RolloutBufferSamples
from stable_baselines3.common.vec_env import VecNormalize

from sb3_extra_buffers.compressed.arguments import check_size, explain_step
from sb3_extra_buffers.compressed.base import TableBuffer, _ShownByKey, from_the_end
from sb3_extra_buffers.compressed.options import ROLLOUT_DEFAULTS, ROLLOUT_DESCRIPTIONS
from sb3_extra_buffers.storage import freed_memory
from sb3_extra_buffers.storage._core import PlainColumn
from sb3_extra_buffers.storage.prefetch import prefetched

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from sb3_extra_buffers.compressed.options import RolloutOptions

_WAS_RESET = "the rollout was reset before all of its minibatches were read; call get() again"
_STEP_NAMES = ("action", "reward", "episode_start", "value", "log_prob")
# SB3 2.7.0 keeps, and samples, all observations and actions of a rollout as float32; later versions as they are.
ALL_FLOATS = RolloutBuffer(1, spaces.Box(0, 1, (1,), np.uint8), spaces.Discrete(2), "cpu").observations.dtype == np.float32


class TableRollout(TableBuffer):
    """Mixin for rollout buffers."""

    _option_defaults: ClassVar[Mapping[str, Any]] = ROLLOUT_DEFAULTS
    _option_descriptions: ClassVar[str] = ROLLOUT_DESCRIPTIONS
    _views: ClassVar[int] = 1
    _wraps: ClassVar[bool] = False
    _samples_floats: ClassVar[bool] = True  # for actions, whatever they are stored as

    gamma: float
    gae_lambda: float
    generator_ready: bool
    actions: npt.NDArray[Any]
    values: npt.NDArray[np.float32]
    log_probs: npt.NDArray[np.float32]
    advantages: npt.NDArray[np.float32]
    returns: npt.NDArray[np.float32]

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: th.device | str = "auto",
        gae_lambda: float = 1,
        gamma: float = 0.99,
        n_envs: int = 1,
        **options: Unpack[RolloutOptions],
    ) -> None:
        self._set_up(check_size(buffer_size), observation_space, action_space, device, n_envs, options)
        self.gae_lambda, self.gamma = gae_lambda, gamma
        self.prefetch: bool = self._options.get("prefetch", False)
        self.__dict__.update(self._fresh_attributes())
        self._build_table()
        if self._options.get("keep_freed_memory") and self._on_cpu and any(field.is_compressed for field in self._fields):
            freed_memory.keep_freed_memory()
        self.reset()  # as SB3's constructor does: a subclass may make more arrays there

    def _fresh_attributes(self) -> dict[str, Any]:
        """All that ``reset`` sets, besides observations."""
        shape = self.buffer_size, self.n_envs
        actions = np.zeros((*shape, self.action_dim), np.float32 if ALL_FLOATS else self.action_space.dtype)
        names = ("rewards", "returns", "episode_starts", "values", "log_probs", "advantages")
        return {"actions": actions, **{name: np.zeros(shape, np.float32) for name in names}, "generator_ready": False}

    def _plain_columns(self) -> dict[str, PlainColumn]:
        names = ("rewards", "episode_starts", "values", "log_probs")
        fresh = self._fresh_attributes()  # those of this buffer may be flattened
        return {"actions": PlainColumn(fresh["actions"], True)} | {name: PlainColumn(fresh[name]) for name in names}

    def reset(self) -> None:
        """Forget the rollout, in one step."""
        with self._lock:
            self._table.clear(self.__dict__, {**self._fresh_attributes(), **self._shown_observations()})

    def add(
        self, obs: Any, action: Any, reward: Any, episode_start: Any, value: th.Tensor, log_prob: th.Tensor, **more: Any
    ) -> None:
        """Add a step; what cannot be stored is refused and leaves the buffer as it was."""
        with self._lock:
            if self.pos >= self.buffer_size:
                raise ValueError(f"the rollout is full ({self.buffer_size} steps); call reset() before adding more")
            given, values = (action, reward, episode_start, value, log_prob), None
            observed = self._observation_values(obs)
            try:
                values = self._values(*given, **more)
                self._table.append((*observed, *values), self.__dict__)
            except Exception as error:
                if values is None or self._table.failed >= self._n_observed:
                    explain_step(error, self.n_envs, dict(zip(_STEP_NAMES, given, strict=True)) | more)
                raise

    def _values(self, *given: Any, **more: Any) -> tuple[Any, ...]:
        """All of a step but its observations, in the order of the table's values."""
        action, reward, episode_start, value, log_prob = given
        if more:
            raise TypeError(f"{type(self).__name__}.add() got an unexpected keyword argument {next(iter(more))!r}")
        if len(log_prob.shape) == 0:
            log_prob = log_prob.reshape(-1, 1)
        return action, reward, episode_start, value.clone().cpu().numpy().flatten(), log_prob.clone().cpu().numpy()

    def get(self, batch_size: int | None = None) -> Generator[Any, None, None]:
        """Iterate over minibatches of the rollout."""
        if not self.full:
            raise RuntimeError(
                f"the rollout is not full: {self.pos} of {self.buffer_size} steps; collect the rest before calling get()"
            )
        batches = self._each_batch(super().get(batch_size))  # type: ignore[misc]
        # A thread that holds the lock, in a signal handler that has interrupted an ``add``, must not wait for another one.
        return prefetched(batches) if self.prefetch and not self._lock.is_mine() else batches

    def _each_batch(self, batches: Generator[Any, None, None]) -> Generator[Any, None, None]:
        with self._lock:  # SB3 flattens its arrays now
            if not self.full:
                raise RuntimeError(_WAS_RESET)
            batch = next(batches, None)
        while batch is not None:
            yield batch
            batch = next(batches, None)

    def _refuse_if_reset(self) -> None:
        if not (self.full and self.generator_ready):
            raise RuntimeError(_WAS_RESET)

    def _get_samples(self, batch_inds: Any, env: VecNormalize | None = None) -> Any:
        with self._lock:
            self._refuse_if_reset()
            batch_inds = from_the_end(batch_inds, self.buffer_size * self.n_envs)
            envs, rows = np.divmod(batch_inds, self.buffer_size)
            reading = self._table.begin_read(rows, envs, tuple(range(self._n_observed)), self._table.attributes)
            actions = self.actions[batch_inds]
            floats = (self.values, self.log_probs, self.advantages, self.returns)
            data = [column[batch_inds].flatten() for column in floats]
        actions = actions.astype(np.float32, copy=False) if self._samples_floats else actions
        obs = self._arrays_by_key(reading.finish())
        return self._convert_samples(self._samples(*map(self._tensor, (obs, actions, *data))), ALL_FLOATS)

    def _samples(self, *tensors: Any) -> Any:
        return (RolloutBufferSamples if self._fields[0].key is None else DictRolloutBufferSamples)(*tensors)

    def _take_saved_state(self, state: dict[str, Any]) -> None:
        super()._take_saved_state(state)
        if self.generator_ready:  # then observations are seen one environment after the other
            flat: Any = self.swap_and_flatten
            observations = self.observations
            is_dict = isinstance(observations, dict)
            flattened = _ShownByKey({k: flat(part) for k, part in observations.items()}) if is_dict else flat(observations)
            self.__dict__["observations"] = flattened

    def _columns_to_save(self) -> dict[str, Any]:
        return {name: self._by_rows(name, part) for name, part in super()._columns_to_save().items()}

    def _more_to_save(self) -> dict[str, Any]:
        return {name: self._by_rows(name, getattr(self, name)) for name in ("returns", "advantages")}

    def _by_rows(self, name: str, array: Any) -> Any:
        """An array as it was before ``get`` has put one environment after the other."""
        if not self.generator_ready or (shape := np.shape(self._fresh_attributes().get(name, array))) == np.shape(array):
            return array
        return array.reshape(self.n_envs, self.buffer_size, *np.shape(array)[1:]).swapaxes(0, 1).reshape(shape)

    def _leave_out(self, lost: npt.NDArray[np.bool_], empty: Any) -> tuple[Any, int]:
        return empty, self.pos  # a rollout with a gap is none


class CompressedRolloutBuffer(TableRollout, RolloutBuffer):
    """``RolloutBuffer`` with compressed observations; takes its arguments and yields the same minibatches."""


class CompressedDictRolloutBuffer(TableRollout, DictRolloutBuffer):
    """``DictRolloutBuffer`` with compressed observations; small keys are stored as they are."""
