"""The byte heap against a plain dict: no cell changes but the one written; full, compacted, grown, refused, interrupted."""

from __future__ import annotations

import copy
import itertools
import pickle
from typing import Any

import numpy as np
import pytest
import torch as th
from gpu_kit import DEVICES
from hypothesis import given
from hypothesis import strategies as st
from interrupt_kit import is_cut

from sb3_extra_buffers.gpu_buffers import raw_buffer
from sb3_extra_buffers.gpu_buffers.raw_buffer import HeapFullError, RawBuffer, SharedRawHeap

CELLS = 7
# Which cells are written, and how many bytes each gets; or what else is done.
writes = st.dictionaries(st.integers(0, CELLS - 1), st.integers(0, 40), min_size=1, max_size=CELLS)
actions = st.lists(st.one_of(writes, st.sampled_from(["compact", "twin", "clear", "cells"])), max_size=25)


def content(heap: SharedRawHeap) -> dict[int, bytes]:
    """Every payload in the heap, read one by one."""
    lengths = heap.lengths.numpy()
    found = {cell: heap.payloads(np.array([cell])).cpu().numpy().tobytes() for cell in np.flatnonzero(lengths)}
    assert {cell: len(payload) for cell, payload in found.items()} == {int(c): int(lengths[c]) for c in found}
    # All at once gives the same.
    cells = np.array(sorted(found, reverse=True), dtype=np.int64)
    assert heap.payloads(cells).cpu().numpy().tobytes() == b"".join(found[cell] for cell in cells)
    return found


def check(heap: SharedRawHeap, model: dict[int, bytes]) -> None:
    assert content(heap) == model
    spans = sorted((int(heap.start_idx[cell]), int(heap.lengths[cell])) for cell in model)
    assert all(start + length <= after for (start, length), (after, _) in itertools.pairwise(spans))
    assert sum(length for _, length in spans) == heap.live_bytes <= heap.data_end <= heap.capacity


def write(heap: SharedRawHeap, model: dict[int, bytes], sizes: dict[int, int], rng: np.random.Generator) -> None:
    sizes = {cell: size * heap.raw.align for cell, size in sizes.items()}
    payloads = {cell: rng.integers(0, 256, size, dtype=np.uint8) for cell, size in sizes.items()}
    needed = sum(len(payload) for payload in model.values()) + sum(sizes.values())
    try:
        heap.write(np.array(list(sizes)), np.concatenate(list(payloads.values())), np.array(list(sizes.values())))
    except HeapFullError as error:
        assert not heap.grows and needed > heap.capacity
        assert all(str(number) in str(error) for number in (sum(sizes.values()), heap.capacity)) and "heap_bytes" in str(error)
        return
    assert heap.grows or needed <= heap.capacity, "old and new payloads have to fit side by side"
    for cell, payload in payloads.items():
        model.pop(cell, None)
        if len(payload):
            model[cell] = payload.tobytes()


@pytest.mark.parametrize("device", DEVICES)
@given(
    actions=actions,
    capacity=st.integers(0, 300),
    align=st.sampled_from([1, 2, 8]),
    grows=st.booleans(),
    chunk=st.sampled_from([1, 40, 10**6]),
)
def test_against_a_dict(device: str, actions: list[Any], capacity: int, align: int, grows: bool, chunk: int) -> None:
    heap, model, rng = SharedRawHeap(CELLS, capacity, device, align, grows), {}, np.random.default_rng(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(raw_buffer, "_CHUNK_BYTES", chunk)
        for action in actions:
            if isinstance(action, dict):
                write(heap, model, action, rng)
            elif action == "compact":
                heap.compact()
                assert heap.data_end == int(heap.lengths.sum())
            elif action == "twin":
                before, heap = heap, pickle.loads(pickle.dumps(copy.deepcopy(heap)))
                before.clear_all()
            elif action == "clear":
                heap.clear(np.array([0, 3]))
                model.pop(0, None)
                model.pop(3, None)
            else:
                heap.add_cells(1)
            check(heap, model)


def test_full_then_compacted_then_grown_then_refused(caplog: pytest.LogCaptureFixture) -> None:
    payload = np.arange(40, dtype=np.uint8)
    for grows in (True, False):
        heap = SharedRawHeap(4, 100, grows=grows)
        heap.write(np.array([0, 1]), np.concatenate([payload, payload]), np.array([40, 40]))
        heap.clear(np.array([0]))
        heap.write(np.array([2]), payload, np.array([40]))  # fits only once the first is squeezed out
        assert heap.data_end == 80 and int(heap.start_idx[1]) == 0
        if grows:
            assert heap.capacity == 208, "less than a quarter would have been free"
            continue
        assert heap.capacity == 104
        with pytest.raises(HeapFullError, match=r"40 bytes more are needed, and 80 of 104 are in use.*heap_bytes to 150"):
            heap.write(np.array([3]), payload, np.array([40]))
        check(heap, {1: payload.tobytes(), 2: payload.tobytes()})


def test_wrong_lengths_are_refused() -> None:
    heap = SharedRawHeap(4, 100, align=8)
    for lengths in ([8], [4, 12], [8, 8, 0]):
        with pytest.raises(ValueError, match="add up"):
            heap.write(np.array([0, 1]), np.zeros(16, np.uint8), np.array(lengths))
    check(heap, {})
    with pytest.raises(ValueError, match="align"):
        RawBuffer(8, align=3)
    with pytest.raises(ValueError, match="must not be negative, got -1"):
        RawBuffer(-1)
    with pytest.raises(TypeError, match="SharedRawHeap"):
        pickle.dumps(RawBuffer(8))


def test_tables_are_tensors_of_the_host() -> None:
    heap = SharedRawHeap(3, 64, DEVICES[-1])
    heap.write(np.array([2]), np.ones(5, np.uint8), np.array([5]))
    assert isinstance(heap.start_idx, th.Tensor) and heap.start_idx.device.type == heap.lengths.device.type == "cpu"
    assert heap.lengths.tolist() == [0, 0, 5] and heap.data_end == 5


@pytest.mark.parametrize("step", [23, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("what", ["write", "compact", "grow"])
def test_interrupted_between_any_two_instructions(what: str, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw_buffer, "_CHUNK_BYTES", 16)
    rng = np.random.default_rng(0)
    for at in range(0, 4000, step):
        heap, model = SharedRawHeap(CELLS, 120, grows=what == "grow"), {}
        write(heap, model, {0: 10, 1: 20, 2: 8}, rng)
        write(heap, model, {1: 12, 3: 30, 0: 6}, rng)
        old = dict(model)
        new = rng.integers(0, 256, 60 if what == "grow" else 18, dtype=np.uint8)
        call = (
            heap.compact
            if what == "compact"
            else lambda heap=heap, new=new: heap.write(np.array([0]), new, np.array([len(new)]))
        )
        if not is_cut(call, at):
            assert at > 50
            break
        model = content(heap)
        assert model in (old, old | {0: new.tobytes()} if what != "compact" else old)
        for _ in range(3):
            write(heap, model, {2: 20, 4: 9}, rng)
            check(heap, model)
        heap.compact()
        check(heap, model)
    else:
        pytest.fail("it never came to its end")
