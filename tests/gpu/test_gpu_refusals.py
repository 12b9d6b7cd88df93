"""What must not be done to a buffer on a device, or with what it has saved, is refused."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from gpu_kit import Pair
from interrupt_kit import between
from observation_streams import Stack, Stream

from sb3_extra_buffers.storage import StorageError


def image(seed: int) -> Stream:
    return Stream(seed, 2, (1, 8, 8), np.uint8, "mixed", Stack(3, 0), 0.15)


def test_a_signal_handler_must_not_change_the_buffer() -> None:
    """It would take the place of what is being added; it is told so, and the ``add`` goes on."""
    pair = Pair(image(15), 9)
    pair.add(12)
    refused = 0
    for at in range(0, 1500, 97):
        given, other = pair.draw(), pair.draw()

        def handler(other: Any = other) -> None:
            nonlocal refused
            for change in (lambda: pair.ours.add(*other), pair.ours.reset, pair.ours.compact):
                with pytest.raises(RuntimeError, match="in use by this very thread"):
                    change()
                refused += 1

        def in_the_midst(handler: Any = handler) -> None:
            if pair.ours._table._unfinished:
                handler()

        between(lambda given=given: pair.ours.add(*given), at, in_the_midst)
        pair.theirs.add(*given)
        pair.check()
    assert refused > 10


@pytest.mark.parametrize("method", ["delta", "rle", "none", "gzip1"])
def test_a_flipped_bit_in_what_was_saved_is_found(method: str) -> None:
    """In the bytes on the device, in what says where they are, and in the slots that rows show."""
    pair = Pair(image(16), 9, compression_method=method)
    pair.add(30)
    store, table = pair.ours._stores[None], pair.ours._table
    parts = [table.slots, pair.ours.rewards]
    if method == "none":
        parts.append(store.data.numpy())
    else:
        heap = store.heap
        parts += [heap.raw.data[: heap.data_end].numpy(), heap.starts_array, heap.lengths_array, store._frames.table.cells]
    data = pickle.dumps(pair.ours)
    for part in parts:
        place = data.index(part.tobytes())
        for at in range(place, place + part.nbytes, max(part.nbytes // 9, 1)):
            damaged = bytearray(data)
            damaged[at] ^= 1 << at % 8
            with pytest.raises(StorageError, match="damaged"):
                pickle.loads(damaged)
