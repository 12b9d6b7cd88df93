"""
Compiled: make the patch that turns one frame into another; see ``patch`` for what it looks like.

Frames are given by address; nothing but the frames is read.
"""

from __future__ import annotations

from numba import int64, uint8, uint64

from sb3_extra_buffers.codecs._jit import jit_kernel
from sb3_extra_buffers.storage.kernels.memory import (
    address_of,
    different_bytes,
    leading_zeros,
    load_word,
    memory_at,
    store_word,
    trailing_zeros,
)
from sb3_extra_buffers.storage.kernels.patch import (
    ESCAPE,
    EVERY_BYTE,
    FILL,
    FILL_LONG,
    FILL_LONGER,
    GIVEN,
    LEFT,
    LONG,
    MAX_PATCH,
    PREFIX,
    RIGHT,
    UP,
)

FILL_MIN = 6  # a fill in the midst of a change costs up to 3 bytes and ends the copy before it
GAP_MIN = 3  # a shorter stretch of equal bytes is cheaper copied than skipped
TOKEN_MAX = 10
_SMALL = 32  # a patch of less than this part of the frame is good enough
_STAY = 8  # frames for which the row above is taken without trying the reference again
_WINDOW = 64
# What can be told from 64 bytes: the last few have not all of their followers in the window.
_GAPS_SEEN = (1 << (_WINDOW - GAP_MIN + 1)) - 1
_FILLS_SEEN = (1 << (_WINDOW - FILL_MIN + 1)) - 1


@jit_kernel
def put_u32(out, pos, value):
    """Write four bytes, the lowest first."""
    for shift in range(4):
        out[pos + uint64(shift)] = uint8((value >> uint64(8 * shift)) & uint64(255))


@jit_kernel
def _put_skip(out, p, skip):
    if skip < UP:
        out[p] = uint8(skip)
        return p + uint64(1)
    out[p] = uint8(ESCAPE)
    put_u32(out, p + uint64(1), uint64(skip))
    return p + uint64(5)


@jit_kernel
def _put_copy(out, pos, stop, skip, cur, begin, length, size):
    """Write a token that copies bytes. Returns the new position, or -1 when there is no room."""
    if pos + TOKEN_MAX + length > stop:
        return int64(-1)
    p = _put_skip(out, uint64(pos), skip)
    if length <= LONG:
        out[p] = uint8(length - 1)
        p += uint64(1)
    else:
        out[p] = uint8(LONG)
        put_u32(out, p + uint64(1), uint64(length))
        p += uint64(5)
    if length <= 8 and begin + 8 <= size and int64(p) + 8 <= stop:
        store_word(address_of(out) + p, load_word(cur + uint64(begin)))
    else:
        now = memory_at(cur, size)
        for t in range(length):
            out[p + uint64(t)] = now[uint64(begin + t)]
    return int64(p) + length


@jit_kernel
def _put_fill(out, pos, stop, skip, length, source, value):
    """Write a token that fills. Returns the new position, or -1 when there is no room."""
    if pos + TOKEN_MAX + 1 > stop:
        return int64(-1)
    p = _put_skip(out, uint64(pos), skip)
    mark = FILL | source << 5
    if length <= FILL_LONG:
        out[p] = uint8(mark | (length - 1))
    elif length <= FILL_LONG + 256:
        out[p] = uint8(mark | FILL_LONG)
        p += uint64(1)
        out[p] = uint8(length - FILL_LONG - 1)
    else:
        out[p] = uint8(mark | FILL_LONGER)
        put_u32(out, p + uint64(1), uint64(length))
        p += uint64(4)
    p += uint64(1)
    if source == GIVEN:
        out[p] = value
        p += uint64(1)
    return int64(p)


@jit_kernel
def _is_flat(steady, length):
    """Tell whether as many bytes are all the same; bit ``i`` of ``steady`` is set where byte ``i`` is like the next."""
    inner = (uint64(1) << length >> uint64(1)) - uint64(1)
    return length == 0 or steady & inner == inner


