"""Buffers that record steps of play: frames, rewards, actions, features and where episodes end."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from sb3_extra_buffers.recording.columns import Column, Rows, chunk_rows
from sb3_extra_buffers.recording.records import Episode, Record
from sb3_extra_buffers.storage import CompressedArray, MemoryUsage, cast_exactly, check_dtypes, make_spec

FeatureSpec = npt.DTypeLike | tuple[tuple[int, ...], npt.DTypeLike]

# Bits of what is noted with each step.
_ENDS = 1  # the episode's last step
_DONE = 2
_TRUNCATED = 4

_COMPRESSED_CHUNK_ROWS = 4096


class RecordBuffer:
    """
    Records steps as plain arrays.

    A step is the frame that was seen, the action taken on it, the reward that followed, and whether the episode ended with
    it. The frame that is seen after an episode's last action belongs to no step; it can be given as ``final_frame``.

    :param buffer_size: Number of steps to keep, the newest ones; None keeps all, and memory grows with them
    :param frame_shape: Shape of a frame
    :param frame_dtype: Type of its elements
    :param action_shape: Shape of an action, ``()`` for a number
    :param action_dtype: Type of its elements
    :param features: What else to record, by name: the type of a number, or ``(shape, type)`` of an array
    :param force_alloc_mem: Have all memory of a ring committed now, so that it cannot run out later
    :param metadata: What else to say about the recording, as JSON can hold it. The keys ``"env_id"``, ``"fps"``,
        ``"action_meanings"`` (a list of names), ``"action_space"`` and ``"frames"`` (``"render"`` or ``"observation"``) mean
        something to exports and to the viewer
    """

    kind: ClassVar[str] = "dense"
    """What a saved recording is called, so that loading makes the same class again."""

    def __init__(
        self,
        buffer_size: int | None,
        frame_shape: tuple[int, ...] | None = None,
        frame_dtype: npt.DTypeLike = np.uint8,
        action_shape: tuple[int, ...] = (),
        action_dtype: npt.DTypeLike = np.int64,
        features: Mapping[str, FeatureSpec] | None = None,
        force_alloc_mem: bool = False,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        raise NotImplementedError

    # -- writing --------------------------------------------------------------------------------------------------

    def add(
        self,
        frame: Any,
        reward: float,
        action: Any,
        features: Mapping[str, Any] | None = None,
        done: bool = False,
        *,
        truncated: bool = False,
        final_frame: Any = None,
    ) -> None:
        """
        Record a step. What cannot be stored is refused, and leaves the recording as it was.

        :param frame: What was seen before the action
        :param reward: What the action brought
        :param action: The action
        :param features: A value for each feature
        :param done: Whether the episode ended with it
        :param truncated: Whether a time limit ended it; means ``done``, too
        :param final_frame: What was seen afterwards, at the end of an episode
        """
        raise NotImplementedError

    def end_episode(self, final_frame: Any = None) -> None:
        """
        Let the next step begin an episode, though the last one was not over: its environment was reset early.

        :param final_frame: What was seen last
        """
        raise NotImplementedError

    def clear(self) -> None:
        """Forget all steps."""
        raise NotImplementedError

    # -- reading --------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        raise NotImplementedError

    def __getitem__(self, index: Any) -> Record:
        raise NotImplementedError

    def __iter__(self) -> Iterator[Record]:
        raise NotImplementedError

    @property
    def n_episodes(self) -> int:
        """Number of episodes that are there, whole or in part."""
        raise NotImplementedError

    def episodes(self) -> Iterator[Episode]:
        """
        Iterate over the episodes, oldest first. Of the oldest one in a ring the beginning may be gone (``is_cut``); the
        newest may still be running (not ``done``).

        :return: Views of them
        """
        raise NotImplementedError

    def episode(self, index: int) -> Episode:
        """
        Give one episode.

        :param index: Its place among those that are there, from the end if negative
        :return: A view of it
        """
        raise NotImplementedError

    def memory_usage(self) -> MemoryUsage:
        """
        Tell what the recording takes.

        :return: The figures, of frames and everything else
        """
        raise NotImplementedError

    # -- files ----------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str], progress: bool = False) -> None:
        """
        Save the recording in one compressed file, which ``load_recording`` reads. Nothing in it is code. The file appears
        whole or not at all: it is written beside its place and then renamed.

        :param path: Where; ``.rec`` is a good suffix. An existing file is replaced
        :param progress: Whether to show a progress bar
        """
        raise NotImplementedError


class FramelessRecordBuffer(RecordBuffer):
    """The same without frames: ``add`` takes them and does not keep them. The parameters are those of ``RecordBuffer``."""

    kind = "frameless"


class DummyRecordBuffer(FramelessRecordBuffer):
    """Records nothing; for where a buffer is wanted and a recording is not. Takes all that ``RecordBuffer`` does."""

    kind = "dummy"


class CompressedRecordBuffer(RecordBuffer):
    """
    Keeps frames compressed, bit for bit: hours of play in megabytes.

    The parameters are those of ``RecordBuffer`` (but for ``force_alloc_mem``: there is nothing to commit), and

    :param compression_method: Name or shorthand of the method, for example ``"zstd-5"``; None for the best of what is
        installed
    :param compression_kwargs: Options of the method
    :param decompression_kwargs: Likewise for decompression
    :param dtypes: As for ``CompressedArray``
    """

    kind = "compressed"

    def __init__(
        self,
        buffer_size: int | None,
        frame_shape: tuple[int, ...] | None = None,
        frame_dtype: npt.DTypeLike = np.uint8,
        action_shape: tuple[int, ...] = (),
        action_dtype: npt.DTypeLike = np.int64,
        features: Mapping[str, FeatureSpec] | None = None,
        force_alloc_mem: bool = False,
        metadata: Mapping[str, Any] | None = None,
        *,
        compression_method: str | None = None,
        compression_kwargs: Mapping[str, Any] | None = None,
        decompression_kwargs: Mapping[str, Any] | None = None,
        dtypes: Mapping[str, npt.DTypeLike] | None = None,
    ) -> None:
        raise NotImplementedError
