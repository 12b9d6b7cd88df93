"""What the tests of recordings share: real games, and comparing recordings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ale_py
import gymnasium as gym
import numpy as np

from sb3_extra_buffers.recording import RecordBuffer, RecordWrapper

gym.register_envs(ale_py)


def play(env: gym.Env[Any, Any], steps: int, seed: int = 0) -> None:
    """Take random actions; a new episode begins whenever one is over."""
    env.reset(seed=seed)
    env.action_space.seed(seed)
    for _ in range(steps):
        _, _, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            env.reset()


def record_game(env_id: str, steps: int, **options: Any) -> RecordBuffer:
    """A recording of a real Atari game, of short episodes."""
    env = RecordWrapper(gym.make(env_id, render_mode="rgb_array", frameskip=4, max_episode_steps=60), **options)
    play(env, steps)
    env.close()
    return env.buffer


def assert_same_recording(one: RecordBuffer, other: RecordBuffer) -> None:
    """Every step and every episode of two recordings are the same, to the bit."""
    assert len(one) == len(other)
    assert one.metadata == other.metadata
    assert one.feature_specs == other.feature_specs
    assert (one.frame_shape, one.frame_dtype) == (other.frame_shape, other.frame_dtype)
    for ours, theirs in zip(one.episodes(), other.episodes(), strict=True):
        for name in ("number", "is_cut", "done", "truncated"):
            assert getattr(ours, name) == getattr(theirs, name), (ours, theirs, name)
        assert_same_array(ours.rewards, theirs.rewards)
        assert_same_array(ours.actions, theirs.actions)
        assert_same_array(ours.frames, theirs.frames)
        assert_same_array(ours.final_frame, theirs.final_frame)
        assert ours.features.keys() == theirs.features.keys()
        for name, values in ours.features.items():
            assert_same_array(values, theirs.features[name])


def assert_same_array(one: Any, other: Any) -> None:
    """Two arrays are the same in shape, type and bytes, or both are None."""
    if one is None or other is None:
        assert one is other
        return
    assert one.dtype == other.dtype
    assert one.shape == other.shape
    assert one.tobytes() == other.tobytes()


class Scene(gym.Env[Any, Any]):
    """
    An environment of which one can tell from a frame which step of which episode it is.

    It draws into one and the same array, as some environments do.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 12}  # noqa: RUF012
    observation_space = gym.spaces.Box(0, 255, (40, 50, 3), np.uint8)
    action_space = gym.spaces.Discrete(5)

    def __init__(
        self, lengths: Sequence[int] = (7, 3, 5), render_mode: str | None = "rgb_array", limit: int | None = None
    ) -> None:
        self.render_mode = render_mode
        self._lengths = lengths
        self._limit = limit
        self._picture = np.zeros((40, 50, 3), np.uint8)
        self._episode = -1
        self._step = 0

    def _draw(self) -> None:
        self._picture[:] = 0
        self._picture[self._step % 40, :, 0] = 200
        self._picture[:, self._episode % 50, 1] = 100
        self._picture[0, 0] = (self._episode, self._step, 7)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._episode += 1
        self._step = 0
        self._draw()
        return self._picture.copy(), self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._step += 1
        self._draw()
        over = self._step == self._lengths[self._episode % len(self._lengths)]
        late = not over and self._step == self._limit
        return self._picture.copy(), float(self._step) / 2, over, late, self._info()

    def _info(self) -> dict[str, Any]:
        return {"place": np.array([self._episode, self._step], np.int16), "lives": 3 - self._step // 3}

    def render(self) -> Any:
        return self._picture if self.render_mode else None

    def get_action_meanings(self) -> list[str]:
        return ["NOOP", "UP", "DOWN", "LEFT", "RIGHT"]


def scene_stamp(frame: Any) -> tuple[int, int]:
    """The episode and step of a frame of ``Scene``."""
    assert frame[0, 0, 2] == 7
    return int(frame[0, 0, 0]), int(frame[0, 0, 1])


def filled(make: Callable[[], RecordBuffer], steps: int, episode: int = 5) -> RecordBuffer:
    """A recording of noise that says of each step which one it is."""
    buffer = make()
    rng = np.random.default_rng(0)
    shape = buffer.frame_shape or (4,)
    for step in range(steps):
        done = step % episode == episode - 1
        frame = rng.integers(0, 255, shape).astype(buffer.frame_dtype)
        features = {name: np.full(spec[0], step, spec[1]) for name, spec in buffer.feature_specs.items()}
        action = np.full(buffer.action_shape, step % 7, buffer.action_dtype)
        final = rng.integers(0, 255, shape).astype(buffer.frame_dtype) if done else None
        buffer.add(frame, step * 0.5, action, features, done, truncated=done and step % 2 == 0, final_frame=final)
    return buffer
