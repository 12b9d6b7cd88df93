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


def encode(ref: np.ndarray, cur: np.ndarray, room: int | None = None) -> bytes | None:
    """The patch that makes ``cur`` of ``ref``; None where it does not fit into ``room``."""
    from sb3_extra_buffers.storage.kernels.patch import encode_patch

    size = ref.size
    room = 2 * size + 64 if room is None else room
    a, b = padded(ref), padded(cur)
    out = np.full(GUARD + room + GUARD, 0xAB, np.uint8)
    end = encode_patch(a, b, a.view(np.uint64), b.view(np.uint64), size, out, GUARD, GUARD + room)
    assert (out[:GUARD] == 0xAB).all() and (out[GUARD + room :] == 0xAB).all(), "written out of bounds"
    return None if end < 0 else out[GUARD:end].tobytes()


def apply(patch: bytes, ref: np.ndarray) -> tuple[int, np.ndarray]:
    """Bytes of the patch that were used (0 for a damaged one) and the frame, whose surroundings must stay."""
    from sb3_extra_buffers.storage.kernels.patch import apply_patch

    data = np.frombuffer(patch + b"\xcd" * 8, np.uint8).copy()
    guarded = np.full(GUARD + ref.size + GUARD, 0x5C, np.uint8)
    guarded[GUARD : GUARD + ref.size] = ref
    start = data.ctypes.data
    end = int(apply_patch(np.uint64(start), np.uint64(start + len(patch)), np.uint64(guarded.ctypes.data + GUARD), ref.size))
    assert (guarded[:GUARD] == 0x5C).all() and (guarded[GUARD + ref.size :] == 0x5C).all(), "written out of bounds"
    assert end == 0 or start < end <= start + len(patch)
    return end - start if end else 0, guarded[GUARD : GUARD + ref.size].copy()


def check(ref: np.ndarray, cur: np.ndarray) -> bytes:
    patch = encode(ref, cur)
    assert patch is not None
    assert encode(ref, cur) == patch, "the same input must give the same bytes"
    used, frame = apply(patch, ref)
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


@given(pair=frames())
def test_round_trip(pair: tuple[np.ndarray, np.ndarray]) -> None:
    check(*pair)


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
    """Skips from 254 on and lengths from 128 on take the long form."""
    ref = np.zeros(skip + length + 3, np.uint8)
    cur = ref.copy()
    cur[skip : skip + length] = 9 if fill else np.arange(length) % 200 + 1
    patch = check(ref, cur)
    expected = 1 + (1 if skip < 254 else 5) + (1 if length < 128 else 5) + (1 if fill and length >= 6 else length)
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


@given(ref=st.binary(max_size=300), patch=st.binary(max_size=120))
def test_random_patches_do_no_harm(ref: bytes, patch: bytes) -> None:
    used, frame = apply(patch, np.frombuffer(ref, np.uint8))
    assert frame.size == len(ref)
    if used:
        assert patch[used - 1] == 0xFE


@given(pair=frames(600), data=st.data())
def test_damaged_patches_do_no_harm(pair: tuple[np.ndarray, np.ndarray], data: Any) -> None:
    ref, cur = pair
    patch = bytearray(encode(ref, cur) or b"")
    for _ in range(20):
        damaged = bytearray(patch)
        for _ in range(data.draw(st.integers(1, 3))):
            place = data.draw(st.integers(0, len(damaged) - 1))
            damaged[place] = data.draw(st.sampled_from([0, 1, 127, 128, 253, 254, 255, damaged[place] ^ 1]))
        apply(bytes(damaged), ref)
        apply(bytes(damaged) + b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", ref)


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
    apply(patch, np.arange(size, dtype=np.uint8))
