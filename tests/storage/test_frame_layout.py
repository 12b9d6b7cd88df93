"""How observations split into frames, and finding that out from the data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from frames_kit import column_for, make_column, read_column, split_by
from hypothesis import assume, given
from hypothesis import strategies as st
from observation_streams import Stack, Stream
from reference_decoder import CAN_TURN, ChunkDecoder

from sb3_extra_buffers.storage.layout import MIN_FRAME_BYTES, FrameLayout, c_order, candidates, memory_order
from sb3_extra_buffers.storage.stacks import StackSearch


def as_bytes(obs: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(obs).reshape(-1).view(np.uint8).reshape(len(obs), -1)


@st.composite
def layouts(draw: Any) -> FrameLayout:
    shape = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4).map(tuple))
    axis = draw(st.sampled_from([0, len(shape) - 1]))
    groups = [group for group in range(1, shape[axis] + 1) if shape[axis] % group == 0]
    return FrameLayout(shape, draw(st.sampled_from([1, 2, 4, 8])), axis, draw(st.sampled_from(groups)))


@given(layout=layouts(), n=st.integers(1, 3))
def test_join_undoes_split(layout: FrameLayout, n: int) -> None:
    obs = np.random.default_rng(0).integers(0, 256, (n, layout.obs_bytes), dtype=np.uint8)
    assert layout.obs_bytes == np.prod(layout.obs_shape) * layout.itemsize
    frames = layout.split(obs)
    assert frames.shape == (n, layout.depth, layout.frame_bytes)
    out = np.zeros_like(obs)
    layout.join(frames, out)
    np.testing.assert_array_equal(out, obs)


@given(layout=layouts())
def test_a_frame_is_its_planes(layout: FrameLayout) -> None:
    """Frame i of a stack is what slicing the stack's axis gives."""
    obs = np.random.default_rng(0).integers(0, 256, (1, *layout.obs_shape, layout.itemsize), dtype=np.uint8)
    frames = layout.split(obs.reshape(1, -1))[0]
    for number, frame in enumerate(frames):
        planes = np.arange(number * layout.group, (number + 1) * layout.group)
        assert frame.tobytes() == np.take(obs[0], planes, axis=layout.axis).tobytes()


@given(layout=layouts(), n=st.integers(1, 3))
def test_memory_order_and_back(layout: FrameLayout, n: int) -> None:
    kind = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[layout.itemsize]
    obs = np.random.default_rng(0).integers(0, 256, (n, *layout.obs_shape)).astype(kind)
    moved = np.ascontiguousarray(np.moveaxis(obs, 1, -1))
    for given_obs in (
        obs,
        np.moveaxis(moved, -1, 1),
        np.asfortranarray(obs),
        obs[::-1][::-1],
        np.repeat(obs, 2, -1)[..., ::2],
    ):
        memory, turned = memory_order(given_obs, layout)
        assert memory.flags.c_contiguous and memory.shape == (n * layout.obs_bytes,)
        assert c_order(memory.reshape(n, -1), turned, layout).tobytes() == obs.tobytes()


def test_transposed_memory_is_not_copied() -> None:
    """The point of memory order: the usual channel-first view of channel-last memory is taken as it lies."""
    memory = np.zeros((2, 9, 7, 4), np.uint8)
    taken, turned = memory_order(memory.transpose(0, 3, 1, 2), FrameLayout.whole((4, 9, 7), 1))
    assert turned and np.shares_memory(taken, memory)


def test_a_new_axis_of_one_is_not_copied_either() -> None:
    """One environment: the stride of the first axis may be anything, and says nothing."""
    memory = np.arange(9 * 7 * 4, dtype=np.uint8).reshape(9, 7, 4)
    one = memory.transpose(2, 0, 1)[None]
    assert one.strides[0] == 0
    taken, turned = memory_order(one, FrameLayout.whole((4, 9, 7), 1))
    assert turned and np.shares_memory(taken, memory) and taken.tobytes() == memory.tobytes()