@jit_kernel
def _next_difference(ref, cur, i, size):
    """Index of the first byte from ``i`` on that differs; ``size`` where none does."""
    while i + _WINDOW <= size:
        difference = different_bytes(ref + uint64(i), cur + uint64(i))
        if difference:
            return i + int64(trailing_zeros(difference))
        i += _WINDOW
    before = memory_at(ref, size)
    now = memory_at(cur, size)
    while i < size and before[uint64(i)] == now[uint64(i)]:
        i += 1
    return i


@jit_kernel
def _change_at(ref, cur, begin, size):
    """
    Find where the change that begins at ``begin`` ends, or where a fill takes over.

    :return: Byte after the last changed one, byte where a fill begins or -1, and whether the changed ones are all the same
    """
    if begin + _WINDOW < size:
        # 64 bytes at once: a change ends before GAP_MIN equal bytes, a fill is FILL_MIN bytes that are all the same.
        different = different_bytes(ref + uint64(begin), cur + uint64(begin))
        gaps = ~(different | different >> uint64(1) | different >> uint64(2)) & uint64(_GAPS_SEEN)
        here = cur + uint64(begin)
        steady = ~different_bytes(here, here + uint64(1))
        fills = steady & (steady >> uint64(1)) & (steady >> uint64(2))
        fills &= (steady >> uint64(3)) & (steady >> uint64(4)) & uint64(_FILLS_SEEN)
        gap = trailing_zeros(gaps) if gaps else uint64(_WINDOW)
        fill = trailing_zeros(fills) if fills else uint64(_WINDOW)
        if fills and fill + uint64(FILL_MIN - 1) <= gap + uint64(GAP_MIN - 1):
            literal = different & ((uint64(1) << fill) - uint64(1))
            length = uint64(64) - leading_zeros(literal) if literal else uint64(0)
            return begin + int64(length), begin + int64(fill), _is_flat(steady, length)
        if gaps:
            return begin + int64(gap), int64(-1), _is_flat(steady, gap)
    return _change_by_bytes(ref, cur, begin, size)


@jit_kernel
def _change_by_bytes(ref, cur, begin, size):
    """``_change_at`` for long changes and for the end of a frame."""
    before = memory_at(ref, size)
    now = memory_at(cur, size)
    end = begin + 1
    repeats = 1
    gap = 0
    fill = int64(-1)
    j = begin + 1
    while j < size:
        value = now[uint64(j)]
        if value == now[uint64(j - 1)]:
            repeats += 1
            if repeats >= FILL_MIN:
                fill = j - FILL_MIN + 1
                break
        else:
            repeats = 1
        if value == before[uint64(j)]:
            gap += 1
            if gap >= GAP_MIN:
                break
        else:
            gap = 0
            end = j + 1
        j += 1
    if fill >= 0:
        end = min(end, fill)
    j = begin + 1
    while j < end and now[uint64(j)] == now[uint64(begin)]:
        j += 1
    return end, fill, j >= end


@jit_kernel
def _fill_end(cur, i, size, value):
    """Index of the first byte from ``i`` on that is not ``value``."""
    word = uint64(value) * uint64(EVERY_BYTE)
    while i + 8 <= size:
        difference = load_word(cur + uint64(i)) ^ word
        if difference:
            return i + int64(trailing_zeros(difference) >> uint64(3))
        i += 8
    now = memory_at(cur, size)
    while i < size and now[uint64(i)] == value:
        i += 1
    return i


@jit_kernel
def _last_difference(ref, cur, i, stop, size):
    """Index of the last byte from ``i`` on, but before ``stop``, that differs; ``i`` where none does."""
    last = i
    while i < stop:
        if i + _WINDOW > size:
            before = memory_at(ref, stop)
            now = memory_at(cur, stop)
            for j in range(i, stop):
                if before[uint64(j)] != now[uint64(j)]:
                    last = j
            return last
        difference = different_bytes(ref + uint64(i), cur + uint64(i))
        if stop - i < _WINDOW:
            difference &= (uint64(1) << uint64(stop - i)) - uint64(1)
        if difference:
            last = i + 63 - int64(leading_zeros(difference))
        i += _WINDOW
    return last


