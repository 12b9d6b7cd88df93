"""An ``add`` that does not come to its end has not happened, or it has; never half of it, and nothing else is lost."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch as th
from gpu_kit import ON_DEVICE, Pair, image, rollout_pair
from gymnasium import spaces
from interrupt_kit import between, is_cut
from observation_streams import DictStream, Stack, Stream
from stable_baselines3.common.buffers import ReplayBuffer

from sb3_extra_buffers.gpu_buffers import GpuReplayBuffer, HeapFullError
from sb3_extra_buffers.gpu_buffers.raw_buffer import RawBuffer, SharedRawHeap
from sb3_extra_buffers.storage import StorageError

METHODS = [*ON_DEVICE, "gzip1"]
ALL = 1 << 30
POINTS = pytest.mark.parametrize("points", [12, pytest.param(ALL, marks=pytest.mark.slow)], ids=["sampled", "all"])


def filled(stream: Any, rows: int, count: int, **options: Any) -> Pair:
    pair = Pair(stream, rows, **options)
    pair.add(count)
    return pair


def before(change: Callable[[Any], Any], make: Callable[[int], Pair]) -> Pair:
    """A pair just before the ``add`` that changes something in the store; ``make`` gives one after so many."""
    pair, count = make(1), 1
    first = change(pair.ours._stores[None])
    while change(pair.ours._stores[None]) == first:
        pair.add()
        count += 1
    return make(count - 1)


def stops_scrolling(count: int) -> Pair:
    """What looked like a deep stack until now is none any more."""
    pair = filled(Stream(3, 2, (1, 40), np.uint8, "noise", Stack(16, 0), 0.0), 30, 20)
    pair.stream = Stream(4, 2, (16, 40), np.uint8, "game", None, 0.0)
    pair.add(count)
    return pair


def of_keys(count: int) -> Pair:
    streams = {"image": image(5), "noise": image(6, "noise", 1), "vector": Stream(7, 2, (3,), np.float32, "noise")}
    return filled(DictStream(streams), 7, count)


SCENARIOS: dict[str, Callable[[], Pair]] = {
    **{method: lambda method=method: filled(image(3), 9, 30, compression_method=method) for method in METHODS},  # type: ignore[misc]
    "last row": lambda: filled(image(3), 9, 26),
    "keys": lambda: of_keys(20),
    "layout is found": lambda: before(lambda store: store.layout, lambda n: filled(image(0, "game"), 12, n)),
    "layout is found, fixed heap": lambda: before(
        lambda store: store.layout, lambda n: filled(image(0, "game"), 12, n, heap_bytes=4000)
    ),
    "heap grows": lambda: before(lambda store: store.heap.capacity, lambda n: filled(image(9, "noise", 1), 60, n)),
    "cells grow": lambda: before(lambda store: store.heap.n_cells, lambda n: filled(image(9, "mixed", 1), 60, n)),
    "heap is measured": lambda: filled(image(9, "noise", 1), 90, 63),
    "stack is given up": lambda: before(lambda store: store.layout, stops_scrolling),
}


def add_cut(pair: Pair, at: int) -> bool:
    """Add a transition, cut short; SB3's buffer gets it if ours has it afterwards. Returns whether it was cut."""
    given = pair.draw()
    was_cut = is_cut(lambda: pair.ours.add(*given), at)
    if pair.ours.pos != pair.theirs.pos:
        pair.theirs.add(*given)
    return was_cut


def instructions(pair: Pair) -> int:
    given = pair.draw()
    return between(lambda: pair.ours.add(*given), ALL, lambda: None)


def some(total: int, points: int) -> list[int]:
    return np.unique(np.linspace(0, total - 1, min(points, total)).astype(int)).tolist()


@POINTS
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_ctrl_c_in_an_add(scenario: str, points: int) -> None:
    """The old row or the new one, without a call that puts things in order; and whatever follows goes on from there."""
    make = SCENARIOS[scenario]
    for number, at in enumerate(some(instructions(make()), points)):
        pair = make()
        assert add_cut(pair, at), f"instruction {at}"
        pair.check()
        if number % 3 == 1:  # the next call is cut short, too, where it gives up what the first has left
            add_cut(pair, 40 + number * 7 % 400)
            pair.check()
        elif number % 3 == 2:
            pair.ours = pickle.loads(pickle.dumps(pair.ours))
        pair.add(2)
        pair.check()
        assert pair.ours.memory_usage().ratio > 0
        pair.ours.compact()
        pair.add(pair.ours.buffer_size + 3)
        pair.check()


