"""A ring on disk looks after itself: its lock, what is lost, memory, and disks that are slow."""

from __future__ import annotations

import errno
import gc
import logging
import os
import signal
import threading
import time
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from file_kit import held, make
from gymnasium import spaces
from stable_baselines3 import DQN

from sb3_extra_buffers import load_buffer
from sb3_extra_buffers.compressed import CompressedReplayBuffer, rings
from sb3_extra_buffers.compressed.ring_memory import MappedMemory, file_bytes
from sb3_extra_buffers.storage import directory
from sb3_extra_buffers.storage.directory import Replacement, SavedDirectory
from sb3_extra_buffers.storage.disk import Disk

SPACE = spaces.Box(0, 255, (1, 84, 84), np.uint8)


def noisy(rows: int, **options: Any) -> CompressedReplayBuffer:
    return CompressedReplayBuffer(rows, SPACE, spaces.Discrete(2), "cpu", 1, **options)


def add_noise(buffer: Any, rows: int, rng: np.random.Generator) -> None:
    for _ in range(rows):
        pair = rng.integers(0, 256, (2, 1, 1, 84, 84), np.uint8)
        buffer.add(*pair, np.zeros(1), np.zeros(1), np.zeros(1, np.bool_), [{}])


def wait_for(true: Any) -> None:
    until = time.monotonic() + 600
    while not true():
        assert time.monotonic() < until, "it never happens"
        time.sleep(0.01)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_child_that_lives_on_holds_no_lock(tmp_path: Path) -> None:
    ring = str(tmp_path / "ring")
    ours, _ = make("plain", 5, storage_dir=ring)
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    try:
        with pytest.raises(BlockingIOError):
            make("plain", 0, storage_dir=ring)
        ours.close()
        make("plain", 0, storage_dir=ring)[0].close()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_rows_that_are_lost_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ring = str(tmp_path / "ring")
    for time_before in range(2):
        child = os.fork()
        if child == 0:
            try:
                buffer, feed = make("plain", 0, storage_dir=ring)
                for _ in range(10):
                    feed.add()
                buffer.flush()
                for _ in range(3):  # not enough for a chunk
                    feed.add()
                os.kill(os.getpid(), signal.SIGKILL)
            finally:
                os._exit(1)
        os.waitpid(child, 0)
        caplog.clear()
        again, feed = make("plain", 0, storage_dir=ring)
        assert again.size() == 10 * (time_before + 1)
        assert "3 rows (6 transitions) that were added after them are lost" in caplog.text
        again.close()
    caplog.clear()
    again, feed = make("plain", 0, storage_dir=ring)
    assert "nothing was lost" in caplog.text
    again.close()
    (tmp_path / "ring" / "added.count").write_bytes(b"?")
    caplog.clear()
    with caplog.at_level(logging.INFO):
        make("plain", 0, storage_dir=ring)[0].close()
    assert "is not known" in caplog.text


def test_chunks_that_end_early_are_written_at_once(tmp_path: Path) -> None:
    ring = str(tmp_path / "ring")
    ours = noisy(4000, storage_dir=ring)
    add_noise(ours, 300, np.random.default_rng(0))
    frames = ours._fields[0].frames
    assert frames.chunk_rows > 300 and frames.sealed_bytes, "chunks are full long before they have all their rows"
    sealed = int(frames.chunks()[0][-1].first_row + frames.chunks()[0][-1].rows)
    wait_for(lambda: load_buffer(ring).size() >= sealed)
    ours.close()


def test_a_slow_disk_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rings, "_MOST_BEHIND", 1 << 20)
    goes_on = threading.Event()
    ours = noisy(4000, storage_dir=str(tmp_path / "ring"))
    plain = Disk.sync
    monkeypatch.setattr(Disk, "sync", lambda disk, handle: (goes_on.wait(), plain(disk, handle))[1])
    adding = threading.Thread(target=add_noise, args=(ours, 900, np.random.default_rng(0)))
    adding.start()
    ring = ours._ring
    assert ring is not None
    wait_for(lambda: ring._sealed - ring._saved > 1 << 20)
    adding.join(0.5)
    assert adding.is_alive() and ours.size() < 900
    goes_on.set()
    adding.join(60)
    assert ours.size() == 900
    ours.close()