# -- the same in C ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("turned", [False, True])
@given(layout=layouts(), n=st.integers(1, 3))
def test_frames_are_stored_as_their_planes(turned: bool, layout: FrameLayout, n: int) -> None:
    """Whatever memory order an observation comes in, its frames are slices of the stack's axis, and it is read back."""
    kind = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[layout.itemsize]
    stream = Stream(0, n, layout.obs_shape, kind, "noise")
    column = column_for(stream, "none", rows=2)
    split_by(column, layout)
    obs = np.random.default_rng(0).integers(1, 256, (n, *layout.obs_shape)).astype(kind)
    column.write(0, np.moveaxis(np.moveaxis(obs, 1, -1).copy(), -1, 1) if turned else obs)
    chunk = ChunkDecoder(bytes(column.chunks()[1]), *column.spec.codecs())
    for env, frames in enumerate(layout.split(as_bytes(obs))):
        numbers = chunk.frame_numbers(0, env, 0)
        assert [chunk.frame(env, number) for number in numbers] == [frame.tobytes() for frame in frames]
        assert chunk.observation(0, env, 0) == obs[env].tobytes()
    assert read_column(column)[0].tobytes() == obs.tobytes()


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize(("axis", "group", "taken"), [(0, 4, True), (0, 1, True), (2, 7, False)])
def test_transposed_memory_is_taken_as_it_lies(n: int, axis: int, group: int, taken: bool) -> None:
    """Also with one environment, where the stride of the first axis may be anything; but not where the stack is elsewhere."""
    column = make_column((4, 9, 7), n_envs=n, method="delta", rows=2)
    split_by(column, FrameLayout((4, 9, 7), 1, axis, group))
    memory = np.random.default_rng(0).integers(0, 256, (n, 9, 7, 4), dtype=np.uint8)
    obs = memory.transpose(0, 3, 1, 2) if n > 1 else memory[0].transpose(2, 0, 1)[None]
    column.write(0, obs)
    assert bool(ChunkDecoder(bytes(column.chunks()[1])).head["flags"] & CAN_TURN) == taken
    np.testing.assert_array_equal(read_column(column)[0], obs)
    last = [column.last_observation(env) for env in range(n)]
    np.testing.assert_array_equal(last, as_bytes(obs))


KINDS = {
    "gray, channel-last": ((7, 9, 1), 2, (2, 1)),
    "gray, channel-first": ((1, 7, 9), 0, (0, 1)),
    "RGB, channel-last": ((5, 6, 3), 2, (2, 3)),
    "RGB, channel-first": ((3, 5, 6), 0, (0, 3)),
    "new axis": ((7, 9), None, (0, 1)),
    "new axis before RGB": ((5, 6, 3), None, (0, 1)),
    "1-D": ((40,), 0, (0, 40)),
    "1-D, new axis": ((40,), None, (0, 1)),
    "2-D": ((5, 8), 1, (1, 8)),
}


@pytest.mark.parametrize("depth", [2, 3, 4, 5, 8, 16])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("content", ["noise", "game"])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_stacks_are_found(kind: str, depth: int, content: str, dtype: Any) -> None:
    shape, axis, expected = KINDS[kind]
    stream = Stream(depth, 2, shape, dtype, content, Stack(depth, axis), done_rate=0.0)
    found = None
    search = StackSearch(stream.obs_shape, stream.dtype.itemsize)
    for _ in range(2 * depth):
        obs, next_obs, _, _ = stream.step()
        found = search.look(as_bytes(obs), as_bytes(next_obs))
        if found is not None:
            break
    assert found is not None
    assert (found.axis, found.group, found.depth) == (*expected, depth)


@given(
    shape=st.lists(st.integers(1, 12), min_size=1, max_size=3).map(tuple),
    seed=st.integers(0, 2**16),
    content=st.sampled_from(["noise", "static", "zeros"]),
)
def test_no_stack_in_unrelated_frames(shape: Any, seed: int, content: str) -> None:
    """Neither in noise nor in a still picture, which looks like any stack of equal frames."""
    stream = Stream(seed, 1, shape, np.uint8, content)
    search = StackSearch(shape, 1)
    for _ in range(20):
        obs, next_obs, _, _ = stream.step()
        assert search.look(as_bytes(obs), as_bytes(next_obs)) is None


@given(shape=st.lists(st.integers(1, 40), min_size=1, max_size=3).map(tuple), itemsize=st.sampled_from([1, 4]))
def test_candidates_are_stacks(shape: Any, itemsize: int) -> None:
    seen = list(candidates(shape, itemsize))
    assert len({(layout.axis, layout.group) for layout in seen}) == len(seen)
    for layout in seen:
        assert layout.depth >= 2 and layout.depth * layout.group == shape[layout.axis]
        assert layout.frame_bytes >= MIN_FRAME_BYTES
    assume(seen)
    by_axis = [[layout.depth for layout in seen if layout.axis == axis] for axis in {layout.axis for layout in seen}]
    assert all(depths == sorted(depths, reverse=True) for depths in by_axis), "deepest first, or a gray stack is taken for RGB"


@pytest.mark.parametrize(
    ("layout", "row"),
    [
        (FrameLayout.whole((84, 80), 1), 80),
        (FrameLayout.whole((3, 84, 80), 1), 80),
        (FrameLayout.whole((84, 80, 1), 1), 80),
        (FrameLayout.whole((84, 80, 3), 1), 240),
        (FrameLayout.whole((84, 80, 3), 4), 960),
        (FrameLayout((4, 84, 80), 1, 0, 1), 80),
        (FrameLayout((84, 80, 4), 1, 2, 1), 80),
        (FrameLayout((84, 80, 12), 1, 2, 3), 240),
        (FrameLayout.whole((17,), 4), 0),
    ],
)
def test_rows_of_a_frame(layout: FrameLayout, row: int) -> None:
    """What is above a pixel matters to objects, and to masks, wherever the colours are."""
    assert layout.row_bytes == row
