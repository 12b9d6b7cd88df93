"""
Compiled: find what is new in a batch of observations and code it..

One call handles all environments of an ``add``. What is rare (a new group, an episode's first observation) is only
reported; Python does it.
"""

from __future__ import annotations

from numba import uint8, uint32, uint64

from sb3_extra_buffers.codecs._jit import jit_kernel
from sb3_extra_buffers.storage.kernels.memory import address_of, copy_bytes, same_bytes
from sb3_extra_buffers.storage.kernels.patch import encode_patch
from sb3_extra_buffers.storage.matching import APPENDED, FRAME, OTHER, REPEAT, SAME
from sb3_extra_buffers.storage.patterns import RUN

_CHUNK = 256  # pixels compared between two looks at the result; long enough to vectorise


@jit_kernel
def _moved_on_words(new, old):
    """``moved_on`` for a stack of four one-byte planes, each pixel one little-endian word."""
    i = uint64(0)
    n = uint64(new.size)
    while i < n:
        stop = min(n, i + uint64(_CHUNK))
        difference = uint32(0)
        for j in range(i, stop):
            difference |= (new[uint64(j)] ^ (old[uint64(j)] >> uint32(8))) & uint32(0x00FFFFFF)
        if difference:
            return False
        i = stop
    return True


@jit_kernel
def _moved_on(new, old, blocks, block, part):
    """Tell whether in each block all parts but the last are the old ones, moved by one."""
    if blocks == 1 or block - part >= 64:
        for a in range(blocks):
            start = uint64(a * block)
            if not same_bytes(address_of(new) + start, address_of(old) + start + uint64(part), block - part):
                return False
        return True
    for a in range(blocks):
        start = uint64(a * block)
        difference = uint8(0)
        for c in range(block - part):
            difference |= new[start + uint64(c)] ^ old[start + uint64(c + part)]
        if difference:
            return False
    return True


@jit_kernel
def _gather_newest(memory, frame, blocks, block, part, item, turned):
    """Copy the last part of each block; ``turned`` memory becomes planes."""
    first = uint64(block - part)
    size = uint64(block)
    if not turned:
        width = uint64(part)
        for a in range(uint64(blocks)):
            source = a * size + first
            target = a * width
            for t in range(width):
                frame[target + uint64(t)] = memory[source + uint64(t)]
    elif item == 1:
        plane = uint64(blocks)
        for c in range(uint64(part)):
            for a in range(plane):
                frame[c * plane + a] = memory[a * size + first + c]
    else:
        width = uint64(item)
        plane = uint64(blocks)
        for c in range(uint64(part // item)):
            for a in range(plane):
                for t in range(width):
                    frame[(c * plane + a) * width + t] = memory[a * size + first + c * width + t]


@jit_kernel
def _newest_of_words(words, frame):
    for a in range(uint64(words.size)):
        frame[a] = uint8(words[a] >> uint32(24))


@jit_kernel
def put_batch(
    new,
    new_words,
    last,
    last_words,
    known,
    streams,
    geometry,
    tail,
    tail_is_newest,
    frames,
    staging,
    staged,
    counts,
    heads,
    slots,
    runs,
    entry_newest,
    entry_pattern,
    group_frames,
    limit,
    capacity,
    shifted,
    favour,
    status,
):
    """
    Compare observations with the last ones of their streams and code the frames that are new.

    :param new: ``(m, obs_bytes)`` in memory order
    :param new_words: The same as uint32 where a pixel of a stack is one word, else empty
    :param last: ``(n_streams, obs_bytes)``, the last observation of each stream, brought up to date
    :param last_words: Like ``new_words``
    :param known: Whether a stream has a last observation
    :param streams: ``(m,)``, distinct
    :param geometry: depth, blocks, block bytes, part bytes, item bytes, turned, frame bytes, row bytes
    :param tail: ``(n_streams, stride)``, the last stored frame of each stream, brought up to date
    :param tail_is_newest: Whether that frame is the newest of the stream's last observation
    :param frames: ``(m, stride)``, filled with the newest frame where there is a new one
    :param staging: ``(n_streams, capacity)``, the open group of each stream
    :param staged: Bytes in it
    :param counts: Frames in it; 0 where no group is open
    :param heads: Number of the last stored frame of each stream
    :param slots: ``(n_streams, depth)``, frames of each stream's last observation, brought up to date
    :param runs: How many of those, from the newest on, are consecutive, brought up to date
    :param entry_newest: Index entry of each stream's last observation, brought up to date where it is a run
    :param entry_pattern: Likewise
    :param group_frames: Frames that make a group full
    :param limit: Bytes that a patch may take
    :param capacity: Bytes that a group may take
    :param shifted: Scratch as large as a frame
    :param favour: See ``encode_patch``
    :param status: ``(m,)``, filled: SAME (nothing left to do), APPENDED (an entry is to be made), FRAME, REPEAT or OTHER
    :return: Whether any is not SAME
    """
    depth, blocks, block, part, item = geometry[0], geometry[1], geometry[2], geometry[3], geometry[4]
    turned = geometry[5] != 0
    size = geometry[6]
    width = geometry[7]
    words = new_words.shape[1] != 0
    changed = False
    for row in range(len(streams)):
        stream = streams[row]
        now = new[row]
        before = last[stream]
        if known[stream]:
            if same_bytes(address_of(now), address_of(before), now.size):
                status[row] = SAME
                continue
            if depth > 1:
                if words:
                    moved = _moved_on_words(new_words[row], last_words[stream])
                else:
                    moved = _moved_on(now, before, blocks, block, part)
                if not moved:
                    changed = True
                    status[row] = OTHER
                    continue
        elif depth > 1:
            changed = True
            status[row] = OTHER
            continue
        frame = frames[row]
        if words:
            _newest_of_words(new_words[row], frame)
        else:
            _gather_newest(now, frame, blocks, block, part, item, turned)
        copy_bytes(address_of(before), address_of(now), uint64(now.size))
        known[stream] = True
        if depth > 1 and tail_is_newest[stream] and same_bytes(address_of(frame), address_of(tail[stream]), size):
            changed = True
            status[row] = REPEAT
            continue
        status[row] = FRAME
        if 0 < counts[stream] < group_frames:
            start = staged[stream]
            stop = min(start + limit, capacity)
            end = encode_patch(
                address_of(tail[stream]),
                address_of(frame),
                size,
                width,
                address_of(shifted),
                favour,
                stream,
                staging[stream],
                start,
                stop,
            )
            if end >= 0:
                staged[stream] = end
                counts[stream] += 1
                heads[stream] += 1
                copy_bytes(address_of(tail[stream]), address_of(frame), uint64(frame.size))
                number = heads[stream]
                runs[stream] = runs[stream] + 1 if number == slots[stream, depth - 1] + 1 else 1
                for j in range(depth - 1):
                    slots[stream, j] = slots[stream, j + 1]
                slots[stream, depth - 1] = number
                tail_is_newest[stream] = True
                if runs[stream] >= depth:
                    entry_newest[stream] = uint32(number & 0xFFFFFFFF)
                    entry_pattern[stream] = uint32(RUN)
                    status[row] = SAME
                    continue
                status[row] = APPENDED
        changed = True
    return changed
