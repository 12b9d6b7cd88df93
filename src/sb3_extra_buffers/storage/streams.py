"""What is known of each stream: its last observation."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sb3_extra_buffers.storage.layout import ByteArray, FrameLayout
from sb3_extra_buffers.storage.patterns import ZERO
from sb3_extra_buffers.storage.records import padded_rows

NO_CELLS: npt.NDArray[np.int64] = np.empty(0, dtype=np.int64)


class StreamState:
    """
    The last observation of each stream, as bytes and told in frames; and what ``put`` says of the observations it saw.

    :param n_streams: Number of streams
    :param layout: How observations split into frames
    """

    def __init__(self, n_streams: int, layout: FrameLayout) -> None:
        # Observations in memory order; ``turned`` tells which.
        self.last: ByteArray = np.zeros((n_streams, layout.obs_bytes), dtype=np.uint8)
        self.turned = False
        self.known: npt.NDArray[np.bool_] = np.zeros(n_streams, dtype=np.bool_)
        self.slots: npt.NDArray[np.int64] = np.full((n_streams, layout.depth), ZERO, dtype=np.int64)
        # How many of them, from the newest on, are consecutive.
        self.runs: npt.NDArray[np.int64] = np.zeros(n_streams, dtype=np.int64)
        self.tail_is_newest: npt.NDArray[np.bool_] = np.zeros(n_streams, dtype=np.bool_)
        self.entry_newest: npt.NDArray[np.uint32] = np.zeros(n_streams, dtype=np.uint32)
        self.entry_pattern: npt.NDArray[np.uint32] = np.zeros(n_streams, dtype=np.uint32)
        # Newest frame of each observation that has a new one, and what each observation is, see ``matching``.
        self.frames = padded_rows(n_streams, layout.frame_bytes)
        self.status: npt.NDArray[np.int64] = np.zeros(n_streams, dtype=np.int64)


def all_cells(base: int, cells: npt.NDArray[np.int64], n_streams: int) -> npt.NDArray[np.int64]:
    """
    List the cells that observations go to: a row of cells, or any cells of distinct streams.

    :param base: First cell of the row
    :param cells: The cells; empty for the row
    :param n_streams: Cells in a row
    :return: All of them
    """
    return cells if len(cells) else np.arange(base, base + n_streams)
