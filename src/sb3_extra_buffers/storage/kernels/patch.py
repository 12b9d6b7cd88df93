"""
Compiled: one frame as a patch on another frame of the same size, or on itself, one row up.

A patch is ``u16 length`` and that many bytes of tokens. A token skips what is equal, then changes what is not::

    skip    u8, below 253; 255: a u32 follows
    change  u8, below 128: copy, length - 1; 127: a u32 length follows
            from 128 on: a fill, all bytes are the same. 5 bits of length - 1; 30: a u8 length - 31 follows, 31: a u32
            length. 2 bits tell which byte: 0 the one that follows, 1 that to the left, 2 that to the right, which the
            reference has there
    data    the bytes to copy, or to fill with

If the first byte is 253, what is skipped is not what the reference has there but what the frame itself has one row above.
That suits flat areas that move, such as segmentation masks, and needs no reference at all: reading can begin there.

This module has the format and the decoder; ``encode`` is beside it. Frames are given by address.
"""

from __future__ import annotations

from numba import uint8, uint64

from sb3_extra_buffers.codecs._jit import jit_kernel
from sb3_extra_buffers.storage.kernels.memory import copy_block, load_word, memory_at, store_word
from sb3_extra_buffers.storage.records import WRITE_AHEAD

UP = 253
ESCAPE = 255
LONG = 127
FILL = 128
# Which byte to fill with, and codes of lengths.
GIVEN = 0
LEFT = 1
RIGHT = 2
FILL_LONG = 30
FILL_LONGER = 31
PREFIX = 2
MAX_PATCH = (1 << 16) - 1
EVERY_BYTE = 0x0101010101010101


@jit_kernel
def _copy_from_above(target, count, row):
    """
    Copy bytes from one row up, where some may have been put by this very copy.

    Up to a block after the last of them is written, too: that is not decoded yet.
    """
    stop = target + count
    if row >= uint64(WRITE_AHEAD):
        while target < stop:
            copy_block(target, target - row)
            target += uint64(WRITE_AHEAD)
    elif row >= uint64(8):
        while target < stop:
            store_word(target, load_word(target - row))
            target += uint64(8)
    else:
        memory = memory_at(target - row, row + count)
        for i in range(row, row + count):
            memory[i] = memory[i - row]


@jit_kernel
def patch_end(pos, stop):
    """
    Find where a patch ends, without reading its tokens.

    :param pos: Address of the patch
    :param stop: Address up to which there is something to read
    :return: Address after the patch, or 0 when it is damaged
    """
    if pos + uint64(PREFIX) > stop:
        return uint64(0)
    end = pos + uint64(PREFIX) + (load_word(pos) & uint64(MAX_PATCH))
    return end if end <= stop else uint64(0)


@jit_kernel
def is_up(pos, end):
    """
    Tell whether a patch needs no reference.

    :param pos: Address of the patch
    :param end: Address after it
    :return: Whether it is on the frame itself
    """
    return end > pos + uint64(PREFIX) and (load_word(pos) >> uint64(8 * PREFIX)) & uint64(255) == uint64(UP)


@jit_kernel
def apply_patch(pos, stop, frame, size, row):
    """
    Change a frame as a patch says; whatever the patch holds, only ``size`` bytes of the frame are changed.

    Most changes are a few bytes long, so they are made eight bytes at a time, the surplus masked out: up to eight
    bytes past ``stop`` are read. Rows are copied by blocks: up to ``WRITE_AHEAD`` after the frame are written. Both must
    be allocated.

    :param pos: Address of the patch
    :param stop: Address after it
    :param frame: Address of the reference, changed in place
    :param size: Bytes of the frame
    :param row: Bytes of a row; 0 where there are none
    :return: Whether the patch is sound
    """
    i = uint64(0)
    limit = uint64(size)
    width = uint64(row)
    up = is_up(pos, stop)
    above = width if up else uint64(0)
    filled = width if up else limit
    pos += uint64(PREFIX)
    if up:
        if width == 0 or width > limit:
            return False
        pos += uint64(1)
        memory_at(frame, width)[:] = uint8(0)
    while pos < stop:
        head = load_word(pos)
        skip = head & uint64(255)
        pos += uint64(1)
        if skip == uint64(ESCAPE):
            skip = (head >> uint64(8)) & uint64(0xFFFFFFFF)
            pos += uint64(4)
            head = load_word(pos) if pos < stop else uint64(0)
            change = head & uint64(255)
        else:
            change = (head >> uint64(8)) & uint64(255)
        pos += uint64(1)
        # From here on nearly nothing for the processor to guess: copies and fills are chosen between, not jumped to.
        fill = change >= uint64(FILL)
        source = (change >> uint64(5)) & uint64(3) if fill else uint64(GIVEN)
        code = change & uint64(FILL_LONGER) if fill else change
        length = code + uint64(1)
        if code >= (uint64(FILL_LONG) if fill else uint64(LONG)):
            if pos >= stop:
                return False
            length = load_word(pos)
            if fill and code == uint64(FILL_LONG):
                length = (length & uint64(255)) + uint64(FILL_LONG + 1)
                pos += uint64(1)
            else:
                length &= uint64(0xFFFFFFFF)
                pos += uint64(4)
        begin = i + skip
        end = begin + length
        after = pos + (uint64(0) if source else uint64(1) if fill else length)
        beside = begin - uint64(1) if source == uint64(LEFT) else end - above
        if length == 0 or end > limit or after > stop or (source and beside >= limit) or source > uint64(RIGHT):
            return False
        while filled < begin:  # by whole rows, what is above being complete; most tokens then find their place filled
            some = min(width, limit - filled)
            _copy_from_above(frame + filled, some, width)
            filled += some
        filled = max(filled, end)
        i = end
        target = frame + begin
        word = load_word(pos)
        byte = uint64(memory_at(frame + (beside if source else uint64(0)), 1)[0]) if source else word & uint64(255)
        value = byte * uint64(EVERY_BYTE) if fill else word
        while length > uint64(8):
            store_word(target, value)
            target += uint64(8)
            length -= uint64(8)
            if not fill:
                pos += uint64(8)
                value = load_word(pos)
        mask = ~uint64(0) >> (uint64(64) - (length << uint64(3)))
        store_word(target, (load_word(target) & ~mask) | (value & mask))
        pos = after
    while filled < limit:
        some = min(width, limit - filled)
        _copy_from_above(frame + filled, some, width)
        filled += some
    return pos == stop
