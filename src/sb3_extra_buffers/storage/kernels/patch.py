"""
Compiled: one frame as a patch on another frame of the same size..

A patch is a list of tokens and an end mark. A token skips what is equal, then changes what is not::

    skip    u8, below 254; 255: a u32 follows; 254 here is the end mark
    change  u8: length - 1, below 127; 127: a u32 length follows; top bit set: a fill
    data    the changed bytes, or for a fill the one byte that they all are

Indices are unsigned: numba's wrap-around check on signed ones stops vectorisation.
"""

from __future__ import annotations

from numba import int64, uint8, uint64

from sb3_extra_buffers.codecs._jit import jit_kernel
from sb3_extra_buffers.storage.kernels.memory import load_word, store_word

END = 254
ESCAPE = 255
FILL = 128
LONG = 127
FILL_MIN = 6  # a fill costs 3 bytes and ends the literal run before it
GAP_MIN = 3  # a shorter stretch of equal bytes is cheaper copied than skipped
TOKEN_MAX = 10


@jit_kernel
def _put_u32(out, pos, value):
    for shift in range(4):
        out[pos + uint64(shift)] = uint8((value >> uint64(8 * shift)) & uint64(255))


@jit_kernel
def _put_token(out, pos, stop, skip, length, fill):
    """Write skip and change; the data is the caller's. Returns the new position, or -1 when there is no room."""
    data = 1 if fill else length
    if pos + TOKEN_MAX + data > stop:
        return int64(-1)
    p = uint64(pos)
    if skip < END:
        out[p] = uint8(skip)
        p += uint64(1)
    else:
        out[p] = uint8(ESCAPE)
        _put_u32(out, p + uint64(1), uint64(skip))
        p += uint64(5)
    mark = FILL if fill else 0
    if length <= LONG:
        out[p] = uint8(mark | (length - 1))
        p += uint64(1)
    else:
        out[p] = uint8(mark | LONG)
        _put_u32(out, p + uint64(1), uint64(length))
        p += uint64(5)
    return int64(p)


@jit_kernel
def encode_patch(ref, cur, ref_words, cur_words, size, out, pos, stop):
    """
    Write the patch that makes ``cur`` of ``ref``.

    :param ref: Bytes, padded with zeros to whole words
    :param cur: Likewise
    :param ref_words: The same memory as uint64
    :param cur_words: Likewise
    :param size: Bytes of the frame
    :param out: Where to
    :param pos: From where in ``out``
    :param stop: Up to where
    :return: The position after the patch, or -1 when it does not fit: then a reference does not pay
    """
    n_words = uint64((size + 7) >> 3)
    i = int64(0)
    done = int64(0)
    while True:
        while i < size and (i & 7) != 0 and ref[uint64(i)] == cur[uint64(i)]:
            i += 1
        if i >= size:
            break
        if (i & 7) == 0:
            w = uint64(i >> 3)
            while w < n_words and ref_words[w] == cur_words[w]:
                w += uint64(1)
            if w >= n_words:
                break
            i = int64(w) << 3
            while ref[uint64(i)] == cur[uint64(i)]:
                i += 1
        # A change begins at i: find where it ends, or where a fill takes over.
        begin = i
        end = begin + 1
        repeats = 1
        gap = 0
        fill = int64(-1)
        j = begin + 1
        while j < size:
            value = cur[uint64(j)]
            if value == cur[uint64(j - 1)]:
                repeats += 1
                if repeats >= FILL_MIN:
                    fill = j - FILL_MIN + 1
                    break
            else:
                repeats = 1
            if value == ref[uint64(j)]:
                gap += 1
                if gap >= GAP_MIN:
                    break
            else:
                gap = 0
                end = j + 1
            j += 1
        if fill >= 0:
            end = min(end, fill)
        if end > begin:
            length = end - begin
            pos = _put_token(out, pos, stop, begin - done, length, False)
            if pos < 0:
                return int64(-1)
            for t in range(length):
                out[uint64(pos + t)] = cur[uint64(begin + t)]
            pos += length
            done = end
        if fill >= 0:
            value = cur[uint64(fill)]
            after = fill + FILL_MIN
            while after < size and cur[uint64(after)] == value:
                after += 1
            pos = _put_token(out, pos, stop, fill - done, after - fill, True)
            if pos < 0:
                return int64(-1)
            out[uint64(pos)] = value
            pos += 1
            done = after
        i = done
    if pos >= stop:
        return int64(-1)
    out[uint64(pos)] = uint8(END)
    return int64(pos + 1)


@jit_kernel
def apply_patch(pos, stop, frame, size):
    """
    Change a frame as a patch says; whatever the patch holds, only ``size`` bytes of the frame are changed.

    Most changes are a few bytes long, so they are made eight bytes at a time, the surplus masked out: up to seven
    bytes past ``stop`` and past the frame are read, and those past the frame written back as they were. Both must be
    allocated.

    :param pos: Address of the patch
    :param stop: Address up to which the patch may reach
    :param frame: Address of the reference, changed in place
    :param size: Bytes of the frame
    :return: The address after the patch, or 0 when the patch is damaged
    """
    i = uint64(0)
    limit = uint64(size)
    while pos < stop:
        head = load_word(pos)
        skip = head & uint64(255)
        pos += uint64(1)
        if skip == uint64(END):
            return pos
        if skip == uint64(ESCAPE):
            skip = (head >> uint64(8)) & uint64(0xFFFFFFFF)
            pos += uint64(4)
            head = load_word(pos) if pos < stop else uint64(0)
            change = head & uint64(255)
        else:
            change = (head >> uint64(8)) & uint64(255)
        pos += uint64(1)
        length = (change & uint64(LONG)) + uint64(1)
        if length == uint64(LONG + 1):
            if pos >= stop:
                return uint64(0)
            length = load_word(pos) & uint64(0xFFFFFFFF)
            pos += uint64(4)
        i += skip
        if i + length > limit:
            return uint64(0)
        target = frame + i
        i += length
        if change & uint64(FILL):
            if pos >= stop:
                return uint64(0)
            value = (load_word(pos) & uint64(255)) * uint64(0x0101010101010101)
            pos += uint64(1)
            while length >= uint64(8):
                store_word(target, value)
                target += uint64(8)
                length -= uint64(8)
        else:
            if pos + length > stop:
                return uint64(0)
            while length >= uint64(8):
                store_word(target, load_word(pos))
                target += uint64(8)
                pos += uint64(8)
                length -= uint64(8)
            value = load_word(pos)
            pos += length
        mask = (uint64(1) << (length << uint64(3))) - uint64(1)
        store_word(target, (load_word(target) & ~mask) | (value & mask))
    return uint64(0)
