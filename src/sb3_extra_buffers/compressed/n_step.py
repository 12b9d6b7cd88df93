"""N-step returns over compressed observations."""

from __future__ import annotations

from typing import Any, ClassVar

import torch as th
from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer
from stable_baselines3.common.type_aliases import DictReplayBufferSamples

from sb3_extra_buffers.compressed.mixin import CompressedReplay
from sb3_extra_buffers.compressed.signatures import NStepArguments


class CompressedNStepReplayBuffer(NStepArguments, CompressedReplay, NStepReplayBuffer):
    """
    ``NStepReplayBuffer`` with compressed observations; takes its arguments and samples the same transitions.

    SB3 ignores the ``n_steps`` and ``gamma`` of the algorithm when it is given a buffer class, so both go into
    ``replay_buffer_kwargs``.
    """

    # obs and next_obs of a sample are n steps apart, decoding both at each of the two places would be double work.
    reads_pairs: ClassVar[bool] = False


class _Columns(dict[str, Any]):
    """Arrays by key that can also be indexed all at once: ``columns[rows, envs]`` is a dict of what each gives."""

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, tuple):
            return {key: array[index] for key, array in self.items()}
        return super().__getitem__(index)


class CompressedDictNStepReplayBuffer(NStepArguments, CompressedReplay, NStepReplayBuffer, DictReplayBuffer):
    """
    N-step returns for Dict observations, which SB3 does not have: returns, dones and discounts are those of
    ``NStepReplayBuffer``, observations come as in ``DictReplayBuffer``; small keys are stored as they are.

    ``n_steps`` and ``gamma`` go into ``replay_buffer_kwargs``.
    """

    reads_pairs: ClassVar[bool] = False

    def _install(self) -> None:
        super()._install()
        self.observations = _Columns(self.observations)
        self.next_observations = _Columns(self.next_observations)

    def to_torch(self, array: Any, copy: bool = True) -> Any:
        """
        Convert to a tensor, or a dict of arrays to a dict of tensors.

        :param array: Array or arrays
        :param copy: Whether to copy
        :return: As many tensors
        """
        if isinstance(array, dict):
            tensors: dict[str, th.Tensor] = {key: self.to_torch(value, copy) for key, value in array.items()}
            return tensors
        return super().to_torch(array, copy)

    def _get_samples(self, *args: Any, **kwargs: Any) -> DictReplayBufferSamples:  # type: ignore[override]
        # The plain buffer does all the work: it only indexes, normalizes and converts observations.
        return DictReplayBufferSamples(*super()._get_samples(*args, **kwargs))  # type: ignore[arg-type]