@pytest.mark.skipif(not file_bytes(), reason="the system does not say how much is mapped")
def test_memory_is_bounded(tmp_path: Path) -> None:
    ring, most = str(tmp_path / "ring"), 8 << 20
    ours = noisy(4000, storage_dir=ring, max_memory=most)
    same = noisy(4000)
    for buffer in (ours, same):
        add_noise(buffer, 4000, np.random.default_rng(1))
    ours.flush()
    memory = ours._ring._memory  # type: ignore[union-attr]
    assert memory.own <= most // 2
    before, highest = memory._others, 0
    for seed in range(300):
        np.random.seed(seed)
        mine = ours.sample(32)
        np.random.seed(seed)
        theirs = same.sample(32)
        assert bool((mine.observations == theirs.observations).all())
        highest = max(highest, file_bytes() - min(before, memory._others))
    assert highest < most + (16 << 20), "some batches more than allowed, at most"
    ours.close()
    again = noisy(4000, storage_dir=ring, max_memory=most)
    assert file_bytes() - again._ring._memory._others <= most  # type: ignore[union-attr]
    again.close()


def test_no_state_keeps_the_one_before(tmp_path: Path) -> None:
    ours, feed = make("plain", 5, storage_dir=str(tmp_path / "ring"))
    ring = ours._ring
    ring._write()
    first = weakref.ref(ring._state)
    for _ in range(2):
        feed.add()
        ring._write()
    gc.collect()
    wait_for(lambda: first() is None)
    ours.close()


def test_who_does_not_limit_memory_gets_it() -> None:
    assert MappedMemory(None).most_of_own(1 << 40, True) == 0, "all is mapped, and the system decides"
    assert MappedMemory(100).most_of_own(100, False) == 100
    assert MappedMemory(100).most_of_own(101, False) == MappedMemory(100).most_of_own(10, True) == 12


def test_a_ring_that_is_deleted_is_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ring = str(tmp_path / "ring")
    ours, feed = make("plain", 7, storage_dir=ring)
    expected = held(ours)
    feed.buffer = None
    caplog.set_level("INFO")
    model = SimpleNamespace(replay_buffer=ours)
    model.myself = model  # as SB3's models are: only the collector finds it
    del ours, feed, model
    gc.collect()
    wait_for(lambda: f"storage_dir {ring} was deleted" in caplog.text)  # its thread may be the last one to let go of it
    assert held(load_buffer(ring)) == expected
    (told,) = [record for record in caplog.records if f"storage_dir {ring} was deleted" in record.message]
    assert "its 7 rows (14 transitions) are there" in told.message
    assert told.levelname == "INFO", "every program ends like this"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_full_durability_does_not_wait_for_the_next_row(tmp_path: Path) -> None:
    ring = str(tmp_path / "ring")
    child = os.fork()
    if child == 0:
        try:
            _, feed = make("plain", 0, storage_dir=ring, durability="full")
            for rows in (1, 2, 3):
                feed.add()
                wait_for(lambda rows=rows: load_buffer(ring).size() == rows)
            time.sleep(60)  # an evaluation, or an update that takes long
        finally:
            os._exit(1)
    try:
        wait_for(lambda: os.path.exists(os.path.join(ring, "manifest.json")) and load_buffer(ring).size() == 3)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert held(load_buffer(ring)) == held(make("plain", 3)[0])


