"""SB3-Contrib's buffers, compressed, and RecurrentPPO with a choice of its buffer. Needs sb3-contrib."""

from __future__ import annotations

import inspect
from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch as th
from gymnasium import spaces
from sb3_contrib import RecurrentPPO
from sb3_contrib.common.maskable.buffers import (
    MaskableDictRolloutBuffer,
    MaskableDictRolloutBufferSamples,
    MaskableRolloutBuffer,
    MaskableRolloutBufferSamples,
)
from sb3_contrib.common.recurrent.buffers import RecurrentDictRolloutBuffer, RecurrentRolloutBuffer
from sb3_contrib.common.recurrent.type_aliases import RNNStates
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.vec_env import VecNormalize

from sb3_extra_buffers.compressed.rollout import ALL_FLOATS, TableRollout
from sb3_extra_buffers.storage._core import PlainColumn
from sb3_extra_buffers.storage.masks import PackedMasks

if TYPE_CHECKING:
    from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
    from stable_baselines3.common.type_aliases import GymEnv, Schedule
    from typing_extensions import Unpack

    from sb3_extra_buffers.compressed.options import RolloutOptions


class _Maskable(TableRollout):
    """Mixin for the Maskable buffers: masks take a bit an action instead of a float."""

    _samples_floats: ClassVar[bool] = False

    action_masks: Any
    mask_dims: int

    def _fresh_attributes(self) -> dict[str, Any]:
        # SB3-Contrib knows how many actions there are to be masked.
        dims = MaskableRolloutBuffer(1, spaces.Discrete(1), self.action_space, "cpu").mask_dims
        masks = PackedMasks((self.buffer_size, self.n_envs, dims))
        return {**super()._fresh_attributes(), "mask_dims": dims, "action_masks": masks}

    def _plain_columns(self) -> dict[str, PlainColumn]:
        self._mask_column = PlainColumn(PackedMasks((self.buffer_size, self.n_envs, self.mask_dims)).bits)
        return {**super()._plain_columns(), None: self._mask_column}  # type: ignore[dict-item]

    def _values(self, *given: Any, action_masks: Any = None, **more: Any) -> tuple[Any, ...]:
        if self._mask_column.array is not self.action_masks.bits:  # since it was reset or loaded
            self._mask_column.set_array(self.action_masks.bits)
        if action_masks is None:
            action_masks = np.ones((self.n_envs, self.mask_dims), dtype=np.bool_)
        packed = self.action_masks.pack(action_masks.reshape((self.n_envs, self.mask_dims)))
        return *super()._values(*given, **more), packed

    def _get_samples(self, batch_inds: Any, env: VecNormalize | None = None) -> Any:
        with self._lock:
            self._refuse_if_reset()
            masks = self.action_masks[batch_inds].reshape(-1, self.mask_dims)
            samples = super()._get_samples(batch_inds, env)
        kind: Any = MaskableRolloutBufferSamples if self._fields[0].key is None else MaskableDictRolloutBufferSamples
        return kind(*samples, self._tensor(masks))

    def _state_to_save(self) -> dict[str, Any]:
        state = super()._state_to_save()
        del state["_mask_column"]
        return state

    def _more_to_save(self) -> dict[str, Any]:
        bits = self.action_masks.bits
        if self.generator_ready:
            bits = bits.reshape(self.n_envs, self.buffer_size, -1).swapaxes(0, 1)
        return {**super()._more_to_save(), "action_masks": bits}


class CompressedMaskableRolloutBuffer(_Maskable, MaskableRolloutBuffer):  # type: ignore[misc]
    """
    ``MaskableRolloutBuffer`` with compressed observations and masks of one bit an action; yields the same minibatches.
    """


class CompressedMaskableDictRolloutBuffer(_Maskable, MaskableDictRolloutBuffer):  # type: ignore[misc]
    """
    ``MaskableDictRolloutBuffer`` with compressed observations and masks of one bit an action; yields the same
    minibatches. Small keys are kept as they are.
    """


