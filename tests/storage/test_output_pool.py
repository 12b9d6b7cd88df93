"""Memory for batches is used again, but never while somebody has it."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch as th
from observation_streams import Stack, Stream, assert_same_bits

from sb3_extra_buffers.storage import CompressedArray
from sb3_extra_buffers.storage.pool import MAX_BYTES, MIN_BYTES, OutputPool

SHAPE = (16, MIN_BYTES // 16)
BYTE = np.dtype(np.uint8)

HOLDERS: dict[str, Any] = {
    "array": lambda array: array,
    "slice": lambda array: array[3:5],
    "element view": lambda array: array[0, :1],
    "view of a view": lambda array: array[1:][1:].reshape(-1).view(np.int16)[::2],
    "tensor": lambda array: th.from_numpy(array),
    "tensor view": lambda array: th.from_numpy(array)[2:3].view(-1),
    "tensor's array": lambda array: th.from_numpy(array)[2:].numpy(),
    "memoryview": lambda array: memoryview(array)[1:],
    "iterator": lambda array: iter(array),
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_memory_in_use_is_not_given_out(holder: str) -> None:
    pool = OutputPool()
    kept = []
    addresses = set()
    for _ in range(5):
        array = pool.take(SHAPE, BYTE)
        addresses.add(array.ctypes.data)
        kept.append(HOLDERS[holder](array))
        del array
    assert len(addresses) == 5


def test_memory_is_used_again() -> None:
    pool = OutputPool()
    addresses = set()
    for _ in range(10):
        array = pool.take(SHAPE, BYTE)
        addresses.add(array.ctypes.data)
        tensor = th.from_numpy(array)
        del array, tensor
    assert len(addresses) == 1
    assert pool.nbytes == MIN_BYTES


def test_what_was_used_last_is_used_again() -> None:
    """After many batches were held at once, two of them do: what they lie in is in a cache."""
    pool = OutputPool()
    held = [pool.take(SHAPE, BYTE) for _ in range(20)]
    del held
    addresses = set()
    for _ in range(10):
        pair = pool.take(SHAPE, BYTE), pool.take(SHAPE, BYTE)
        addresses |= {array.ctypes.data for array in pair}
        del pair
    assert len(addresses) == 2


def test_the_longest_unused_is_dropped_first() -> None:
    pool = OutputPool()
    held = [pool.take((MAX_BYTES // 4,), BYTE) for _ in range(4)]
    others = [array.ctypes.data for array in held[1:]]
    del held
    pool.take(SHAPE, BYTE)
    again = [pool.take((MAX_BYTES // 4,), BYTE) for _ in range(3)]
    assert [array.ctypes.data for array in again] == others[::-1]
    assert pool.nbytes == MIN_BYTES + 3 * (MAX_BYTES // 4)


def test_what_is_kept_is_limited() -> None:
    pool = OutputPool()
    kept = [pool.take((MAX_BYTES // 5,), BYTE) for _ in range(9)]
    assert len({array.ctypes.data for array in kept}) == 9
    assert pool.nbytes <= MAX_BYTES
    del kept
    other = pool.take((MAX_BYTES // 2,), BYTE)
    assert other.size == MAX_BYTES // 2
    assert pool.nbytes <= MAX_BYTES


@pytest.mark.parametrize("dtype", ["?", "u1", "i2", ">f4", "f8", "c16"])
def test_shape_and_type(dtype: str) -> None:
    pool = OutputPool()
    for shape in [(), (0,), (3, 4), (64, 4, 84, 84)]:
        array = pool.take(shape, np.dtype(dtype))
        assert (array.shape, array.dtype) == (shape, np.dtype(dtype))
        assert array.flags.c_contiguous and array.flags.writeable and array.flags.aligned


def test_threads_get_different_memory() -> None:
    pool = OutputPool()
    wrong = []

    def work(number: int) -> None:
        for _ in range(300):
            array = pool.take(SHAPE, BYTE)
            array[::5] = number
            if not (array[::5] == number).all():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_batches_that_are_kept_stay_as_they_are() -> None:
    """The same through a whole array: batches large enough for the pool, kept while others are read."""
    stream = Stream(0, 2, (1, 84, 84), np.uint8, "game", Stack(4, 0))
    array = CompressedArray((40, 2, 4, 84, 84), np.uint8, (4, 84, 84))
    twin = np.zeros(array.shape, np.uint8)
    for row in range(40):
        array[row] = twin[row] = stream.step()[0]
    rng = np.random.default_rng(0)
    kept = []
    for number in range(25):
        rows, columns = rng.integers(0, 40, 8), rng.integers(0, 2, 8)
        batch = array[rows, columns]
        if number % 3:
            kept.append((batch[2:4] if number % 2 else batch, rows, columns, number % 2))
        del batch
    for batch, rows, columns, cut in kept:
        expected = twin[rows, columns]
        assert_same_bits(batch, expected[2:4].copy() if cut else expected)
