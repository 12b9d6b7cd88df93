"""
Compiled: find what is new in the observations of an ``add``, code it, and enter it into the index.

One call handles all environments, and ``obs`` and ``next_obs``. What is rare (a new key frame, a new segment, an
episode's first observation) is only reported; Python does it.
"""

from __future__ import annotations

from numba import int64, uint8, uint16, uint32, uint64

from sb3_extra_buffers.codecs._jit import jit_kernel
from sb3_extra_buffers.storage.control import (
    CONTROL_WORDS,
    COUNTS,
    DEPTH,
    ENTRY_NEWEST,
    ENTRY_PATTERN,
    FRAME_BYTES,
    FRAMES,
    GEOMETRY,
    HEADS,
    KNOWN,
    LAST,
    LIMIT,
    N_STREAMS,
    OBS_BYTES,
    PACKS,
    PATTERN_COUNT,
    PATTERNS,
    RUNS,
    SHIFT,
    SLOTS,
    STAGED,
    STAGING,
    STAGING_BYTES,
    STATUS,
    STRIDE,
    TAIL,
    TAIL_IS_NEWEST,
)
from sb3_extra_buffers.storage.frame_index import BLOCK_CELLS, BOOK_WORDS, NEWEST, OVERWRITTEN, PATTERN, PATTERN_BYTES, WRITTEN
from sb3_extra_buffers.storage.kernels.groups import close_group, code_patch, open_group
from sb3_extra_buffers.storage.kernels.memory import (
    address_of,
    copy_bytes,
    half_words_at,
    memory_at,
    numbers_at,
    quarter_words_at,
    same_bytes,
)
from sb3_extra_buffers.storage.matching import APPENDED, FRAME, OTHER, SAME
from sb3_extra_buffers.storage.patterns import RUN, ZERO

_CHUNK = 256  # pixels compared between two looks at the result; long enough to vectorise
_KNOWN_PATTERNS = 64  # patterns that are looked through; the frequent ones come early


@jit_kernel
def _moved_on_words(new, old):
    """``_moved_on`` for a stack of four one-byte planes, each pixel one little-endian word."""
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
def _find_pattern(control, slots, newest):
    """Number of the pattern of an observation's frames; -1 where it is not among the frequent ones."""
    depth = control[DEPTH]
    count = min(numbers_at(control[PATTERN_COUNT], 1)[0], _KNOWN_PATTERNS)
    offsets = numbers_at(control[PATTERNS], count * depth)
    for pattern in range(RUN, count):
        same = True
        for j in range(depth):
            offset = int64(ZERO) if slots[j] == ZERO else newest - slots[j]
            if offsets[pattern * depth + j] != offset:
                same = False
                break
        if same:
            return pattern
    return int64(-1)


@jit_kernel
def _move_on(control, stream, number):
    """The last observation of a stream, less its oldest frame, plus this one; returns SAME, or APPENDED."""
    n = control[N_STREAMS]
    depth = control[DEPTH]
    slots = numbers_at(control[SLOTS] + 8 * depth * stream, depth)
    runs = numbers_at(control[RUNS], n)
    runs[stream] = runs[stream] + 1 if number == slots[depth - 1] + 1 else 1
    for j in range(depth - 1):
        slots[j] = slots[j + 1]
    slots[depth - 1] = number
    memory_at(control[TAIL_IS_NEWEST], n)[stream] = uint8(1)
    newest = number
    pattern = int64(RUN)
    if runs[stream] < depth:
        for j in range(depth - 1):
            newest = max(newest, slots[j])
        pattern = _find_pattern(control, slots, newest)
        if pattern < 0:
            return APPENDED
    half_words_at(control[ENTRY_NEWEST], n)[stream] = uint32(newest & 0xFFFFFFFF)
    half_words_at(control[ENTRY_PATTERN], n)[stream] = uint32(pattern)
    return SAME


@jit_kernel
def _add_frame(control, stream, frame):
    """Code a stream's next frame; returns SAME when all is done, APPENDED when all but the entry is, or FRAME."""
    n = control[N_STREAMS]
    size = control[FRAME_BYTES]
    tail = uint64(control[TAIL] + stream * control[STRIDE])
    if control[DEPTH] > 1 and memory_at(control[TAIL_IS_NEWEST], n)[stream] and same_bytes(frame, tail, size):
        depth = control[DEPTH]
        return _move_on(control, stream, numbers_at(control[SLOTS] + 8 * depth * stream, depth)[depth - 1])
    counts = numbers_at(control[COUNTS], n)
    heads = numbers_at(control[HEADS], n)
    end = int64(-1)
    if 0 < counts[stream] < int64(1) << control[SHIFT]:
        staged = numbers_at(control[STAGED], n)
        end = code_patch(control, tail, frame, stream, staged[stream], control[LIMIT])
        if end >= 0:
            staged[stream] = end
            counts[stream] += 1
            heads[stream] += 1
    if end < 0:
        if control[PACKS]:
            return FRAME
        record = uint64(control[STAGING] + stream * control[STAGING_BYTES])
        close_group(control, stream, record, numbers_at(control[STAGED], n)[stream])
        if not open_group(control, stream, frame):
            return FRAME
    copy_bytes(tail, frame, uint64(size))
    return _move_on(control, stream, heads[stream])


