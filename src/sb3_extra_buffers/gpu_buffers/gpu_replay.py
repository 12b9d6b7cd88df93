"""Replay buffers whose observations live on a device."""

from __future__ import annotations

from typing import Any

from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer

from sb3_extra_buffers.gpu_buffers.base import GpuBuffer
from sb3_extra_buffers.gpu_buffers.signatures import GpuReplayArguments


class GpuReplay(GpuBuffer):
    """Mixin for replay buffers."""

    _names = ("observations", "next_observations")
    _row_fields = ("actions", "rewards", "dones", "timeouts")

    def add(self, obs: Any, next_obs: Any, *args: Any, **kwargs: Any) -> None:
        """
        Add transitions, see the parent class; what cannot be stored is refused and leaves the buffer as it was.

        :param obs: Observations, one an environment
        :param next_obs: What followed; at the end of an episode its last observation
        :param args: Actions, rewards, dones, infos
        :param kwargs: Likewise
        """
        with self._lock:
            self._add((self._accepted(obs, "obs"), self._accepted(next_obs, "next_obs")), args, kwargs)
            if self.full and self.pos == 0:
                self.compact()

    def sample(self, batch_size: int, *args: Any, **kwargs: Any) -> Any:
        """
        Sample transitions, see the parent class.

        :param batch_size: Number of transitions
        :param args: ``env``, to normalize with
        :param kwargs: Likewise
        :return: The samples
        """
        with self._lock:
            self._recover()
            if self.size() == 0:
                raise ValueError("cannot sample from an empty buffer: add transitions first")
            return super().sample(batch_size, *args, **kwargs)


class GpuReplayBuffer(GpuReplayArguments, GpuReplay, ReplayBuffer):
    """
    ``ReplayBuffer`` with compressed observations on a device; takes its arguments and samples the same transitions.

    ``optimize_memory_usage`` is accepted in every combination, costs nothing and changes nothing: frames are shared in
    any case, and ``next_obs`` is always the true next observation, also at the end of an episode.
    """


class GpuDictReplayBuffer(GpuReplayArguments, GpuReplay, DictReplayBuffer):
    """
    ``DictReplayBuffer`` with compressed observations on a device; small keys are kept there as they are.

    ``optimize_memory_usage`` is accepted, costs nothing and changes nothing.
    """
