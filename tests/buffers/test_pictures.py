"""SB3 is the oracle for pictures that change all over: in colour, gray and shaded, with masks, as floats, and as noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from buffer_worlds import World, action_spaces, methods
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from observation_streams import PRESENTATIONS, DictStream, Stream
from picture_streams import KINDS, TYPES, PictureStream
from test_buffer_oracle import drive_replay, drive_rollout, replay_actions, replay_pair, rollout_pair

LAYOUTS = {
    "as VecTransposeImage has it": {"channels_first": True, "presentation": "channels last"},
    "channels first": {"channels_first": True, "presentation": "plain"},
    "channels last": {"channels_first": False, "presentation": "plain"},
    "stack as VecTransposeImage has it": {"channels_first": True, "presentation": "channels last", "depth": 4},
    "stack, channels first": {"channels_first": True, "presentation": "plain", "depth": 3, "padding": "repeat"},
    "stack, channels last": {"channels_first": False, "presentation": "plain", "depth": 4},
}
PAIRS = list(zip(list(LAYOUTS)[:3], list(LAYOUTS)[3:], strict=True))
SHAPE = (24, 32, 3)
ROWS = 50
# Enough pictures to learn their colours from, then over the end of the ring, more than once.
LAPS = [("add", 40), ("sample", 16), ("add", 70), ("twin", "pickle"), ("add", 10), ("sample", 16)]


def see(seed: int, shape: tuple[int, int, int], kind: str, *, presentation: str, n_envs: int = 2, **options: Any) -> World:
    """Cameras, and how their pictures lie in memory."""
    return World(PictureStream(seed, n_envs, shape, kind, **options), [presentation], np.random.default_rng(seed))


@pytest.mark.parametrize(("number", "kind"), [*enumerate(KINDS)])
def test_replay_of_pictures(number: int, kind: str) -> None:
    for layout in PAIRS[number % 3]:
        world = see(number, SHAPE, kind, **LAYOUTS[layout])
        drive_replay(world, *replay_pair(world, None, ROWS, spaces.Discrete(3)), LAPS)


@pytest.mark.parametrize("layouts", PAIRS, ids=[pair[0] for pair in PAIRS])
@pytest.mark.parametrize("channels", [1, 4], ids=["gray", "RGB and labels"])
def test_replay_of_other_channels(channels: int, layouts: Any) -> None:
    for layout, kind in zip(layouts, ("255 colours", "shaded"), strict=True):
        world = see(channels, (*SHAPE[:2], channels), kind, **LAYOUTS[layout])
        drive_replay(world, *replay_pair(world, None, ROWS, spaces.Discrete(3)), LAPS)


@pytest.mark.parametrize("type_name", TYPES[1:])
def test_replay_of_other_types(type_name: str) -> None:
    for seed, kind in enumerate(("17 colours", "256 colours", "shaded")):
        world = see(seed, (16, 20, 3), kind, type_name=type_name, **LAYOUTS[PAIRS[seed][seed % 2]])
        drive_replay(world, *replay_pair(world, None, ROWS, spaces.Discrete(3)), LAPS)


@pytest.mark.parametrize("method", ["delta-zstd", "zstd-3", "none"])
def test_replay_of_pictures_with_other_methods(method: str) -> None:
    if "zstd" in method:
        pytest.importorskip("zstandard")
    for seed, kind in enumerate(("255 colours", "shaded", "noise")):
        world = see(seed, SHAPE, kind, **LAYOUTS["as VecTransposeImage has it"])
        drive_replay(world, *replay_pair(world, method, ROWS, spaces.Discrete(3)), LAPS)


@st.composite
def cameras(draw: Any) -> World:
    """Cameras of any size, the smallest included."""
    seed, n_envs = draw(st.integers(0, 2**16)), draw(st.integers(1, 4))
    shape = (draw(st.integers(1, 33)), draw(st.integers(1, 34)), draw(st.sampled_from([1, 3, 3, 4])))
    stream = PictureStream(
        seed,
        n_envs,
        shape,
        draw(st.sampled_from(KINDS)),
        draw(st.sampled_from(["uint8", *TYPES])),
        channels_first=draw(st.booleans()),
        depth=draw(st.sampled_from([1, 1, 2, 4])),
        padding=draw(st.sampled_from(["zeros", "repeat"])),
        done_rate=draw(st.sampled_from([0.0, 0.05, 0.5])),
    )
    ways = draw(st.lists(st.sampled_from(sorted(PRESENTATIONS)), min_size=1, max_size=2))
    seen: Any = stream
    if draw(st.booleans()):
        seen = DictStream({"camera": stream, "joints": Stream(seed, n_envs, (6,), np.float32, "noise")})
    return World(seen, ways, np.random.default_rng(seed))


@given(
    world=cameras(),
    method=st.one_of(st.none(), methods),
    rows=st.integers(1, 50),
    many=st.integers(0, 100),
    handle=st.booleans(),
    actions=replay_actions,
)
def test_replay_of_cameras(world: World, method: Any, rows: int, many: int, handle: bool, actions: Any) -> None:
    """Whatever they see, whatever the ring is like; with time-outs told apart from ends, and not."""
    pair = replay_pair(world, method, rows, spaces.Discrete(3), handle_timeout_termination=handle)
    drive_replay(world, *pair, [("add", many), *actions])


@given(world=cameras(), rows=st.integers(1, 25), actions=action_spaces)
def test_rollouts_of_cameras(world: World, rows: int, actions: Any) -> None:
    drive_rollout(world, *rollout_pair(world, None, rows, actions), [(None, [None, 7]), ("pickle", [16])])


@pytest.mark.parametrize("kind", ["255 colours", "shaded", "noise"])
def test_rollouts_of_pictures(kind: str) -> None:
    for seed, layout in enumerate(PAIRS[0]):
        world = see(seed, SHAPE, kind, **LAYOUTS[layout])
        drive_rollout(world, *rollout_pair(world, None, 70, spaces.Discrete(3)), [(None, [64])] * 2)


def test_many_chunks_of_pictures() -> None:
    """A ring of many chunks, whose oldest are given back while new ones begin with other rooms."""
    world = see(3, SHAPE, "254 colours", **LAYOUTS["as VecTransposeImage has it"])
    ours, theirs = replay_pair(world, None, 200, spaces.Discrete(3))
    drive_replay(world, ours, theirs, [("add", 150), ("sample", 32), ("add", 250), ("sample", 32)])
    sealed, _ = ours.observations._frames.chunks()
    assert len(sealed) > 1
