"""Wrappers and a callback that record what happens in environments."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn

from sb3_extra_buffers._spaces import describe_space
from sb3_extra_buffers.recording.buffers import (
    CompressedRecordBuffer,
    FramelessRecordBuffer,
    RecordBuffer,
    frames_per_second,
)

FrameSource = Literal["render", "observation", "none"]


class Recorder:
    """Pairs each frame with the action that was taken on it. Without a buffer, one is made at the first frame."""

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
        """The recording."""
        if self._buffer is None:
            raise RuntimeError("there is no recording yet: it is made when the environment is reset for the first time")
        return self._buffer

    def _describe(self, buffer: RecordBuffer) -> None:
        # What the user said about the recording stands.
        for key, value in self._metadata.items():
            if value is not None:
                buffer.metadata.setdefault(key, value)

    def begin(self, frame: Any, info: Mapping[str, Any]) -> None:
        """Begin an episode; one that was not over is given up."""
        if self._buffer is not None:
            # Another recorder may have written to it before.
            self._buffer.end_episode(self._frame if self._has_begun else None)
        self._look(frame, info)
        if self._buffer is None:
            self._buffer = self._make_buffer()
        self._has_begun = True

    def is_at(self, frame: Any) -> bool:
        """Tell whether a frame is the one that was seen last, as far as frames are recorded."""
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

        ``frame`` and ``info`` are what the environment shows now: at the end of an episode, if it ``goes_on``, the beginning
        of the next one. ``final_frame`` is what was seen at the end.
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
        # At a reset, some environments give fewer keys than at a step; the others keep their values.
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
    """Collect metadata for a recording from an environment: its id, its ``metadata``, and itself without wrappers."""
    fps = metadata.get("render_fps") if isinstance(metadata, Mapping) else None
    meanings = None
    if callable(getattr(game, "get_action_meanings", None)):
        meanings = [str(meaning) for meaning in game.get_action_meanings()]
    return {
        "env_id": env_id,
        "fps": frames_per_second(fps),
        "action_meanings": meanings,
    }


class RecordWrapper(gym.Wrapper[Any, Any, Any, Any]):
    """
    Records every step of an environment.

    :param env: The environment; frames of ``"render"`` need one made with ``render_mode="rgb_array"``
    :param buffer: What to record into; by default an unbounded ``CompressedRecordBuffer``, made at the first reset, which
        is then ``wrapper.buffer``
    :param frames: ``"render"`` records what ``env.render()`` shows, ``"observation"`` what the agent sees, ``"none"`` nothing
    :param info_features: Keys of ``info`` to record as features, as they were when the frame was seen
    """

    def __init__(
        self,
        env: gym.Env[Any, Any],
        buffer: RecordBuffer | None = None,
        frames: FrameSource = "render",
        info_features: Sequence[str] = (),
    ) -> None:
        super().__init__(env)
        about = describe_env(env.spec.id if env.spec else None, env.metadata, env.unwrapped)
        self._recorder = Recorder(buffer, frames, info_features, env.action_space, about)

    @property
    def buffer(self) -> RecordBuffer:
        """The recording."""
        return self._recorder.buffer

    def _frame(self, obs: Any) -> Any:
        return (
            obs if self._recorder.frames == "observation" else self.env.render() if self._recorder.frames == "render" else None
        )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """
        Reset the environment; an episode that is not over ends here.

        :param seed: As for all environments
        :param options: As for all environments
        :return: Observation and info
        """
        obs, info = self.env.reset(seed=seed, options=options)
        self._recorder.begin(self._frame(obs), info)
        return obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """
        Step the environment and record it.

        :param action: The action
        :return: What the environment returns
        """
        obs, reward, terminated, truncated, info = self.env.step(action)
        frame = self._frame(obs)
        self._recorder.step(action, reward, terminated, truncated, info, frame, frame, goes_on=False)
        return obs, reward, terminated, truncated, info


class VecSource:
    """One of SB3's parallel environments, to be recorded by a wrapper or a callback."""

    def __init__(
        self, venv: VecEnv, buffer: RecordBuffer | None, frames: FrameSource, info_features: Sequence[str], env_index: int
    ) -> None:
        if not 0 <= env_index < venv.num_envs:
            raise ValueError(f"env_index is {env_index}, but there are {venv.num_envs} environments, counted from 0")
        self.venv = venv
        self._index = env_index
        spec = venv.get_attr("spec", [env_index])[0]
        meanings = _ask(venv, "get_action_meanings", env_index)
        about = describe_env(spec.id if spec else None, venv.get_attr("metadata", [env_index])[0], None)
        self.recorder = Recorder(buffer, frames, info_features, venv.action_space, {**about, "action_meanings": meanings})

    def _frame(self, obs: Any) -> Any:
        if self.recorder.frames == "render":
            return self.venv.env_method("render", indices=[self._index])[0]
        return self._one(obs) if self.recorder.frames == "observation" else None

    def _one(self, obs: Any) -> Any:
        if isinstance(obs, dict):
            return {key: values[self._index] for key, values in obs.items()}
        return obs[self._index]

    def _reset_info(self) -> dict[str, Any]:
        # Wrappers have a list of their own, which stays empty.
        info: dict[str, Any] = self.venv.unwrapped.reset_infos[self._index]
        return info

    def begin(self, obs: Any) -> None:
        """Begin an episode with the observations after a reset."""
        self.recorder.begin(self._frame(obs), self._reset_info())

    def go_on(self, obs: Any) -> None:
        """Go on with the episode that is running, unless the observations show that another has begun."""
        if not self.recorder.is_at(self._frame(obs)):
            self.begin(obs)

    def step(self, actions: Any, obs: Any, rewards: Any, dones: Any, infos: Any) -> None:
        """Record a step: the actions, and what the environments returned."""
        info, done = infos[self._index], bool(dones[self._index])
        truncated = done and bool(info.get("TimeLimit.truncated", False))
        # At the end of an episode the environment shows the next one already, and what it said at the reset belongs to that.
        final = info.get("terminal_observation") if self.recorder.frames == "observation" else None
        shown = {**info, **self._reset_info()} if done else info
        self.recorder.step(
            actions[self._index], rewards[self._index], done and not truncated, truncated, shown, self._frame(obs), final
        )


