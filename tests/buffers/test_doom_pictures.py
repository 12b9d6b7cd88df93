"""Real games of Doom, in colour, gray, and in colour with labels: the same samples from SB3's buffers and ours."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

pytest.importorskip("vizdoom")

from gymnasium import spaces
from observation_streams import assert_same_bits, assert_same_samples, contents_of, sampled
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer, RolloutBuffer
from stable_baselines3.common.vec_env import DummyVecEnv, VecTransposeImage
from stable_baselines3.common.vec_env.stacked_observations import StackedObservations

from sb3_extra_buffers.compressed import CompressedDictReplayBuffer, CompressedReplayBuffer, CompressedRolloutBuffer
from sb3_extra_buffers.training_utils.vizdoom import make_env

N_ENVS, STEPS, ROWS = 2, 110, 60
SEEN = ("rgb", "gray", "rgb and labels")


class Game(NamedTuple):
    """What was played: frames after each step, the last ones of episodes in place of the first ones of the next, and ends."""

    first: np.ndarray
    frames: list[np.ndarray]
    last: list[np.ndarray]
    dones: list[np.ndarray]


def _play(observe: str) -> Game:
    env = make_env("deadly_corridor", N_ENVS, DummyVecEnv, seed=3, observe=observe, frame_skip=8)
    rng = np.random.default_rng(0)
    first = np.array(env.reset())
    frames, last, dones = [], [], []
    for _ in range(STEPS):
        obs, _, done, infos = env.step(rng.integers(0, 7, N_ENVS))
        frames.append(np.array(obs))
        last.append(frames[-1].copy())
        for index in np.flatnonzero(done):
            last[-1][index] = infos[index]["terminal_observation"]
        dones.append(done)
    env.close()
    return Game(first, frames, last, dones)


@pytest.fixture(scope="module")
def games() -> dict[str, Game]:
    """The same game, seen in three ways."""
    played = {observe: _play(observe) for observe in ("rgb", "gray", "labels")}
    rgb, labels = played["rgb"], played.pop("labels")
    assert sum(map(np.sum, rgb.dones)) > 2, "too short to see an episode end"
    np.testing.assert_array_equal(rgb.dones, labels.dones)

    def join(one: Any, other: Any) -> Any:
        return np.concatenate([one, other], axis=-1)

    played["rgb and labels"] = Game(
        join(rgb.first, labels.first),
        [join(*pair) for pair in zip(rgb.frames, labels.frames, strict=True)],
        [join(*pair) for pair in zip(rgb.last, labels.last, strict=True)],
        rgb.dones,
    )
    return played


def _transitions(game: Game, stack: int, turn: Any) -> Iterator[tuple[Any, ...]]:
    """Stacked and turned by SB3's own code, terminal observations included."""
    space = spaces.Box(0, 255, game.first.shape[1:], np.uint8)
    stacker = StackedObservations(N_ENVS, stack, space) if stack > 1 else None
    obs = turn(stacker.reset(game.first.copy()) if stacker else game.first)
    for number, (frames, last, done) in enumerate(zip(game.frames, game.last, game.dones, strict=True)):
        # Each second end is one by time-out.
        infos: list[dict[str, Any]] = [{"TimeLimit.truncated": bool(over and number % 2)} for over in done]
        for index in np.flatnonzero(done):
            infos[index]["terminal_observation"] = last[index]
        new, infos = stacker.update(frames.copy(), done, infos) if stacker else (frames.copy(), infos)
        new = turn(new)
        next_obs = new.copy()
        for index in np.flatnonzero(done):
            next_obs[index] = turn(infos[index]["terminal_observation"])
        action, reward = np.full(N_ENVS, number % 7), np.full(N_ENVS, float(number))
        yield obs, next_obs, action, reward, done, infos
        obs = new


def _as_it_is(frames: np.ndarray) -> np.ndarray:
    return frames


WAYS = {
    "channels first": (1, VecTransposeImage.transpose_image),
    "channels last": (1, _as_it_is),
    "stack, channels first": (4, VecTransposeImage.transpose_image),
    "stack, channels last": (3, _as_it_is),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("seen", SEEN)
def test_replay(games: dict[str, Game], seen: str, way: str) -> None:
    stack, turn = WAYS[way]
    pair: Any = None
    for number, step in enumerate(_transitions(games[seen], stack, turn)):
        if pair is None:
            args = (ROWS * N_ENVS, spaces.Box(0, 255, step[0].shape[1:], np.uint8), spaces.Discrete(7), "cpu")
            pair = [kind(*args, n_envs=N_ENVS) for kind in (CompressedReplayBuffer, ReplayBuffer)]
        for buffer in pair:
            buffer.add(*step)
        if number in (20, STEPS - 1):
            assert_same_samples(sampled(pair[0], number, 16)[0], sampled(pair[1], number, 16)[0])
    for name in ("observations", "next_observations"):
        assert_same_bits(contents_of(getattr(pair[0], name)), getattr(pair[1], name), name)


def test_replay_of_a_dict(games: dict[str, Game]) -> None:
    """Picture and labels under a key each, and a few numbers beside them."""
    both = _transitions(games["rgb and labels"], 1, VecTransposeImage.transpose_image)
    shapes = {"picture": (3, 120, 160), "labels": (1, 120, 160)}
    space = spaces.Dict({key: spaces.Box(0, 255, shape, np.uint8) for key, shape in shapes.items()})
    space["variables"] = spaces.Box(-np.inf, np.inf, (4,), np.float32)
    args = (ROWS * N_ENVS, space, spaces.Discrete(7), "cpu")
    ours, theirs = (kind(*args, n_envs=N_ENVS) for kind in (CompressedDictReplayBuffer, DictReplayBuffer))

    def split(obs: np.ndarray, number: int) -> dict[str, np.ndarray]:
        return {"picture": obs[:, :3], "labels": obs[:, 3:], "variables": np.full((N_ENVS, 4), number, np.float32)}

    for number, (obs, next_obs, *rest) in enumerate(both):
        for buffer in (ours, theirs):
            buffer.add(split(obs, number), split(next_obs, number + 1), *rest)
    assert_same_samples(sampled(ours, 0, 32)[0], sampled(theirs, 0, 32)[0])


@pytest.mark.parametrize("seen", SEEN)
def test_rollout(games: dict[str, Game], seen: str) -> None:
    import torch as th

    played = list(_transitions(games[seen], 1, VecTransposeImage.transpose_image))
    args = (STEPS, spaces.Box(0, 255, played[0][0].shape[1:], np.uint8), spaces.Discrete(7), "cpu")
    pair: Any = [kind(*args, n_envs=N_ENVS) for kind in (CompressedRolloutBuffer, RolloutBuffer)]
    nothing = th.zeros(N_ENVS)
    batches = []
    for buffer in pair:
        for obs, _, action, reward, done, _ in played:
            buffer.add(obs, action.reshape(-1, 1), reward, done, nothing, nothing)
        np.random.seed(0)
        batches.append(list(buffer.get(64)))
    for ours, theirs in zip(*batches, strict=True):
        assert_same_samples(ours, theirs)
