"""
Compiled: decode a batch of observations straight into the arrays that the caller gets.

Segments are reached through a table of addresses, because there may be any number of them; every offset that comes
from stored bytes is checked against the segment before it is used.
"""

from __future__ import annotations

import numpy as np
from numba import int64, uint8, uint64

from sb3_extra_buffers.codecs._jit import jit_kernel
from sb3_extra_buffers.storage.kernels.memory import address_of, copy_bytes, load_word, memory_at
from sb3_extra_buffers.storage.kernels.patch import apply_patch, is_up, patch_end
from sb3_extra_buffers.storage.records import HEADER_BYTES, KEY_OFFSET_BYTES, KEYED, OPEN_BIT

_HEADER = uint64(HEADER_BYTES)
_KEY_OFFSET = uint64(KEY_OFFSET_BYTES)
_OPEN = uint64(OPEN_BIT)
_OFFSET_MASK = uint64(0xFFFFFFFF)
_ROUND = int64(0xFFFFFFFF)

DAMAGED = -1
EXPAND = -2


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
def _locate(cell, stream, heads, newest, patterns, offsets, wanted, first):
    """Work out which frames an observation is made of; -1 for zeros."""
    head = heads[stream]
    number = head - ((head - int64(newest[cell])) & _ROUND)
    pattern = patterns[cell]
    for j in range(offsets.shape[1]):
        offset = offsets[pattern, j]
        wanted[first + j] = number - offset if offset >= 0 else -1


@jit_kernel
def flat_cells(rows, columns, n_rows, n_columns, cells):
    """
    Turn rows and columns into cells.

    :param rows: ``(m,)``
    :param columns: ``(m,)``
    :param n_rows: Number of rows
    :param n_columns: Number of columns
    :param cells: ``(m,)``, filled
    :return: Whether all are within bounds and not negative
    """
    for i in range(len(rows)):
        if not (0 <= rows[i] < n_rows and 0 <= columns[i] < n_columns):
            return False
        cells[i] = rows[i] * n_columns + columns[i]
    return True


@jit_kernel
def _emit(source, out, row, j, depth, geometry):
    """Write one frame (or zeros, when ``source`` is 0) to its place in the output."""
    outer = uint64(geometry[0])
    part = uint64(geometry[1])
    parts = uint64(depth)
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
def _record(location, pointers, segment_bytes, staging, staged, open_slots, expanded, expansions, size):
    """
    Find a group.

    :return: Address of the frame that it begins with, whether that is a key frame (else it is the first of the group
        itself), address and bytes of the patches; bytes is DAMAGED or EXPAND where that cannot be
    """
    bad = (uint64(0), False, uint64(0), int64(DAMAGED))
    found = _find(expanded, location) if len(expanded) else -1
    if location & _OPEN:
        stream = location ^ _OPEN
        base = address_of(staging) + stream * uint64(staging.shape[1])
        length = uint64(staged[stream]) - _HEADER
        kind = uint64(staging[stream, 4])
        segment = uint64(open_slots[stream])
    else:
        segment = location >> uint64(32)
        offset = location & _OFFSET_MASK
        if segment >= uint64(len(pointers)) or offset + _HEADER > uint64(segment_bytes):
            return bad
        base = pointers[segment] + offset
        header = load_word(base)
        length = header & _OFFSET_MASK
        kind = (header >> uint64(32)) & uint64(255)
        if offset + _HEADER + length > uint64(segment_bytes):
            return bad
    body = base + _HEADER
    if found >= 0:
        if expansions[found, 0]:
            return expansions[found, 0], False, expansions[found, 1], int64(expansions[found, 2])
        body = expansions[found, 1]
        length = expansions[found, 2]
    elif kind != uint64(KEYED):
        return uint64(0), False, uint64(0), int64(EXPAND)
    if length < _KEY_OFFSET or segment >= uint64(len(pointers)):
        return bad
    key = load_word(body) & _OFFSET_MASK
    if key + uint64(size) > uint64(segment_bytes):
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
def read_rows(
    first,
    last,
    cells,
    heads,
    newest,
    patterns,
    other_newest,
    other_patterns,
    offsets,
    out,
    other_out,
    geometry,
    directory,
    shift,
    pointers,
    segment_bytes,
    staging,
    staged,
    open_slots,
    expanded,
    expansions,
    scratch,
):
    """
    Decode rows ``first`` to ``last`` of a batch from one array or from two; each group is walked once for all that a
    row wants of it.

    :param first: First row
    :param last: Row to stop before
    :param cells: ``(m,)``
    :param heads: Number of the last stored frame of each stream
    :param newest: For each cell the low 32 bits of its newest frame's number
    :param patterns: For each cell its pattern
    :param other_newest: Likewise for the second array
    :param other_patterns: Likewise
    :param offsets: ``(n_patterns, depth)``, distance of each frame from the newest, -1 for zeros
    :param out: Address of the output ``(m, obs_bytes)``
    :param other_out: Likewise for the second array; 0 for none
    :param geometry: outer, part bytes, frame bytes, depth, row bytes
    :param directory: ``(n_streams, capacity)``, location of each group
    :param shift: log2 of the frames in a group
    :param pointers: Address of each segment
    :param segment_bytes: Bytes of each segment
    :param staging: The open groups
    :param staged: Bytes in them
    :param open_slots: The segments that they will go to
    :param expanded: Sorted locations of records that were decoded beforehand
    :param expansions: ``(len(expanded), 3)``: address of the first frame or 0, address and bytes of what follows
    :param scratch: ``(2, padded frame bytes)``; the second row is for whoever does not begin with row 0
    :return: 0, or DAMAGED, or EXPAND where a record should have been decoded beforehand
    """
    size = geometry[2]
    depth = geometry[3]
    width = geometry[4]
    n_streams = int64(len(heads))
    capacity = directory.shape[1]
    total = depth if other_out == 0 else 2 * depth
    mask = (int64(1) << shift) - 1
    # The caller's: numba would free an array of ours once only its address is in use.
    source = address_of(scratch[0 if first == 0 else 1])
    wanted = np.empty(total, dtype=np.int64)
    order = np.empty(total, dtype=np.int64)
    for row in range(first, last):
        cell = cells[row]
        stream = cell % n_streams
        _locate(cell, stream, heads, newest, patterns, offsets, wanted, 0)
        if other_out != 0:
            _locate(cell, stream, heads, other_newest, other_patterns, offsets, wanted, depth)
        count = 0
        for j in range(total):
            number = wanted[j]
            if number < 0:
                _emit(uint64(0), out if j < depth else other_out, row, j % depth, depth, geometry)
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
            location = directory[stream, group % capacity]
            base, keyed, patches, length = _record(
                location, pointers, segment_bytes, staging, staged, open_slots, expanded, expansions, size
            )
            if length < 0:
                return length
            stop = patches + uint64(length)
            address, place = _begin_walk(base, keyed, patches, stop, wanted[order[i]] & mask, source, size)
            if address == 0:
                return int64(DAMAGED)
            while i < count and wanted[order[i]] >> shift == group:
                until = wanted[order[i]] & mask
                while place <= until:
                    end = patch_end(address, stop)
                    if end == 0 or not apply_patch(address, end, source, size, width):
                        return int64(DAMAGED)
                    address = end
                    place += 1
                j = order[i]
                _emit(source, out if j < depth else other_out, row, j % depth, depth, geometry)
                i += 1
    return int64(0)
