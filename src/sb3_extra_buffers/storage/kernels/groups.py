"""Compiled: the end of a group of frames, and the beginning of the next; both are ``ReferenceCoder``'s, too."""

from __future__ import annotations

from numba import int64, uint8, uint64

from sb3_extra_buffers.codecs._jit import jit_kernel
from sb3_extra_buffers.storage.control import (
    BOOKS,
    CAPACITY,
    COUNTS,
    CURRENT,
    DIRECTORY,
    FAVOUR,
    FRAME_BYTES,
    GROUPS,
    HEADS,
    KEY_COSTS,
    KEY_OFFSETS,
    KEY_SLOTS,
    LIMIT,
    N_SEGMENTS,
    N_STREAMS,
    OLDEST,
    OPEN_SLOTS,
    PAYS,
    POINTERS,
    ROOM,
    ROW_BYTES,
    SEGMENT_BYTES,
    SHIFT,
    STAGED,
    STAGING,
    STAGING_BYTES,
    ZEROS,
)
from sb3_extra_buffers.storage.kernels.encode import encode_patch, put_u32
from sb3_extra_buffers.storage.kernels.memory import copy_bytes, memory_at, numbers_at, words_at
from sb3_extra_buffers.storage.records import HEADER_BYTES, KEY_OFFSET_BYTES, KEYED, OPEN_BIT
from sb3_extra_buffers.storage.segments import FRAMES, LAST_GROUP, NEWEST_KEY, OFFSET_BITS, READ_AHEAD, RESERVED, USED

_BODY = HEADER_BYTES + KEY_OFFSET_BYTES


@jit_kernel
def _book(control, slot):
    address = words_at(control[BOOKS], control[N_SEGMENTS])[slot]
    return numbers_at(address, LAST_GROUP + control[N_STREAMS])


@jit_kernel
def _enter_location(control, stream, group, location):
    capacity = control[CAPACITY]
    words_at(control[DIRECTORY], control[N_STREAMS] * capacity)[stream * capacity + group % capacity] = uint64(location)


@jit_kernel
def code_patch(control, reference, frame, stream, start, limit):
    """
    Write the patch that makes a frame into a stream's open group.

    :param control: See ``control.Control``
    :param reference: Address of the frame that it is a patch on
    :param frame: Address of the frame
    :param stream: The stream
    :param start: Where in the group
    :param limit: Bytes that it may take
    :return: Where it ends, or -1 when it does not fit
    """
    capacity = control[STAGING_BYTES]
    return encode_patch(
        reference,
        frame,
        control[FRAME_BYTES],
        control[ROW_BYTES],
        uint64(control[ZEROS]),
        numbers_at(control[FAVOUR], control[N_STREAMS]),
        stream,
        memory_at(control[STAGING] + stream * capacity, capacity),
        int64(start),
        min(start + limit, capacity - READ_AHEAD),
    )


@jit_kernel
def close_group(control, stream, record, length):
    """
    Move a stream's open group to the log.

    :param control: See ``control.Control``
    :param stream: The stream
    :param record: Address of what to write there; its head is completed
    :param length: Bytes of it
    """
    n = control[N_STREAMS]
    counts = numbers_at(control[COUNTS], n)
    frames = counts[stream]
    if frames == 0:
        return
    capacity = control[STAGING_BYTES]
    head = memory_at(record, HEADER_BYTES)
    put_u32(head, uint64(0), uint64(length - HEADER_BYTES))
    head[5] = uint8(frames)
    slot = numbers_at(control[OPEN_SLOTS], n)[stream]
    group = numbers_at(control[GROUPS], n)[stream]
    book = _book(control, slot)
    offset = book[USED]
    target = words_at(control[POINTERS], control[N_SEGMENTS])[slot] + uint64(offset)
    copy_bytes(target, uint64(record), uint64(length))
    book[USED] = offset + length
    book[RESERVED] -= capacity
    book[FRAMES] += frames
    book[LAST_GROUP + stream] = group
    _enter_location(control, stream, group, uint64(slot << OFFSET_BITS | offset))
    counts[stream] = 0
    memory_at(control[PAYS], n)[stream] = uint8(frames >= int64(1) << (control[SHIFT] - 1))


@jit_kernel
def open_group(control, stream, frame):
    """
    Begin a group with a patch on a key frame that is there.

    :param control: See ``control.Control``
    :param stream: The stream; it has no open group
    :param frame: Address of the group's first frame
    :return: Whether that was possible; if not, nothing is changed
    """
    n = control[N_STREAMS]
    size = control[FRAME_BYTES]
    capacity = control[STAGING_BYTES]
    slot = numbers_at(control[CURRENT], 1)[0]
    groups = numbers_at(control[GROUPS], n)
    group = groups[stream] + 1
    if slot < 0 or group - numbers_at(control[OLDEST], n)[stream] >= control[CAPACITY]:
        return False
    book = _book(control, slot)
    if book[USED] + book[RESERVED] + control[ROOM] > control[SEGMENT_BYTES]:
        return False
    key_slots = numbers_at(control[KEY_SLOTS], n)
    key_offsets = numbers_at(control[KEY_OFFSETS], n)
    key_costs = numbers_at(control[KEY_COSTS], n)
    own = key_slots[stream] == slot
    offset = key_offsets[stream] if own else book[NEWEST_KEY]
    if offset < 0:
        return False
    staging = memory_at(control[STAGING] + stream * capacity, capacity)
    limit = size // 2 if memory_at(control[PAYS], n)[stream] else control[LIMIT]
    key = words_at(control[POINTERS], control[N_SEGMENTS])[slot] + uint64(offset)
    end = code_patch(control, key, frame, stream, int64(_BODY), limit)
    cost = (key_costs[stream] if own else 0) + end - _BODY
    if end < 0 or cost > size:
        return False
    key_slots[stream] = slot
    key_offsets[stream] = offset
    key_costs[stream] = cost
    put_u32(staging, uint64(0), uint64(0))
    staging[4] = uint8(KEYED)
    staging[5] = uint8(0)
    put_u32(staging, uint64(HEADER_BYTES), uint64(offset))
    numbers_at(control[STAGED], n)[stream] = end
    book[RESERVED] += capacity
    numbers_at(control[OPEN_SLOTS], n)[stream] = slot
    groups[stream] = group
    _enter_location(control, stream, group, uint64(OPEN_BIT) | uint64(stream))
    numbers_at(control[COUNTS], n)[stream] = 1
    numbers_at(control[HEADS], n)[stream] = group << control[SHIFT]
    return True