@POINTS
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_signal_handler_in_an_add(scenario: str, points: int) -> None:
    """What it saves can be loaded and added to; it must not change anything; what it interrupted goes on undisturbed."""
    make, refused = SCENARIOS[scenario], 0
    for at in some(instructions(make()), points):
        pair, saved = make(), []
        given, other, theirs = pair.draw(), pair.draw(), pickle.dumps(pair.theirs)

        def handler(pair: Pair = pair, other: Any = other, saved: list[bytes] = saved) -> None:
            nonlocal refused
            saved.append(pickle.dumps(pair.ours))
            pair.ours.memory_usage()
            state = np.random.get_state()
            pair.ours.sample(4)
            np.random.set_state(state)
            if pair.ours._lock.is_mine():
                for change in (lambda: pair.ours.add(*other), pair.ours.reset, pair.ours.compact):
                    if pair.ours._table._unfinished:
                        with pytest.raises(RuntimeError, match="in use by this very thread"):
                            change()
                        refused += 1

        between(lambda pair=pair, given=given: pair.ours.add(*given), at, handler)  # type: ignore[misc]
        pair.theirs.add(*given)
        pair.check()
        pair.add(3)
        pair.check()
        pair.ours, pair.theirs = pickle.loads(saved[0]), pickle.loads(theirs)
        if pair.ours.pos != pair.theirs.pos:
            pair.theirs.add(*given)
        pair.check()
        pair.add(5)
        pair.check()
    assert refused > 0


def test_bad_arguments_leave_no_half_transition() -> None:
    names = ("obs", "next_obs", "action", "reward", "done", "infos")
    for method in ON_DEVICE:
        pair = Pair(image(8), 6, compression_method=method)
        pair.add(15)
        for wrong in names[:4] + names[5:]:
            for _ in range(4):
                given = dict(zip(names, pair.draw(), strict=True))
                given[wrong] = 3 if wrong == "infos" else np.zeros((7, 5))
                with pytest.raises((ValueError, TypeError)):
                    pair.ours.add(**given)
                pair.check()
                pair.add()
        pair.check()


def noise_buffer(rows: int, **options: Any) -> Pair:
    return Pair(image(9, "noise"), rows, **options)


def test_a_full_heap_refuses_and_loses_nothing() -> None:
    """Noise does not fit into a heap that is made for less; the error says what to set, and that is enough."""
    pair = noise_buffer(40, heap_bytes=3000)
    needed = 0
    for _ in range(60):
        given = pair.draw()
        try:
            pair.ours.add(*given)
        except HeapFullError as error:
            assert "Nothing was written" in str(error)
            needed = int(str(error).split("Set heap_bytes to ")[1].split()[0])
        else:
            pair.theirs.add(*given)
        pair.check()
    assert needed > 3000
    # SB3's buffer stands still as well, so its rows are those that fitted.
    assert 3 < pair.theirs.size() < 40
    again = noise_buffer(6, heap_bytes=needed)
    again.add(25)
    again.check()


def test_capacity_per_cell_is_enough_for_noise() -> None:
    """Old and new have to be there at once while a row is overwritten: there is room for that."""
    with pytest.warns(DeprecationWarning, match="max_slot_bytes is deprecated"):
        pair = noise_buffer(10, max_slot_bytes=3 * 64)
    store = pair.ours._stores[None]
    assert store.heap_bytes == 3 * 64 * 10 * 2 * 2
    for _ in range(6):
        pair.add(9)
        pair.check()
    assert not store.heap.grows
    assert pair.ours._stores[None].heap.capacity < 1.3 * store.heap_bytes


def test_heap_grows_without_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="sb3_extra_buffers")  # a command line in this process may have made it silent
    pair = noise_buffer(100)
    pair.add(250)
    pair.check()
    text = caplog.text
    assert "the first 64 rows took" in text and "grows from" in text


