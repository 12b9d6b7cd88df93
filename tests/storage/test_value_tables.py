"""Elements of few values are stored as bytes, with a table of values in each chunk; whatever the bits are, they come back."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from frames_kit import QUICK_METHODS, Ring, refuse_each
from hypothesis import given
from hypothesis import strategies as st
from observation_streams import Stack
from reference_decoder import NO_TRANSFORM, VALUES, ChunkDecoder
from value_streams import ValueStream, make_values

WIDE = ["<f2", ">f2", "<f4", ">f4", "<f8", ">f8", "<i2", ">u2", "<u4", ">i8", "<c8"]
NARROW = ["u1", "i1", "?", "<c16"]
STACKS: dict[str, Stack | None] = {"none": None, "first": Stack(4, 0), "last": Stack(4, -1), "two": Stack(2, -1, "repeat")}
AMOUNTS = st.sampled_from([1, 2, 50, 255, 256, 257, 1000])


def chunks_of(ring: Ring) -> list[ChunkDecoder]:
    sealed, last = ring.frames.chunks()
    return [ChunkDecoder(bytes(chunk), *ring.frames.spec.codecs()) for chunk in [*sealed, *([last] if last else [])]]


def check(ring: Ring) -> set[int]:
    """Compare what is read, and what the decoder in Python makes of it, with what was written; return the transforms."""
    ring.check()
    decoded = np.zeros_like(ring.twins)
    chunks = chunks_of(ring)
    for chunk in chunks:
        for row in range(chunk.rows):
            for env in range(ring.stream.n_envs):
                for view in range(2):
                    obs = np.frombuffer(chunk.observation(row, env, view), decoded.dtype).reshape(decoded.shape[3:])
                    decoded[view, chunk.head["first_row"] + row, env] = obs
    assert decoded.tobytes() == ring.twins.tobytes()
    return {chunk.head["transform"] for chunk in chunks}


def make_ring(
    dtype: Any,
    amount: int,
    method: str | None = "delta",
    stack: str = "first",
    rows: int = 40,
    size: tuple[int, int] = (6, 5),
    **options: Any,
) -> Ring:
    shape = (*size, 1) if stack in ("last", "two") else (1, *size)
    stream: Any = ValueStream(dtype, amount, options.pop("seed", 0), frame_shape=shape, stack=STACKS[stack], **options)
    return Ring(stream, method, rows)


def add(ring: Ring, amount: int, count: int) -> None:
    ring.stream.amount = amount  # type: ignore[attr-defined]
    ring.add(count)


@pytest.mark.parametrize("dtype", WIDE)
def test_few_values(dtype: str) -> None:
    ring = make_ring(dtype, 256)
    ring.add(90)
    assert check(ring) == {VALUES}
    assert max(len(chunk.values) for chunk in chunks_of(ring)) <= 256


@pytest.mark.parametrize("dtype", NARROW)
def test_types_without_a_table(dtype: str) -> None:
    ring = make_ring(dtype, 2)
    ring.add(50)
    assert check(ring) == {NO_TRANSFORM}


@pytest.mark.parametrize("method", QUICK_METHODS)
def test_methods(method: str) -> None:
    """A codec alone does without, as it finds repeated elements by itself."""
    ring = make_ring("<f4", 100, method)
    ring.add(60)
    assert check(ring) == {VALUES if str(method).startswith("delta") else NO_TRANSFORM}


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("moment", [0, 1, 7, 15, 16, 17, 33])
def test_the_257th_value(stack: str, moment: int) -> None:
    """Whenever it comes, the open chunk is coded again without a table, and sealed ones stay as they are."""
    ring = make_ring("<f4", 256, stack=stack, size=(20, 20), content="noise")
    ring.add(moment)
    add(ring, 1000, 1)
    ring.check()
    last = chunks_of(ring)[-1]
    assert last.head["transform"] == NO_TRANSFORM and not last.values
    assert all(chunk.head["transform"] == VALUES for chunk in chunks_of(ring)[:-1])
    add(ring, 256, 60)
    ring.check()
    assert all(chunk.head["transform"] == VALUES for chunk in chunks_of(ring))


@given(
    seed=st.integers(0, 10_000),
    dtype=st.sampled_from([*WIDE, *NARROW]),
    method=st.sampled_from(["delta", "delta-gzip/1", "gzip1"]),
    stack=st.sampled_from(sorted(STACKS)),
    rows=st.integers(1, 40),
    changes=st.lists(st.tuples(AMOUNTS, st.integers(1, 25)), min_size=1, max_size=4),
)
def test_any_amount_at_any_moment(
    seed: int, dtype: str, method: str, stack: str, rows: int, changes: list[tuple[int, int]]
) -> None:
    most = {"?": 2, "u1": 256, "i1": 256}.get(dtype, 1000)
    ring = make_ring(dtype, 1, method, stack, rows, seed=seed, content=("mixed", "game", "noise")[seed % 3])
    for amount, count in changes:
        add(ring, min(amount, most), count)
        ring.check()
    check(ring)
    for twin_of in (copy.deepcopy, lambda frames: pickle.loads(pickle.dumps(frames))):  # goes on where it was
        ring.frames = twin_of(ring.frames)
        ring.check()
        add(ring, min(changes[0][0], most), 5)
        ring.check()


def test_nothing_but_zeros() -> None:
    """Where no frame is stored, there are no values, and a chunk has no table."""
    ring = make_ring("<f4", 1)
    for row in range(3):
        ring.frames.write(row, ring.twins[0, row], 0)
    assert check(ring) == {NO_TRANSFORM}
    ring.row = 3
    add(ring, 9, 60)
    assert VALUES in check(ring)


def test_special_values() -> None:
    """Compared as numbers, two of these would be equal, and a NaN not even itself."""
    values = make_values(">f8", 6)
    bits = {values[k : k + 1].tobytes() for k in range(6)}
    assert len(bits) == 6 and np.isnan(values).sum() == 2 and (values == 0).sum() == 2
    ring = make_ring(">f8", 6, content="noise")
    ring.add(40)
    assert check(ring) == {VALUES}
    assert {value for chunk in chunks_of(ring) for value in chunk.values} == bits


@pytest.mark.parametrize("amount", [9, 1000])
def test_refused_memory(amount: int) -> None:
    """The table may turn out too small at any moment, and memory for doing without may be refused then."""
    ring = make_ring("<f4", 9)
    ring.add(13)
    ring.stream.amount = amount  # type: ignore[attr-defined]
    for _ in range(12):
        pair = ring.stream.step()[:2]
        refuse_each(lambda pair=pair: ring.write(pair), ring.check)  # type: ignore[misc]
        ring.went_on(pair)
    check(ring)


def test_smaller_than_without() -> None:
    """Even where frames have nothing to do with each other, a byte takes less than a float."""
    sizes = {}
    for amount in (256, 257):
        ring = make_ring("<f4", amount, rows=64, size=(40, 40), content="noise")
        ring.add(64)
        assert chunks_of(ring)[-1].head["transform"] == (VALUES if amount == 256 else NO_TRANSFORM)
        sizes[amount] = ring.frames.usage()[4]
    assert sizes[256] < 0.3 * sizes[257]
