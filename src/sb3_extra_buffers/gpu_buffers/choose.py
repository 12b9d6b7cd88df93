"""The buffer on a device for an algorithm, as ``compressed_buffer_for`` asks for it."""

from __future__ import annotations

from typing import Any

from gymnasium import spaces
from stable_baselines3.common.buffers import BaseBuffer
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from sb3_extra_buffers.gpu_buffers.gpu_replay import GpuDictReplayBuffer, GpuReplayBuffer
from sb3_extra_buffers.gpu_buffers.gpu_rollout import GpuDictRolloutBuffer, GpuRolloutBuffer

_OTHER_BUFFERS = {"MaskablePPO", "RecurrentPPO"}


def gpu_buffer_class(algorithm_class: type, observation_space: spaces.Space[Any]) -> type[BaseBuffer]:
    """
    Find the buffer class.

    :param algorithm_class: An algorithm with a replay buffer or a rollout buffer
    :param observation_space: What it observes
    :return: The class
    """
    is_dict = isinstance(observation_space, spaces.Dict)
    names = {parent.__name__ for parent in algorithm_class.__mro__}
    if names & _OTHER_BUFFERS or hasattr(algorithm_class, "compressed_buffers"):
        raise TypeError(
            f"{algorithm_class.__name__} needs a buffer of its own, and there is none on a device; leave out buffer_device"
        )
    if issubclass(algorithm_class, OffPolicyAlgorithm):
        return GpuDictReplayBuffer if is_dict else GpuReplayBuffer
    return GpuDictRolloutBuffer if is_dict else GpuRolloutBuffer
