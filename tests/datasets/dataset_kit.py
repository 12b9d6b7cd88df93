"""The same play in a buffer of SB3's and in one of ours: SB3's is the oracle of the data set that ours is saved to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer

from sb3_extra_buffers.compressed import CompressedDictReplayBuffer, CompressedReplayBuffer

IMAGE = spaces.Box(0, 255, (2, 16, 16), np.uint8)
VECTOR = spaces.Box(-np.inf, np.inf, (3,), np.float32)
SPACES: dict[str, spaces.Space[Any]] = {
    "images": IMAGE,
    "vectors": VECTOR,
    "numbers": spaces.Discrete(1000),
    "dict": spaces.Dict({"image": IMAGE, "vector": VECTOR, "number": spaces.Discrete(1000)}),
}
ACTIONS: dict[str, spaces.Space[Any]] = {
    "discrete": spaces.Discrete(7),
    "box": spaces.Box(-1, 1, (2,), np.float32),
    "wide": spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32)),
}
_PICTURES = np.random.default_rng(0).integers(0, 256, (8, 16, 16), dtype=np.uint8)


def observation(space: spaces.Space[Any], number: int) -> Any:
    """An observation of which everything follows from one number; the next number's follows it like a frame stack."""
    if isinstance(space, spaces.Dict):
        return {key: observation(part, number) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Discrete):
        return np.array(number % 1000)
    if space.shape == VECTOR.shape:
        return np.array([number, number % 7, -number], np.float32)

    def frame(step: int) -> Any:
        picture = _PICTURES[step // 40 % 8].copy()
        picture[step % 16] = step % 251
        return picture

    return np.stack([frame(number), frame(number + 1)])


def _stack(parts: list[Any]) -> Any:
    if isinstance(parts[0], dict):
        return {key: np.stack([part[key] for part in parts]) for key in parts[0]}
    return np.stack(parts)


@dataclass
class Played:
    """Steps of one environment: number of the observation, and how each step ended: "", "done", "timeout" or "reset"."""

    numbers: list[int]
    ends: list[str]


class Play:
    """
    Plays, and adds to buffers.

    :param space: Observation space
    :param actions: Action space
    :param n_envs: Environments
    :param seed: What is played
    """

    def __init__(self, space: spaces.Space[Any], actions: spaces.Space[Any], n_envs: int, seed: int = 0) -> None:
        self.space, self.actions, self.n_envs = space, actions, n_envs
        self.rng = np.random.default_rng(seed)
        self.numbers = [100_000 * env for env in range(n_envs)]
        self.played = [Played([], []) for _ in range(n_envs)]

    def step(self, *buffers: Any) -> None:
        ends = self.rng.choice(["", "", "", "", "", "done", "timeout", "reset"], self.n_envs)
        numbers = list(self.numbers)
        obs, next_obs = (_stack([observation(self.space, number + ahead) for number in numbers]) for ahead in (0, 1))
        if isinstance(self.actions, spaces.Discrete):
            action = self.rng.integers(0, 7, self.n_envs)
        else:
            action = self.rng.uniform(-1, 1, (self.n_envs, 2)).astype(np.float32)
        reward = np.array([number / 8 for number in numbers])
        done = np.isin(ends, ("done", "timeout"))
        infos = [{"TimeLimit.truncated": end == "timeout"} for end in ends]
        for buffer in buffers:
            buffer.add(obs, next_obs, action, reward, done, infos)
        for env, end in enumerate(ends):
            self.played[env].numbers.append(numbers[env])
            self.played[env].ends.append(str(end))
            self.numbers[env] += 1 if not end else 50


def pair(kind: str, rows: int, n_envs: int, steps: int, actions: str = "discrete", seed: int = 0) -> tuple[Any, Any, Play]:
    """
    Fill two buffers with the same.

    :param kind: One of ``SPACES``
    :param rows: Rows of the ring
    :param n_envs: Environments
    :param steps: How many steps
    :param actions: One of ``ACTIONS``
    :param seed: What is played
    :return: Ours, SB3's, and what was played
    """
    space = SPACES[kind]
    ours, theirs = (
        (CompressedDictReplayBuffer, DictReplayBuffer)
        if isinstance(space, spaces.Dict)
        else (CompressedReplayBuffer, ReplayBuffer)
    )
    buffers = [cls(rows * n_envs, space, ACTIONS[actions], "cpu", n_envs) for cls in (ours, theirs)]
    play = Play(space, ACTIONS[actions], n_envs, seed)
    for _ in range(steps):
        play.step(*buffers)
    return buffers[0], buffers[1], play


def assert_same(one: Any, other: Any) -> None:
    """Samples are equal to the last bit, and of the same kind."""
    assert type(one) is type(other)
    for name in one._fields:
        _assert_equal(getattr(one, name), getattr(other, name), name)


def _assert_equal(one: Any, other: Any, name: str) -> None:
    if isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            _assert_equal(one[key], other[key], f"{name}[{key!r}]")
    elif one is None or other is None:
        assert one is other
    else:
        assert one.dtype == other.dtype and one.shape == other.shape, (name, one.dtype, other.dtype, one.shape, other.shape)
        assert one.numpy().tobytes() == other.numpy().tobytes(), name


def in_order(buffer: Any) -> np.ndarray:
    """Rows of a ring of SB3's, oldest first."""
    rows = np.arange(buffer.pos)
    return np.concatenate([np.arange(buffer.pos, buffer.buffer_size), rows]) if buffer.full else rows
