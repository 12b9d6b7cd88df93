"""Replay buffers that mix what was recorded before with what is played now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch as th
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecNormalize

from sb3_extra_buffers.compressed.files import Path
from sb3_extra_buffers.compressed.replay import CompressedDictReplayBuffer, CompressedReplayBuffer, TableReplay
from sb3_extra_buffers.datasets.dataset import OfflineDataset, open_dataset
from sb3_extra_buffers.datasets.filling import check_spaces

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from sb3_extra_buffers.compressed.options import ReplayOptions


class TableMixed(TableReplay):
    """Mixin for replay buffers, a part of whose samples comes from a data set."""

    dataset_path: str
    """Where the data set is."""
    ratio: float
    """Which part of a batch comes from there."""
    _dataset: OfflineDataset | None = None

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: th.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        *,
        dataset: OfflineDataset | Path,
        ratio: float = 0.5,
        **options: Unpack[ReplayOptions],
    ) -> None:
        if isinstance(ratio, bool) or not isinstance(ratio, (int, float)) or not 0 <= ratio <= 1:
            raise ValueError(f"ratio is {ratio!r}; it is the part of a batch that comes from the data set, from 0 to 1")
        opened = dataset if isinstance(dataset, OfflineDataset) else open_dataset(dataset)
        if not len(opened):
            raise ValueError(f"{opened.path} holds no transitions yet, so there is nothing to mix")
        mixes = opened.path, float(ratio)
        self.dataset_path, self.ratio = mixes
        what = buffer_size, observation_space, action_space, device, n_envs, optimize_memory_usage
        super().__init__(*what, handle_timeout_termination, **options)
        self.dataset_path, self.ratio = mixes  # a ring on disk may have put back those of the last run
        check_spaces(opened, self)
        self._dataset = opened

    @property
    def dataset(self) -> OfflineDataset:
        """The data set."""
        if self._dataset is None:  # in a buffer that was loaded
            opened = open_dataset(self.dataset_path)
            check_spaces(opened, self)
            self._dataset = opened
        return self._dataset

    def sample(self, batch_size: int, env: VecNormalize | None = None) -> Any:
        """
        Sample transitions: first those that were added, then those of the data set. As long as none were added, all of them
        are from there.
        """
        offline = round(batch_size * self.ratio) if self.size() else batch_size
        if not offline:
            return super().sample(batch_size, env)
        added = [super().sample(batch_size - offline, env)] if offline < batch_size else []
        drawn = self._convert_samples(self.dataset.sample(offline, env))
        return type(drawn)(*[_join(parts, self.device) for parts in zip(*added, drawn, strict=True)])

    def _state_to_save(self) -> dict[str, Any]:
        state = super()._state_to_save()
        state.pop("_dataset", None)  # it is where it is
        return state


def _join(parts: Any, device: Any) -> Any:
    if parts[0] is None:
        return None
    if isinstance(parts[0], dict):
        return {key: _join([part[key] for part in parts], device) for key in parts[0]}
    moved = [part.to(device) for part in parts]
    return moved[0] if len(moved) == 1 else th.cat(moved)


class MixedReplayBuffer(TableMixed, CompressedReplayBuffer):
    """
    ``CompressedReplayBuffer``, a part of whose samples comes from a data set.

    :param dataset: The data set, or its directory
    :param ratio: Which part of a batch comes from there, from 0 to 1; rounded to whole transitions
    """


class MixedDictReplayBuffer(TableMixed, CompressedDictReplayBuffer):
    """
    ``CompressedDictReplayBuffer``, a part of whose samples comes from a data set.

    :param dataset: The data set, or its directory
    :param ratio: Which part of a batch comes from there, from 0 to 1; rounded to whole transitions
    """