@jit_kernel
def _encode_tokens(ref, cur, first, size, done, reach, out, pos, stop):
    """
    Write the tokens that make ``cur`` of ``ref``.

    :param ref: Address
    :param cur: Address
    :param first: Byte to begin with
    :param size: Byte to stop before
    :param done: Byte up to which there are tokens already
    :param reach: Bytes after which what is to the right would not be decoded yet
    :param out: Where to
    :param pos: From where in ``out``
    :param stop: Up to where
    :return: The position after them, or -1 when they do not fit: then this reference does not pay; and ``done``
    """
    now = memory_at(cur, size)
    i = int64(first)
    while True:
        i = _next_difference(ref, cur, i, size)
        if i >= size:
            return pos, done
        begin = i
        end, fill, flat = _change_at(ref, cur, begin, size)
        if end > begin:
            # What a thing that moves over a plain ground uncovers, or covers, is like what is beside it.
            value = now[uint64(begin)]
            left = begin > 0 and value == now[uint64(begin - 1)]
            right = fill < 0 and end < size and end - begin < reach and value == now[uint64(end)]
            if flat and (left or right):
                pos = _put_fill(out, pos, stop, begin - done, end - begin, LEFT if left else RIGHT, value)
            else:
                pos = _put_copy(out, pos, stop, begin - done, cur, begin, end - begin, size)
            if pos < 0:
                return int64(-1), done
            done = end
        if fill >= 0:
            value = now[uint64(fill)]
            flat_end = _fill_end(cur, fill + FILL_MIN, size, value)
            end = _last_difference(ref, cur, fill, flat_end, size) + 1
            left = fill > 0 and value == now[uint64(fill - 1)]
            right = end < flat_end and end - fill < reach
            pos = _put_fill(out, pos, stop, fill - done, end - fill, LEFT if left else RIGHT if right else GIVEN, value)
            if pos < 0:
                return int64(-1), done
            done = end
        i = done


@jit_kernel
def _encode_up(cur, size, row, zeros, out, pos, stop):
    """Write the tokens on the frame itself, one row up; above the first row are zeros."""
    if pos >= stop:
        return int64(-1)
    out[uint64(pos)] = uint8(UP)
    pos, done = _encode_tokens(zeros, cur, int64(0), int64(row), int64(0), int64(0), out, pos + 1, stop)
    if pos < 0:
        return pos
    pos, done = _encode_tokens(cur - uint64(row), cur, int64(row), size, done, int64(row), out, pos, stop)
    return pos


@jit_kernel
def encode_patch(ref, cur, size, row, zeros, favour, stream, out, pos, stop):
    """
    Write the patch that makes ``cur``, on ``ref`` or on itself one row up, whichever is smaller.

    :param ref: Address of the reference
    :param cur: Address of the frame
    :param size: Bytes of the frame
    :param row: Bytes of a row; 0 where there are none
    :param zeros: Address of a row of zeros
    :param favour: For each stream for how many frames yet the row above is taken without trying the reference
    :param stream: The stream
    :param out: Where to
    :param pos: From where in ``out``
    :param stop: Up to where
    :return: The position after the patch, or -1 when it does not fit: then neither pays
    """
    begin = pos + PREFIX
    stop = min(stop, begin + MAX_PATCH)
    end = int64(-1)
    if begin > stop:
        return end
    if row > 0 and favour[stream] > 0:
        favour[stream] -= 1
        end = _encode_up(cur, size, row, zeros, out, begin, stop)
    if end < 0:
        end, _ = _encode_tokens(ref, cur, int64(0), size, int64(0), int64(size), out, begin, stop)
        if row > 0 and (end < 0 or (end - begin) * _SMALL > size):
            start = begin if end < 0 else end
            last = stop if end < 0 else min(stop, end + (end - begin))  # only if it is smaller
            other = _encode_up(cur, size, row, zeros, out, start, last)
            if other >= 0:
                favour[stream] = _STAY
                for t in range(other - start):
                    out[uint64(begin + t)] = out[uint64(start + t)]
                end = begin + (other - start)
    if end < 0:
        return end
    out[uint64(pos)] = uint8((end - begin) & 255)
    out[uint64(pos + 1)] = uint8((end - begin) >> 8)
    return end
