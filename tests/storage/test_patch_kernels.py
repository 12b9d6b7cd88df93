"""One frame as a patch on another: exact for any two frames, and harmless whatever a damaged patch holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from frames_kit import kernel_sets
from hypothesis import given
from hypothesis import strategies as st
from reference_decoder import apply_patch as apply_by_the_page

from sb3_extra_buffers.storage._core import READ_AHEAD, WRITE_AHEAD, apply_patch, encode_patch, use_kernels

GUARD = 64
KERNELS = kernel_sets()


@pytest.fixture(params=KERNELS, autouse=True, scope="module")
def each_kernel_set(request: pytest.FixtureRequest) -> Iterator[None]:
    """Everything here holds for the instructions that every processor has and for those that only this one has."""
    before = use_kernels(request.param)
    yield
    use_kernels(before)


def guarded(data: np.ndarray | bytes, value: int) -> np.ndarray:
    """Bytes with a margin that is watched."""
    margin = np.full(GUARD, value, np.uint8)
    return np.concatenate([margin, np.frombuffer(bytes(data), np.uint8), margin])


def encode(ref: np.ndarray, cur: np.ndarray, room: int | None = None, row: int = 0, row_above: int = 0) -> bytes | None:
    """
    Make the patch that turns ``ref`` into ``cur``.

    :param row: Bytes of a row; then the better of a patch on ``ref`` and one on the row above is made
    :param row_above: Above 1, the row above is tried first; 1: it is tried, too; 0: it is, if the patch on ``ref`` is large
    :return: The patch; None where it does not fit into ``room``
    """
    room = 2 * ref.size + 64 if room is None else room
    before, now = guarded(ref.tobytes(), 0), guarded(cur.tobytes(), 0)
    out = np.full(GUARD + room + GUARD, 0xAB, np.uint8)
    inner = slice(GUARD, GUARD + ref.size)
    end, _ = encode_patch(before[inner], now[inner], row, out, GUARD, GUARD + room, row_above)
    assert (out[:GUARD] == 0xAB).all() and (out[GUARD + room :] == 0xAB).all(), "written out of bounds"
    assert before.tobytes() == guarded(ref.tobytes(), 0).tobytes() and now.tobytes() == guarded(cur.tobytes(), 0).tobytes()
    return None if end < 0 else out[GUARD:end].tobytes()


def apply(patch: bytes, ref: np.ndarray, row: int = 0) -> tuple[bool, np.ndarray]:
    """Whether the patch is sound, and the frame, whose surroundings must stay as they are."""
    data = guarded(patch, 0xCD)
    frame = guarded(ref.tobytes(), 0x5C)
    length = apply_patch(data[GUARD : GUARD + len(patch) + READ_AHEAD], frame[GUARD:], ref.size, row)
    beyond = frame[GUARD + ref.size + WRITE_AHEAD :]
    assert (frame[:GUARD] == 0x5C).all() and beyond.size and (beyond == 0x5C).all(), "written out of bounds"
    assert data.tobytes() == guarded(patch, 0xCD).tobytes()
    assert length == -1 or 2 <= length <= len(patch)
    return length == len(patch), frame[GUARD : GUARD + ref.size]


def check(ref: np.ndarray, cur: np.ndarray, row: int = 0, row_above: int = 0) -> bytes:
    patch = encode(ref, cur, row=row, row_above=row_above)
    if patch is None:
        assert cur.size > 60_000, "only a patch of more than 64 KB may be refused"
        return b""
    assert encode(ref, cur, row=row, row_above=row_above) == patch, "the same input must give the same bytes"
    sound, frame = apply(patch, ref, row)
    assert sound
    np.testing.assert_array_equal(frame, cur)
    if cur.size < 1000:
        assert apply_by_the_page(patch[2:], ref.tobytes(), row) == cur.tobytes()
    return patch


@st.composite
def frames(draw: Any, max_size: int = 3000) -> tuple[np.ndarray, np.ndarray]:
    """Two frames that agree here and there, as hard as it gets for run lengths and word boundaries."""
    size = draw(st.integers(1, max_size))
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


@given(pair=frames(), row=st.integers(0, 400), row_above=st.integers(0, 2))
def test_round_trip(pair: tuple[np.ndarray, np.ndarray], row: int, row_above: int) -> None:
    if row >= pair[0].size:
        row = 0  # a frame of one row has none above
    check(*pair, row, row_above)


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
        assert len(patch) < 2 * shape[1] + 62


@st.composite
def masks(draw: st.DrawFn) -> np.ndarray:
    """Rectangles on a ground, their edges frayed, some of them noise."""
    shape = draw(st.tuples(st.integers(2, 60), st.integers(1, 260)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    frame = np.full(shape, rng.integers(0, 256), np.uint8)
    for _ in range(draw(st.integers(0, 8))):
        top, left = rng.integers(0, shape[0]), rng.integers(0, shape[1])
        value = rng.integers(0, draw(st.sampled_from([4, 256])))
        for row in frame[top : top + rng.integers(1, shape[0] + 1)]:
            begin = max(0, left + rng.integers(-2, 3))
            part = row[begin : begin + rng.integers(1, shape[1] + 1)]
            part[:] = rng.integers(0, 256, part.size) if draw(st.integers(0, 60)) == 0 else value
    return frame


@given(frame=masks(), seed=st.integers(0, 2**32))
def test_masks_on_the_row_above(frame: np.ndarray, seed: int) -> None:
    """By the book, too: the decoder in plain Python makes the same of such a patch, whatever the other frame is."""
    other = np.random.default_rng(seed).integers(0, 256, frame.size, dtype=np.uint8)
    row = frame.shape[1]
    patch = check(other, frame.reshape(-1), row, row_above=2)
    assert apply_by_the_page(patch[2:], other.tobytes(), row) == frame.tobytes()


def up_patch(frame: np.ndarray) -> bytes:
    """Tokens on the row above, without the mark."""
    patch = check(np.zeros(frame.size, np.uint8), frame.reshape(-1), frame.shape[-1], row_above=2)
    assert patch[2] == 253
    return patch[3:]


def test_a_byte_of_late_is_not_written_again() -> None:
    """In the first row, the contrast is the row itself. A byte counts as recent until three others have come after it."""
    frame = np.zeros((2, 200), np.uint8)
    for at, value in enumerate([5, 5, 7, 5, 9, 7, 11, 5, 7]):
        frame[:, 10 * at] = value
    given, first, second, third = 128, 160, 192, 224
    tokens = [(0, given, 5), (9, first), (9, given, 7), (9, second), (9, given, 9), (9, third), (9, given, 11), (9, given, 5)]
    assert up_patch(frame) == bytes([number for token in [*tokens, (9, third)] for number in token])


@pytest.mark.parametrize("length", [1, 2, 8, 9, 30, 31, 286, 287, 1000])
@pytest.mark.parametrize("begin", [0, 5, 252, 253, 2184, 2191, 2192, 4000])
def test_one_run_is_one_token(begin: int, length: int) -> None:
    """Wherever it begins, and across the end of what is looked at together: 8,192 bytes from the second row on."""
    frame = np.zeros((3, 6000), np.uint8)
    frame[1, begin : begin + length] = 3
    skip = 3  # a whole row and more
    short = 1 if length < 31 else 2 if length < 287 else 5
    back = 1 if 6000 - length < 253 else 3  # and the row below is as it was before
    assert len(up_patch(frame)) == skip + short + 1 + back + short


def test_noise_is_copied() -> None:
    """Bytes that are all different take one byte each, beside two for the token; a run among them is a run."""
    frame = np.zeros((2, 400), np.uint8)
    frame[:, 10:110] = np.arange(1, 101)
    frame[:, 110:130] = 200
    assert up_patch(frame) == bytes([10, 99, *range(1, 101), 0, 128 | 19, 200])


def test_the_row_above_is_stayed_with_once_it_was_better_twice() -> None:
    """Then it is taken without trying the other frame, until it is time to compare again."""
    rng = np.random.default_rng(0)
    stripes = [np.tile(rng.integers(0, 256, 80, dtype=np.uint8), 60) for _ in range(2)]
    out = np.zeros(20_000, np.uint8)

    def taken(before: np.ndarray, now: np.ndarray, state: int) -> tuple[bool, int]:
        end, state = encode_patch(before, now, 80, out, 0, out.size, state)
        return bool(end > 2 and out[2] == 253), state

    assert taken(*stripes, 0) == (True, 1)
    stays = taken(*stripes, 1)[1]
    assert stays > 2
    for state in range(stays, 1, -1):
        assert taken(stripes[0], stripes[0], state) == (True, state - 1)  # though there is nothing to tell
    assert taken(stripes[0], stripes[0], 1) == (False, 0)


@given(pair=frames(800), row=st.integers(1, 100))
def test_best_is_never_worse(pair: tuple[np.ndarray, np.ndarray], row: int) -> None:
    if row < pair[0].size:
        assert len(check(*pair, row)) <= len(check(*pair))


SIZES = [1, 2, 7, 8, 9, 15, 16, 17, 63, 64, 65, 126, 127, 128, 129, 253, 254, 255, 256, 257, 7056, 100_000]


@pytest.mark.parametrize("size", SIZES)
def test_shapes_of_change(size: int) -> None:
    rng = np.random.default_rng(size)
    ref = rng.integers(0, 256, size, dtype=np.uint8)
    assert check(ref, ref) == b"\0\0", "no change is an empty patch"
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
            assert len(check(ref, changed)) <= 2 + 5 + 1 + 1
            check(np.zeros(size, np.uint8), changed)


@pytest.mark.parametrize("skip", [0, 1, 252, 253, 254, 255, 256, 257, 65_535, 65_536])
@pytest.mark.parametrize(
    "length", [1, 2, 5, 6, 7, 29, 30, 31, 32, 126, 127, 128, 129, 130, 255, 256, 285, 286, 287, 288, 60_000]
)
@pytest.mark.parametrize("fill", [False, True])
def test_escapes(skip: int, length: int, fill: bool) -> None:
    """Skips from 253 and from 65,536 on, copies from 128 and fills from 31 bytes on take longer forms."""
    ref = np.zeros(skip + length + 3, np.uint8)
    cur = ref.copy()
    cur[skip : skip + length] = 9 if fill else np.arange(length) % 200 + 1
    patch = check(ref, cur)
    copied = (1 if length < 128 else 5) + length
    filled = (1 if length < 31 else 2 if length < 287 else 5) + 1
    expected = 2 + (1 if skip < 253 else 3 if skip < 65_536 else 5) + (filled if fill and length >= 6 else copied)
    assert len(patch) <= expected


def test_a_patch_that_does_not_fit_is_refused() -> None:
    rng = np.random.default_rng(0)
    ref, cur = rng.integers(0, 256, (2, 500), dtype=np.uint8)
    patch = encode(ref, cur)
    assert patch is not None
    for room in (0, 1, 2, 9, 10, 11, 100, len(patch) - 1):
        assert encode(ref, cur, room) is None
        assert encode(ref, cur, room, row=20) is None
        assert encode(ref, cur, room, row=20, row_above=2) is None
    assert encode(ref, ref, 2) == b"\0\0"
    for room in (0, 1):
        assert encode(ref, ref, room) is None
        assert encode(ref, ref, room, row=20, row_above=2) is None


def test_patches_are_small() -> None:
    """A few moved sprites on a large frame cost about what they cover."""
    rng = np.random.default_rng(0)
    ref = rng.integers(0, 256, 7056, dtype=np.uint8)
    cur = ref.copy()
    for start in (500, 584, 668, 4000):
        cur[start : start + 8] = rng.integers(0, 256, 8)
    patch = check(ref, cur)
    assert len(patch) < 4 * (8 + 6) + 2


@given(ref=st.binary(max_size=300), tokens=st.binary(max_size=120), row=st.integers(0, 400), up=st.booleans())
def test_random_patches_do_no_harm(ref: bytes, tokens: bytes, row: int, up: bool) -> None:
    tokens = b"\xfd" + tokens if up else tokens
    frame = np.frombuffer(ref, np.uint8)
    apply(len(tokens).to_bytes(2, "little") + tokens, frame, row)
    apply(tokens, frame, row)


@given(pair=frames(600), seed=st.integers(0, 2**32))
def test_damaged_patches_do_no_harm(pair: tuple[np.ndarray, np.ndarray], seed: int) -> None:
    ref, cur = pair
    rng = np.random.default_rng(seed)
    row = int(rng.integers(0, ref.size))
    patch = encode(ref, cur, row=row) or b""
    for _ in range(20):
        damaged = bytearray(patch)
        for place in rng.integers(0, len(damaged), rng.integers(1, 4)).tolist():
            damaged[place] = rng.choice([0, 1, 127, 128, 252, 253, 254, 255, damaged[place] ^ 1])
        apply(bytes(damaged), ref, row)
        tokens = b"\xfd" + bytes(damaged[2:]) + b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"
        apply(len(tokens).to_bytes(2, "little") + tokens, ref, row)


@given(pair=frames(600), data=st.data())
def test_truncated_patches_are_damaged(pair: tuple[np.ndarray, np.ndarray], data: Any) -> None:
    """A patch that is longer than what is there is not taken for a whole one; nor is one that ends within a token."""
    patch = encode(*pair)
    assert patch is not None
    length = data.draw(st.integers(0, len(patch) - 1))
    assert not apply(patch[:length], pair[0])[0]
    if len(patch) > 2:
        cut = patch[2:-1]
        sound, _ = apply(len(cut).to_bytes(2, "little") + cut, pair[0])
        assert not sound


@pytest.mark.parametrize(
    "tokens",
    [
        b"",
        b"\xff",
        b"\xff\xff\xff\xff\xff",
        b"\xff\xff\xff\xff\xff\x00\x01\xfe",
        b"\xfe",
        b"\xfe\xff",
        b"\xfe\xff\xff",
        b"\xfe\xff\xff\x00\x01",
        b"\xfe\x03\x00\x82",
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
def test_wrong_lengths_do_no_harm(tokens: bytes, size: int) -> None:
    frame = np.arange(size, dtype=np.uint8)
    for row in (0, 1, 7, size, size + 1, 10**6, 2**62):
        for patch in (tokens, b"\xfd" + tokens):
            apply(len(patch).to_bytes(2, "little") + patch, frame, row)
            apply((len(patch) + 1).to_bytes(2, "little") + patch, frame, row)


@pytest.mark.parametrize("length", [1, 2, 7, 8, 9, 30, 31, 40, 300])
@pytest.mark.parametrize("row", [0, 400])
def test_what_a_thing_leaves_behind_is_like_its_surroundings(length: int, row: int) -> None:
    """A thing that moves by some bytes takes two tokens without data: ground like that to the left, thing like that to
    the right, or the other way round."""
    base = np.full(800, 3, np.uint8)
    here, there = base.copy(), base.copy()
    here[40 : 40 + length + 20] = 7
    there[40 + length : 40 + 2 * length + 20] = 7
    short = 2 if length < 31 else 3 if length < 287 else 6
    for ref, cur in ((here, there), (there, here)):
        assert len(check(ref, cur, row)) == 2 + 2 * short


@given(data=st.data(), row=st.integers(1, 90))
def test_flat_areas_round_trip(data: Any, row: int) -> None:
    """Few values in runs of any length, the ground of the tokens that fill with what is beside."""
    runs = st.lists(st.tuples(st.integers(1, 70), st.integers(0, 2)), min_size=1, max_size=12)
    values = [np.concatenate([np.full(n, v, np.uint8) for n, v in data.draw(runs)]) for _ in range(2)]
    size = min(map(len, values))
    for row_above in (0, 1, 2):
        check(values[0][:size], values[1][:size], row % size, row_above)


def test_sizes_that_do_not_fit_each_other_are_refused() -> None:
    """What the core takes for granted is checked before it is called."""
    frame, out = np.zeros(20, np.uint8), np.zeros(100, np.uint8)
    for before, now, row, pos, stop in (
        (frame[:0], frame[:0], 0, 0, 100),
        (frame, frame[:19], 0, 0, 100),
        (frame, frame, 21, 0, 100),
        (frame, frame, 0, 0, 101),
        (frame, frame, 0, 11, 10),
    ):
        with pytest.raises(ValueError, match="sizes"):
            encode_patch(before, now, row, out, pos, stop)
    for patch, memory in ((out[: READ_AHEAD - 1], out), (out, out[: 20 + WRITE_AHEAD - 1])):
        with pytest.raises(ValueError, match="not enough memory"):
            apply_patch(patch, memory, 20, 0)
    with pytest.raises(ValueError, match="no kernels"):
        use_kernels("abacus")


@pytest.mark.skipif(len(KERNELS) < 2, reason="this processor has only one set")
@given(pair=frames(900), row=st.integers(0, 200), row_above=st.integers(0, 2))
def test_all_kernels_make_the_same_patches(pair: tuple[np.ndarray, np.ndarray], row: int, row_above: int) -> None:
    """What one machine has saved is what another would have."""
    row = row if row < pair[0].size else 0
    made = set()
    for name in KERNELS:
        before = use_kernels(name)
        try:
            made.add(encode(*pair, row=row, row_above=row_above))
        finally:
            use_kernels(before)
    assert len(made) == 1
