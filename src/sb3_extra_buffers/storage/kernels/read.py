"""
Compiled: decode a batch of observations straight into the arrays that the caller gets.

Segments are reached through a table of addresses, because there may be any number of them; every offset that comes
from stored bytes is checked against the segment before it is used.
"""

from __future__ import annotations

import numpy as np
from numba import int64, uint8, uint64

from sb3_extra_buffers.codecs._jit import jit_kernel
from sb3_extra_buffers.storage.control import (
    CAPACITY,
    DEPTH,
    DIRECTORY,
    FRAME_BYTES,
    HEADS,
    N_SEGMENTS,
    N_STREAMS,
    OPEN_SLOTS,
    OUTER,
    PART_BYTES,
    PATTERN_COUNT,
    PATTERNS,
    POINTERS,
    ROW_BYTES,
    SEGMENT_BYTES,
    SHIFT,
    STAGED,
    STAGING,
    STAGING_BYTES,
)
from sb3_extra_buffers.storage.errors import DAMAGED, EXPAND, OUTSIDE
from sb3_extra_buffers.storage.frame_index import NEWEST, PATTERN, PATTERN_BYTES
from sb3_extra_buffers.storage.kernels.memory import (
    address_of,
    copy_bytes,
    fetch_line,
    half_words_at,
    load_word,
    memory_at,
    numbers_at,
    quarter_words_at,
    words_at,
)
from sb3_extra_buffers.storage.kernels.patch import PREFIX, apply_patch, is_up, patch_end
from sb3_extra_buffers.storage.records import HEADER_BYTES, KEY_OFFSET_BYTES, KEYED, OPEN_BIT, WRITE_AHEAD

_HEADER = uint64(HEADER_BYTES)
_KEY_OFFSET = uint64(KEY_OFFSET_BYTES)
_OPEN = uint64(OPEN_BIT)
_OFFSET_MASK = uint64(0xFFFFFFFF)
_ROUND = int64(0xFFFFFFFF)
_LINE = 64
# How many observations before its turn each part of one is fetched; each part is found by means of the one before it.
_FETCH_ENTRIES = 7
_FETCH_DIRECTORY = 5
_FETCH_HEADERS = 3
_FETCH_FRAMES = 1


@jit_kernel
def _find(locations, location):
    """Index of a location in a sorted array, or -1."""
    low = 0
    high = len(locations)
    while low < high:
        middle = (low + high) >> 1
        if locations[middle] < location:
            low = middle + 1
        else:
            high = middle
    if low < len(locations) and locations[low] == location:
        return low
    return -1


@jit_kernel
def _locate(control, book, cell, stream, wanted, first):
    """Work out which frames an observation is made of, -1 for zeros; tells whether the entry makes sense."""
    depth = control[DEPTH]
    head = numbers_at(control[HEADS], control[N_STREAMS])[stream]
    number = head - ((head - int64(half_words_at(book[NEWEST], cell + 1)[cell])) & _ROUND)
    if book[PATTERN_BYTES] == 2:
        pattern = int64(quarter_words_at(book[PATTERN], cell + 1)[cell])
    else:
        pattern = int64(half_words_at(book[PATTERN], cell + 1)[cell])
    if pattern >= numbers_at(control[PATTERN_COUNT], 1)[0]:
        return False
    offsets = numbers_at(control[PATTERNS] + 8 * depth * pattern, depth)
    for j in range(depth):
        wanted[first + j] = -1
        if offsets[j] >= 0:
            if number < offsets[j]:
                return False
            wanted[first + j] = number - offsets[j]
    return True


@jit_kernel
def _emit(control, source, out, row, j):
    """Write one frame (or zeros, when ``source`` is 0) to its place in the output."""
    outer = uint64(control[OUTER])
    part = uint64(control[PART_BYTES])
    parts = uint64(control[DEPTH])
    target = out + uint64(row) * parts * outer * part + uint64(j) * part
    if outer == 1:
        if source == 0:
            memory_at(target, part)[:] = uint8(0)
        else:
            copy_bytes(target, source, part)
        return
    stride = parts * part
    memory = memory_at(target, (outer - uint64(1)) * stride + part)
    if source == 0:
        for a in range(outer):
            for t in range(part):
                memory[a * stride + t] = uint8(0)
    else:
        frame = memory_at(source, outer * part)
        for a in range(outer):
            for t in range(part):
                memory[a * stride + t] = frame[a * part + t]