def test_a_model_that_is_deleted_is_written(tmp_path: Path) -> None:
    ring = str(tmp_path / "ring")
    kwargs = {"storage_dir": ring}
    model = DQN(
        "MlpPolicy", "CartPole-v1", buffer_size=50, replay_buffer_class=CompressedReplayBuffer, replay_buffer_kwargs=kwargs
    )
    model.learn(40)
    del model
    gc.collect()  # the thread of the ring may be the last one to let go of the buffer
    wait_for(lambda: load_buffer(ring).size() == 40)


def test_a_pickle_in_the_place_of_a_ring(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """SB3 puts what it has loaded in the place of the ring, which nobody would notice."""
    ring = str(tmp_path / "ring")
    kwargs = {"storage_dir": ring}
    model = DQN(
        "MlpPolicy", "CartPole-v1", buffer_size=50, replay_buffer_class=CompressedReplayBuffer, replay_buffer_kwargs=kwargs
    )
    model.learn(20)
    model.save_replay_buffer(tmp_path / "pickle")
    assert "in memory only" not in caplog.text
    model.load_replay_buffer(tmp_path / "pickle")
    (told,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert f"storage_dir {ring} is in memory only" in told.message
    gc.collect()  # the thread of the ring may be the last one to let go of it
    wait_for(lambda: load_buffer(ring).size() == 20)
    assert load_buffer(ring).size() == model.replay_buffer.size() == 20


def test_files_that_cannot_be_mapped_are_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: Any) -> Any:
        raise OSError(errno.ENOMEM, "no more mappings")

    ours, _ = make("plain", 40)
    ours.save(tmp_path / "saved")
    monkeypatch.setattr(Disk, "map", fails)
    directory._say_not_mapped.cache_clear()
    for _ in range(2):
        assert held(load_buffer(tmp_path / "saved")) == held(ours)
    assert caplog.text.count("vm.max_map_count") == 1


def test_chunks_are_arranged_once_they_do_not_fit(tmp_path: Path) -> None:
    """And not before: a ring that fits is read from memory, and would only be larger."""
    for max_memory, is_arranged in ((None, True), (20_000, True), ("1GB", False)):
        ring = str(tmp_path / str(max_memory))
        ours, _ = make("plain", 147, storage_dir=ring, max_memory=max_memory)
        ours.flush()
        (frames,) = (field.frames for field in ours._fields)
        first = memoryview(frames.chunks()[0][0])
        assert (first[152 + 6] == 10) == is_arranged, "the coder of the first record"
        ours.close()
        again, _ = make("plain", 0, storage_dir=ring, max_memory=max_memory)
        assert held(again) == held(ours)
        again.close()


def test_a_link_may_lead_to_the_directory(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "near").symlink_to("far")
    ours, _ = make("plain", 10, storage_dir=str(tmp_path / "near"))
    ours.close()
    assert held(load_buffer(tmp_path / "far")) == held(ours)
    ours.save(tmp_path / "near")


def test_packs_are_emptied_part_by_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Saving takes no more memory than its largest part, however large packs are."""
    path = str(tmp_path / "x")
    with Replacement(path) as files:
        for number in range(10):
            files.put(f"part{number}", bytes([number]) * 1000)
        files.commit({})
    read: list[int] = []
    plain = Disk.read_at
    monkeypatch.setattr(Disk, "read_at", lambda disk, handle, at, size: (read.append(size), plain(disk, handle, at, size))[1])
    with Replacement(path) as files:
        for number in (3, 7):
            files.keep(f"part{number}")
        files.commit({})
    assert read == [1000, 1000]
    saved = SavedDirectory(path)
    assert [bytes(saved.read(f"part{number}")) for number in (3, 7)] == [bytes([number]) * 1000 for number in (3, 7)]


def test_what_is_read_stays_though_others_save(tmp_path: Path) -> None:
    ours, feed = make("plain", 60)
    ours.save(tmp_path / "x")
    saved = SavedDirectory(tmp_path / "x")
    saved.hold()
    for _ in range(200):
        feed.add()
    ours.save(tmp_path / "x")
    assert saved.has_changed()
    for name in saved.parts:
        saved.read(name)
