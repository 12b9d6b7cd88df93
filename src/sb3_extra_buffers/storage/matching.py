"""What a new observation is to the last one of its stream; the NumPy form of what ``kernels.put`` does compiled."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sb3_extra_buffers.storage.layout import ByteArray, FrameLayout, c_order
from sb3_extra_buffers.storage.streams import StreamState

SAME = 0
"""Equal to the last observation, or dealt with already."""
APPENDED = 1
"""One frame further, and that frame is coded already; only the index entry is to be made."""
FRAME = 2
"""One frame further; the frame awaits coding."""
REPEAT = 3
"""One frame further, and the newest frame is the last one again."""
OTHER = 4
"""Anything else: an episode's first observation, for example."""


def match_batch(
    new: ByteArray, streams: npt.NDArray[np.int64], layout: FrameLayout, tail: ByteArray, state: StreamState
) -> None:
    """
    Compare observations with the last ones of their streams.

    :param new: ``(m, obs_bytes)`` in memory order
    :param streams: ``(m,)``, distinct
    :param layout: The layout
    :param tail: ``(n_streams, stride)``, the last stored frame of each stream
    :param state: The last observations, brought up to date except for OTHER; frames and statuses are filled
    """
    last, known, turned, status = state.last, state.known, state.turned, state.status
    size = layout.frame_bytes
    words = pixels_are_words(layout, turned)
    for row, stream in enumerate(streams.tolist()):
        if known[stream] and np.array_equal(new[row], last[stream]):
            status[row] = SAME
            continue
        if layout.depth > 1 and not known[stream]:
            status[row] = OTHER
            continue
        if words:
            moved, newest = _compare_words(new[row].view("<u4"), last[stream].view("<u4"))
        else:
            now = layout.split(c_order(new[row : row + 1], turned, layout))[0]
            newest = now[-1]
            moved = layout.depth == 1
            if not moved:
                before = layout.split(c_order(last[stream : stream + 1], turned, layout))[0]
                moved = np.array_equal(now[:-1], before[1:])
        if not moved:
            status[row] = OTHER
            continue
        state.frames[row, :size] = newest
        last[stream] = new[row]
        known[stream] = True
        repeated = layout.depth > 1 and state.tail_is_newest[stream] and np.array_equal(newest, tail[stream, :size])
        status[row] = REPEAT if repeated else FRAME


def pixels_are_words(layout: FrameLayout, turned: bool) -> bool:
    """
    Tell whether the four one-byte frames of a stack lie side by side in memory, as in the usual Atari stack.

    :param layout: The layout
    :param turned: Memory order, see ``layout.memory_order``
    :return: Whether a pixel can be compared as one 32-bit word
    """
    last_in_memory = turned or layout.plane_bytes == layout.itemsize
    return last_in_memory and layout.itemsize == 1 and layout.group == 1 and layout.length == 4


def _compare_words(new: npt.NDArray[np.uint32], old: npt.NDArray[np.uint32]) -> tuple[bool, ByteArray]:
    """Whether all frames but the newest are the old ones moved on, and the newest frame."""
    moved = not ((new ^ (old >> np.uint32(8))) & np.uint32(0x00FFFFFF)).any()
    return moved, (new >> np.uint32(24)).astype(np.uint8)
