"""Record buffers against a plain list of steps."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recording_kit import assert_same_array, filled

from sb3_extra_buffers.recording import (
    CompressedRecordBuffer,
    DummyRecordBuffer,
    FramelessRecordBuffer,
    RecordBuffer,
)

LARGE = (30, 40)  # more than 512 bytes, so that it is really compressed
CLASSES = [RecordBuffer, CompressedRecordBuffer, FramelessRecordBuffer]
FEATURES: dict[str, Any] = {"health": np.float32, "position": ((2,), np.int16)}


class Model:
    """What a recording must say, kept in lists."""

    def __init__(self, size: int | None) -> None:
        self.size = size
        self.steps: list[dict[str, Any]] = []
        self.ends: list[int] = []

    @property
    def first(self) -> int:
        return 0 if self.size is None else max(len(self.steps) - self.size, 0)

    def episodes(self) -> list[tuple[int, int, int, bool]]:
        """Number, start, stop, and whether the beginning is gone."""
        stops = [*self.ends, len(self.steps)] if not self.ends or self.ends[-1] != len(self.steps) else self.ends
        spans = zip([0, *stops[:-1]], stops, strict=True)
        return [
            (number, max(start, self.first), stop, start < self.first)
            for number, (start, stop) in enumerate(spans)
            if stop > self.first
        ]


def step_of(number: int, seed: int, shape: tuple[int, ...]) -> dict[str, Any]:
    rng = np.random.default_rng((seed, number))
    # Frames that repeat, differ a little, and differ altogether.
    frame = np.full(shape, number // 3, np.uint8)
    frame.reshape(-1)[: rng.integers(0, 20)] = rng.integers(0, 256)
    if number % 11 == 10:
        frame = rng.integers(0, 256, shape, np.uint8)
    return {
        "frame": frame,
        "reward": float(rng.normal()),
        "action": rng.integers(-3, 3, 2),
        "features": {"health": np.float32(rng.normal()), "position": rng.integers(-9, 9, 2).astype(np.int16)},
    }


events = st.lists(st.sampled_from(["go"] * 8 + ["done", "late", "give up", "done with final", "late with final"]), max_size=60)


@pytest.mark.parametrize("cls", CLASSES)
@given(events=events, size=st.sampled_from([None, 1, 2, 7, 30]), seed=st.integers(0, 99), shape=st.sampled_from([LARGE, (3,)]))
def test_a_recording_is_what_was_added(
    cls: type[RecordBuffer], events: list[str], size: int | None, seed: int, shape: tuple[int, ...]
) -> None:
    buffer = cls(size, shape, action_shape=(2,), features=FEATURES)
    model = Model(size)
    shown = np.zeros(shape, np.uint8)
    for number, event in enumerate(events):
        step = step_of(number, seed, shape)
        shown[:] = step["frame"]  # the same array again and again, as some environments have it
        ends = event != "go"
        final = shown + 1 if "final" in event else None
        step |= {"done": ends and event != "give up", "truncated": event.startswith("late"), "final": final}
        buffer.add(
            shown, step["reward"], step["action"], step["features"], event.startswith("done"),
            truncated=step["truncated"], final_frame=final,
        )  # fmt: skip
        if event == "give up":
            buffer.end_episode()
        model.steps.append(step)
        if ends:
            model.ends.append(number + 1)
    check(buffer, model)


def check(buffer: RecordBuffer, model: Model) -> None:
    kept = model.steps[model.first :]
    has_frames = buffer.frame_shape is not None
    assert len(buffer) == len(kept)
    whole = buffer[:]
    assert whole.reward.tolist() == [step["reward"] for step in kept]
    assert whole.done.tolist() == [step["done"] for step in kept]
    assert whole.truncated.tolist() == [step["truncated"] for step in kept]
    for place, step in enumerate(kept):
        assert whole.action[place].tolist() == step["action"].tolist()
        assert whole.features["health"][place] == step["features"]["health"]
        assert whole.features["position"][place].tolist() == step["features"]["position"].tolist()
        if has_frames:
            assert_same_array(whole.frame[place], step["frame"])
        else:
            assert whole.frame is None
    expected = model.episodes() if model.steps else []
    found = list(buffer.episodes())
    assert [(e.number, e.start, e.stop, e.is_cut) for e in found] == expected
    assert buffer.n_episodes == len(expected)
    for episode in found:
        steps = model.steps[episode.start : episode.stop]
        assert len(episode) == len(steps)
        assert episode.rewards.tolist() == [step["reward"] for step in steps]
        assert (episode.done, episode.truncated) == (steps[-1]["done"], steps[-1]["truncated"])
        assert episode.terminated == (steps[-1]["done"] and not steps[-1]["truncated"])
        assert_same_array(episode.final_frame, steps[-1]["final"] if has_frames else None)
        frames = list(episode.iter_frames(batch=3))
        assert len(frames) == (len(steps) if has_frames else 0)
        for frame, step in zip(frames, steps, strict=False):
            assert_same_array(frame, step["frame"])


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("size", [None, 9])
def test_indexing_is_like_a_list(cls: type[RecordBuffer], size: int | None) -> None:
    buffer = filled(lambda: cls(size, LARGE), 23)
    rewards = [record.reward for record in buffer]
    assert rewards == [step * 0.5 for step in range(23)][-len(buffer) :]
    for index in (0, 3, -1, -len(buffer)):
        assert buffer[index].reward == rewards[index]
        assert np.ndim(buffer[index].reward) == 0
    for chosen in (slice(2, 6), slice(None, None, -2), slice(5, 2), slice(-3, None)):
        assert buffer[chosen].reward.tolist() == rewards[chosen]
    for places in ([3, 1, 1], [-1, 0], np.array([2], np.uint8), []):
        assert buffer[places].reward.tolist() == [rewards[int(place)] for place in places]
    mask = np.arange(len(buffer)) % 3 == 1
    assert buffer[mask].reward.tolist() == np.array(rewards)[mask].tolist()
    for outside in (len(buffer), -len(buffer) - 1, [0, 99]):
        with pytest.raises(IndexError, match="the recording has"):
            buffer[outside]
    for wrong in ("a", 1.5, [[1]]):
        with pytest.raises(TypeError, match="integer"):
            buffer[wrong]
    if buffer.frame_shape is not None:
        assert_same_array(buffer[-2].frame, buffer[:].frame[-2])


def test_a_long_unbounded_recording_grows_over_chunks() -> None:
    dense, compressed = RecordBuffer(None, LARGE), CompressedRecordBuffer(None, LARGE)
    for number in range(34_000):
        frame = np.full(LARGE, number % 251, np.uint8)
        for buffer in (dense, compressed):
            buffer.add(frame, number, number % 3)
    places = np.random.default_rng(0).integers(-34_000, 34_000, 300)
    assert_same_array(dense[places].frame, compressed[places].frame)
    assert dense[places].frame[:, 0, 0].tolist() == (places % 34_000 % 251).tolist()
    assert compressed.memory_usage().total_bytes < dense.memory_usage().total_bytes / 10


def test_a_ring_gives_back_what_old_frames_took() -> None:
    buffer = CompressedRecordBuffer(200, (64, 64), compression_method="zstd-3")
    rng = np.random.default_rng(0)
    sizes = []
    for _ in range(6):
        for _ in range(400):
            buffer.add(rng.integers(0, 256, (64, 64), np.uint8), 0, 0)
        sizes.append(buffer.memory_usage().total_bytes)
    assert max(sizes[2:]) < sizes[0] * 2.5


def test_the_dummy_takes_everything_and_keeps_nothing() -> None:
    buffer = DummyRecordBuffer(100, LARGE, np.uint8, (), np.int64, FEATURES, compression_method="zstd-3")
    buffer.add(np.zeros(LARGE, np.uint8), 1.0, 2, {"health": 3}, done=True)
    buffer.end_episode()
    assert len(buffer) == 0
    assert list(buffer.episodes()) == []
    assert buffer.memory_usage().total_bytes == 0
    assert len(buffer[:].reward) == 0


def test_what_cannot_be_recorded_is_refused_and_nothing_is_lost() -> None:
    buffer = filled(lambda: CompressedRecordBuffer(6, LARGE, features=FEATURES), 9)
    before = buffer[:]
    good = {"frame": np.zeros(LARGE, np.uint8), "reward": 0.0, "action": 1, "features": {"health": 1, "position": [1, 2]}}
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"frame": np.zeros((3, 3), np.uint8)}, ValueError, r"frame has shape \(3, 3\).*\(30, 40\)"),
        ({"frame": np.full(LARGE, 256)}, ValueError, "frame of type int64 cannot be recorded as uint8"),
        ({"frame": np.zeros(LARGE)}, TypeError, "frame of type float64"),
        ({"reward": "much"}, TypeError, "reward"),
        ({"action": [1, 2]}, ValueError, "action has shape"),
        ({"action": 1.5}, TypeError, "action"),
        ({"features": None}, ValueError, "features given: none; this recording has .*health"),
        ({"features": {**good["features"], "armour": 1}}, ValueError, "armour"),
        ({"features": {"health": 1, "position": [1, 70_000]}}, ValueError, "feature 'position'"),
        ({"final_frame": np.zeros(LARGE, np.uint8)}, ValueError, "final_frame"),
        ({"final_frame": np.zeros(3, np.uint8), "done": True}, ValueError, "final_frame has shape"),
    ]
    for change, error, message in wrong:
        with pytest.raises(error, match=message):
            buffer.add(**{**good, **change})
    after = buffer[:]
    assert_same_array(before.frame, after.frame)
    assert before.reward.tolist() == after.reward.tolist()
    assert buffer.n_episodes == 2
    buffer.add(**good)
    assert len(buffer) == 6


def test_a_full_ring_keeps_its_oldest_step_when_the_next_frame_does_not_fit() -> None:
    buffer = filled(lambda: CompressedRecordBuffer(6, LARGE, np.int32, dtypes={"elem_type": np.uint8}), 9)
    before = buffer[:]
    with pytest.raises(ValueError, match="the value 256"):
        buffer.add(np.full(LARGE, 256, np.int32), 1.0, 2)
    after = buffer[:]
    assert before.reward.tolist() == after.reward.tolist()
    assert_same_array(before.frame, after.frame)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"buffer_size": 0}, ValueError, "buffer_size is 0"),
        ({"frame_shape": None}, ValueError, "FramelessRecordBuffer"),
        ({"frame_shape": 5}, TypeError, "frame_shape is 5"),
        ({"frame_shape": (3, 0)}, ValueError, "sizes start at 1"),
        ({"frame_dtype": object}, TypeError, "frame_dtype is object"),
        ({"action_dtype": "U3"}, TypeError, "action_dtype"),
        ({"features": {"name": str}}, TypeError, "feature 'name'"),
        ({"metadata": {"space": object()}}, TypeError, "JSON"),
        ({"metadata": {"best": float("nan")}}, TypeError, "JSON"),
        ({"buffer_size": None, "force_alloc_mem": True}, ValueError, "force_alloc_mem needs a buffer_size"),
    ],
)
def test_wrong_arguments_are_told_at_once(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        RecordBuffer(**{"buffer_size": 10, "frame_shape": LARGE, **arguments})


def test_options_of_compression_are_checked_at_once() -> None:
    with pytest.raises(ValueError, match="nonsense"):
        CompressedRecordBuffer(10, (4,), compression_method="nonsense")
    with pytest.raises(ValueError, match="force_alloc_mem"):
        CompressedRecordBuffer(10, LARGE, force_alloc_mem=True)


@pytest.mark.parametrize("method", ["rle", "gzip", "zstd-3", "delta", "delta-zstd"])
def test_methods_by_name(method: str) -> None:
    buffer = filled(lambda: CompressedRecordBuffer(8, LARGE, compression_method=method), 20)
    assert buffer.compression_method.startswith(method.split("-")[0])
    assert_same_array(buffer[:].frame, filled(lambda: RecordBuffer(8, LARGE), 20)[:].frame)


COMMITTED = """
from sb3_extra_buffers.recording import RecordBuffer

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

