"""A ring on disk: a buffer with ``storage_dir`` gives what it would give without, and another one goes on with it."""

from __future__ import annotations

import contextlib
import errno
import gc
import logging
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from buffer_contents import contents
from file_kit import RING_KINDS, held, make
from gymnasium import spaces
from numbered_worlds import ENVS, EPISODE, IMAGE, KINDS, ROWS, Feed, images, replay

from sb3_extra_buffers import load_buffer
from sb3_extra_buffers.compressed import CompressedReplayBuffer, CompressedRolloutBuffer
from sb3_extra_buffers.compressed.file_saving import Moment
from sb3_extra_buffers.compressed.ring_memory import parse_bytes


def settled(buffer: Any) -> None:
    """Wait until the thread has nothing to do."""
    buffer.flush()


@pytest.mark.parametrize("max_memory", [None, 20_000, "1GB"])
@pytest.mark.parametrize("kind", RING_KINDS)
def test_the_same_samples(kind: str, max_memory: Any, tmp_path: Path) -> None:
    ours, feed = make(kind, 0, storage_dir=str(tmp_path / "ring"), max_memory=max_memory)
    other, other_feed = make(kind, 0)
    for step in range(150):
        feed.add()
        other_feed.add()
        if step % 25 == 24:
            settled(ours)
            assert contents(ours) == contents(other)
            np.random.seed(step)
            mine = ours.sample(16)
            np.random.seed(step)
            assert str(mine) == str(other.sample(16))
    mapped = ours._ring._mapped
    assert (len(mapped) > 0) == (max_memory != "1GB")
    assert held(load_buffer(tmp_path / "ring")) == held(ours), "others can read it while it is in use"
    ours.close()
    assert contents(ours) == contents(other)


