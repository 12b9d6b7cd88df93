"""DQN that uses priorities and importance weights."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3 import DQN
from stable_baselines3.common.buffers import ReplayBuffer
from torch.nn import functional as F

from sb3_extra_buffers.compressed.prioritized import (
    CompressedDictPrioritizedReplayBuffer,
    CompressedPrioritizedReplayBuffer,
    PrioritizedReplayBuffer,
)


def _has_priorities(kind: type[Any]) -> bool:
    """Whether a class is a prioritized buffer: ours, or one whose transitions are in the shards of a fleet."""
    return issubclass(kind, ReplayBuffer) and hasattr(kind, "update_priorities") and hasattr(kind, "update_beta")


class PrioritizedDQN(DQN):
    """
    DQN with prioritized replay: the Huber loss is weighted, and absolute TD errors become the priorities.

    It takes the arguments of ``DQN``. The buffer is a ``CompressedPrioritizedReplayBuffer`` (the Dict one for Dict
    observations) unless you name another prioritized one; configure it with
    ``replay_buffer_kwargs=dict(alpha=..., beta=..., ...)``. A schedule for ``beta`` follows the progress of ``learn()``.
    ``n_steps`` works as it does with SB3's own buffers.

    :param args: What ``DQN`` takes
    :param double_q: Choose the next action with the online network and value it with the target network (Double DQN)
    :param kwargs: What ``DQN`` takes
    """

    compressed_buffers: ClassVar[tuple[type[PrioritizedReplayBuffer], type[PrioritizedReplayBuffer]]] = (
        CompressedPrioritizedReplayBuffer,
        CompressedDictPrioritizedReplayBuffer,
    )
    """Its buffers, the second one for Dict observations; ``compressed_kwargs`` reads this, too."""

    def __init__(self, *args: Any, double_q: bool = False, **kwargs: Any) -> None:
        self.double_q = double_q
        super().__init__(*args, **kwargs)

    def _setup_model(self) -> None:
        if self.replay_buffer_class is None:
            self.replay_buffer_class = self.compressed_buffers[isinstance(self.observation_space, spaces.Dict)]
        if not _has_priorities(self.replay_buffer_class):
            raise TypeError(
                f"PrioritizedDQN needs a prioritized buffer, not {self.replay_buffer_class.__name__}; use "
                "CompressedPrioritizedReplayBuffer or leave replay_buffer_class out"
            )
        n_steps = self.n_steps
        self.replay_buffer_kwargs = {"n_steps": n_steps, "gamma": self.gamma, **self.replay_buffer_kwargs}
        self.n_steps = 1  # for a moment: SB3 warns that a class other than its own ignores it, which ours does not
        super()._setup_model()
        self.n_steps = n_steps

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        """
        Do gradient steps, as ``DQN`` does, with weights, and update the priorities after each.

        :param gradient_steps: How many
        :param batch_size: Transitions per step
        """
        buffer: Any = self.replay_buffer
        if not _has_priorities(type(buffer)):
            raise TypeError(f"PrioritizedDQN needs a prioritized buffer, but was given a {type(buffer).__name__}")
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        buffer.update_beta(self._current_progress_remaining)

        losses = []
        for _ in range(gradient_steps):
            batch = buffer.sample(batch_size, env=self._vec_normalize_env)
            discounts = batch.discounts if batch.discounts is not None else self.gamma

            with th.no_grad():
                next_q_values = self.q_net_target(batch.next_observations)
                if self.double_q:
                    actions = self.q_net(batch.next_observations).argmax(dim=1, keepdim=True)
                    next_q_values = th.gather(next_q_values, dim=1, index=actions)
                else:
                    next_q_values = next_q_values.max(dim=1, keepdim=True).values
                target_q_values = batch.rewards + (1 - batch.dones) * discounts * next_q_values

            current_q_values = th.gather(self.q_net(batch.observations), dim=1, index=batch.actions.long())
            loss = (batch.weights * F.smooth_l1_loss(current_q_values, target_q_values, reduction="none")).mean()
            losses.append(loss.item())

            self.policy.optimizer.zero_grad()
            loss.backward()
            th.nn.utils.clip_grad_norm_(self.policy.parameters(), self.max_grad_norm)
            self.policy.optimizer.step()
            buffer.update_priorities(batch.indices, (target_q_values - current_q_values).abs())

        self._n_updates += gradient_steps
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self.logger.record("train/loss", np.mean(losses))
        self.logger.record("train/beta", buffer.beta)
