"""Environments that record what happens in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn

from sb3_extra_buffers.recording.buffers import RecordBuffer
from sb3_extra_buffers.recording.recorder import FrameSource, Recorder, describe_env


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
    """
    One of SB3's parallel environments, to be recorded by a wrapper or a callback.

    :param venv: The environments
    :param buffer: What to record into; None makes one
    :param frames: Where frames come from
    :param info_features: Keys of ``info`` to record as features
    :param env_index: Which of the environments
    """

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
        # Wrappers have a list of their own, which nobody fills.
        info: dict[str, Any] = self.venv.unwrapped.reset_infos[self._index]
        return info

    def begin(self, obs: Any) -> None:
        """
        Begin an episode.

        :param obs: Observations after a reset
        """
        self.recorder.begin(self._frame(obs), self._reset_info())

    def go_on(self, obs: Any) -> None:
        """
        Go on with the episode that is running, unless what is seen shows that another has begun.

        :param obs: Observations now
        """
        if not self.recorder.is_at(self._frame(obs)):
            self.begin(obs)

    def step(self, actions: Any, obs: Any, rewards: Any, dones: Any, infos: Any) -> None:
        """
        Record a step.

        :param actions: What was given to the environments
        :param obs: What they returned
        :param rewards: Likewise
        :param dones: Likewise
        :param infos: Likewise
        """
        info, done = infos[self._index], bool(dones[self._index])
        truncated = done and bool(info.get("TimeLimit.truncated", False))
        # At the end of an episode the environment shows the next one already, and what it said at the reset belongs to that.
        final = info.get("terminal_observation") if self.recorder.frames == "observation" else None
        said = {**info, **self._reset_info()} if done else info
        self.recorder.step(
            actions[self._index], rewards[self._index], done and not truncated, truncated, said, self._frame(obs), final
        )


def _ask(venv: VecEnv, method: str, env_index: int) -> Any:
    """What a method of an environment says, if it has it; workers of SB3 die of one that it has not."""
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