_STATES = ("hidden_states_pi", "cell_states_pi", "hidden_states_vf", "cell_states_vf")
_STATE_PAIRS = (("hidden_states_vf", "hidden_states_pi"), ("cell_states_vf", "cell_states_pi"))


class _Recurrent(TableRollout):
    """
    Mixin for the Recurrent buffers: what the LSTM of the critic has in common with the actor's is stored once.

    With a shared LSTM, and without one in the critic, RecurrentPPO hands over the same states twice. So the arrays of
    the critic *are* those of the actor, until a state differs.
    """

    _shared: dict[str, str]

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        hidden_state_shape: tuple[int, int, int, int],
        device: th.device | str = "auto",
        gae_lambda: float = 1,
        gamma: float = 0.99,
        n_envs: int = 1,
        **options: Unpack[RolloutOptions],
    ) -> None:
        self.hidden_state_shape = hidden_state_shape
        self.seq_start_indices, self.seq_end_indices = None, None
        super().__init__(buffer_size, observation_space, action_space, device, gae_lambda, gamma, n_envs, **options)

    def _fresh_attributes(self) -> dict[str, Any]:
        states = {name: np.zeros(self.hidden_state_shape, dtype=np.float32) for name in _STATES[:2]}
        shared = {critic: states[actor] for critic, actor in _STATE_PAIRS}
        return {**super()._fresh_attributes(), **states, **shared, "_shared": dict(_STATE_PAIRS)}

    def _plain_columns(self) -> dict[str, PlainColumn]:
        states = np.zeros(self.hidden_state_shape, dtype=np.float32)  # those of this buffer may be flattened
        return {**super()._plain_columns(), **{name: PlainColumn(states) for name in _STATES}}

    def _values(self, *given: Any, lstm_states: RNNStates, **more: Any) -> tuple[Any, ...]:
        values = super()._values(*given, **more)
        states = [np.array(state.cpu().numpy()) for part in (lstm_states.pi[:2], lstm_states.vf[:2]) for state in part]
        for (critic, actor), pi, vf in zip(_STATE_PAIRS, states[:2], states[2:], strict=True):
            if critic in self._shared and pi.tobytes() != vf.tobytes():
                own = getattr(self, actor).copy()
                self.__dict__.update({critic: own, "_shared": {k: v for k, v in self._shared.items() if k != critic}})
        return *values, *states

    def get(self, batch_size: int | None = None) -> Generator[Any, None, None]:
        if self.full and not self.generator_ready:
            for critic in self._shared:  # the parent flattens every array by itself; these take no memory
                setattr(self, critic, getattr(self, critic)[..., :0])
        return super().get(batch_size)

    def _get_samples(self, *args: Any, **kwargs: Any) -> Any:
        with self._lock:
            self._refuse_if_reset()
            for critic, actor in self._shared.items():
                setattr(self, critic, getattr(self, actor))
            theirs: Any = super(TableRollout, self)
            return self._convert_samples(theirs._get_samples(*args, **kwargs), ALL_FLOATS)

    def _values_to_save(self) -> dict[str, Any]:
        return {**super()._values_to_save(), "shared": list(self._shared)}

    def _take_values(self, values: Mapping[str, Any]) -> None:
        super()._take_values(values)
        for critic, actor in _STATE_PAIRS:
            if critic not in values["shared"]:
                self.__dict__[critic] = np.zeros_like(getattr(self, actor))
                self._shared.pop(critic)

    def _columns_to_save(self) -> dict[str, Any]:
        return {name: part for name, part in super()._columns_to_save().items() if name not in self._shared}

    def _by_rows(self, name: str, array: Any) -> Any:
        if name not in _STATES or not self.generator_ready or name in self._shared:
            return super()._by_rows(name, array)
        layers, hidden = array.shape[1:]
        return array.reshape(self.n_envs, self.buffer_size, layers, hidden).swapaxes(0, 1).swapaxes(1, 2)


class CompressedRecurrentRolloutBuffer(_Recurrent, RecurrentRolloutBuffer):  # type: ignore[misc]
    """
    ``RecurrentRolloutBuffer`` with compressed observations; LSTM states that actor and critic share are stored once.
    Yields the same minibatches.
    """


