"""A callback that records training."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback

from sb3_extra_buffers.recording.buffers import RecordBuffer
from sb3_extra_buffers.recording.recorder import FrameSource
from sb3_extra_buffers.recording.wrappers import VecSource


class RecordCallback(BaseCallback):
    """
    Records one of the environments in which a model trains: ``model.learn(10_000, callback=RecordCallback())``.

    :param buffer: What to record into; by default an unbounded ``CompressedRecordBuffer``, made when training starts, which
        is then ``callback.buffer``
    :param frames: ``"render"`` records what ``env.render()`` shows, ``"observation"`` what the agent sees, ``"none"`` nothing.
        The last rendered frame of each episode is missing, because SB3 resets at once
    :param info_features: Keys of ``info`` to record as features, as they were when the frame was seen
    :param env_index: Which of the environments
    :param save_path: Where to save the recording when training ends, if anywhere
    :param verbose: As for all callbacks
    """

    def __init__(
        self,
        buffer: RecordBuffer | None = None,
        frames: FrameSource = "render",
        info_features: Sequence[str] = (),
        env_index: int = 0,
        save_path: str | os.PathLike[str] | None = None,
        verbose: int = 0,
    ) -> None:
        super().__init__(verbose)
        self._arguments = (buffer, frames, info_features, env_index)
        self._save_path = save_path
        self._source: VecSource | None = None

    @property
    def buffer(self) -> RecordBuffer:
        """The recording."""
        buffer = self._arguments[0] if self._source is None else self._source.recorder.buffer
        if buffer is None:
            raise RuntimeError("there is no recording yet: it is made when training starts")
        return buffer

    def _on_training_start(self) -> None:
        last_obs: Any = self.model._last_obs
        if self._source is not None and self._source.venv is self.training_env and self.num_timesteps > 0:
            # learn(..., reset_num_timesteps=False) does not reset the environment either.
            self._source.go_on(last_obs)
            return
        buffer, frames, info_features, env_index = self._arguments
        if self._source is not None:
            buffer = self._source.recorder.buffer
        self._source = VecSource(self.training_env, buffer, frames, info_features, env_index)
        self._source.begin(last_obs)

    def _on_step(self) -> bool:
        assert self._source is not None
        # What went to the environment: on-policy algorithms clip, and call that so.
        actions = self.locals.get("clipped_actions", self.locals["actions"])
        self._source.step(actions, self.locals["new_obs"], *(self.locals[name] for name in ("rewards", "dones", "infos")))
        return True

    def _on_training_end(self) -> None:
        if self._save_path is not None:
            self.buffer.save(self._save_path)
