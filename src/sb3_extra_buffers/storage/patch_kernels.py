"""
Compiled: one frame as a patch on another frame of the same size. Imports numba, so import it late.

A patch is a list of tokens and an end mark. A token skips what is equal, then changes what is not::

    skip    u8, below 254; 255: a u32 follows; 254 here is the end mark
    change  u8: length - 1, below 127; 127: a u32 length follows; top bit set: a fill
    data    the changed bytes, or for a fill the one byte that they all are

Indices are unsigned: numba's wrap-around check on signed ones stops vectorisation.
"""

from __future__ import annotations

from numba import int64, uint8, uint64

from sb3_extra_buffers.codecs._jit import jit_kernel

END = 254
ESCAPE = 255
FILL = 128
LONG = 127
FILL_MIN = 6  # a fill costs 3 bytes and ends the literal run before it
GAP_MIN = 3  # a shorter stretch of equal bytes is cheaper copied than skipped
TOKEN_MAX = 10


@jit_kernel
def _put_u32(out, pos, value):  # type: ignore[no-untyped-def]
    for shift in range(4):
        out[pos + uint64(shift)] = uint8((value >> uint64(8 * shift)) & uint64(255))


@jit_kernel
def _get_u32(data, pos):  # type: ignore[no-untyped-def]
    value = uint64(0)
    for shift in range(4):
        value |= uint64(data[pos + uint64(shift)]) << uint64(8 * shift)
    return value


@jit_kernel
def _put_token(out, pos, stop, skip, length, fill):  # type: ignore[no-untyped-def]
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
def encode_patch(ref, cur, ref_words, cur_words, size, out, pos, stop):  # type: ignore[no-untyped-def]
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
def apply_patch(data, pos, stop, frame, size):  # type: ignore[no-untyped-def]
    """
    Change a frame as a patch says; whatever the patch holds, only ``frame[:size]`` is written.

    :param data: Bytes that hold the patch
    :param pos: Where it begins
    :param stop: What may be read ends here
    :param frame: The reference, changed in place
    :param size: Bytes of the frame
    :return: The position after the patch, or -1 when the patch is damaged
    """
    i = uint64(0)
    p = uint64(pos)
    last = uint64(stop)
    limit = uint64(size)
    while True:
        if p >= last:
            return int64(-1)
        first = data[p]
        p += uint64(1)
        if first == END:
            return int64(p)
        skip = uint64(first)
        if first == ESCAPE:
            if p + uint64(4) > last:
                return int64(-1)
            skip = _get_u32(data, p)
            p += uint64(4)
        if p >= last:
            return int64(-1)
        change = data[p]
        p += uint64(1)
        length = uint64(change & uint8(LONG)) + uint64(1)
        if length == uint64(LONG + 1):
            if p + uint64(4) > last:
                return int64(-1)
            length = _get_u32(data, p)
            p += uint64(4)
        i += skip
        if i + length > limit:
            return int64(-1)
        if change & uint8(FILL):
            if p >= last:
                return int64(-1)
            value = data[p]
            p += uint64(1)
            for t in range(length):
                frame[i + uint64(t)] = value
        else:
            if p + length > last:
                return int64(-1)
            for t in range(length):
                frame[i + uint64(t)] = data[p + uint64(t)]
            p += length
        i += length
