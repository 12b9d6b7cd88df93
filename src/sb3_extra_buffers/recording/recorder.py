"""What the wrappers and the callback share: from the steps of an environment to records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from sb3_extra_buffers.recording.buffers import FramelessRecordBuffer, RecordBuffer
from sb3_extra_buffers.recording.checks import frames_per_second
from sb3_extra_buffers.recording.compressed_buffer import CompressedRecordBuffer
from sb3_extra_buffers.recording.spaces import describe_space

FrameSource = Literal["render", "observation", "none"]


class Recorder:
    """
    Pairs each frame with the action that was taken on it.

    :param buffer: What to record into; None makes one at the first frame
    :param frames: Where frames come from
    :param info_features: Keys of ``info`` to record as features
    :param action_space: Space of the actions
    :param metadata: What to say about the recording
    """

    def __init__(
        self,
        buffer: RecordBuffer | None,
        frames: FrameSource,
        info_features: Sequence[str],
        action_space: gym.Space[Any],
        metadata: Mapping[str, Any],
    ) -> None:
        if frames not in get_args(FrameSource):
            raise ValueError(f"frames is {frames!r}; allowed: {', '.join(map(repr, get_args(FrameSource)))}")
        if action_space.shape is None or action_space.dtype is None:
            raise TypeError(f"actions of {action_space} are not arrays and cannot be recorded")
        self.frames = frames
        self.info_features = [info_features] if isinstance(info_features, str) else list(info_features)
        self._buffer = buffer
        self._action_space = action_space
        self._metadata = {**metadata, "frames": frames, "action_space": describe_space(action_space)}
        self._frame: npt.NDArray[Any] | None = None
        self._features: dict[str, Any] = {}
        self._has_begun = False
        if buffer is not None:
            self._describe(buffer)

    @property
    def buffer(self) -> RecordBuffer:
        """What is recorded into."""
        if self._buffer is None:
            raise RuntimeError("there is no recording yet: it is made when the environment is reset for the first time")
        return self._buffer

    def _describe(self, buffer: RecordBuffer) -> None:
        # What the user said about the recording stands.
        for key, value in self._metadata.items():
            if value is not None:
                buffer.metadata.setdefault(key, value)

    def begin(self, frame: Any, info: Mapping[str, Any]) -> None:
        """
        Begin an episode; one that was not over is given up.

        :param frame: What is seen first
        :param info: What the environment says beside it
        """
        if self._buffer is not None:
            # Somebody else may have recorded into it before.
            self._buffer.end_episode(self._frame if self._has_begun else None)
        self._look(frame, info)
        if self._buffer is None:
            self._buffer = self._make_buffer()
        self._has_begun = True

    def is_at(self, frame: Any) -> bool:
        """
        Tell whether a frame is the one that was seen last, as far as frames are recorded.

        :param frame: The frame
        :return: Whether an episode is running that may go on from it
        """
        return self._has_begun and (self._frame is None or np.array_equal(self._frame, frame))

    def step(
        self,
        action: Any,
        reward: Any,
        terminated: bool,
        truncated: bool,
        info: Mapping[str, Any],
        frame: Any,
        final_frame: Any = None,
        goes_on: bool = True,
    ) -> None:
        """
        Record a step.

        :param action: The action
        :param reward: What it brought
        :param terminated: Whether the episode ended by itself
        :param truncated: Whether a time limit ended it
        :param info: What the environment says beside what is seen now
        :param frame: What is seen now: at the end of an episode what the next one begins with
        :param final_frame: What is seen at the end of an episode
        :param goes_on: Whether the environment has begun the next episode by itself
        """
        done = terminated or truncated
        if self._has_begun:
            self.buffer.add(
                self._frame,
                reward,
                action,
                self._features,
                done,
                truncated=truncated and not terminated,
                final_frame=final_frame if done and self.frames != "none" else None,
            )
        if done and not goes_on:
            self._has_begun = False
        else:
            self._look(frame, info)

    def _look(self, frame: Any, info: Mapping[str, Any]) -> None:
        if self.frames == "render" and frame is None:
            raise ValueError(
                'the environment does not render pictures: make it with render_mode="rgb_array", or use frames="observation" '
                "to record what the agent sees"
            )
        if self.frames != "none":
            try:
                # Copied: some environments show everything in one and the same array.
                self._frame = np.array(frame)
            except ValueError as error:
                raise TypeError(f"a frame of type {type(frame).__name__} is not an array: {error}") from error
            if self._frame.dtype.hasobject:
                raise TypeError(
                    f"a frame of type {type(frame).__name__} is not an array of numbers; for Dict observations, record "
                    'frames="render", or wrap the environment in one that picks an entry'
                )
        missing = [name for name in self.info_features if name not in info]
        if missing and not self._features:
            raise KeyError(f"info has no {', '.join(map(repr, missing))}; it has: {', '.join(map(str, info)) or 'nothing'}")
        # At a reset some environments say less than at a step; what is not said is as it was.
        self._features |= {name: np.array(info[name]) for name in self.info_features if name in info}

    def _make_buffer(self) -> RecordBuffer:
        features = {name: (value.shape, value.dtype) for name, value in self._features.items()}
        actions: dict[str, Any] = {"action_shape": self._action_space.shape, "action_dtype": self._action_space.dtype}
        buffer: RecordBuffer
        if self._frame is None:
            buffer = FramelessRecordBuffer(None, features=features, **actions)
        else:
            buffer = CompressedRecordBuffer(None, self._frame.shape, self._frame.dtype, features=features, **actions)
        self._describe(buffer)
        return buffer


def describe_env(env_id: str | None, metadata: Any, game: Any) -> dict[str, Any]:
    """
    Collect what is worth saying about an environment.

    :param env_id: Its id
    :param metadata: Its ``metadata``
    :param game: The environment without wrappers, as far as it can be reached
    :return: Metadata for a recording; None where nothing is known
    """
    fps = metadata.get("render_fps") if isinstance(metadata, Mapping) else None
    meanings = None
    if callable(getattr(game, "get_action_meanings", None)):
        meanings = [str(meaning) for meaning in game.get_action_meanings()]
    return {
        "env_id": env_id,
        "fps": frames_per_second(fps),
        "action_meanings": meanings,
    }