before = resident()
lazy = RecordBuffer(60, (1000, 1000))
between = resident()
forced = RecordBuffer(60, (1000, 1000), force_alloc_mem=True)
after = resident()
assert len(lazy) == len(forced) == 0
print(between - before, after - between)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="resident memory is read from /proc")
def test_memory_of_a_dense_ring_is_committed_only_if_asked() -> None:
    """In a process of its own: in this one, what other tests have freed may be taken again."""
    run = subprocess.run([sys.executable, "-c", COMMITTED], capture_output=True, text=True, timeout=600, check=True)
    lazy, forced = map(int, run.stdout.split())
    assert lazy < 10e6
    assert forced > 55e6


def test_an_episode_that_the_ring_overwrites_says_so() -> None:
    buffer = filled(lambda: RecordBuffer(10, LARGE), 10)
    oldest = buffer.episode(0)
    assert oldest.rewards.tolist() == [0, 0.5, 1, 1.5, 2]
    filled(lambda: buffer, 3)
    with pytest.raises(IndexError, match="overwritten"):
        _ = oldest.rewards
    with pytest.raises(IndexError, match="overwritten"):
        _ = oldest.frames
    assert buffer.episode(0).is_cut
    with pytest.raises(IndexError, match="there is no episode 3"):
        buffer.episode(3)


def test_clear_forgets_all() -> None:
    buffer = filled(lambda: CompressedRecordBuffer(10, LARGE), 13)
    buffer.clear()
    assert len(buffer) == 0 and buffer.n_episodes == 0
    filled(lambda: buffer, 2)
    assert buffer.episode(0).number == 0


def test_memory_usage_counts_all(pong: RecordBuffer) -> None:
    usage = pong.memory_usage()
    frame_bytes = 210 * 160 * 3
    assert usage.raw_bytes > len(pong) * frame_bytes
    assert usage.total_bytes < usage.raw_bytes / 20
    shown = len(pong) + sum(episode.final_frame is not None for episode in pong.episodes())
    assert usage.frames_stored + usage.frames_shared == shown
