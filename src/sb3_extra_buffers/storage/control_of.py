"""What compiled code works on, of a reference coder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sb3_extra_buffers.storage import control
from sb3_extra_buffers.storage.control import Control
from sb3_extra_buffers.storage.layout import ByteArray

if TYPE_CHECKING:
    from sb3_extra_buffers.storage.reference import ReferenceCoder


def control_of(coder: ReferenceCoder, geometry: npt.NDArray[np.int64], zeros: ByteArray) -> Control:
    """
    Collect it.

    :param coder: The coder
    :param geometry: For C order and for turned memory: blocks, block bytes, part bytes, item bytes, whether words
    :param zeros: A row of zeros
    :return: The control
    """
    layout, state = coder.layout, coder.state
    numbers = {
        control.N_STREAMS: coder.n_streams,
        control.DEPTH: layout.depth,
        control.FRAME_BYTES: layout.frame_bytes,
        control.STRIDE: coder.tail.shape[1],
        control.ROW_BYTES: layout.row_bytes,
        control.OBS_BYTES: layout.obs_bytes,
        control.OUTER: layout.outer,
        control.PART_BYTES: layout.part_bytes,
        control.SHIFT: coder.shift,
        control.LIMIT: coder.limit,
        control.PACKS: coder.packer is not None,
        control.ROOM: coder.room,
        control.STAGING_BYTES: coder.staging.shape[1],
        control.SEGMENT_BYTES: coder.log.segment_bytes,
        control.N_SEGMENTS: len(coder.log.pointers),
        control.CAPACITY: coder.directory.capacity,
    }
    arrays: dict[int, npt.NDArray[Any]] = {
        control.GEOMETRY: geometry,
        control.LAST: state.last,
        control.KNOWN: state.known,
        control.TAIL: coder.tail,
        control.TAIL_IS_NEWEST: state.tail_is_newest,
        control.FRAMES: state.frames,
        control.STATUS: state.status,
        control.SLOTS: state.slots,
        control.RUNS: state.runs,
        control.ENTRY_NEWEST: state.entry_newest,
        control.ENTRY_PATTERN: state.entry_pattern,
        control.STAGING: coder.staging,
        control.STAGED: coder.staged,
        control.COUNTS: coder.counts,
        control.HEADS: coder.heads,
        control.OPEN_SLOTS: coder.open_slots,
        control.GROUPS: coder.groups,
        control.KEY_SLOTS: coder.key_slots,
        control.KEY_OFFSETS: coder.key_offsets,
        control.KEY_COSTS: coder.key_costs,
        control.PAYS: coder.pays,
        control.FAVOUR: coder.favour,
        control.POINTERS: coder.log.pointers,
        control.BOOKS: coder.log.books,
        control.CURRENT: coder.log.head,
        control.DIRECTORY: coder.directory.locations,
        control.OLDEST: coder.directory.oldest,
        control.PATTERNS: coder.patterns.offsets,
        control.PATTERN_COUNT: coder.patterns.count,
        control.ZEROS: zeros,
    }
    return Control(numbers, arrays)
