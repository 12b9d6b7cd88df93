"""What hypothesis draws for the tests of buffers: environments, and our buffers beside SB3's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from hypothesis import strategies as st
from observation_streams import CONTENTS, METHODS, PRESENTATIONS, DictStream, SpaceStream, Stack, Stream, present, scribble

from sb3_extra_buffers.compressed import (
    CompressedDictReplayBuffer,
    CompressedDictRolloutBuffer,
    CompressedReplayBuffer,
    CompressedRolloutBuffer,
)


# Observations of a few bytes would be kept raw; here they are compressed, too.
class SmallReplayBuffer(CompressedReplayBuffer):
    raw_below = 0


class SmallRolloutBuffer(CompressedRolloutBuffer):
    raw_below = 0


class SmallDictReplayBuffer(CompressedDictReplayBuffer):
    raw_below = 0


class SmallDictRolloutBuffer(CompressedDictRolloutBuffer):
    raw_below = 0


DTYPES = (np.uint8, np.float32, np.float64, np.int16)


def stacks(draw: Any) -> tuple[tuple[int, ...], Stack | None]:
    """Draw a frame's shape, and how frames are stacked."""
    height, width = draw(st.integers(4, 7)), draw(st.integers(8, 11))
    depth = draw(st.sampled_from([2, 3, 4, 5, 8]))
    padding = draw(st.sampled_from(["zeros", "repeat"]))
    shape, axis = draw(
        st.sampled_from(
            [
                ((1, height, width), 0),
                ((height, width, 1), 2),
                ((3, height, width), 0),
                ((height, width, 3), 2),
                ((height, width), None),
                ((height, width), 1),
                ((height * width,), 0),
                ((height * width,), None),
                ((height, width, 3), None),
            ]
        )
    )
    return shape, draw(st.sampled_from([None, *[Stack(depth, axis, padding)] * 4]))


@dataclass
class World:
    """
    Environments and what they are like.

    :param stream: The environments
    :param presentations: The memory layouts in which they hand out observations
    :param rng: Source of actions and so on
    """

    stream: Stream | DictStream | SpaceStream
    presentations: list[str]
    rng: np.random.Generator

    @property
    def n_envs(self) -> int:
        return self.stream.n_envs

    def hand_out(self, obs: Any) -> Any:
        return present(obs, self.presentations[self.rng.integers(len(self.presentations))])


def _boxes(draw: Any, seed: int, n_envs: int) -> Stream:
    shape, stack = stacks(draw)
    dtype = draw(st.sampled_from(DTYPES))
    content = draw(st.sampled_from(CONTENTS))
    return Stream(seed, n_envs, shape, dtype, content, stack, draw(st.sampled_from([0.0, 0.1, 0.5])))


def _dicts(draw: Any, seed: int, n_envs: int) -> DictStream:
    streams: dict[str, Any] = {
        "image": _boxes(draw, seed, n_envs),
        "vector": Stream(seed + 1, n_envs, (draw(st.integers(1, 5)),), np.float32, "noise"),
    }
    if draw(st.booleans()):
        streams["second"] = _boxes(draw, seed + 2, n_envs)
    if draw(st.booleans()):
        streams["choice"] = SpaceStream(seed + 3, n_envs, spaces.Discrete(5))
    return DictStream(streams)


def _others(draw: Any, seed: int, n_envs: int) -> SpaceStream:
    space = draw(
        st.sampled_from(
            [
                spaces.Discrete(7),
                spaces.Discrete(3, start=-1),
                spaces.MultiDiscrete([3, 4, 5]),
                spaces.MultiBinary(9),
                spaces.MultiBinary([4, 5]),
            ]
        )
    )
    return SpaceStream(seed, n_envs, space)


_MAKERS = {"box": _boxes, "dict": _dicts, "other": _others}


@st.composite
def worlds(draw: Any, *kinds: str) -> World:
    """
    Draw environments.

    :param draw: From hypothesis
    :param kinds: ``box``, ``other``, ``dict``
    :return: The environments
    """
    seed = draw(st.integers(0, 2**16))
    n_envs = draw(st.integers(1, 5))
    stream = _MAKERS[draw(st.sampled_from(kinds))](draw, seed, n_envs)
    ways = draw(st.lists(st.sampled_from(sorted(PRESENTATIONS)), min_size=1, max_size=3))
    return World(stream, ways, np.random.default_rng(seed))


methods = st.sampled_from(METHODS)
action_spaces = st.sampled_from([spaces.Discrete(4), spaces.Box(-1, 1, (2,), np.float32), spaces.MultiBinary(3)])


def actions_for(space: spaces.Space[Any], n_envs: int) -> np.ndarray:
    """Sample an action for each environment."""
    return np.stack([space.sample() for _ in range(n_envs)])


def add_transition(world: World, ours: Any, theirs: Any) -> None:
    """
    Make a step, and give it to both replay buffers; what ours got is overwritten afterwards, as an environment would.

    :param world: The environments
    :param ours: Our buffer
    :param theirs: SB3's
    """
    obs, next_obs, dones, infos = world.stream.step()
    action = actions_for(theirs.action_space, world.n_envs)
    reward = world.rng.standard_normal(world.n_envs)
    theirs.add(obs, next_obs, action, reward, dones, infos)
    handed = world.hand_out(obs), world.hand_out(next_obs)
    ours.add(*handed, action, reward, dones, infos)
    scribble(handed[0])
    scribble(handed[1])


def add_step(world: World, ours: Any, theirs: Any) -> None:
    """
    The same for rollout buffers.

    :param world: The environments
    :param ours: Our buffer
    :param theirs: SB3's
    """
    obs, _, dones, _ = world.stream.step()
    action = actions_for(theirs.action_space, world.n_envs)
    reward = world.rng.standard_normal(world.n_envs)
    value = th.as_tensor(world.rng.standard_normal((world.n_envs, 1)), dtype=th.float32)
    log_prob = th.as_tensor(world.rng.standard_normal(world.n_envs), dtype=th.float32)
    theirs.add(obs, action, reward, dones, value, log_prob)
    handed = world.hand_out(obs)
    ours.add(handed, action, reward, dones, value, log_prob)
    scribble(handed)
