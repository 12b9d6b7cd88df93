"""Compressed buffers for programs that build the model themselves and take a callback, such as RL Zoo."""

from __future__ import annotations

from typing import Any

from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from sb3_extra_buffers.compressed.choose import compressed_buffer_for

__all__ = ["CompressRollouts"]

# What an algorithm gives its rollout buffer (the last one only RecurrentPPO); buffers keep each under the same name.
_FROM_ALGORITHM = (
    *("buffer_size", "observation_space", "action_space", "device", "gamma", "gae_lambda", "n_envs"),
    "hidden_state_shape",
)


class CompressRollouts(BaseCallback):
    """
    Make an on-policy model collect into its compressed rollout buffer, from the start of ``learn()`` on.

    Use it where no ``rollout_buffer_class`` can be given, as in a YAML file for RL Zoo, or with ``RecurrentPPO``. The buffer
    that the model was created with is still empty, so its memory was reserved but never used.

    :param options: Options of the buffer, for example ``compression_method="zstd-3"``
    """

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options

    def _init_callback(self) -> None:
        model: Any = self.model
        if not isinstance(model, OnPolicyAlgorithm):
            raise TypeError(
                f"{type(model).__name__} collects no rollouts; give it a compressed buffer as replay_buffer_class instead"
            )
        buffer_class, kwargs = compressed_buffer_for(type(model), model.observation_space, **self.options)
        theirs = model.rollout_buffer
        if type(theirs) not in buffer_class.__mro__:
            raise TypeError(
                f"{type(model).__name__} was given a {type(theirs).__name__}, which {buffer_class.__name__} does not stand "
                "for; leave out either that buffer or this callback"
            )
        arguments = {name: getattr(theirs, name) for name in _FROM_ALGORITHM if hasattr(theirs, name)}
        # The class and its options are saved with the model: loaded again, it makes the compressed buffer by itself.
        model.rollout_buffer_class, model.rollout_buffer_kwargs = buffer_class, kwargs  # type: ignore[assignment]
        model.rollout_buffer = buffer_class(**arguments, **kwargs)  # type: ignore[assignment]

    def _on_step(self) -> bool:
        return True
