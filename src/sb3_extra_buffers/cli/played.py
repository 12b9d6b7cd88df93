"""Transitions that were played once, to be put into many buffers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.preprocessing import is_image_space, is_image_space_channels_first
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecFrameStack, VecTransposeImage

from sb3_extra_buffers.cli.children import Report
from sb3_extra_buffers.cli.environments import Environments, make_environments
from sb3_extra_buffers.cli.errors import UsageError
from sb3_extra_buffers.cli.formatting import format_bytes
from sb3_extra_buffers.cli.memory import free_bytes
from sb3_extra_buffers.cli.silence import hush


class Transition(NamedTuple):
    """The arguments of ``ReplayBuffer.add``: one step of all environments."""

    obs: Any
    next_obs: Any
    action: Any
    reward: Any
    done: Any
    infos: list[dict[str, Any]]


@dataclass(frozen=True)
class Played:
    """
    What was played.

    :param observation_space: What SB3's algorithms would see: images with their channels first
    :param action_space: Space of the actions
    :param n_envs: Environments side by side
    :param steps: Transitions, in the order of memory that the environments have
    :param transposed: Keys of images whose channels are to be put first; None for an observation that is no Dict
    :param step_us: Microseconds that one step of all environments takes while nothing else runs: the lower quartile
    """

    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]
    n_envs: int
    steps: list[Transition]
    transposed: frozenset[str | None]
    step_us: float

    @property
    def transitions(self) -> int:
        """How many there are."""
        return len(self.steps) * self.n_envs

    def replay(self) -> Iterator[Transition]:
        """
        Go through the steps, as ``OffPolicyAlgorithm`` would hand them to a buffer.

        :return: The steps, with images as the views that ``VecTransposeImage`` makes
        """
        for step in self.steps:
            # SB3 hands over a copy of its own, which no other observation shares its memory with.
            next_obs = deepcopy(step.next_obs)
            yield step._replace(obs=self._view(step.obs), next_obs=self._view(next_obs))

    def _view(self, obs: Any) -> Any:
        if isinstance(obs, dict):
            return {k: VecTransposeImage.transpose_image(v) if k in self.transposed else v for k, v in obs.items()}
        return VecTransposeImage.transpose_image(obs) if None in self.transposed else obs


def observation_bytes(space: spaces.Space[Any]) -> int:
    """
    Tell how large an observation is.

    :param space: Its space
    :return: Bytes
    """
    parts = list(space.spaces.values()) if isinstance(space, spaces.Dict) else [space]
    return sum(int(np.prod(part.shape or ())) * np.dtype(part.dtype).itemsize for part in parts)


def _as_sb3_sees_it(env: VecEnv) -> tuple[spaces.Space[Any], frozenset[str | None]]:
    space = env.observation_space
    parts: dict[Any, spaces.Space[Any]] = dict(space.spaces) if isinstance(space, spaces.Dict) else {None: space}
    keys = frozenset(
        key
        for key, part in parts.items()
        if is_image_space(part) and not is_image_space_channels_first(part)  # type: ignore[arg-type]
    )
    return (VecTransposeImage(env).observation_space, keys) if keys else (space, keys)


def _check_memory(space: spaces.Space[Any], transitions: int) -> None:
    # What was played here and in the measuring process, and SB3's buffer, which holds each observation twice.
    needed, free = 4 * transitions * observation_bytes(space), free_bytes()
    if needed > 0.9 * free:
        raise UsageError(
            f"an observation takes {format_bytes(observation_bytes(space))}, so comparing {transitions:,} transitions with "
            f"SB3's buffer needs {format_bytes(needed)}, and {format_bytes(free)} are free: choose a smaller --size"
        )


def _play(env: VecEnv, rows: int, seed: int, report: Report) -> Played:
    space, transposed = _as_sb3_sees_it(env)
    _check_memory(space, rows * env.num_envs)
    env.action_space.seed(seed)
    steps: list[Transition] = []
    times: list[int] = []
    obs: Any = env.reset()
    for row in range(rows):
        action = np.stack([env.action_space.sample() for _ in range(env.num_envs)])
        start = time.perf_counter_ns()
        new_obs, reward, done, infos = env.step(action)
        times.append(time.perf_counter_ns() - start)
        # A copy, as some environments write into the array that they have handed out.
        new_obs = deepcopy(new_obs)
        next_obs: Any = new_obs
        if done.any():
            next_obs = deepcopy(new_obs)
            for index in np.flatnonzero(done):
                last = infos[index]["terminal_observation"]
                for key in next_obs if isinstance(next_obs, dict) else [None]:
                    if key is None:
                        next_obs[index] = last
                    else:
                        next_obs[key][index] = last[key]
        cut = [{"TimeLimit.truncated": bool(info.get("TimeLimit.truncated", False))} for info in infos]
        steps.append(Transition(obs, next_obs, action, reward, done, cut))
        obs = new_obs
        report((row + 1) * env.num_envs)
    env.close()
    return Played(space, env.action_space, env.num_envs, steps, transposed, float(np.quantile(times, 0.25)) / 1000)


def play(wanted: Environments, rows: int, report: Report) -> Played:
    """
    Play at random.

    :param wanted: What to play
    :param rows: How many steps of all environments
    :param report: Told the number of transitions
    :return: What was played
    """
    hush()
    return _play(make_environments(wanted), rows, wanted.seed, report)


class _Recorded(gym.Env[Any, Any]):
    """Shows the frames of a recording again, whatever is done, and then begins anew."""

    def __init__(self, recording: Any) -> None:
        first = recording[0].frame
        whole = np.issubdtype(first.dtype, np.integer)
        low, high = (np.iinfo(first.dtype).min, np.iinfo(first.dtype).max) if whole else (-np.inf, np.inf)
        self.observation_space = spaces.Box(low, high, first.shape, first.dtype)
        self.action_space = spaces.Discrete(2)
        self._recording = recording
        self._episodes = list(recording.episodes())
        self._next = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self._episode = self._episodes[self._next % len(self._episodes)]
        self._next += 1
        self._frames = self._episode.iter_frames()
        self._frame = next(self._frames)
        return self._frame, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        frame = next(self._frames, None)
        if frame is not None:
            self._frame = frame
            return frame, 0.0, False, False, {}
        last = self._episode.final_frame  # which not every recording has
        cut = self._episode.truncated
        return self._frame if last is None else last, 0.0, not cut, cut, {}


def replay_recording(path: Path, rows: int, stack: int | None, report: Report) -> Played:
    """
    Show a recording as an environment would.

    :param path: The file
    :param rows: How many steps
    :param stack: Frames that an observation holds; None for one
    :param report: Told the number of transitions
    :return: What was shown
    """
    from sb3_extra_buffers.recording import RecordingError, load_recording

    hush()
    try:
        recording = load_recording(path)
    except (RecordingError, OSError) as error:
        raise UsageError(str(error)) from error
    if len(recording) == 0 or recording.frame_shape is None:
        raise UsageError(f"{path} holds no frames, so there is nothing to compress")
    env: VecEnv = DummyVecEnv([lambda: _Recorded(recording)])
    if stack is not None and stack > 1:
        env = VecFrameStack(env, stack)
    return _play(env, rows, 0, report)
