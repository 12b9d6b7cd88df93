"""What buffers have to be saved to a directory of files and loaded from there, and what of each class is in the files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch as th
from stable_baselines3.common.buffers import BaseBuffer

from sb3_extra_buffers.storage.locks import StoreLock

if TYPE_CHECKING:
    from typing_extensions import Self

    from sb3_extra_buffers.compressed.fields import Field
    from sb3_extra_buffers.storage._core import Table

Path = str | os.PathLike[str]
Array = npt.NDArray[Any]

CLASSES = (
    "CompressedReplayBuffer",
    "CompressedDictReplayBuffer",
    "CompressedNStepReplayBuffer",
    "CompressedDictNStepReplayBuffer",
    "CompressedHerReplayBuffer",
    "PrioritizedReplayBuffer",
    "CompressedPrioritizedReplayBuffer",
    "CompressedDictPrioritizedReplayBuffer",
    "CompressedRolloutBuffer",
    "CompressedDictRolloutBuffer",
    "CompressedMaskableRolloutBuffer",
    "CompressedMaskableDictRolloutBuffer",
    "CompressedRecurrentRolloutBuffer",
    "CompressedRecurrentDictRolloutBuffer",
    "GpuReplayBuffer",
    "GpuDictReplayBuffer",
    "GpuRolloutBuffer",
    "GpuDictRolloutBuffer",
)
"""The classes that a file may name; they are looked up here, and nowhere else."""

OF_THE_SAME_FORM = {
    "GpuReplayBuffer": "CompressedReplayBuffer",
    "GpuDictReplayBuffer": "CompressedDictReplayBuffer",
    "GpuRolloutBuffer": "CompressedRolloutBuffer",
    "GpuDictRolloutBuffer": "CompressedDictRolloutBuffer",
}
"""Classes of which each loads what the other has saved."""

_ATTRIBUTES = """
    observation_space action_space obs_shape action_dim buffer_size n_envs device pos full normalize_images output_dtype
    optimize_memory_usage handle_timeout_termination actions rewards dones timeouts observations next_observations
    n_steps gamma alpha eps env copy_info_dict n_sampled_goal goal_selection_strategy her_ratio ep_start ep_length infos
    gae_lambda prefetch returns episode_starts values log_probs advantages generator_ready mask_dims action_masks
    hidden_state_shape hidden_states_pi cell_states_pi hidden_states_vf cell_states_vf seq_start_indices seq_end_indices
    pad pad_and_flatten
    _options _lock _table _fields _n_observed _beta_schedule _beta _highest_share _tree _current_ep_start _starts_before _valid
    _rows_before_reset
    _mask_column _shared _ring _dataset compression_method buffer_device _host_copy
"""
OWN = frozenset(_ATTRIBUTES.split())
"""Attributes of our classes, and of SB3's: the arguments of constructors and what is in the files tell what they are."""


WHERE = ("storage_dir", "max_memory", "durability")
"""Options that say where a buffer is, not what it holds."""


