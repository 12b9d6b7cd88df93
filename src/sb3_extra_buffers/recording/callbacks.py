"""A callback that records training."""

from __future__ import annotations

from collections.abc import Sequence

from stable_baselines3.common.callbacks import BaseCallback

from sb3_extra_buffers.recording.buffers import RecordBuffer
from sb3_extra_buffers.recording.wrappers import FrameSource


class RecordCallback(BaseCallback):
    """
    Records one of the environments that a model trains in: ``model.learn(10_000, callback=RecordCallback())``.

    :param buffer: What to record into; by default an unbounded ``CompressedRecordBuffer``, made when training starts, which
        is then ``callback.buffer``
    :param frames: ``"render"`` records what ``env.render()`` shows, ``"observation"`` what the agent sees, ``"none"`` nothing.
        Rendered frames lack the last of each episode, since SB3 resets at once
    :param info_features: Keys of ``info`` to record as features
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
        save_path: str | None = None,
        verbose: int = 0,
    ) -> None:
        super().__init__(verbose)
        raise NotImplementedError

    def _on_step(self) -> bool:
        raise NotImplementedError
