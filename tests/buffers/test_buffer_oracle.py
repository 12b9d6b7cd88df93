"""SB3 is the oracle: whatever happens to the two buffers, with the same seed ours gives the very same bits."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import cloudpickle
import gymnasium as gym
import numpy as np
import pytest
import torch as th
from buffer_contents import as_kept_by
from buffer_worlds import (
    SmallDictReplayBuffer,
    SmallDictRolloutBuffer,
    SmallReplayBuffer,
    SmallRolloutBuffer,
    World,
    action_spaces,
    add_step,
    add_transition,
    methods,
    worlds,
)
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from observation_streams import (
    METHODS,
    DictStream,
    Stack,
    Stream,
    assert_same_bits,
    assert_same_random_state,
    assert_same_samples,
    contents_of,
    sampled,
    scribble,
    space_of,
)
from stable_baselines3.common.buffers import DictReplayBuffer, DictRolloutBuffer, ReplayBuffer, RolloutBuffer
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

TWINS = {
    "pickle": lambda buffer: pickle.loads(pickle.dumps(buffer)),
    "cloudpickle": lambda buffer: pickle.loads(cloudpickle.dumps(buffer)),
    "deepcopy": copy.deepcopy,
}

replay_actions = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 9)),
        st.tuples(st.just("sample"), st.integers(1, 20)),
        st.tuples(st.just("twin"), st.sampled_from(sorted(TWINS))),
        st.tuples(st.just("reset"), st.none()),
        st.tuples(st.just("look"), st.none()),
    ),
    min_size=2,
    max_size=14,
)


def replay_pair(world: World, method: str | None, rows: int, action_space: spaces.Space[Any], **options: Any) -> Any:
    is_dict = isinstance(world.stream, DictStream)
    args = (rows * world.n_envs, space_of(world.stream), action_space, "cpu")
    theirs = (DictReplayBuffer if is_dict else ReplayBuffer)(*args, n_envs=world.n_envs, **options)
    ours_class = SmallDictReplayBuffer if is_dict else SmallReplayBuffer
    ours = ours_class(*args, n_envs=world.n_envs, compression_method=method, **options)
    return ours, theirs


def check_replay(ours: Any, theirs: Any, seed: int, batch_size: int = 16, **kwargs: Any) -> None:
    """Sample the same from both; then spoil what was sampled, which must not reach the buffer."""
    expected, state = sampled(theirs, seed, batch_size, **kwargs)
    got, our_state = sampled(ours, seed, batch_size, **kwargs)
    assert_same_samples(got, expected)
    assert_same_random_state(our_state, state)
    scribble(got.next_observations)
    assert_same_bits(got.observations, expected.observations, "obs after next_obs was changed in place")
    scribble(got.observations)


def check_contents(ours: Any, theirs: Any) -> None:
    for name in ("observations", "next_observations"):
        if hasattr(theirs, name):
            assert_same_bits(as_kept_by(theirs, getattr(ours, name)), contents_of(getattr(theirs, name)), name)


def drive_replay(world: World, ours: Any, theirs: Any, actions: list[tuple[str, Any]]) -> None:
    theirs.action_space.seed(0)
    for number, (what, argument) in enumerate(actions):
        if what == "add":
            for _ in range(argument):
                add_transition(world, ours, theirs)
        elif what == "sample" and theirs.size():
            check_replay(ours, theirs, number, argument)
        elif what == "twin":
            before = ours
            ours = TWINS[argument](ours)
            if theirs.size():  # what happens to the original does not matter to the twin
                scribble_all(before)
        elif what == "reset":
            ours.reset()
            theirs.reset()
        elif what == "look":
            check_contents(ours, theirs)
        assert (ours.pos, ours.full, ours.size()) == (theirs.pos, theirs.full, theirs.size())
    check_contents(ours, theirs)
    if theirs.size():
        check_replay(ours, theirs, 99)


def scribble_all(buffer: Any) -> None:
    """Overwrite all observations of a buffer."""
    parts = buffer.observations if isinstance(buffer.observations, dict) else {None: buffer.observations}
    for part in parts.values():
        for row in range(min(len(part), 3)):
            part[row] = np.ones(part.shape[1:], dtype=part.dtype)


@pytest.mark.parametrize("kinds", [("box",), ("other",), ("dict",)], ids=lambda kinds: kinds[0])
@given(data=st.data(), method=methods, rows=st.integers(1, 12), action_space=action_spaces, actions=replay_actions)
def test_replay(kinds: Any, data: Any, method: Any, rows: int, action_space: Any, actions: Any) -> None:
    world = data.draw(worlds(*kinds))
    drive_replay(world, *replay_pair(world, method, rows, action_space), actions)


STACKS = {
    "gray, channel-last": ((7, 9, 1), 2),
    "gray, channel-first": ((1, 7, 9), 0),
    "RGB, channel-last": ((5, 6, 3), 2),
    "RGB, channel-first": ((3, 5, 6), 0),
    "new axis": ((7, 9), None),
    "new axis before RGB": ((5, 6, 3), None),
    "1-D": ((40,), 0),
    "2-D": ((5, 8), 1),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", STACKS)
def test_replay_of_stacks(method: str | None, kind: str) -> None:
    """Every method with every kind of stack, over several rounds of the ring."""
    shape, axis = STACKS[kind]
    for depth, padding in [(2, "zeros"), (3, "repeat"), (4, "zeros"), (5, "repeat"), (8, "zeros")]:
        stream = Stream(depth, 2, shape, np.uint8, "mixed", Stack(depth, axis, padding), 0.1)
        world = World(stream, ["channels last", "plain"] if depth % 2 else ["channels last"], np.random.default_rng(depth))
        ours, theirs = replay_pair(world, method, 20, spaces.Discrete(3))
        drive_replay(world, ours, theirs, [("add", 15), ("sample", 32), ("add", 45), ("sample", 32)])
        assert ours.observations._frames.layout.depth == depth
        assert ours.observations._frames.layout.frame_bytes == np.prod(shape)


@given(
    seed=st.integers(0, 99),
    n_envs=st.integers(1, 3),
    shape=st.sampled_from([(3, 12, 12), (12, 12, 3), (1, 20, 24), (40,)]),
    dtype=st.sampled_from(["u1", "f4"]),
    steps=st.lists(st.tuples(st.integers(0, 7), st.booleans()), min_size=1, max_size=150),
    method=methods,
)
def test_replay_of_frames_that_recur(seed: int, n_envs: int, shape: Any, dtype: str, steps: Any, method: Any) -> None:
    """Frames come again in any order, as the last frame of an episode and as the first of the next one, too."""
    rng = np.random.default_rng(seed)
    ground = rng.integers(0, 256, shape)
    frames = np.stack([np.where(rng.random(shape) < rng.random(), ground, rng.integers(0, 256, shape)) for _ in range(8)])
    frames[0] = 0
    frames = frames.astype(dtype)
    space = spaces.Box(0, 255, shape, np.dtype(dtype).type)
    args = (60 * n_envs, space, spaces.Discrete(3), "cpu")
    ours = SmallReplayBuffer(*args, n_envs=n_envs, compression_method=method)
    theirs = ReplayBuffer(*args, n_envs=n_envs)
    obs = frames[rng.integers(0, 8, n_envs)]
    for frame, ends in steps:
        next_obs = frames[(frame + rng.integers(0, 2, n_envs)) % 8]
        done = rng.random(n_envs) < 0.5 if ends else np.zeros(n_envs, bool)
        for buffer in (ours, theirs):
            buffer.add(obs, next_obs, np.zeros((n_envs, 1)), np.zeros(n_envs), done, [{}] * n_envs)
        first = frames[rng.integers(0, 8, n_envs)]
        obs = np.stack([first[env] if done[env] else next_obs[env] for env in range(n_envs)])
    check_contents(ours, theirs)
    check_contents(TWINS["pickle"](ours), theirs)
    check_replay(ours, theirs, seed, 32)


@pytest.mark.parametrize("method", METHODS)
def test_replay_runs_through_many_chunks(method: str | None) -> None:
    """Enough rows for chunks to be sealed and given back, lap after lap."""
    world = World(Stream(3, 2, (1, 40, 40), np.uint8, "mixed", Stack(4, 0)), ["channels last"], np.random.default_rng(0))
    ours, theirs = replay_pair(world, method, 120, spaces.Discrete(3))
    for _ in range(4):
        drive_replay(world, ours, theirs, [("add", 150), ("sample", 64)])
    frames = ours.observations._frames
    sealed, _ = frames.chunks()
    assert 1 < len(sealed) <= ours.buffer_size // frames.chunk_rows + 2, "nothing was given back"


@given(data=st.data(), method=methods, optimize=st.booleans(), handle=st.booleans(), actions=replay_actions)
def test_replay_options(data: Any, method: Any, optimize: bool, handle: bool, actions: Any) -> None:
    """``optimize_memory_usage`` changes nothing: samples are those of SB3's buffer without it, also at time-outs."""
    world = data.draw(worlds("box", "dict"))
    is_dict = isinstance(world.stream, DictStream)
    args = (7 * world.n_envs, space_of(world.stream), spaces.Discrete(3), "cpu", world.n_envs)
    theirs = (DictReplayBuffer if is_dict else ReplayBuffer)(*args, handle_timeout_termination=handle)
    ours_class = SmallDictReplayBuffer if is_dict else SmallReplayBuffer
    if data.draw(st.booleans()):
        ours = ours_class(*args, optimize, handle, compression_method=method)
    else:
        ours = ours_class(*args, compression_method=method, optimize_memory_usage=optimize, handle_timeout_termination=handle)
    drive_replay(world, ours, theirs, actions)


