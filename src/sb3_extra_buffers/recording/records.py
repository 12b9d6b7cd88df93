"""What a recording holds: records, and views of its episodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from sb3_extra_buffers._spaces import any_box, discrete_for, space_from

if TYPE_CHECKING:
    from sb3_extra_buffers.recording.buffers import RecordBuffer


class RecordingError(RuntimeError):
    """A file is not a recording, or is damaged and cannot be read."""


class Record(NamedTuple):
    """
    One step, or several; for several, every field is an array with a leading axis.

    :param frame: What was seen before the action; None if frames are not recorded
    :param reward: The reward that followed
    :param action: The action
    :param features: Named features
    :param done: Whether the episode ended with this step
    :param truncated: Whether a time limit ended it
    """

    frame: Any
    reward: Any
    action: Any
    features: dict[str, Any]
    done: Any
    truncated: Any


class Episode:
    """
    A view of the steps of one episode. Nothing is read until you ask for it.

    :param buffer: The recording
    :param number: Number of the episode, counting from the first one ever recorded
    :param start: Number of its first step that is still there, counted in the same way
    :param stop: Number of the step after its last
    :param is_cut: Whether its beginning has been overwritten, because the ring is full
    """

    def __init__(self, buffer: RecordBuffer, number: int, start: int, stop: int, is_cut: bool) -> None:
        self.buffer = buffer
        self.number = number
        self.start = start
        self.stop = stop
        self.is_cut = is_cut

    def __len__(self) -> int:
        return self.stop - self.start

    def __repr__(self) -> str:
        state = "done" if self.done else "open"
        return f"Episode(number={self.number}, steps={len(self)}, {state}{', cut' if self.is_cut else ''})"

    def _numbers(self) -> npt.NDArray[np.int64]:
        return np.arange(self.start, self.stop, dtype=np.int64)

    @property
    def frames(self) -> npt.NDArray[Any] | None:
        """All frames, decoded; None if frames are not recorded. ``iter_frames`` needs less memory."""
        return self.buffer._read_frames(self._numbers())

    @property
    def rewards(self) -> npt.NDArray[np.float64]:
        """The rewards."""
        return self.buffer._read("reward", self._numbers())

    @property
    def total_reward(self) -> float:
        """Their sum."""
        return float(self.rewards.sum())

    @property
    def actions(self) -> npt.NDArray[Any]:
        """The actions."""
        return self.buffer._read("action", self._numbers())

    @property
    def features(self) -> dict[str, npt.NDArray[Any]]:
        """The features, by name."""
        return self.buffer._read_features(self._numbers())

    @property
    def done(self) -> bool:
        """Whether the episode came to an end; False if it is still running or was left early."""
        return self.buffer._flags_at(self.stop - 1)[0]

    @property
    def truncated(self) -> bool:
        """Whether a time limit ended it."""
        return self.buffer._flags_at(self.stop - 1)[1]

    @property
    def terminated(self) -> bool:
        """Whether it ended by itself."""
        return self.done and not self.truncated

    @property
    def final_frame(self) -> npt.NDArray[Any] | None:
        """What was seen after the last action, if it was recorded."""
        return self.buffer._final_frame(self.stop - 1)

    def iter_frames(self, batch: int = 64) -> Iterator[npt.NDArray[Any]]:
        """
        Iterate over the frames, decoding only a few at a time. The final frame is not included.

        :param batch: How many to decode at a time
        :return: The frames, one by one
        """
        for start in range(self.start, self.stop, batch):
            frames = self.buffer._read_frames(np.arange(start, min(start + batch, self.stop), dtype=np.int64))
            if frames is None:
                return
            yield from frames

    def __getitem__(self, index: Any) -> Record:
        return self.buffer._records(self._numbers()[index])


def spaces_of(recording: RecordBuffer) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
    """
    Find the spaces of the frames and of the actions of a recording with frames, which is not empty.

    They are what the metadata says, or else large enough for what was recorded.
    """
    assert recording.frame_shape is not None
    frames = space_from(recording.metadata.get("frame_space"), recording.frame_shape)
    if frames is None or frames.dtype != recording.frame_dtype:
        frames = any_box(recording.frame_shape, recording.frame_dtype)
    actions = space_from(recording.metadata.get("action_space"), recording.action_shape)
    if actions is None and (recording.action_shape or recording.action_dtype.kind not in "iu"):
        actions = any_box(recording.action_shape, recording.action_dtype)
    return frames, actions or discrete_for(np.concatenate([episode.actions for episode in recording.episodes()]))
