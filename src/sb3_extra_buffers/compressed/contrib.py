"""SB3-Contrib's buffers, compressed, and RecurrentPPO with a choice of its buffer. Needs sb3-contrib."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
from gymnasium import spaces
from sb3_contrib import RecurrentPPO
from sb3_contrib.common.maskable.buffers import MaskableDictRolloutBuffer, MaskableRolloutBuffer
from sb3_contrib.common.recurrent.buffers import RecurrentDictRolloutBuffer, RecurrentRolloutBuffer
from sb3_contrib.common.recurrent.type_aliases import RNNStates
from stable_baselines3.common.buffers import RolloutBuffer

from sb3_extra_buffers.compressed.masks import PackedMasks
from sb3_extra_buffers.compressed.mixin import CompressedRollout
from sb3_extra_buffers.compressed.parents import parent_signature
from sb3_extra_buffers.compressed.signatures import RecurrentArguments, RecurrentPPOArguments, RolloutArguments


class _MasksInBits(RolloutBuffer):
    """Mixin for the Maskable buffers: masks take a bit an action instead of a float."""

    buffer_size: int
    mask_dims: int
    action_masks: Any

    def reset(self) -> None:
        steps, space = self.buffer_size, self.action_space
        self.buffer_size = 0
        super().reset()  # for mask_dims, before there are masks of that width
        mask_dims = self.mask_dims
        self.buffer_size, self.action_space = steps, spaces.MultiDiscrete([1], dtype=np.dtype(space.dtype))
        super().reset()  # for all the rest
        self.action_space, self.mask_dims = space, mask_dims
        self.action_masks = PackedMasks((steps, self.n_envs, mask_dims))


class CompressedMaskableRolloutBuffer(RolloutArguments, CompressedRollout, _MasksInBits, MaskableRolloutBuffer):  # type: ignore[misc]
    """
    ``MaskableRolloutBuffer`` with compressed observations and masks of one bit an action; yields the same minibatches.
    """


class CompressedMaskableDictRolloutBuffer(RolloutArguments, CompressedRollout, _MasksInBits, MaskableDictRolloutBuffer):  # type: ignore[misc]
    """
    ``MaskableDictRolloutBuffer`` with compressed observations and masks of one bit an action; yields the same
    minibatches. Small keys are kept as they are.
    """


_STATE_PAIRS = (("hidden_states_vf", "hidden_states_pi"), ("cell_states_vf", "cell_states_pi"))


class _StatesOnce(RolloutBuffer):
    """
    Mixin for the Recurrent buffers: what the LSTM of the critic has in common with the actor's is stored once.

    With a shared LSTM, and without one in the critic, RecurrentPPO hands over the same states twice. So the arrays of
    the critic *are* those of the actor, until a state differs.
    """

    hidden_state_shape: tuple[int, int, int, int]

    def reset(self) -> None:
        super().reset()
        self._shared = dict(_STATE_PAIRS)
        self._share()

    def _share(self) -> None:
        for critic, actor in self._shared.items():
            setattr(self, critic, getattr(self, actor))

    def add(self, *args: Any, lstm_states: RNNStates, **kwargs: Any) -> None:  # type: ignore[override]
        for (critic, actor), vf, pi in zip(_STATE_PAIRS, lstm_states.vf, lstm_states.pi, strict=False):
            if critic in self._shared and vf is not pi and vf.cpu().numpy().tobytes() != pi.cpu().numpy().tobytes():
                own = np.zeros(self.hidden_state_shape, dtype=np.float32)
                own[: self.pos] = getattr(self, actor)[: self.pos]
                setattr(self, critic, own)
                del self._shared[critic]  # last: the critic's states must not go to an array that is still the actor's
        super().add(*args, lstm_states=lstm_states, **kwargs)  # type: ignore[call-arg]

    def get(self, batch_size: int | None = None) -> Generator[Any, None, None]:
        if not self.generator_ready:
            for critic in self._shared:  # the parent flattens every array by itself; these take no memory
                setattr(self, critic, getattr(self, critic)[..., :0])
        yield from super().get(batch_size)

    def _get_samples(self, *args: Any, **kwargs: Any) -> Any:
        self._share()
        return super()._get_samples(*args, **kwargs)


class CompressedRecurrentRolloutBuffer(RecurrentArguments, CompressedRollout, _StatesOnce, RecurrentRolloutBuffer):  # type: ignore[misc]
    """
    ``RecurrentRolloutBuffer`` with compressed observations; LSTM states that actor and critic share are stored once.
    Yields the same minibatches.
    """


class CompressedRecurrentDictRolloutBuffer(RecurrentArguments, CompressedRollout, _StatesOnce, RecurrentDictRolloutBuffer):  # type: ignore[misc]
    """
    ``RecurrentDictRolloutBuffer`` with compressed observations; LSTM states that actor and critic share are stored
    once. Yields the same minibatches. Small keys are kept as they are.
    """


class _WithBufferClass(RecurrentPPO):
    """All of ``CompressedRecurrentPPO`` but what its constructor looks like to type checkers."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.__signature__ = parent_signature(cls, CompressedRollout)  # type: ignore[attr-defined]

    def __init__(
        self,
        *args: Any,
        rollout_buffer_class: type[RolloutBuffer] | None = None,
        rollout_buffer_kwargs: dict[str, Any] | None = None,
        _init_setup_model: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs, _init_setup_model=False)  # type: ignore[misc]
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


class CompressedRecurrentPPO(RecurrentPPOArguments, _WithBufferClass):
    """
    ``RecurrentPPO`` that takes a buffer class, which SB3-Contrib's does not; everything else is the same.

    :param rollout_buffer_class: Buffer class; by default ``CompressedRecurrentRolloutBuffer``, or
        ``CompressedRecurrentDictRolloutBuffer`` for Dict observations
    :param rollout_buffer_kwargs: Options of the buffer, for example ``{"compression_method": "zstd-5"}``
    """
