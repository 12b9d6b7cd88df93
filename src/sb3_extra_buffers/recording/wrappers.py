"""Environments that record what happens in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import gymnasium as gym
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper

from sb3_extra_buffers.recording.buffers import RecordBuffer

FrameSource = Literal["render", "observation", "none"]


class RecordWrapper(gym.Wrapper[Any, Any, Any, Any]):
    """
    Records every step of an environment.

    :param env: The environment; frames of ``"render"`` need one made with ``render_mode="rgb_array"``
    :param buffer: What to record into; by default an unbounded ``CompressedRecordBuffer``, made at the first reset, which
        is then ``wrapper.buffer``
    :param frames: ``"render"`` records what ``env.render()`` shows, ``"observation"`` what the agent sees, ``"none"`` nothing
    :param info_features: Keys of ``info`` to record as features
    """

    def __init__(
        self,
        env: gym.Env[Any, Any],
        buffer: RecordBuffer | None = None,
        frames: FrameSource = "render",
        info_features: Sequence[str] = (),
    ) -> None:
        super().__init__(env)
        raise NotImplementedError


class VecRecordWrapper(VecEnvWrapper):
    """
    Records every step of one of SB3's parallel environments, for instance in ``evaluate_policy``.

    :param venv: The environments
    :param buffer: As for ``RecordWrapper``
    :param frames: As for ``RecordWrapper``; rendered frames lack the last of each episode, since SB3 resets at once
    :param info_features: Keys of ``info`` to record as features
    :param env_index: Which of the environments
    """

    def __init__(
        self,
        venv: VecEnv,
        buffer: RecordBuffer | None = None,
        frames: FrameSource = "render",
        info_features: Sequence[str] = (),
        env_index: int = 0,
    ) -> None:
        super().__init__(venv)
        raise NotImplementedError