@jit_kernel
def _record(control, location, expanded, expansions):
    """
    Find a group.

    :return: Address of the frame that it begins with, whether that is a key frame (else it is the first of the group
        itself), address and bytes of the patches; bytes is DAMAGED or EXPAND where that cannot be
    """
    bad = (uint64(0), False, uint64(0), int64(DAMAGED))
    found = _find(expanded, location) if len(expanded) else -1
    segments = uint64(control[N_SEGMENTS])
    segment_bytes = uint64(control[SEGMENT_BYTES])
    pointers = words_at(control[POINTERS], segments)
    if location & _OPEN:
        n = uint64(control[N_STREAMS])
        stream = location ^ _OPEN
        if stream >= n:
            return bad
        base = uint64(control[STAGING]) + stream * uint64(control[STAGING_BYTES])
        length = uint64(numbers_at(control[STAGED], n)[stream]) - _HEADER
        kind = (load_word(base) >> uint64(32)) & uint64(255)
        segment = uint64(numbers_at(control[OPEN_SLOTS], n)[stream])
    else:
        segment = location >> uint64(32)
        offset = location & _OFFSET_MASK
        if segment >= segments or pointers[segment] == 0 or offset + _HEADER > segment_bytes:
            return bad
        base = pointers[segment] + offset
        header = load_word(base)
        length = header & _OFFSET_MASK
        kind = (header >> uint64(32)) & uint64(255)
        if offset + _HEADER + length > segment_bytes:
            return bad
    body = base + _HEADER
    if found >= 0:
        if expansions[found, 0]:
            return expansions[found, 0], False, expansions[found, 1], int64(expansions[found, 2])
        body = expansions[found, 1]
        length = expansions[found, 2]
    elif kind != uint64(KEYED):
        return uint64(0), False, uint64(0), int64(EXPAND)
    if length < _KEY_OFFSET or segment >= segments or pointers[segment] == 0:
        return bad
    key = load_word(body) & _OFFSET_MASK
    if key + uint64(control[FRAME_BYTES]) > segment_bytes:
        return bad
    return pointers[segment] + key, True, body + _KEY_OFFSET, int64(length - _KEY_OFFSET)


@jit_kernel
def _begin_walk(base, keyed, patches, stop, until, scratch, size):
    """
    Find the patch to begin with for the frame at place ``until``: the last one before it that needs no reference.

    :return: Address of that patch and its place; the address is 0 where a patch is damaged
    """
    place = int64(0) if keyed else int64(1)
    address = patches
    first = place
    start = patches
    needs_base = True
    while place <= until:
        end = patch_end(address, stop)
        if end == 0:
            return uint64(0), first
        if is_up(address, end):
            first = place
            start = address
            needs_base = False
        address = end
        place += 1
    if needs_base:
        copy_bytes(scratch, base, uint64(size))
    return start, first


@jit_kernel
def groups_of(directory, shift, streams, wanted, locations):
    """List the locations of all groups that hold wanted frames, repeats left out where they follow each other."""
    capacity = directory.shape[1]
    count = 0
    for row in range(len(streams)):
        before = int64(-1)
        for j in range(wanted.shape[1]):
            if wanted[row, j] < 0:
                continue
            group = wanted[row, j] >> shift
            if group != before:
                locations[count] = directory[streams[row], group % capacity]
                count += 1
                before = group
    return count


@jit_kernel
def _place_of(out, other_out, j, row, size):
    """Address where an observation that is one frame goes."""
    return (address_of(out) if j == 0 else address_of(other_out)) + uint64(row * size)


@jit_kernel
def _cell_of(row, rows, columns, n_rows, n):
    """The cell that an observation of the batch is in; -1 where there is no such cell."""
    if len(columns) == 0:
        return rows[row]
    if not (0 <= rows[row] < n_rows and 0 <= columns[row] < n):
        return int64(-1)
    return rows[row] * n + columns[row]


@jit_kernel
def _fetch_entry(book, cell):
    fetch_line(uint64(book[NEWEST] + 4 * cell))
    fetch_line(uint64(book[PATTERN] + book[PATTERN_BYTES] * cell))


@jit_kernel
def _fetch_group(control, entry, distance):
    """Fetch a group by means of its entry in the directory, which may be anything."""
    if distance == _FETCH_DIRECTORY:
        fetch_line(uint64(entry))
        return
    location = words_at(entry, 1)[0]
    segment = location >> uint64(32)
    offset = location & _OFFSET_MASK
    segment_bytes = uint64(control[SEGMENT_BYTES])
    if location & _OPEN or segment >= uint64(control[N_SEGMENTS]) or offset + _HEADER + _KEY_OFFSET > segment_bytes:
        return
    memory = words_at(control[POINTERS], segment + uint64(1))[segment]
    if distance == _FETCH_HEADERS:
        fetch_line(memory + offset)
    elif memory:
        header = load_word(memory + offset)
        for at in range(uint64(_LINE), min(header & _OFFSET_MASK, segment_bytes - offset), uint64(_LINE)):
            fetch_line(memory + offset + at)
        first_patch = memory + offset + _HEADER + _KEY_OFFSET
        needs_key = not is_up(first_patch, first_patch + uint64(PREFIX + 1))
        if needs_key and (header >> uint64(32)) & uint64(255) == uint64(KEYED):
            key = memory + (load_word(memory + offset + _HEADER) & _OFFSET_MASK)
            for at in range(uint64(0), uint64(control[FRAME_BYTES]), uint64(_LINE)):
                fetch_line(key + at)


