"""The same as everywhere, with segments so small that something is recycled or built anew at every other write."""

from __future__ import annotations

import copy
import pickle
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from observation_streams import CONTENTS, METHODS, PRESENTATIONS, Stack, Stream, assert_same_bits, frames_of, present
from store_kit import Ring, limits

from sb3_extra_buffers.storage import CompressedArray
from sb3_extra_buffers.storage.layout import FrameLayout


def tight(compacts: bool) -> AbstractContextManager[None]:
    """
    Make the sizes of the store small.

    :param compacts: Whether the store is built anew now and then; otherwise segments are only used again
    """
    return limits(min_segment=1 << 9, first_check=12 if compacts else 1 << 30, block_rows=3, first_room=2)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 12)),
        st.tuples(st.just("jump"), st.integers(0, 29)),
        st.tuples(st.just("idle"), st.integers(1, 4)),
        st.tuples(st.just("twin"), st.sampled_from(["pickle", "deepcopy"])),
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
    compacts=st.booleans(),
)
def test_rings(method: str | None, actions: Any, content: str, depth: int, n_envs: int, seed: int, compacts: bool) -> None:
    """Obs and next_obs in a ring that sometimes jumps to another row, or writes the same again."""
    with tight(compacts):
        stack = Stack(depth, 0) if depth > 1 else None
        ring = Ring(Stream(seed, n_envs, (1, 6, 8), np.uint8, content, stack, 0.1), method, rows=30)
        for what, argument in actions:
            if what == "add":
                ring.add(argument)
            elif what == "jump":
                ring.row = argument
            elif what == "idle":
                row = (ring.row - 1) % ring.rows
                for _ in range(argument):
                    ring.store.write_row(row, ring.indexes[0], ring.twins[1][row])
                    ring.twins[0][row] = ring.twins[1][row]
            elif what == "twin":
                twin = copy.deepcopy(ring.store) if argument == "deepcopy" else pickle.loads(pickle.dumps(ring.store))
                ring.store = twin
            elif what == "clear":
                ring.store.clear()
                ring.twins[:] = 0
            else:
                ring.check()
        ring.check()


@pytest.mark.parametrize("method", METHODS)
@given(
    seed=st.integers(0, 2**16),
    compacts=st.booleans(),
    lead=st.sampled_from([(40,), (25, 2), (9, 2, 2)]),
    lonely=st.sampled_from([0.01, 0.03, 0.2]),
    writes=st.integers(1, 300),
)
def test_arrays_written_anywhere(
    method: str | None, seed: int, compacts: bool, lead: tuple[int, ...], lonely: float, writes: int
) -> None:
    """
    Cells in any order, most of them in a few places, the others hardly ever.

    The others are preferably written in the very moment in which the store looks for what it can recycle.
    """
    rng = np.random.default_rng(seed)
    frames = [frames_of(content, rng, (6, 8), np.uint8) for content in ("noise", "noise", "noise", *CONTENTS)]
    with tight(compacts):
        array = CompressedArray(lead, np.uint8, (6, 8), compression_method=method)
        twin = np.zeros(array.shape, np.uint8)
        busy = rng.integers(0, lead[0], rng.integers(1, 4))
        active = tuple(rng.integers(length) for length in lead[1:])
        last_asked = 0
        for number in range(writes):
            if rng.random() < 0.03:  # one environment for a while, the others stand still with what they have begun
                active = tuple(rng.integers(length) for length in lead[1:])
            core = array._store.core
            asked, fuller = core.work[1], core.usage()[2] % core.segment_bytes > 0.7 * core.segment_bytes
            rate = 10 * lonely if fuller or asked != last_asked else lonely / 10
            last_asked = asked
            row = rng.integers(lead[0]) if rng.random() < rate else rng.choice(busy)
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
    compacts=st.booleans(),
    n_envs=st.integers(1, 3),
    padding=st.sampled_from(["first", "last"]),
    writes=st.integers(1, 200),
)
def test_stacks_made_at_will(method: str | None, seed: int, compacts: bool, n_envs: int, padding: str, writes: int) -> None:
    """Stacks of new frames, of known ones in any order, of zeros: the store must keep what it is just putting together."""
    rng = np.random.default_rng(seed)
    depth, rows = 4, 12
    shape = (depth, 5, 8) if padding == "first" else (5, 8, depth)
    axis = 0 if padding == "first" else 2
    with tight(compacts):
        array = CompressedArray((rows, n_envs, *shape), np.uint8, shape, compression_method=method)
        array._store.core.rebuild(FrameLayout(shape, 1, axis, 1))
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
