"""The next minibatch, decoded while the caller trains on this one."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

from sb3_extra_buffers.storage.jobs import Helper, Job

_helper = Helper("sb3-extra-buffers-prefetch")


def prefetched(batches: Iterator[Any]) -> Generator[Any, None, None]:
    """
    Run one item ahead of the caller, on a thread.

    The first item is made by the caller's own thread: that is when SB3 draws the permutation, and random numbers must
    be drawn in the same order as without a thread.
    """
    end = object()
    batch = next(batches, end)
    while batch is not end:
        following: Job[Any] = Job(lambda: next(batches, end))
        try:
            _helper.offer(following)
            yield batch
            batch = following.result()
        finally:
            following.settle()  # nobody reads the buffer after an iteration was given up