@jit_kernel
def _fetch(control, book, other_book, paired, cell, distance, wanted):
    """
    Fetch a part of an observation that is to be decoded soon; in a large log nearly nothing is in a cache.

    :param distance: How soon, which tells the part
    """
    if distance == _FETCH_ENTRIES:
        _fetch_entry(book, cell)
        if paired:
            _fetch_entry(other_book, cell)
        return
    depth = control[DEPTH]
    stream = cell % control[N_STREAMS]
    if not _locate(control, book, cell, stream, wanted, 0):
        return
    if paired and not _locate(control, other_book, cell, stream, wanted, depth):
        return
    low = high = int64(-1)  # the groups that are done: those of a pair lie side by side
    for j in range(2 * depth if paired else depth):
        group = wanted[j] >> control[SHIFT]
        if group < 0 or low <= group <= high:
            continue
        low = group if low < 0 else min(low, group)
        high = max(high, group)
        capacity = control[CAPACITY]
        _fetch_group(control, control[DIRECTORY] + 8 * (stream * capacity + group % capacity), distance)


@jit_kernel
def read_rows(
    first, last, control, book, other_book, rows, columns, n_rows, out, other_out, expanded, expansions, scratch, ahead
):
    """
    Decode observations ``first`` to ``last`` of a batch from one array or from two; each group is walked once for all
    that an observation, or a pair of them, wants of it.

    :param first: First of the batch
    :param last: Where to stop
    :param control: See ``control.Control``
    :param book: Of the index
    :param other_book: Of the second index
    :param rows: ``(m,)``
    :param columns: ``(m,)``; empty where ``rows`` are cells already
    :param n_rows: Number of rows
    :param out: Bytes of ``m`` observations, filled
    :param other_out: Likewise for the second array; empty for none
    :param expanded: Sorted locations of records that were decoded beforehand
    :param expansions: ``(len(expanded), 3)``: address of the first frame or 0, address and bytes of what follows
    :param scratch: ``(2, padded frame bytes and WRITE_AHEAD)``; the second for whoever does not begin with the first row
    :param ahead: Whether to fetch what is needed next; takes longer where all is in a cache anyway
    :return: 0; or DAMAGED; EXPAND where a record should have been decoded beforehand; OUTSIDE where there is no such cell
    """
    size = control[FRAME_BYTES]
    depth = control[DEPTH]
    width = control[ROW_BYTES]
    shift = control[SHIFT]
    n = control[N_STREAMS]
    capacity = control[CAPACITY]
    directory = words_at(control[DIRECTORY], n * capacity)
    paired = len(other_out) > 0
    total = 2 * depth if paired else depth
    mask = (int64(1) << shift) - 1
    # The caller's: numba would free an array of ours once only its address is in use.
    scratch_frame = address_of(scratch[0 if first == 0 else 1])
    wanted = np.empty(total, dtype=np.int64)
    order = np.empty(total, dtype=np.int64)
    for row in range(first - _FETCH_ENTRIES if ahead else first, last):
        if ahead:
            for distance in (_FETCH_ENTRIES, _FETCH_DIRECTORY, _FETCH_HEADERS, _FETCH_FRAMES):
                if first <= row + distance < last:
                    cell = _cell_of(row + distance, rows, columns, n_rows, n)
                    if cell >= 0:
                        _fetch(control, book, other_book, paired, cell, distance, wanted)
            if row < first:
                continue
        cell = _cell_of(row, rows, columns, n_rows, n)
        if cell < 0:
            return int64(OUTSIDE)
        stream = cell % n
        if not _locate(control, book, cell, stream, wanted, 0):
            return int64(DAMAGED)
        if paired and not _locate(control, other_book, cell, stream, wanted, depth):
            return int64(DAMAGED)
        count = 0
        for j in range(total):
            number = wanted[j]
            if number < 0:
                _emit(control, uint64(0), address_of(out) if j < depth else address_of(other_out), row, j % depth)
                continue
            k = count
            while k > 0 and wanted[order[k - 1]] > number:
                order[k] = order[k - 1]
                k -= 1
            order[k] = j
            count += 1
        i = 0
        while i < count:
            group = wanted[order[i]] >> shift
            location = directory[stream * capacity + group % capacity]
            base, keyed, patches, length = _record(control, location, expanded, expansions)
            if length < 0:
                return length
            stop = patches + uint64(length)
            # Without a stack a frame is decoded where it goes to; what that writes beyond it is in the next rows, which come
            # later. Not so at the end.
            in_place = depth == 1 and (last - row - 1) * size >= WRITE_AHEAD
            frame = _place_of(out, other_out, order[i], row, size) if in_place else scratch_frame
            address, place = _begin_walk(base, keyed, patches, stop, wanted[order[i]] & mask, frame, size)
            if address == 0:
                return int64(DAMAGED)
            while i < count and wanted[order[i]] >> shift == group:
                j = order[i]
                if in_place and frame != _place_of(out, other_out, j, row, size):
                    before = frame
                    frame = _place_of(out, other_out, j, row, size)
                    copy_bytes(frame, before, uint64(size))
                until = wanted[j] & mask
                while place <= until:
                    end = patch_end(address, stop)
                    if end == 0 or not apply_patch(address, end, frame, size, width):
                        return int64(DAMAGED)
                    address = end
                    place += 1
                if not in_place:
                    _emit(control, frame, address_of(out) if j < depth else address_of(other_out), row, j % depth)
                i += 1
    return int64(0)