def _ask(venv: VecEnv, method: str, env_index: int) -> Any:
    """Call a method of an environment that may not have it; SB3's workers would die of calling a missing one."""
    try:
        if not venv.has_attr(method):
            return None
        return [str(answer) for answer in venv.env_method(method, indices=[env_index])[0]]
    except (AttributeError, NotImplementedError):
        return None


class VecRecordWrapper(VecEnvWrapper):
    """
    Records every step of one of SB3's parallel environments, for instance in ``evaluate_policy``.

    :param venv: The environments
    :param buffer: As for ``RecordWrapper``
    :param frames: As for ``RecordWrapper``; the last rendered frame of each episode is missing, because SB3 resets at once
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
        self._source = VecSource(venv, buffer, frames, info_features, env_index)
        self._actions: Any = None

    @property
    def buffer(self) -> RecordBuffer:
        """The recording."""
        return self._source.recorder.buffer

    def reset(self) -> VecEnvObs:
        """
        Reset the environments; an episode that is not over ends here.

        :return: Observations
        """
        obs = self.venv.reset()
        self._source.begin(obs)
        return obs

    def step_async(self, actions: Any) -> None:
        """
        Start a step.

        :param actions: The actions
        """
        self._actions = actions
        self.venv.step_async(actions)

    def step_wait(self) -> VecEnvStepReturn:
        """
        Finish a step and record it.

        :return: What the environments return
        """
        obs, rewards, dones, infos = self.venv.step_wait()
        self._source.step(self._actions, obs, rewards, dones, infos)
        return obs, rewards, dones, infos


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
