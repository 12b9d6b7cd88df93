"""Frames to payloads and back, whatever is in them: noise is the first test."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch as th
from gpu_kit import DEVICES, METHODS
from hypothesis import given
from hypothesis import strategies as st

from sb3_extra_buffers.gpu_buffers.compression_methods import COMPRESSION_METHOD_MAP, GpuMethod
from sb3_extra_buffers.gpu_buffers.frames import EMPTY, FrameTable
from sb3_extra_buffers.gpu_buffers.metadata import SlotMetadata
from sb3_extra_buffers.gpu_buffers.raw_buffer import SharedRawHeap

CODED = [method for method in METHODS if method != "none"]


def make_table(method: str, frame_bytes: int, n_envs: int, device: str = "cpu", **dtypes: Any) -> FrameTable:
    parsed = GpuMethod.parse(method, dtypes, np.uint8, (frame_bytes,))
    heap = SharedRawHeap(4, 64, device, parsed.align, grows=True)
    return FrameTable(parsed.make_coding(frame_bytes, heap, n_envs), np.zeros((60, n_envs), np.int32))


def frames_of(kind: str, count: int, size: int, rng: np.random.Generator) -> Any:
    """Some frames, one after the other in a game that is ``kind``."""
    frames = np.zeros((count, size), np.uint8)
    for place in range(count):
        if kind == "noise":
            frames[place] = rng.integers(0, 256, size)
        elif kind == "sparse":
            frames[place] = frames[place - 1]
            frames[place, rng.integers(0, size, 3)] = rng.integers(0, 256, 3)
        elif kind == "runs":
            frames[place] = np.repeat(rng.integers(0, 256, size // 5 + 1), 5)[:size]
        elif kind == "flat":
            frames[place] = place
    return frames


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("method", CODED)
@given(
    kinds=st.lists(st.sampled_from(["noise", "sparse", "runs", "flat"]), min_size=1, max_size=4),
    size=st.integers(1, 700),
    n_envs=st.integers(1, 3),
    seed=st.integers(0, 999),
)
def test_round_trip(method: str, device: str, kinds: list[str], size: int, n_envs: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    table = make_table(method, size, n_envs, device)
    slots: list[Any] = [[bytes(size)] * n_envs] * len(table.cells)
    slot = 0
    for kind in kinds:
        for frames in np.stack([frames_of(kind, 5, size, rng) for _ in range(n_envs)], axis=1):
            envs = np.flatnonzero(rng.random(n_envs) < 0.8)
            cells = table.cells[slot - 1].copy()
            if len(envs):
                cells[envs] = table.add(frames[envs], envs)
            table.refer(slot, cells)
            slots[slot] = [frames[env].tobytes() if env in envs else slots[slot - 1][env] for env in range(n_envs)]
            slot += 1
        for dropped in np.flatnonzero(rng.random(slot) < 0.3):
            table.cells[dropped] = EMPTY
            slots[dropped] = [bytes(size)] * n_envs
        table.sweep()
        assert (table.heap.lengths_array <= table.coding.raw_bytes).all(), "what does not get smaller is kept raw"
        wanted = rng.permutation(np.tile(np.arange(slot), 2))
        got = table.read(table.cells[wanted].reshape(-1)).cpu().numpy().reshape(len(wanted), n_envs, size)
        assert all(got[place, env].tobytes() == slots[at][env] for place, at in enumerate(wanted) for env in range(n_envs))
        table.heap.compact()


@pytest.mark.parametrize("method", CODED)
def test_noise_costs_no_more_than_raw(method: str) -> None:
    rng = np.random.default_rng(0)
    table = make_table(method, 7056, 2)
    empty = table.heap.live_bytes
    for slot in range(10):
        table.refer(slot, table.add(rng.integers(0, 256, (2, 7056), dtype=np.uint8), np.arange(2)))
    assert table.heap.live_bytes - empty <= 20 * 7056


@pytest.mark.parametrize("runs_type", [np.uint8, th.int16, np.uint32, th.int64])
@pytest.mark.parametrize("elem_type", [np.uint8, np.int16, th.float32, np.float64, np.complex128])
def test_runs_of_any_types(elem_type: Any, runs_type: Any) -> None:
    """Runs that are longer than their type can say are split; both parts of a payload lie where their type may begin."""
    table = make_table("rle", 6400, 1, elem_type=elem_type, runs_type=runs_type)
    flat = np.zeros(6400, np.uint8)
    flat[16 * 70 : 16 * 75] = np.arange(80)
    cells = [table.add(frame[None], np.zeros(1, np.int64)) for frame in (flat, flat[::-1], flat * 0 + 7)]
    assert table.heap.lengths_array[cells[0]] < 6400 // 2
    assert np.array_equal(table.read(np.concatenate(cells)).numpy(), np.stack([flat, flat[::-1], flat * 0 + 7]))


def test_slot_metadata() -> None:
    slots = SlotMetadata.of_runs(np.array([0, 64]), np.array([10, 6]), elem_size=1, run_size=2)
    assert slots.byte_start.tolist() == [0, 64] and slots.payload_bytes.tolist() == [10, 6]
    assert slots.run_length.tolist() == [3, 2]
    assert slots.pos_runs.tolist() == [0, 0] and slots.pos_elem.tolist() == [6, 4]
    turned = SlotMetadata.of_runs(np.array([0]), np.array([20]), elem_size=4, run_size=1)
    assert turned.pos_elem.tolist() == [0] and turned.pos_runs.tolist() == [16]


def test_every_method_is_listed() -> None:
    assert {"none", "rle", "delta", "zstd", "gzip", "igzip", "lz4-frame", "lz4-block", "rle-jit"} <= set(
        COMPRESSION_METHOD_MAP
    )
    assert COMPRESSION_METHOD_MAP["none"] is None
    with pytest.raises(ValueError, match="did you mean 'delta'"):
        GpuMethod.parse("detla", None, np.uint8, (9,))
    with pytest.raises(ValueError, match="has no option 'fallback'"):
        GpuMethod.parse("delta", None, np.uint8, (9,), {"fallback": "gzip"})
    with pytest.raises(ValueError, match="contradicts"):
        GpuMethod.parse("gzip1", None, np.uint8, (9,), {"compresslevel": 2})
    for dtypes, message in (
        ({"elem": 1}, "unknown keys 'elem'"),
        ({"elem_type": "U3"}, "numeric"),
        ({"runs_type": "f4"}, "int"),
    ):
        with pytest.raises(ValueError, match=message):
            GpuMethod.parse("rle", dtypes, np.uint8, (9,))