@pytest.mark.parametrize("kind", RING_KINDS)
def test_another_buffer_goes_on(kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ring, steps = str(tmp_path / "ring"), 14 * EPISODE
    ours, _ = make(kind, steps, storage_dir=ring)
    other, other_feed = make(kind, steps)
    for buffer in (ours, other):
        if hasattr(buffer, "update_priorities"):
            buffer.update_priorities(np.arange(3), np.arange(3) + 7.0)
    ours.close()
    with caplog.at_level(logging.INFO):
        again, feed = make(kind, 0, storage_dir=ring)
    assert f"{ROWS} rows ({ROWS * ENVS} transitions)" in caplog.text
    assert contents(again) == contents(other)
    feed.step = steps
    for _ in range(70):
        feed.add()
        other_feed.add()
    assert contents(again) == contents(other)
    again.close()
    assert held(load_buffer(ring)) == held(other)


@pytest.mark.parametrize("kind", RING_KINDS)
def test_no_episode_goes_on_in_another_process(kind: str, tmp_path: Path) -> None:
    """Its environment begins a new one: goals, and returns over several steps, are of one episode."""
    ring = str(tmp_path / "ring")
    make(kind, 10, storage_dir=ring)[0].close()
    again, feed = make(kind, 0, storage_dir=ring)
    feed.step = 100 * EPISODE
    for _ in range(12):
        feed.add()
    for seed in range(20):
        np.random.seed(seed)
        samples = again.sample(64)
        if "n-step" in kind or kind == "her":
            KINDS[kind][2](samples)
    again.close()


def test_nothing_is_added_after_close(tmp_path: Path) -> None:
    ring = str(tmp_path / "ring")
    ours, feed = make("plain", 10, storage_dir=ring)
    ours.close()
    before = contents(ours)
    with pytest.raises(RuntimeError, match=r"was closed.*storage_dir .*same arguments"):
        feed.add()
    ours.close()
    ours.flush()
    assert contents(ours) == before and held(load_buffer(ring)) == held(ours)
    copy = pickle.loads(pickle.dumps(ours))
    Feed(copy, images).add()
    assert copy.size() == 11, "a copy is in memory"


def test_options_of_a_ring_need_a_directory() -> None:
    for option in ({"max_memory": "2GB"}, {"durability": "full"}, {"durability": "none"}):
        with pytest.raises(ValueError, match=rf"{next(iter(option))} is .*storage_dir"):
            make("plain", 0, **option)
    make("plain", 0, storage_dir=None, max_memory=None, durability="chunk")


def test_a_directory_that_was_replaced(tmp_path: Path) -> None:
    """Somebody has removed the ring and started another run there."""
    ring = str(tmp_path / "ring")
    ours, feed = make("plain", 30, storage_dir=ring)
    ours.flush()
    os.rename(ring, tmp_path / "gone")  # at once: a thread may be writing
    shutil.rmtree(tmp_path / "gone")
    with pytest.raises(FileNotFoundError, match=r"removed or replaced.*save\(\)"):
        ours.flush()
    other, _ = make("plain", 9, storage_dir=ring)
    other.flush()
    with pytest.raises(FileNotFoundError, match="removed or replaced"):
        for _ in range(100_000):
            feed.add()
    with pytest.raises(FileNotFoundError, match="removed or replaced"):
        ours.close()
    ours.save(tmp_path / "saved")
    assert held(load_buffer(tmp_path / "saved")) == held(ours)
    del ours, feed
    gc.collect()
    assert held(load_buffer(ring)) == held(other)
    other.close()


@pytest.mark.parametrize("pattern", ["*.pack", "*"])
@pytest.mark.parametrize("reopened", [False, True])
def test_files_that_were_removed_are_written_again(pattern: str, reopened: bool, tmp_path: Path) -> None:
    ring = str(tmp_path / "ring")
    ours, feed = make("plain", 60, storage_dir=ring)
    if reopened:
        ours.close()
        ours, feed = make("plain", 0, storage_dir=ring)
    ours.flush()
    for file in (tmp_path / "ring").glob(pattern):
        file.unlink()
    with contextlib.suppress(OSError):  # the thread may have been writing
        ours.flush()
    ours.flush()
    assert held(load_buffer(ring)) == held(ours)
    for _ in range(50):
        feed.add()
    ours.close()
    assert held(load_buffer(ring)) == held(ours)


def test_a_deleted_buffer_gives_its_directory_back_at_once(tmp_path: Path) -> None:
    """Models are in reference cycles, which are collected some time later."""
    ring = str(tmp_path / "ring")
    for steps in range(4):
        ours, feed = make("plain", 0, storage_dir=ring)
        assert ours.size() == steps
        feed.add()
        feed.myself = feed
        del ours, feed


def test_one_writer_and_any_readers(tmp_path: Path) -> None:
    ring = str(tmp_path / "ring")
    ours, feed = make("plain", 30, storage_dir=ring)
    with pytest.raises(BlockingIOError, match="in use by another buffer"):
        make("plain", 0, storage_dir=ring)
    ours.flush()
    assert held(load_buffer(ring)) == held(ours) == held(load_buffer(ring))
    ours.save(tmp_path / "copy")
    copy = pickle.loads(pickle.dumps(ours))
    assert contents(copy) == contents(ours) and copy._ring is None
    assert (
        held(load_buffer(tmp_path / "copy")) == held(ours) and load_buffer(tmp_path / "copy")._options["storage_dir"] is None
    )
    del ours, feed
    gc.collect()
    make("plain", 0, storage_dir=ring)[0].close()


def test_another_form_is_refused(tmp_path: Path) -> None:
    ring = str(tmp_path / "ring")
    make("plain", 5, storage_dir=ring)[0].close()
    with pytest.raises(
        ValueError, match=r"another form: compression_method=None, and this buffer has compression_method=gzip"
    ):
        make("plain", 0, storage_dir=ring, compression_method="gzip")
    with pytest.raises(ValueError, match=r"buffer_size=80.*buffer_size=60"):
        CompressedReplayBuffer(60, IMAGE, KINDS["plain"][0]().action_space, "cpu", ENVS, storage_dir=ring)
    wider = spaces.Box(0, 255, (1, 40, 40), np.uint8)
    with pytest.raises(ValueError, match=r"observation_space=Box\(0, 255, \(.*\), uint8\), and .*\(1, 40, 40\), uint8\)"):
        CompressedReplayBuffer(80, wider, KINDS["plain"][0]().action_space, "cpu", ENVS, storage_dir=ring)
    with pytest.raises(ValueError, match=r"CompressedReplayBuffer.*CompressedPrioritizedReplayBuffer"):
        make("prioritized", 0, storage_dir=ring)
    assert make("plain", 0, storage_dir=ring)[0].size() == 5, "nothing was touched, and no lock was kept"


def test_paths_are_taken_as_by_python(tmp_path: Path) -> None:
    ring = tmp_path / "ring"
    make("plain", 5, storage_dir=os.fsencode(ring))[0].close()
    again, _ = make("plain", 0, storage_dir=ring)
    assert again.size() == 5
    again.save(os.fsencode(tmp_path / "saved"))
    assert load_buffer(os.fsencode(tmp_path / "saved")).size() == 5
    for call in (again.save, load_buffer, lambda path: make("plain", 0, storage_dir=path)):
        with pytest.raises(ValueError, match="is empty; name one"):
            call("")


def test_another_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ours, feed = make("plain", 20, storage_dir="ring")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for _ in range(60):
        feed.add()
    ours.close()
    assert held(load_buffer(tmp_path / "ring")) == held(ours) and not os.listdir()


def test_ctrl_c_just_after_a_state_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ring = str(tmp_path / "ring")
    ours, feed = make("plain", 40, storage_dir=ring)
    save = Moment.save

    def save_and_stop(*args: Any, **kwargs: Any) -> Any:
        save(*args, **kwargs)
        raise KeyboardInterrupt

    ours.flush()
    for _ in range(30):
        feed.add()
    with monkeypatch.context() as patched:
        patched.setattr(Moment, "save", save_and_stop)
        with pytest.raises(KeyboardInterrupt):
            ours._ring.flush()
        assert ours._ring._state is None, "what it knew of the directory is no longer true"
    for _ in range(60):
        feed.add()
    ours.flush()
    assert held(load_buffer(ring)) == held(ours)


def test_wrong_options(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="durability is 'none'"):
        make("plain", 0, storage_dir=str(tmp_path / "a"), durability="none")
    with pytest.raises(ValueError, match="max_memory is 'lots'"):
        make("plain", 0, storage_dir=str(tmp_path / "a"), max_memory="lots")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "x").write_text("x")
    with pytest.raises(FileExistsError, match="'x'"):
        make("plain", 0, storage_dir=str(tmp_path / "mine"))
    with pytest.raises(TypeError, match="storage_dir"):
        CompressedRolloutBuffer(10, IMAGE, KINDS["plain"][0]().action_space, storage_dir="x")  # type: ignore[call-arg]
    assert [parse_bytes(given) for given in (None, 5, "5", "2GB", "1.5 k", "3MiB")] == [None, 5, 5, 2 * 10**9, 1500, 3 << 20]