@jit_kernel
def _enter(control, book, base, cells, count):
    """Write the entries of the streams' last observations into the index."""
    n = control[N_STREAMS]
    newest = half_words_at(book[NEWEST], 1 << 62)
    narrow = book[PATTERN_BYTES] == 2
    short_patterns = quarter_words_at(book[PATTERN], 1 << 62)
    long_patterns = half_words_at(book[PATTERN], 1 << 61)
    written = memory_at(book[WRITTEN], 1 << 62)
    entry_newest = half_words_at(control[ENTRY_NEWEST], n)
    entry_pattern = half_words_at(control[ENTRY_PATTERN], n)
    block_cells = book[BLOCK_CELLS]
    overwritten = 0
    for row in range(count):
        cell = cells[row] if len(cells) else base + row
        stream = cell % n
        newest[cell] = entry_newest[stream]
        if narrow:
            overwritten += short_patterns[cell] != 0
            short_patterns[cell] = uint16(entry_pattern[stream])
        else:
            overwritten += long_patterns[cell] != 0
            long_patterns[cell] = entry_pattern[stream]
        written[cell // block_cells] = uint8(1)
    book[OVERWRITTEN] += overwritten


@jit_kernel
def _put_part(control, book, new, base, cells, turned):
    """Write observations into one array; tells whether that is all done."""
    n = control[N_STREAMS]
    depth = control[DEPTH]
    stride = control[STRIDE]
    obs_bytes = control[OBS_BYTES]
    geometry = numbers_at(control[GEOMETRY] + (40 if turned else 0), 5)
    blocks, block, part, item = geometry[0], geometry[1], geometry[2], geometry[3]
    words = geometry[4] != 0 and (address_of(new) | uint64(control[LAST])) & uint64(3) == 0
    pixels = obs_bytes >> 2
    # Without a stack the last observation is the last frame, and needs no copy of its own.
    whole = depth == 1 and not turned
    known = memory_at(control[KNOWN], n)
    count = len(cells) if len(cells) else n
    status = numbers_at(control[STATUS], n)
    done = True
    for row in range(count):
        stream = cells[row] % n if len(cells) else row
        now = address_of(new) + uint64(row * obs_bytes)
        before = uint64(control[TAIL] + stream * stride if whole else control[LAST] + stream * obs_bytes)
        frame = uint64(control[FRAMES] + row * stride)
        status[row] = SAME
        if known[stream] and same_bytes(now, before, obs_bytes):
            continue
        if depth > 1:
            moved = known[stream] != 0
            if moved and words:
                moved = _moved_on_words(half_words_at(now, pixels), half_words_at(before, pixels))
            elif moved:
                moved = _moved_on(memory_at(now, obs_bytes), memory_at(before, obs_bytes), blocks, block, part)
            if not moved:
                status[row] = OTHER
                done = False
                continue
        known[stream] = uint8(1)
        if whole:
            status[row] = _add_frame(control, stream, now)
            if status[row] == FRAME:
                copy_bytes(frame, now, uint64(obs_bytes))
        else:
            if words:
                _newest_of_words(half_words_at(now, pixels), memory_at(frame, pixels))
            else:
                _gather_newest(memory_at(now, obs_bytes), memory_at(frame, stride), blocks, block, part, item, turned)
            copy_bytes(before, now, uint64(obs_bytes))
            status[row] = _add_frame(control, stream, frame)
        if status[row] != SAME:
            done = False
    if done:
        _enter(control, book, base, cells, count)
    return done


@jit_kernel
def put(control, book, other_book, new, other_new, parts, first_part, base, cells, count, turned):
    """
    Write observations into one array, or the same cells of two, as far as that goes without Python.

    :param control: Address of it, see ``control.Control``
    :param book: Address of that of the index
    :param other_book: Address of that of the second index
    :param new: Observations in memory order, as bytes
    :param other_new: Those of the second array
    :param parts: Number of arrays
    :param first_part: 1 to begin with the second array
    :param base: First cell
    :param cells: Address of cells of distinct streams instead
    :param count: How many they are; 0 for a row of all streams
    :param turned: Memory order
    :return: Which part needs help; its statuses are filled. The number of parts when there is nothing left to do
    """
    words = numbers_at(control, CONTROL_WORDS)
    places = numbers_at(cells, count)
    for part in range(first_part, parts):
        if part == 0:
            done = _put_part(words, numbers_at(book, BOOK_WORDS), new, base, places, turned)
        else:
            done = _put_part(words, numbers_at(other_book, BOOK_WORDS), other_new, base, places, turned)
        if not done:
            return part
    return parts
