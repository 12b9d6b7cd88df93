"""Where the parts of run-length coded payloads lie."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]


class SlotMetadata(NamedTuple):
    """
    The parts of some cells' payloads, an entry a cell. Offsets are relative to the cell, so they survive compaction.

    :param byte_start: Where the cells begin in the heap
    :param pos_runs: Offset of the run lengths
    :param pos_elem: Offset of the elements
    :param run_length: How many runs there are
    :param payload_bytes: Bytes of the whole payload
    """

    byte_start: Indices
    pos_runs: Indices
    pos_elem: Indices
    run_length: Indices
    payload_bytes: Indices

    @classmethod
    def of_runs(cls, starts: npt.NDArray[Any], payload_bytes: npt.NDArray[Any], elem_size: int, run_size: int) -> SlotMetadata:
        """
        Compute the offsets from the lengths of the payloads. The wider part comes first, so that both are aligned.

        :param starts: Where the cells begin
        :param payload_bytes: Bytes of their payloads, less than a run more than the runs need
        :param elem_size: Bytes of an element
        :param run_size: Bytes of a run length
        :return: The metadata
        """
        total = payload_bytes.astype(np.int64)
        runs = total // (elem_size + run_size)
        nothing = np.zeros_like(runs)
        runs_first = run_size >= elem_size
        pos_runs = nothing if runs_first else runs * elem_size
        pos_elem = runs * run_size if runs_first else nothing
        return cls(starts.astype(np.int64), pos_runs, pos_elem, runs, total)
