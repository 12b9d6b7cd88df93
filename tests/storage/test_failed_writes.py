"""A write that fails takes no memory, however often it is tried; what was stored stays to the bit, and the column goes on."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from frames_kit import contents_of, frames_of_array, held_bytes

from sb3_extra_buffers.codecs import register_codec, registry
from sb3_extra_buffers.codecs.base import ByteArray
from sb3_extra_buffers.codecs.deflate import GzipCodec
from sb3_extra_buffers.storage import CompressedArray

ENVS, ROWS, SIDE = 8, 60, 40
FAILURES = 300


@dataclass(frozen=True)
class PickyCodec(GzipCodec):
    """DEFLATE that fails when it is told to."""

    name: ClassVar[str] = "picky"
    left: ClassVar[int] = -1  # calls until it fails; negative for never
    error: ClassVar[type[BaseException]] = ValueError

    def _encode_payload(self, data: ByteArray) -> bytes:
        PickyCodec.left -= 1
        if PickyCodec.left == -1:
            raise PickyCodec.error("this frame I do not take")
        return super()._encode_payload(data)


@pytest.fixture(autouse=True)
def picky(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(registry._codecs, "picky", PickyCodec)  # undone at the end of the test
    register_codec(PickyCodec)
    PickyCodec.left = -1
    yield
    PickyCodec.left = -1


METHODS: dict[str, dict[str, Any]] = {
    "delta": {"compression_method": "delta", "compression_kwargs": {"fallback": "picky"}},
    "picky": {"compression_method": "picky"},
}


class Pair:
    """Observations and those that follow, as a replay buffer has them, beside what NumPy holds."""

    def __init__(self, method: str, depth: int, rows: int = ROWS) -> None:
        self.shape = (depth, SIDE, SIDE)
        full = (rows, ENVS, *self.shape)
        self.obs = CompressedArray(full, np.uint8, self.shape, **METHODS[method])
        self.next_obs = CompressedArray(full, np.uint8, self.shape, share_with=self.obs)
        self.twins = np.zeros((2, *full), np.uint8)
        self.rng = np.random.default_rng(0)
        self.last = np.zeros((ENVS, *self.shape), np.uint8)

    def frames(self) -> np.ndarray:
        """Half of the environments show what only a codec makes smaller; the others change a little."""
        new = self.last[:, -1].copy()
        new[::2] = self.rng.integers(0, 4, (ENVS // 2, SIDE, SIDE), dtype=np.uint8)
        new[1::2, self.rng.integers(SIDE)] = self.rng.integers(0, 256, (ENVS // 2, SIDE), dtype=np.uint8)
        return np.concatenate([self.last[:, 1:], new[:, None]], axis=1)

    def add(self, row: int) -> None:
        """Write a pair, which may fail; only if it did not, the twins follow, and the game goes on."""
        following = self.frames()
        frames_of_array(self.obs).write(row, self.last, 0, following)
        self.twins[:, row] = self.last, following
        self.last = following

    def fail(self, row: int, after: int) -> bool:
        """Write a pair with a codec that fails after some calls; whether it did."""
        PickyCodec.left = after
        try:
            self.add(row)
        except PickyCodec.error:
            return True
        finally:
            PickyCodec.left = -1
        return False

    def check(self) -> None:
        for array, twin in zip((self.obs, self.next_obs), self.twins, strict=True):
            assert np.asarray(array).tobytes() == twin.tobytes()


def resident() -> int:
    """Bytes of this process that are in memory."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("depth", [1, 4])
@pytest.mark.parametrize("method", METHODS)
def test_many_failures_in_a_row(method: str, depth: int, error: type[BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever environment it is that fails."""
    monkeypatch.setattr(PickyCodec, "error", error)
    pair = Pair(method, depth)
    for row in range(20):
        pair.add(row)
    assert pair.fail(20, 3), "no codec was asked for the fourth environment of a kind"
    column = frames_of_array(pair.obs)
    before, held = column.usage(), held_bytes(column)
    failed = sum(pair.fail(20, after % (ENVS // 2)) for after in range(FAILURES))
    assert failed == FAILURES
    assert column.usage()[:2] == before[:2]
    assert held_bytes(column) <= held + 2 * ENVS * depth * SIDE * SIDE
    pair.check()
    for row in range(20, ROWS):
        pair.add(row)
    pair.check()


@pytest.mark.parametrize("depth", [1, 4])
@pytest.mark.parametrize("method", METHODS)
def test_failures_between_writes_that_succeed(method: str, depth: int) -> None:
    """After a failure the last observation counts as unknown, so the next is stored whole. That is all that it costs."""
    sizes = []
    for fails in (False, True):
        pair = Pair(method, depth)
        for row in range(ROWS):
            if fails and row in (11, 12):
                rng, pair.rng = pair.rng, np.random.default_rng(row)
                for after in range(ENVS // 2):
                    assert pair.fail(row, after)
                pair.rng = rng
            pair.add(row)
        pair.check()
        sizes.append(pair.obs.memory_usage().frames_stored)
    assert sizes[1] <= sizes[0] + 2 * depth * ENVS


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system does not tell what a process takes")
@pytest.mark.parametrize("method", METHODS)
def test_the_process_does_not_grow(method: str) -> None:
    pair = Pair(method, 4)
    for row in range(20):
        pair.add(row)
    for _ in range(50):
        pair.fail(20, 3)
    before = resident()
    for _ in range(3000):
        assert pair.fail(20, 3)
    grown = resident() - before
    assert grown < 1 << 20, f"3,000 failures took {grown >> 10} KB"
    pair.check()


@pytest.mark.parametrize("depth", [1, 4])
@pytest.mark.parametrize("method", METHODS)
def test_a_ring_of_small_chunks(method: str, depth: int) -> None:
    """Chunks come and go while writes fail, and a copy of the column goes on as it does."""
    pair = Pair(method, depth, rows=20)
    rng = np.random.default_rng(1)
    failed = 0
    for step in range(120):
        for _ in range(int(rng.integers(3))):
            failed += pair.fail(step % 20, int(rng.integers(ENVS)))
        pair.add(step % 20)
        if step % 10 == 0:
            pair.check()
            pair.obs, pair.next_obs = pickle.loads(pickle.dumps((pair.obs, pair.next_obs)))
    pair.check()
    assert failed > 40


def test_two_errors_at_once() -> None:
    """Ctrl-C is not lost, though another error may come before it."""
    pair = Pair("picky", 4)
    for row in range(10):
        pair.add(row)
    before = contents_of(frames_of_array(pair.obs))
    PickyCodec.error = KeyboardInterrupt
    try:
        assert pair.fail(10, 2)
    finally:
        PickyCodec.error = ValueError
    assert contents_of(frames_of_array(pair.obs)).tobytes() == before.tobytes()
    for row in range(10, 30):
        pair.add(row)
    pair.check()