class SavedToFiles(BaseBuffer):
    """Mixin for buffers that can be saved to a directory, and loaded from there."""

    _handed_in: ClassVar[tuple[str, ...]] = ()
    """Arguments that ``load`` takes, as a file cannot hold all that they may be."""
    _changing: ClassVar[tuple[str, ...]] = ()
    """Of ``_more_to_save``, what changes in rows that were added long ago."""
    _takes_any_coder: ClassVar[bool] = False
    """Whether what is loaded is coded anew, and so may be coded in whichever way."""
    _wraps: ClassVar[bool]
    _lock: StoreLock
    _fields: list[Field]
    _table: Table
    _options: dict[str, Any]

    def save(self, path: Path) -> int:
        """
        Save the buffer to a directory. Whatever happens, the directory holds what it held before, or all of this buffer.

        Saving to the same directory again writes only what is new. Other threads may go on adding and sampling; what is saved
        is the buffer of one moment.
        """
        from sb3_extra_buffers.compressed.file_saving import save_buffer

        return save_buffer(self, path)

    @classmethod
    def load(cls, path: Path, *, device: th.device | str = "auto", repair: bool = False, **handed_in: Any) -> Self:
        """Load a buffer from a directory. Everything is checked, and nothing in it is run."""
        from sb3_extra_buffers.compressed.file_loading import open_buffer

        buffer: Self = open_buffer(cls, path, device, repair, handed_in)
        return buffer

    # -- what is in the files -------------------------------------------------------------------------------------------

    def _argument(self, name: str) -> Any:
        """What an argument of the constructor was, or would have to be to make this buffer."""
        if name == "buffer_size" and self._wraps:
            return self.buffer_size * self.n_envs
        return getattr(self, name)

    @classmethod
    def _arguments_from_file(cls, arguments: dict[str, Any]) -> dict[str, Any]:
        """Make arguments of values that were saved."""
        return arguments

    def _fields_in_files(self) -> list[Field]:
        """The observations as they are in files; called while the lock is held."""
        return self._fields

    def _take_frames(self, frames: Mapping[Any, Any]) -> None:
        """Take columns of frames that were loaded, by key."""
        self._build_table(frames)

    def _build_table(self, frames: Mapping[Any, Any] | None = None) -> None:
        raise NotImplementedError

    def _finish_loading(self, lost: list[tuple[int, int]] | None) -> None:
        """Called once everything is loaded, with the rows that are damaged, if there may be any."""

    def _columns_to_save(self) -> dict[str, Array]:
        """Plain columns of the table, by name: written when a row is added, and not again before the next lap."""
        named = {name: getattr(self, name) for name in self._table.names if name is not None}
        for field in self._fields_in_files():
            if not field.is_compressed:
                named |= {f"{view}/{field.key or ''}": array for view, array in enumerate(field.arrays)}
        return named

    def _more_to_save(self) -> dict[str, Array]:
        """Other arrays whose first axis is rows, by name."""
        return {}

    def _more_to_fill(self) -> dict[str, Array]:
        """Arrays for what ``_more_to_save`` gave; ``_take_more`` takes them if they are not the buffer's own."""
        return self._more_to_save()

    def _rows_to_save(self) -> int:
        """How many rows from the first one on hold something that can be sampled."""
        return self.buffer_size if self.full else min(int(self.pos), self.buffer_size)

    def _values_to_save(self) -> dict[str, Any]:
        """What else there is to the state, as JSON can hold it."""
        full = bool(self.full) or self.pos >= self.buffer_size
        return {"pos": int(self.pos) % self.buffer_size if self._wraps else int(self.pos), "full": full}

    def _take_values(self, values: Mapping[str, Any]) -> None:
        """Take what ``_values_to_save`` gave, or refuse it; arrays are filled after that."""
        pos, full = values["pos"], values["full"]
        if type(pos) is not int or not 0 <= pos <= self.buffer_size or type(full) is not bool:
            raise ValueError(f"pos {pos!r} and full {full!r} do not fit {self.buffer_size} rows")
        self.pos, self.full = pos, full

    def _take_more(self, more: Mapping[str, Array]) -> None:
        """Take the arrays that ``_more_to_fill`` gave, once they are filled; rows beyond those in use are zeros."""

    def _leave_out(self, lost: npt.NDArray[np.bool_], empty: Any) -> tuple[Any, int]:
        """Leave out rows that are damaged."""
        raise NotImplementedError


def our_class(cls: type) -> type:
    """Find the class of ours that a class is, or is made of."""
    for parent in cls.__mro__:
        if parent.__name__ in CLASSES and parent.__module__.startswith("sb3_extra_buffers."):
            return parent
    raise TypeError(
        f"{cls.__name__} cannot be saved to a directory, nor loaded from one; save_replay_buffer() and pickle save it"
    )
