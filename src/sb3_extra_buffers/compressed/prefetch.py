"""The next minibatch, decoded while the caller trains on this one."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def prefetched(batches: Iterator[Any]) -> Generator[Any, None, None]:
    """
    Run one item ahead of the caller, on a thread.

    The first item is made by the caller's own thread: that is when SB3 draws the permutation, and random numbers must
    be drawn in the same order as without a thread.

    :param batches: Minibatches
    :return: The same, in the same order
    """
    end = object()
    with ThreadPoolExecutor(1, thread_name_prefix="sb3-extra-buffers-prefetch") as thread:
        # Leaving the block waits for the thread: nobody reads the buffer after an iteration was given up.
        batch = next(batches, end)
        while batch is not end:
            following = thread.submit(next, batches, end)
            yield batch
            batch = following.result()
