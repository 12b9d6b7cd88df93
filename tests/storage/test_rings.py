"""Rings over several laps in chunks of any size, cells in any order, stacks made at will: always what NumPy holds."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from frames_kit import Ring, frames_of_array, split_by
from hypothesis import given
from hypothesis import strategies as st
from observation_streams import CONTENTS, METHODS, PRESENTATIONS, Stack, Stream, assert_same_bits, frames_of, present

from sb3_extra_buffers.storage import CompressedArray
from sb3_extra_buffers.storage.layout import FrameLayout

steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 40)),
        st.tuples(st.just("jump"), st.integers(0, 69)),
        st.tuples(st.just("idle"), st.integers(1, 4)),
        st.tuples(st.just("twin"), st.sampled_from(["pickle", "deepcopy"])),
        st.tuples(st.just("part"), st.integers(0, 99)),
        st.tuples(st.just("clear"), st.none()),
        st.tuples(st.just("check"), st.none()),
    ),
    min_size=3,
    max_size=25,
)


@pytest.mark.parametrize("method", METHODS)
@given(
    actions=steps,
    content=st.sampled_from(CONTENTS),
    depth=st.sampled_from([1, 2, 4]),
    n_envs=st.integers(1, 3),
    seed=st.integers(0, 2**16),
    rows=st.integers(1, 70),
    chunk_rows=st.sampled_from([1, 16, 32, 48]),
)
def test_rings(
    method: str | None, actions: Any, content: str, depth: int, n_envs: int, seed: int, rows: int, chunk_rows: int
) -> None:
    """Obs and next_obs in a ring that sometimes jumps to another row, or writes the same again."""
    stack = Stack(depth, 0) if depth > 1 else None
    ring = Ring(Stream(seed, n_envs, (1, 6, 8), np.uint8, content, stack, 0.1), method, rows, chunk_rows=chunk_rows)
    for what, argument in actions:
        if what == "add":
            ring.add(argument)
        elif what == "jump":
            ring.row = argument % rows
        elif what == "idle":
            row = (ring.row - 1) % ring.rows
            for _ in range(argument):
                ring.frames.write(row, ring.twins[1][row])
                ring.twins[0][row] = ring.twins[1][row]
        elif what == "part":  # some environments, in one view
            view, env = argument % 2, argument % n_envs
            obs = ring.stream.step()[0][env : env + 1]
            row = argument * 7 % rows
            ring.frames.write(row, obs, view, envs=[env])
            ring.twins[view][row, env] = obs[0]
        elif what == "twin":
            twin = copy.deepcopy(ring.frames) if argument == "deepcopy" else pickle.loads(pickle.dumps(ring.frames))
            ring.frames = twin
        elif what == "clear":
            ring.frames.clear()
            ring.twins[:] = 0
        else:
            ring.check()
    ring.check()


@pytest.mark.parametrize("method", METHODS)
@given(
    seed=st.integers(0, 2**16),
    lead=st.sampled_from([(40,), (25, 2), (9, 2, 2), (150, 1)]),
    lonely=st.sampled_from([0.01, 0.1, 1.0]),
    writes=st.integers(1, 300),
)
def test_arrays_written_anywhere(method: str | None, seed: int, lead: tuple[int, ...], lonely: float, writes: int) -> None:
    """Cells in any order, most of them in a few places, the others hardly ever."""
    rng = np.random.default_rng(seed)
    frames = [frames_of(content, rng, (6, 8), np.uint8) for content in ("noise", "noise", "noise", *CONTENTS)]
    array = CompressedArray(lead, np.uint8, (6, 8), compression_method=method)
    twin = np.zeros(array.shape, np.uint8)
    busy = rng.integers(0, lead[0], rng.integers(1, 4))
    active = tuple(rng.integers(length) for length in lead[1:])
    for number in range(writes):
        if rng.random() < 0.03:  # one environment for a while, the others stand still with what they have begun
            active = tuple(rng.integers(length) for length in lead[1:])
        row = rng.integers(lead[0]) if rng.random() < lonely else rng.choice(busy)
        cell = (row, *active)
        obs = present(next(frames[rng.integers(len(frames))])[None], rng.choice(sorted(PRESENTATIONS)))[0]
        if rng.random() < 0.02:
            obs = np.broadcast_to(obs, twin[row].shape)
            cell = (row,)
        array[cell] = obs
        twin[cell] = obs
        if rng.random() < 0.01:
            array = copy.deepcopy(array) if rng.random() < 0.5 else array.copy()
        if number % 64 == 0:
            assert_same_bits(np.asarray(array), twin)
    assert_same_bits(np.asarray(array), twin)


@pytest.mark.parametrize("method", METHODS)
@given(
    seed=st.integers(0, 2**16),
    n_envs=st.integers(1, 3),
    padding=st.sampled_from(["first", "last"]),
    writes=st.integers(1, 200),
)
def test_stacks_made_at_will(method: str | None, seed: int, n_envs: int, padding: str, writes: int) -> None:
    """Stacks of new frames, of known ones in any order, of zeros: what is just being put together is kept."""
    rng = np.random.default_rng(seed)
    depth, rows = 4, 12
    shape = (depth, 5, 8) if padding == "first" else (5, 8, depth)
    axis = 0 if padding == "first" else 2
    array = CompressedArray((rows, n_envs, *shape), np.uint8, shape, compression_method=method)
    split_by(frames_of_array(array), FrameLayout(shape, 1, axis, 1))
    twin = np.zeros(array.shape, np.uint8)
    busy = rng.integers(0, rows, 2)
    last = np.zeros((n_envs, depth, 5, 8), np.uint8)
    for number in range(writes):
        for env in range(n_envs):
            new = rng.integers(0, 256, (depth, 5, 8), dtype=np.uint8)
            if rng.random() < 0.3:
                new &= rng.integers(0, 2, (depth, 1, 1), dtype=np.uint8) * 255  # some frames are black
            what = rng.integers(6)
            if what == 0:
                last[env] = 0
            elif what == 1:
                last[env] = new
            elif what == 2:
                last[env] = rng.permutation(last[env])
            elif what == 3:
                last[env, rng.integers(depth)] = new[0]
            elif what == 4:
                last[env] = np.concatenate([last[env, 1:], new[:1]])
        row = rng.choice(busy) if rng.random() < 0.9 else rng.integers(rows)
        obs = last if padding == "first" else np.moveaxis(last, 1, -1)
        if rng.random() < 0.3:
            env = rng.integers(n_envs)
            array[row, env] = twin[row, env] = obs[env]
        else:
            array[row] = present(obs, rng.choice(sorted(PRESENTATIONS)))
            twin[row] = obs
        if number % 32 == 0:
            assert_same_bits(np.asarray(array), twin)
    assert_same_bits(np.asarray(array), twin)


def test_chunks_that_overlap_are_loaded_in_the_order_in_which_they_were_written() -> None:
    """The rows of the second one lie before those of the first, and on some of them."""
    array = CompressedArray((96, 2, 8, 8), np.uint8, (8, 8))
    expected = np.zeros(array.shape, np.uint8)
    rng = np.random.default_rng(0)
    for row in (*range(32, 80), *range(48)):
        array[row] = expected[row] = rng.integers(0, 255, (2, 8, 8), np.uint8)
    for copied in (array, pickle.loads(pickle.dumps(array)), copy.deepcopy(array)):
        np.testing.assert_array_equal(np.asarray(copied), expected)
