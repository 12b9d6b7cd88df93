"""What a fleet has to do while SB3 learns: publish weights, log, save."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from sb3_extra_buffers.distributed.buffers import ShardedReplayBuffer
from sb3_extra_buffers.distributed.status import figures_of

if TYPE_CHECKING:
    from sb3_extra_buffers.distributed.fleet import Fleet


class FleetCallback(BaseCallback):
    """
    Publishes weights, logs under ``distributed/``, and saves checkpoints. Made by ``Fleet.callback``.

    :param fleet: The fleet
    """

    def __init__(self, fleet: Fleet) -> None:
        super().__init__()
        self.fleet = fleet
        self._published_at = self._saved_at = 0
        self._was_random = True

    def _on_training_start(self) -> None:
        model = self.model
        self.fleet.check()
        if not isinstance(model, OffPolicyAlgorithm):
            raise TypeError(
                f"a fleet is for off-policy algorithms (DQN, QRDQN, SAC, TD3, TQC), not for {type(model).__name__}"
            )
        if isinstance(model.replay_buffer, HerReplayBuffer):
            raise TypeError("a fleet cannot be used with HER: it needs whole episodes, which shards do not keep")
        if not isinstance(model.replay_buffer, ShardedReplayBuffer) or model.replay_buffer.fleet is not self.fleet:
            raise TypeError(
                "the model must be made with replay_buffer_class=ShardedReplayBuffer and "
                "replay_buffer_kwargs=dict(fleet=fleet), and learn with the callback of the same fleet"
            )
        if model.use_sde:
            raise TypeError("a fleet cannot be used with use_sde=True: its noise is not sent to collectors")
        if model.get_vec_normalize_env() is not None:
            raise TypeError("a fleet cannot be behind VecNormalize: wrap the environments inside make_env() instead")
        if model.get_env() is None or model.env.unwrapped is not self.fleet.env:  # type: ignore[union-attr]
            raise TypeError("the model must learn in fleet.env")
        self._was_random = model.num_timesteps < model.learning_starts
        self._published_at, self._saved_at = model._n_updates, model.num_timesteps
        self.fleet.start_collectors(model)
        self.fleet.env.may_step = True

    def _on_step(self) -> bool:
        model, fleet = self.model, self.fleet
        assert isinstance(model, OffPolicyAlgorithm)
        is_random = model.num_timesteps < model.learning_starts
        if model._n_updates - self._published_at >= fleet.publish_every or is_random != self._was_random:
            self._was_random, self._published_at = is_random, model._n_updates
            fleet.publish(model)
            for name, value in figures_of(fleet).items():
                self.logger.record(f"distributed/{name}", value)
        every = fleet.checkpoint_every
        if every is not None and model.num_timesteps - self._saved_at >= every:
            self._saved_at = model.num_timesteps
            fleet.save(model)
        return True

    def _on_training_end(self) -> None:
        assert isinstance(self.model, OffPolicyAlgorithm)
        self.fleet.env.may_step = False
        if self.fleet.checkpoint_dir is not None:
            self.fleet.save(self.model)