class Blank(gym.Env[Any, Any]):
    """An environment of which only the spaces are of interest."""

    def __init__(self, observation_space: spaces.Space[Any]) -> None:
        self.observation_space = observation_space
        self.action_space = spaces.Discrete(3)


def normalizer(space: spaces.Space[Any], n_envs: int, rng: np.random.Generator, **options: Any) -> VecNormalize:
    """A ``VecNormalize`` that has seen something."""
    env = VecNormalize(DummyVecEnv([lambda: Blank(space)] * n_envs), clip_obs=3.0, **options)
    for statistics in [*getattr(env, "obs_rms", {}).values()] if isinstance(space, spaces.Dict) else [env.obs_rms]:
        statistics.mean = rng.normal(0, 1, statistics.mean.shape)
        statistics.var = rng.uniform(0.5, 5, statistics.var.shape)
    env.ret_rms.var = np.float64(2.5)
    return env


@given(data=st.data(), method=methods, norm_reward=st.booleans(), norm_obs=st.booleans())
def test_replay_with_vec_normalize(data: Any, method: Any, norm_reward: bool, norm_obs: bool) -> None:
    n_envs = data.draw(st.integers(1, 3))
    seed = data.draw(st.integers(0, 2**16))
    dtype = data.draw(st.sampled_from([np.uint8, np.float32, np.float64, np.int16]))
    stream: Any = Stream(seed, n_envs, (1, 5, 8), dtype, "game", Stack(3, 0))
    if data.draw(st.booleans()):
        stream = DictStream({"image": stream, "vector": Stream(seed, n_envs, (3,), np.float32, "noise")})
    world = World(stream, ["channels last"], np.random.default_rng(seed))
    ours, theirs = replay_pair(world, method, 8, spaces.Discrete(3))
    env = normalizer(space_of(stream), n_envs, world.rng, norm_obs=True, norm_reward=norm_reward)
    env.norm_obs = norm_obs
    for seed in range(4):
        for _ in range(5):
            add_transition(world, ours, theirs)
        check_replay(ours, theirs, seed, env=env)
        check_replay(ours, theirs, seed)