def test_a_reset_is_followed(tmp_path: Path) -> None:
    ring = str(tmp_path / "ring")
    ours, feed = make("plain", 90, storage_dir=ring)
    ours.flush()
    ours.reset()
    for _ in range(20):
        feed.add()
    ours._ring._write()
    assert held(load_buffer(ring))["used"] == 20
    assert load_buffer(ring).rewards[:20].tolist() == ours.rewards[:20].tolist()


def test_a_full_disk_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, feed = make("plain", 20, storage_dir=str(tmp_path / "ring"))
    ours.flush()
    before = held(ours)

    def fails(*_: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(type(ours._ring._disk), "sync", fails)
        ours._ring._write()
    with pytest.raises(OSError, match="No space left"):
        feed.add()
    assert held(load_buffer(tmp_path / "ring")) == before
    feed.add()
    ours.flush()
    assert held(load_buffer(tmp_path / "ring")) == held(ours)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_child_does_not_write(tmp_path: Path) -> None:
    ours, feed = make("plain", 30, storage_dir=str(tmp_path / "ring"))
    ours.flush()
    before = held(ours)
    child = os.fork()
    if child == 0:
        try:
            for _ in range(50):
                feed.add()
            ours.close()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert held(load_buffer(tmp_path / "ring")) == before
    with pytest.raises(BlockingIOError):
        make("plain", 0, storage_dir=str(tmp_path / "ring"))


def test_large_rings_are_mapped(tmp_path: Path) -> None:
    """With chunks of many laps, in a ring that is wrapped again and again: packs are given back."""
    ours = replay(CompressedReplayBuffer)(storage_dir=str(tmp_path / "ring"))
    feed = Feed(ours, images)
    sizes = []
    for _ in range(30):
        for _ in range(ROWS):
            feed.add()
        ours._ring._write()
        sizes.append(sum(file.stat().st_size for file in (tmp_path / "ring").iterdir()))
    assert max(sizes[10:]) < 3 * sizes[1]
    np.random.seed(0)
    KINDS["plain"][2](ours.sample(64))
    ours.close()