def test_no_memory_for_the_heap_to_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch says is passed on; the transition has not happened, and with memory there again it goes on."""
    pair = noise_buffer(100)
    pair.add(10)

    def full(*_: Any) -> Any:
        raise th.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(RawBuffer, "_allocate", full)
        added = 0
        with pytest.raises(th.OutOfMemoryError, match="CUDA"):
            while True:
                given = pair.draw()
                pair.ours.add(*given)
                pair.theirs.add(*given)
                added += 1
        assert added < 90
        pair.check()
    pair.add(100)
    pair.check()


def test_a_full_heap_refuses_dict_observations_whole() -> None:
    """The heap of the second key is the one that is full: nothing of the first is there, either."""
    stream = DictStream({"image": image(5, "static"), "noise": image(6, "noise", 1), "vector": Stream(7, 2, (3,), np.float32)})
    pair = Pair(stream, 40, heap_bytes=3000)
    refused = 0
    for _ in range(60):
        given = pair.draw()
        try:
            pair.ours.add(*given)
        except HeapFullError:
            refused += 1
        else:
            pair.theirs.add(*given)
        pair.check()
    assert refused > 10 and pair.theirs.size() > 3


def test_a_full_heap_refuses_a_step_of_a_rollout() -> None:
    stream = image(9, "noise")
    ours, _ = rollout_pair(stream, 40, heap_bytes=3000)
    kept: list[Any] = []
    with pytest.raises(HeapFullError):
        for _ in range(40):
            obs = stream.step()[0]
            ours.add(obs, np.zeros(2), np.zeros(2), np.zeros(2), th.zeros(2), th.zeros(2))
            kept.append(obs)
    assert ours.pos == len(kept) > 3 and not ours.full
    np.testing.assert_array_equal(np.asarray(ours.observations)[: len(kept)], np.stack(kept))


@pytest.mark.parametrize("method", ["delta", "rle", "gzip1"])
def test_the_heap_is_sized_by_the_first_rows(method: str, caplog: pytest.LogCaptureFixture) -> None:
    """What was measured beats the estimate: half as much again as all rows will take, and then it need not grow."""
    caplog.set_level("INFO", logger="sb3_extra_buffers")  # a command line in this process may have made it silent
    pair = Pair(Stream(9, 2, (1, 24, 24), np.uint8, "game", Stack(3, 0), 0.02), 1000, compression_method=method)
    pair.add(70)
    heap = pair.ours._stores[None].heap
    pair.ours.compact()
    measured = heap.live_bytes / 70 * 1000
    assert 1.2 * measured < heap.capacity < 2 * measured
    caplog.clear()
    pair.add(1000)
    assert "grows from" not in caplog.text
    pair.check()


@pytest.mark.parametrize("method", ["delta", "rle", "gzip1"])
def test_a_rollout_that_is_full_is_packed(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once in each rollout, when it becomes full; and not again for ``get``."""
    compacted: list[int] = []
    compact = SharedRawHeap.compact

    def counted(self: SharedRawHeap) -> None:
        compacted.append(ours.pos)
        compact(self)

    monkeypatch.setattr(SharedRawHeap, "compact", counted)
    stream = image(10, "game")
    ours, _ = rollout_pair(stream, 60, compression_method=method)
    with pytest.raises(RuntimeError, match="not full: 0 of 60"):
        ours.get(4)
    for _ in range(3):
        ours.reset()
        compacted.clear()
        for step in range(60):
            assert step not in compacted or step == 0
            ours.add(stream.step()[0], np.zeros(2), np.zeros(2), np.zeros(2), th.zeros(2), th.zeros(2))
        assert compacted[-1] == 60
        heap = ours._stores[None].heap
        assert heap.data_end == int(heap.lengths.sum()) > 0
        with pytest.raises(ValueError, match="full"):
            ours.add(stream.step()[0], np.zeros(2), np.zeros(2), np.zeros(2), th.zeros(2), th.zeros(2))
        count = len(compacted)
        assert sum(len(batch.observations) for batch in ours.get(7)) == 120
        assert len(compacted) == count


def test_a_replay_buffer_is_packed_when_it_begins_again() -> None:
    pair = Pair(image(11, "game"), 12)
    heap = pair.ours._stores[None].heap
    for step in range(1, 61):
        pair.add()
        if step % 12 == 0:
            heap = pair.ours._stores[None].heap
            assert heap.data_end == int(heap.lengths.sum())
    assert heap.data_end > 0
    pair.check()


def test_empty_buffers_say_so() -> None:
    buffer = GpuReplayBuffer(8, spaces.Box(0, 255, (4, 36, 36), np.uint8), spaces.Discrete(2), "cpu")
    with pytest.raises(ValueError, match="empty"):
        buffer.sample(3)
    assert buffer.memory_usage().ratio == 1.0
    assert not buffer.observations[:].any(), "what was never written is zero"


class Shifting(ReplayBuffer):
    """Somebody else's buffer, which changes its index in place between two reads."""

    def _get_samples(self, batch_inds: np.ndarray, env: Any = None) -> Any:
        envs = np.zeros(len(batch_inds), dtype=np.int64)
        batch_inds %= 5
        next_obs = self.next_observations[batch_inds, envs, :]
        batch_inds += 2
        return np.asarray(next_obs), np.asarray(self.observations[batch_inds, envs, :])


class GpuShifting(Shifting, GpuReplayBuffer):
    """The same, over ours."""


def test_an_index_that_is_changed_in_place() -> None:
    stream = image(14)
    space = spaces.Box(0, 255, (3, 8, 8), np.uint8)
    ours, theirs = (cls(18, space, spaces.Discrete(2), "cpu", 2) for cls in (GpuShifting, Shifting))
    for _ in range(12):
        obs, next_obs, dones, infos = stream.step()
        for buffer in (ours, theirs):
            buffer.add(obs, next_obs, np.zeros((2, 1)), np.zeros(2), dones, infos)
    for seed in range(4):
        np.random.seed(seed)
        expected = theirs.sample(6)
        np.random.seed(seed)
        for mine, other in zip(ours.sample(6), expected, strict=True):
            np.testing.assert_array_equal(mine, other)


@pytest.mark.parametrize("method", METHODS)
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