# -- rollouts ---------------------------------------------------------------------------------------------------------


def rollout_pair(world: World, method: str | None, rows: int, action_space: spaces.Space[Any]) -> Any:
    is_dict = isinstance(world.stream, DictStream)
    args = (rows, space_of(world.stream), action_space, "cpu")
    theirs = (DictRolloutBuffer if is_dict else RolloutBuffer)(*args, gae_lambda=0.9, gamma=0.8, n_envs=world.n_envs)
    ours_class = SmallDictRolloutBuffer if is_dict else SmallRolloutBuffer
    ours = ours_class(*args, gae_lambda=0.9, gamma=0.8, n_envs=world.n_envs, compression_method=method)
    return ours, theirs


def drive_rollout(world: World, ours: Any, theirs: Any, rounds: list[tuple[str | None, list[int | None]]]) -> None:
    """
    Fill, go through the minibatches, reset.

    :param rounds: For each rollout how to copy our buffer in the middle of it, and the batch sizes of the epochs
    """
    theirs.action_space.seed(0)
    rows = theirs.buffer_size
    for twin, epochs in rounds:
        theirs.reset()
        ours.reset()
        check_contents(ours, theirs)
        for row in range(rows):
            if twin is not None and row == rows // 2:
                before, ours = ours, TWINS[twin](ours)
                scribble_all(before)
            add_step(world, ours, theirs)
        assert ours.full
        check_contents(ours, theirs)
        last_values = th.as_tensor(world.rng.standard_normal((world.n_envs, 1)))
        dones = world.rng.random(world.n_envs) < 0.5
        for buffer in (ours, theirs):
            buffer.compute_returns_and_advantage(last_values, dones)
        for number, batch_size in enumerate(epochs):
            np.random.seed(number)
            expected = list(theirs.get(batch_size))
            state = np.random.get_state()
            np.random.seed(number)
            got = []
            for samples in ours.get(batch_size):
                got.append(copy.deepcopy(samples))
                scribble(samples.observations)
            assert_same_random_state(np.random.get_state(), state)
            assert len(got) == len(expected)
            for one, other in zip(got, expected, strict=True):
                assert_same_samples(one, other)
            if twin is not None:
                ours = TWINS[twin](ours)  # flattened by now
        check_contents(ours, theirs)


rollout_rounds = st.lists(
    st.tuples(
        st.sampled_from([None, *sorted(TWINS)]),
        st.lists(st.one_of(st.none(), st.integers(1, 12)), max_size=3),
    ),
    min_size=1,
    max_size=4,
)


@pytest.mark.parametrize("kinds", [("box",), ("other",), ("dict",)], ids=lambda kinds: kinds[0])
@given(data=st.data(), method=methods, rows=st.integers(1, 9), action_space=action_spaces, rounds=rollout_rounds)
def test_rollout(kinds: Any, data: Any, method: Any, rows: int, action_space: Any, rounds: Any) -> None:
    world = data.draw(worlds(*kinds))
    drive_rollout(world, *rollout_pair(world, method, rows, action_space), rounds)


@pytest.mark.parametrize("method", METHODS)
def test_rollout_runs_through_many_chunks(method: str | None) -> None:
    world = World(Stream(5, 3, (1, 40, 40), np.uint8, "mixed", Stack(4, 0)), ["channels last"], np.random.default_rng(0))
    ours, theirs = rollout_pair(world, method, 80, spaces.Discrete(3))
    drive_rollout(world, ours, theirs, [(None, [64])] * 4)