class CompressedRecurrentDictRolloutBuffer(_Recurrent, RecurrentDictRolloutBuffer):  # type: ignore[misc]
    """
    ``RecurrentDictRolloutBuffer`` with compressed observations; LSTM states that actor and critic share are stored
    once. Yields the same minibatches. Small keys are kept as they are.
    """


class CompressedRecurrentPPO(RecurrentPPO):
    """
    ``RecurrentPPO`` that takes a buffer class, which SB3-Contrib's does not; everything else is the same.

    :param rollout_buffer_class: Buffer class; by default ``CompressedRecurrentRolloutBuffer``, or
        ``CompressedRecurrentDictRolloutBuffer`` for Dict observations
    :param rollout_buffer_kwargs: Options of the buffer, for example ``{"compression_method": "zstd-5"}``
    """

    if TYPE_CHECKING:

        def __init__(
            self,
            policy: str | type[RecurrentActorCriticPolicy],
            env: GymEnv | str,
            learning_rate: float | Schedule = 3e-4,
            n_steps: int = 128,
            batch_size: int | None = 128,
            n_epochs: int = 10,
            gamma: float = 0.99,
            gae_lambda: float = 0.95,
            clip_range: float | Schedule = 0.2,
            clip_range_vf: float | Schedule | None = None,
            normalize_advantage: bool = True,
            ent_coef: float = 0.0,
            vf_coef: float = 0.5,
            max_grad_norm: float = 0.5,
            use_sde: bool = False,
            sde_sample_freq: int = -1,
            target_kl: float | None = None,
            stats_window_size: int = 100,
            tensorboard_log: str | None = None,
            policy_kwargs: dict[str, Any] | None = None,
            verbose: int = 0,
            seed: int | None = None,
            device: th.device | str = "auto",
            *,
            rollout_buffer_class: type[RolloutBuffer] | None = None,
            rollout_buffer_kwargs: dict[str, Any] | None = None,
            _init_setup_model: bool = True,
        ) -> None: ...

    else:

        def __init__(
            self,
            *args: Any,
            rollout_buffer_class: type[RolloutBuffer] | None = None,
            rollout_buffer_kwargs: dict[str, Any] | None = None,
            _init_setup_model: bool = True,
            **kwargs: Any,
        ) -> None:
            super().__init__(*args, **kwargs, _init_setup_model=False)
            self.rollout_buffer_class = rollout_buffer_class
            self.rollout_buffer_kwargs = rollout_buffer_kwargs or {}
            if _init_setup_model:
                self._setup_model()

    def _setup_model(self) -> None:
        n_steps, self.n_steps = self.n_steps, 1
        super()._setup_model()  # makes SB3-Contrib's buffer, of one step, to be thrown away
        self.n_steps = n_steps
        theirs: Any = self.rollout_buffer
        if self.rollout_buffer_class is None:
            is_dict = isinstance(self.observation_space, spaces.Dict)
            self.rollout_buffer_class = CompressedRecurrentDictRolloutBuffer if is_dict else CompressedRecurrentRolloutBuffer
        buffer_class: Any = self.rollout_buffer_class
        self.rollout_buffer = buffer_class(
            n_steps,
            self.observation_space,
            self.action_space,
            hidden_state_shape=(n_steps, *theirs.hidden_state_shape[1:]),
            device=self.device,
            gamma=self.gamma,
            gae_lambda=self.gae_lambda,
            n_envs=self.n_envs,
            **self.rollout_buffer_kwargs,
        )


def _with_buffer_options() -> inspect.Signature:
    """What ``RecurrentPPO`` of the installed version takes, and what buffer to use."""
    theirs, ours = (inspect.signature(cls.__init__).parameters for cls in (RecurrentPPO, CompressedRecurrentPPO))
    options = {name: option for name, option in ours.items() if option.kind is option.KEYWORD_ONLY}
    return inspect.Signature([*[theirs[name] for name in list(theirs)[1:] if name not in options], *options.values()])


CompressedRecurrentPPO.__signature__ = _with_buffer_options()  # type: ignore[attr-defined]
