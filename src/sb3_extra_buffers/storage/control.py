"""
One array of numbers and addresses, which compiled code gets instead of three dozen arguments.

Passing an array to compiled code takes time; passing all of them took longer than coding a frame.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

# What the words are. Plain numbers, as compiled code takes them for constants. Sizes and settings first.
N_STREAMS = 0
DEPTH = 1
FRAME_BYTES = 2
STRIDE = 3  # bytes from one padded frame to the next
ROW_BYTES = 4
OBS_BYTES = 5
OUTER = 6
PART_BYTES = 7
SHIFT = 8
LIMIT = 9  # bytes that a patch may take
PACKS = 10  # whether groups are packed by a codec, which is not for compiled code
ROOM = 11
STAGING_BYTES = 12
SEGMENT_BYTES = 13
N_SEGMENTS = 14
CAPACITY = 15  # of the directory, in groups a stream
# Addresses from here on; see ``StreamState`` and ``ReferenceCoder`` for what is there.
GEOMETRY = 16
LAST = 17
KNOWN = 18
TAIL = 19
TAIL_IS_NEWEST = 20
FRAMES = 21
STATUS = 22
SLOTS = 23
RUNS = 24
ENTRY_NEWEST = 25
ENTRY_PATTERN = 26
STAGING = 27
STAGED = 28
COUNTS = 29
HEADS = 30
OPEN_SLOTS = 31
GROUPS = 32
KEY_SLOTS = 33
KEY_OFFSETS = 34
KEY_COSTS = 35
PAYS = 36
FAVOUR = 37
POINTERS = 38
BOOKS = 39
CURRENT = 40
DIRECTORY = 41
OLDEST = 42
PATTERNS = 43
PATTERN_COUNT = 44
ZEROS = 45
CONTROL_WORDS = 46


class Control:
    """
    The words, and hold of the arrays that they are addresses of.

    :param numbers: Sizes and settings by word
    :param arrays: C-contiguous arrays by word
    """

    def __init__(self, numbers: Mapping[int, int], arrays: Mapping[int, npt.NDArray[Any]]) -> None:
        # Replaced when they grow; then another control is needed.
        self.pointers, self.directory, self.patterns = arrays[POINTERS], arrays[DIRECTORY], arrays[PATTERNS]
        self.words: npt.NDArray[np.int64] = np.zeros(CONTROL_WORDS, dtype=np.int64)
        self._arrays = dict(arrays)
        for word, number in numbers.items():
            self.words[word] = number
        for word, array in arrays.items():
            assert array.flags.c_contiguous, f"word {word} needs memory in one piece"
            self.words[word] = array.ctypes.data
        self.address = int(self.words.ctypes.data)
