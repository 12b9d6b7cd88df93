"""One frame as a patch on another: exact for any two frames, and harmless whatever a damaged patch holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from observation_streams import needs_numba

pytestmark = needs_numba
pytest.importorskip("numba")

GUARD = 64


def padded(frame: np.ndarray) -> np.ndarray:
    rows = np.zeros(-(-frame.size // 8) * 8, np.uint8)
    rows[: frame.size] = frame
    return rows


def encode(ref: np.ndarray, cur: np.ndarray, room: int | None = None, row: int | None = None) -> bytes | None:
    """
    Make the patch that turns ``ref`` into ``cur``.

    :param row: Bytes of a row; then the better of a patch on ``ref`` and one on the row above is made
    :return: The patch; None where it does not fit into ``room``
    """
    from sb3_extra_buffers.storage.kernels.patch import encode_best, encode_patch

    size = ref.size
    room = 2 * size + 64 if room is None else room
    a, b, scratch = padded(ref), padded(cur), padded(np.full(size, 0x77, np.uint8))
    out = np.full(GUARD + room + GUARD, 0xAB, np.uint8)
    arguments = (a, b, a.view(np.uint64), b.view(np.uint64), size, out, GUARD, GUARD + room)
    end = encode_patch(*arguments) if row is None else encode_best(*arguments, row, scratch, scratch.view(np.uint64))
    assert (out[:GUARD] == 0xAB).all() and (out[GUARD + room :] == 0xAB).all(), "written out of bounds"
    assert not scratch[size:].any() and not b[size:].any()
    return None if end < 0 else out[GUARD:end].tobytes()


def apply(patch: bytes, ref: np.ndarray, row: int = 0) -> tuple[int, np.ndarray]:
    """Bytes of the patch that were used (0 for a damaged one) and the frame, whose surroundings must stay."""
    from sb3_extra_buffers.storage.kernels.patch import apply_patch

    data = np.frombuffer(patch + b"\xcd" * 8, np.uint8).copy()
    guarded = np.full(GUARD + ref.size + GUARD, 0x5C, np.uint8)
    guarded[GUARD : GUARD + ref.size] = ref
    start = data.ctypes.data
    frame = guarded.ctypes.data + GUARD
    end = int(apply_patch(np.uint64(start), np.uint64(start + len(patch)), np.uint64(frame), ref.size, row))
    assert (guarded[:GUARD] == 0x5C).all() and (guarded[GUARD + ref.size :] == 0x5C).all(), "written out of bounds"
    assert end == 0 or start < end <= start + len(patch)
    return end - start if end else 0, guarded[GUARD : GUARD + ref.size].copy()


def check(ref: np.ndarray, cur: np.ndarray, row: int | None = None) -> bytes:
    patch = encode(ref, cur, row=row)
    assert patch is not None
    assert encode(ref, cur, row=row) == patch, "the same input must give the same bytes"
    used, frame = apply(patch, ref, row or 0)
    assert used == len(patch)
    np.testing.assert_array_equal(frame, cur)
    return patch


@st.composite
def frames(draw: Any, max_size: int = 3000) -> tuple[np.ndarray, np.ndarray]:
    """Two frames that agree here and there, as hard as it gets for run lengths and word boundaries."""
    size = draw(st.integers(0, max_size))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    values = draw(st.sampled_from([2, 3, 256]))
    ref = rng.integers(0, values, size, dtype=np.uint8)
    cur = ref.copy()
    for start, length, how in draw(
        st.lists(
            st.tuples(
                st.integers(0, max(size - 1, 0)),
                st.one_of(st.integers(1, 20), st.sampled_from([126, 127, 128, 129, 253, 254, 255, 256, 1000])),
                st.sampled_from(["other", "fill", "noise", "flip", "alternate"]),
            ),
            max_size=12,
        )
    ):
        part = cur[start : start + length]
        if how == "other":
            part += 1
        elif how == "fill":
            part[:] = rng.integers(0, 256)
        elif how == "noise":
            part[:] = rng.integers(0, 256, part.size)
        elif how == "alternate":
            part[::2] += 1
        else:
            part ^= 255
    return ref, cur


@given(pair=frames(), row=st.one_of(st.none(), st.integers(0, 400)))
def test_round_trip(pair: tuple[np.ndarray, np.ndarray], row: int | None) -> None:
    if row is not None and row >= pair[0].size:
        row = 0  # a frame of one row has none above
    check(*pair, row)


@given(
    seed=st.integers(0, 2**16),
    shape=st.tuples(st.integers(2, 40), st.integers(1, 70)),
    content=st.sampled_from(["stripes", "blocks"]),
)
def test_round_trip_on_the_row_above(seed: int, shape: tuple[int, int], content: str) -> None:
    """Upright stripes and blocks: a row says nearly everything about the next, and the reference nothing."""
    rng = np.random.default_rng(seed)
    ref = rng.integers(0, 256, shape, dtype=np.uint8)
    cur = np.tile(rng.integers(0, 256, shape[1], dtype=np.uint8), (shape[0], 1))
    if content == "blocks":
        cur = cur.copy()
        cur[shape[0] // 2 :] = rng.integers(0, 256, shape[1])
    patch = check(ref.reshape(-1), cur.reshape(-1), shape[1])
    plain = check(ref.reshape(-1), cur.reshape(-1))
    assert len(patch) <= len(plain)
    if cur.size > 1000:
        assert len(patch) < 2 * shape[1] + 60


@given(pair=frames(800), row=st.integers(1, 100))
def test_best_is_never_worse(pair: tuple[np.ndarray, np.ndarray], row: int) -> None:
    if row < pair[0].size:
        assert len(check(*pair, row)) <= len(check(*pair))


SIZES = [0, 1, 2, 7, 8, 9, 15, 16, 17, 63, 64, 65, 126, 127, 128, 129, 253, 254, 255, 256, 257, 7056, 100_000]


@pytest.mark.parametrize("size", SIZES)
def test_shapes_of_change(size: int) -> None:
    rng = np.random.default_rng(size)
    ref = rng.integers(0, 256, size, dtype=np.uint8)
    assert check(ref, ref) == b"\xfe", "no change is one byte"
    check(ref, ref + np.uint8(1))
    check(ref, ref ^ np.uint8(255))
    check(ref, rng.integers(0, 256, size, dtype=np.uint8))
    check(ref, np.zeros(size, np.uint8))
    check(np.zeros(size, np.uint8), np.full(size, 7, np.uint8))
    alternating = ref.copy()
    alternating[::2] += 1
    check(ref, alternating)
    for place in {0, 1, 6, 7, 8, size // 2, size - 9, size - 8, size - 7, size - 2, size - 1}:
        if 0 <= place < size:
            changed = ref.copy()
            changed[place] ^= 1
            assert len(check(ref, changed)) <= 1 + 5 + 1 + 1 + 1
            check(np.zeros(size, np.uint8), changed)


@pytest.mark.parametrize("skip", [0, 1, 252, 253, 254, 255, 256, 257, 70_000])
@pytest.mark.parametrize("length", [1, 2, 5, 6, 7, 126, 127, 128, 129, 130, 255, 256, 70_000])
@pytest.mark.parametrize("fill", [False, True])
def test_escapes(skip: int, length: int, fill: bool) -> None:
    """Skips from 253 on and lengths from 128 on take the long form."""
    ref = np.zeros(skip + length + 3, np.uint8)
    cur = ref.copy()
    cur[skip : skip + length] = 9 if fill else np.arange(length) % 200 + 1
    patch = check(ref, cur)
    expected = 1 + (1 if skip < 253 else 5) + (1 if length < 128 else 5) + (1 if fill and length >= 6 else length)
    assert len(patch) <= expected


def test_a_patch_that_does_not_fit_is_refused() -> None:
    rng = np.random.default_rng(0)
    ref, cur = rng.integers(0, 256, (2, 500), dtype=np.uint8)
    patch = encode(ref, cur)
    assert patch is not None
    for room in (0, 1, 2, 9, 10, 11, 100, len(patch) - 1):
        assert encode(ref, cur, room) is None
    assert encode(ref, ref, 1) == b"\xfe"
    assert encode(ref, ref, 0) is None


def test_patches_are_small() -> None:
    """A few moved sprites on a large frame cost about what they cover."""
    rng = np.random.default_rng(0)
    ref = rng.integers(0, 256, 7056, dtype=np.uint8)
    cur = ref.copy()
    for start in (500, 584, 668, 4000):
        cur[start : start + 8] = rng.integers(0, 256, 8)
    patch = check(ref, cur)
    assert len(patch) < 4 * (8 + 6) + 2


@given(ref=st.binary(max_size=300), patch=st.binary(max_size=120), row=st.integers(0, 400), up=st.booleans())
def test_random_patches_do_no_harm(ref: bytes, patch: bytes, row: int, up: bool) -> None:
    patch = b"\xfd" + patch if up else patch
    used, frame = apply(patch, np.frombuffer(ref, np.uint8), row)
    assert frame.size == len(ref)
    if used:
        assert patch[used - 1] == 0xFE


@given(pair=frames(600), data=st.data())
def test_damaged_patches_do_no_harm(pair: tuple[np.ndarray, np.ndarray], data: Any) -> None:
    ref, cur = pair
    row = data.draw(st.integers(0, max(ref.size - 1, 0)))
    patch = bytearray(encode(ref, cur, row=row) or b"")
    for _ in range(20):
        damaged = bytearray(patch)
        for _ in range(data.draw(st.integers(1, 3))):
            place = data.draw(st.integers(0, len(damaged) - 1))
            damaged[place] = data.draw(st.sampled_from([0, 1, 127, 128, 252, 253, 254, 255, damaged[place] ^ 1]))
        apply(bytes(damaged), ref, row)
        apply(b"\xfd" + bytes(damaged) + b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", ref, row)


@given(pair=frames(600), data=st.data())
def test_truncated_patches_are_damaged(pair: tuple[np.ndarray, np.ndarray], data: Any) -> None:
    """Without its end mark a patch is not taken for a whole one."""
    patch = encode(*pair)
    assert patch is not None
    length = data.draw(st.integers(0, len(patch) - 1))
    used, _ = apply(patch[:length], pair[0])
    assert used == 0


@pytest.mark.parametrize(
    "patch",
    [
        b"",
        b"\xff",
        b"\xff\xff\xff\xff\xff",
        b"\xff\xff\xff\xff\xff\x00\x01\xfe",
        b"\x00\x7f\xff\xff\xff\xff\xfe",
        b"\x00\xff\xff\xff\xff\xff\x01\xfe",
        b"\x00\x7f\x00\x00\x00\x00\xfe",
        b"\x00\xff\x00\x00\x00\x00\x05\xfe",
        b"\xfd\x00\x01\xfe",
        b"\x10\xff",
        b"\x10\x7f",
        b"\x10\x05abc",
    ],
)
@pytest.mark.parametrize("size", [0, 1, 8, 16, 17, 100])
def test_wrong_lengths_do_no_harm(patch: bytes, size: int) -> None:
    frame = np.arange(size, dtype=np.uint8)
    for row in (0, 1, 7, size, size + 1, 10**6, 2**62):
        apply(patch, frame, row)
        apply(b"\xfd" + patch, frame, row)
