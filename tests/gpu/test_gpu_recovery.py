"""An ``add`` that does not come to its end has not happened, or it has; never half of it, and nothing else is lost."""

from __future__ import annotations

import pickle
import random
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch as th
from gpu_kit import Pair, rollout_pair
from gymnasium import spaces
from interrupt_kit import between
from observation_streams import DictStream, Stack, Stream
from stable_baselines3.common import buffers as sb3_buffers
from stable_baselines3.common.buffers import ReplayBuffer

from sb3_extra_buffers import gpu_buffers
from sb3_extra_buffers.gpu_buffers import GpuReplayBuffer, HeapFullError
from sb3_extra_buffers.gpu_buffers.raw_buffer import RawBuffer, SharedRawHeap

FOLDER = str(Path(gpu_buffers.__file__).parent)
FILES = (FOLDER, sb3_buffers.__file__)


def cut_at(opcodes: set[int]) -> Any:
    """A trace function that presses Ctrl-C at these bytecodes of an ``add``."""
    done = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal done
        if not frame.f_code.co_filename.startswith(FILES):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            done += 1
            if done in opcodes:
                raise KeyboardInterrupt
        return trace

    return trace


def add_cut(pair: Pair, opcodes: set[int]) -> bool:
    """Add a transition, cut short; SB3's buffer gets it if ours has it afterwards. Returns whether it was cut."""
    given, before, was_cut = pair.draw(), sys.gettrace(), False
    sys.settrace(cut_at(opcodes))
    try:
        pair.ours.add(*given)
    except KeyboardInterrupt:
        was_cut = True
    finally:
        sys.settrace(before)
    pair.ours.memory_usage()  # puts things in order
    if pair.ours.pos != pair.theirs.pos:
        pair.theirs.add(*given)
    return was_cut


def image(seed: int, content: str = "mixed", depth: int = 3) -> Stream:
    return Stream(seed, 2, (1, 8, 8), np.uint8, content, Stack(depth, 0) if depth > 1 else None, 0.15)


@pytest.mark.parametrize("method", ["delta", "rle", "none", "gzip1"])
def test_ctrl_c_anywhere_in_an_add(method: str) -> None:
    pair = Pair(image(3), 9, compression_method=method)
    pair.add(30)
    cuts, step = 0, 1
    for opcodes in range(3, 4000, 37):
        cuts += add_cut(pair, {opcodes})
        pair.check()
        pair.add(step := step % 3 + 1)
        pair.check()
    assert cuts > 10
    pair.add(20)
    pair.check()


@pytest.mark.parametrize("options", [{}, {"heap_bytes": 4000}], ids=["grows", "fixed"])
def test_ctrl_c_while_the_layout_is_found_out(options: dict[str, Any]) -> None:
    """At first observations are stored whole, then all of them again, by frames."""
    cuts = 0
    for seed, opcodes in enumerate(range(150, 6000, 333)):
        pair = Pair(image(seed, "game"), 12, **options)
        for _ in range(9):
            cuts += add_cut(pair, {opcodes})
            pair.check()
        pair.add(15)
        pair.check()
        assert pair.ours._stores[None].layout.depth == 3
    assert cuts > 20


def test_ctrl_c_twice() -> None:
    """The second one falls into the putting in order."""
    pair = Pair(image(4), 9)
    pair.add(30)
    cuts = 0
    for opcodes in range(50, 2500, 61):
        cuts += add_cut(pair, {opcodes, opcodes + 40, opcodes + 90})
        pair.check()
        pair.add()
    assert cuts > 10
    pair.check()


def test_ctrl_c_with_dict_observations() -> None:
    stream = DictStream({"image": image(5), "noise": image(6, "noise", 1), "vector": Stream(7, 2, (3,), np.float32, "noise")})
    pair = Pair(stream, 7)
    pair.add(20)
    cuts = 0
    for opcodes in range(20, 6000, 101):
        cuts += add_cut(pair, {opcodes})
        pair.check()
        pair.add()
    assert cuts > 10
    pair.check()


@pytest.mark.parametrize("method", ["delta", "rle", "none"])
@pytest.mark.parametrize("wrong", ["obs", "next_obs", "action", "reward", "infos"])
def test_bad_arguments_leave_no_half_transition(wrong: str, method: str) -> None:
    pair = Pair(image(8), 6, compression_method=method)
    pair.add(15)
    names = ("obs", "next_obs", "action", "reward", "done", "infos")
    for _ in range(8):
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


def test_an_interrupted_buffer_is_pickled_in_order() -> None:
    pair = Pair(image(12), 9)
    pair.add(12)
    for opcodes in range(100, 2500, 211):
        given, before = pair.draw(), sys.gettrace()
        sys.settrace(cut_at({opcodes, opcodes + 5}))  # the second falls into the first try of putting in order
        try:
            pair.ours.add(*given)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        pair.ours = pickle.loads(pickle.dumps(pair.ours))
        if pair.ours.pos != pair.theirs.pos:
            pair.theirs.add(*given)
        pair.check()


def test_empty_buffers_say_so() -> None:
    buffer = GpuReplayBuffer(8, spaces.Box(0, 255, (4, 36, 36), np.uint8), spaces.Discrete(2), "cpu")
    with pytest.raises(ValueError, match="empty"):
        buffer.sample(3)
    assert buffer.memory_usage().ratio == 1.0
    assert not buffer.observations[:].any(), "what was never written is zero"


@pytest.mark.parametrize("method", ["delta", "rle", "none"])
def test_a_signal_handler_that_saves_and_reads_in_the_middle_of_an_add(method: str) -> None:
    """What it saves can be loaded and added to; what it interrupted goes on as if nothing had been."""
    pair = Pair(image(13), 9, compression_method=method)
    pair.add(7)
    rng = random.Random(0)
    for _ in range(40):
        given, saved = pair.draw(), []

        def handler(saved: list[bytes] = saved) -> None:
            saved.append(pickle.dumps(pair.ours))
            pair.ours.memory_usage()
            if pair.ours.size():
                state = np.random.get_state()
                pair.ours.sample(4)
                np.random.set_state(state)

        before, held = pickle.dumps(pair.theirs), pair.ours
        between(lambda given=given: pair.ours.add(*given), rng.randrange(1500), handler)
        pair.theirs.add(*given)
        pair.check()
        for data in saved:
            pair.ours, theirs, pair.theirs = pickle.loads(data), pair.theirs, pickle.loads(before)
            pair.ours.memory_usage()  # puts things in order
            if pair.ours.pos != pair.theirs.pos:
                pair.theirs.add(*given)
            pair.check()
            for buffer in (pair.ours, pair.theirs):
                buffer.add(*given)
            pair.check()
            pair.ours, pair.theirs = held, theirs


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
