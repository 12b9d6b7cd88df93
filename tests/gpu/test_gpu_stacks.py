"""What looks like a frame stack and is none, and what was one until now; as on the CPU side."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch as th
from gpu_kit import Pair, rollout_pair
from observation_streams import Stack, Stream, assert_same_samples

from sb3_extra_buffers.gpu_buffers import raw_buffer

DEPTH, WIDTH = 16, 40


def scrolling(seed: int, n_envs: int = 2) -> Stream:
    """A detailed picture that moves up row by row, as if its rows were the frames of a stack."""
    return Stream(seed, n_envs, (1, WIDTH), np.uint8, "noise", Stack(DEPTH, 0), 0.0)


def still(seed: int, n_envs: int = 2) -> Stream:
    """A picture of the same shape, in which a little changes."""
    return Stream(seed, n_envs, (DEPTH, WIDTH), np.uint8, "game", None, 0.0)


def frames_an_observation(buffer: Any) -> float:
    usage = buffer.memory_usage()
    return float((usage.frames_stored + usage.frames_shared) * DEPTH * WIDTH / usage.raw_bytes)


def rollout(pair: tuple[Any, Any], stream: Stream, rows: int) -> None:
    """Fill both with a rollout, and compare their minibatches."""
    for buffer in pair:
        buffer.reset()
    for _ in range(rows):
        obs, _, dones, _ = stream.step()
        for buffer in pair:
            buffer.add(obs, np.zeros(2), np.zeros(2), dones, th.zeros(2), th.zeros(2))
    batches = []
    for buffer in pair:
        np.random.seed(0)
        batches.append(list(buffer.get(9)))
    for mine, other in zip(*batches, strict=True):
        assert_same_samples(mine, other)


@pytest.mark.parametrize("axis", [0, 1])
def test_one_object_that_moves_is_no_stack(axis: int) -> None:
    pair = Pair(still(0, 1), 80)
    for step in range(70):
        obs = np.full((2, 1, DEPTH, WIDTH), 30, np.uint8)
        for number in range(2):
            place = [4, 4]
            place[axis] = (-step - number) % (DEPTH, WIDTH)[axis]
            obs[number, 0, place[0] : place[0] + 3, place[1] : place[1] + 3] = 200
        for buffer in (pair.ours, pair.theirs):
            buffer.add(obs[0], obs[1], np.zeros(1), np.zeros(1), np.zeros(1), [{}])
    assert frames_an_observation(pair.ours) == 1
    pair.check()


def test_a_stack_that_stops_being_one_is_given_up() -> None:
    for method in ("delta", "rle", "gzip1"):
        pair = Pair(scrolling(1), 300, compression_method=method)
        pair.add(40)
        assert frames_an_observation(pair.ours) == DEPTH, method
        pair.stream = still(2)
        for count in (60, 400):
            pair.add(count)
            assert frames_an_observation(pair.ours) == 1, method
            pair.check()


def test_ends_of_episodes_do_not_speak_against_a_stack() -> None:
    for padding in ("zeros", "repeat"):
        pair = Pair(Stream(3, 3, (1, 12, 12), np.uint8, "game", Stack(4, 0, padding), 0.3), 400)
        pair.add(400)
        usage = pair.ours.memory_usage()
        assert usage.frames_stored + usage.frames_shared == 2 * 3 * 400 * 4
        pair.check()


def test_no_memory_to_give_a_stack_up(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Then it stays, and what is added is stored all the same."""
    pair = Pair(scrolling(4), 300)
    pair.add(40)
    pair.ours._stores[None].heap.resize(10**6)

    def full(*_: Any) -> Any:
        raise RuntimeError("CUDA out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(raw_buffer.RawBuffer, "_allocate", full)
        pair.stream = still(5)
        pair.add(40)
    assert frames_an_observation(pair.ours) == DEPTH and "no memory to store observations" in caplog.text
    pair.check()


@pytest.mark.parametrize("options", [{}, {"heap_bytes": 10**6}], ids=["grows", "fixed"])
def test_rollouts(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """With a heap of fixed size that is done where there is nothing to store again, so that there are never two of them."""
    sizes: list[int] = []
    allocate = raw_buffer.RawBuffer._allocate
    monkeypatch.setattr(raw_buffer.RawBuffer, "_allocate", lambda self, size: sizes.append(size) or allocate(self, size))
    pair = rollout_pair(scrolling(6), 50, **options)
    rollout(pair, scrolling(6), 50)
    assert frames_an_observation(pair[0]) == DEPTH
    rollout(pair, still(7), 50)
    assert frames_an_observation(pair[0]) == (DEPTH if options else 1)
    rollout(pair, still(8), 50)
    assert frames_an_observation(pair[0]) == 1
    assert not options or sum(size >= 10**6 for size in sizes) == 2
