"""Whenever the power fails, a saved buffer is what was last acknowledged, or what was being saved."""

from __future__ import annotations

import errno
import random
from typing import Any

import pytest
from disk_simulator import SimulatedDisk, after_crash
from file_kit import PATH, held, load, make, save
from hypothesis import given, settings
from hypothesis import strategies as st

from sb3_extra_buffers.compressed.rings import RingOnDisk
from sb3_extra_buffers.storage import directory
from sb3_extra_buffers.storage.errors import StorageError

SAVES = (5, 3, 40, 17, 60)  # steps before each; the ring has 40 rows


class History:
    """A buffer that was saved several times: the calls that took, and what it held each time."""

    def __init__(self, kind: str) -> None:
        buffer, feed = make(kind, 0)
        self.disk, self.states, self.acknowledged = SimulatedDisk(), [], []
        for steps in SAVES:
            for _ in range(steps):
                feed.add()
            save(buffer, self.disk)
            self.states.append(held(buffer))
            self.acknowledged.append(len(self.disk.calls))

    def expected(self, calls: int) -> list[Any]:
        """What may be there after so many calls: the last state that was acknowledged, or the one after; None for nothing."""
        done = sum(calls >= count for count in self.acknowledged)
        return [self.states[done - 1] if done else None, *self.states[done : done + 1]]


HISTORIES: dict[str, History] = {}


def history(kind: str, monkeypatch: pytest.MonkeyPatch | None = None) -> History:
    if kind not in HISTORIES:
        # Small packs, so that there are several, and some of them are emptied and removed.
        before, directory._SMALLEST_PACK = directory._SMALLEST_PACK, 8192
        HISTORIES[kind] = History(kind)
        directory._SMALLEST_PACK = before
    return HISTORIES[kind]


def found(disk: SimulatedDisk) -> Any:
    try:
        return held(load(disk))
    except FileNotFoundError:
        return None
    except StorageError as error:
        if "never finished" in str(error):
            return None
        raise


class RingHistory(History):
    """The same of a ring on disk."""

    def __init__(self, kind: str) -> None:
        buffer, feed = make(kind, 0)
        self.disk = SimulatedDisk()
        ring = RingOnDisk(buffer, PATH, None, "chunk", self.disk)
        self.states, self.acknowledged = [held(buffer)], [len(self.disk.calls)]
        for steps in (5, 3, 16, 11, 60, 1, 16, 16, 16, 16):
            for _ in range(steps):
                feed.add()
            ring._write(everything=steps == 1)
            ring.raise_error()
            self.states.append(held(buffer))
            self.acknowledged.append(len(self.disk.calls))
        ring._stop()


@pytest.mark.parametrize("kind", ["plain", "her"])
def test_every_call_of_a_ring_may_be_the_last(kind: str, record_property: Any) -> None:
    past = RingHistory(kind)
    assert found(past.disk) == past.states[-1]
    record_property("times", 3 * (len(past.disk.calls) + 1))
    for calls in range(len(past.disk.calls) + 1):
        for seed in range(3):
            disk = after_crash(past.disk.calls[:calls], random.Random(f"{calls} {seed}"))
            assert found(disk) in past.expected(calls), (calls, seed)


@pytest.mark.parametrize("kind", ["plain", "prioritized"])
def test_every_call_may_be_the_last(kind: str, record_property: Any) -> None:
    past = history(kind)
    assert found(past.disk) == past.states[-1]
    record_property("times", 6 * (len(past.disk.calls) + 1))
    for calls in range(len(past.disk.calls) + 1):
        for seed in range(6):
            disk = after_crash(past.disk.calls[:calls], random.Random(f"{calls} {seed}"))
            assert found(disk) in past.expected(calls), (calls, seed)


@given(st.sampled_from(["plain", "her", "dict"]), st.randoms(use_true_random=False))
@settings(max_examples=150, deadline=None)
def test_what_is_found_after_a_crash_can_be_saved_again(kind: str, rng: random.Random) -> None:
    past = history(kind)
    calls = rng.randrange(len(past.disk.calls) + 1)
    disk = after_crash(past.disk.calls[:calls], rng)
    assert found(disk) in past.expected(calls)
    buffer, _ = make(kind, 11)
    save(buffer, disk)
    assert found(disk) == held(buffer)
    assert len(disk.names_in(PATH)) == 2, "one manifest, one pack"


class Fails:
    """Lets a call fail once so many have succeeded."""

    def __init__(self, disk: SimulatedDisk, after: int, number: int) -> None:
        self.left, self.number, self.failed = after, number, ""
        disk.before_call = self

    def __call__(self, name: str) -> None:
        self.left -= 1
        if self.left < 0 and not self.failed:
            self.failed = name
            raise OSError(self.number, "made to fail")


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
@pytest.mark.parametrize("is_first", [False, True], ids=["again", "first"])
def test_every_call_may_fail(number: int, is_first: bool, record_property: Any) -> None:
    buffer, feed = make("plain", 20)
    clean = SimulatedDisk()
    if not is_first:
        save(buffer, clean)
    old, names = None if is_first else held(buffer), clean.folders
    for _ in range(30):
        feed.add()
    new = held(buffer)
    for after in range(1000):
        disk = clean.copy()
        disk.calls = list(clean.calls)
        fails = Fails(disk, after, number)
        raised = None
        try:
            save(buffer, disk)
        except OSError as error:
            raised = error
        disk.before_call = lambda name: None
        if raised is not None:
            assert raised.errno == number and "saving failed" in str(raised)
            is_late = fails.failed == "sync_folder" and disk.calls[-2][0] == "replace"
            assert found(disk) == old, "the old state stays"
            if not is_late and fails.failed != "replace":
                assert disk.folders == names, f"{fails.failed} has left something behind"
        else:
            assert found(disk) == new
        assert disk.open_handles == 0 or fails.failed == "close"
        syncs = [call for call in disk.calls if call[0] == "sync"]
        assert len(syncs) == len(set(syncs)), "a sync that has failed is not tried again"
        disk._locked.clear()  # closing may have failed
        for seed in range(3):
            crashed = after_crash(disk.calls, random.Random(f"{after} {seed}"))
            assert found(crashed) in (old, new)
        save(buffer, disk)
        assert found(disk) == new
        if not fails.failed:
            record_property("times", after)
            return
    pytest.fail("saving takes no end of calls")


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
def test_every_call_of_a_ring_may_fail(number: int, record_property: Any) -> None:
    """Adding tells so once; the directory keeps a state, and has the newest one with the next that is written."""
    for after in range(1000):
        buffer, feed = make("plain", 0)
        disk = SimulatedDisk()
        ring = RingOnDisk(buffer, PATH, None, "chunk", disk)
        states = [held(buffer)]
        fails = Fails(disk, after, number)
        for steps in (20, 60, 30):
            for _ in range(steps):
                feed.add()
            ring._write()
            states.append(held(buffer))
            failed_now = ring._error is not None
            if failed_now:
                with pytest.raises((OSError, StorageError), match="made to fail"):  # the latter if it was about to be mapped
                    ring.raise_error()
            ring.raise_error()
            disk.before_call = lambda name: None
            assert found(disk) in (states[-2:] if failed_now else states[-1:]), fails.failed
            disk.before_call = fails
        disk.before_call = lambda name: None
        ring._write(everything=True)
        ring.raise_error()
        assert found(disk) == held(buffer) == states[-1]
        ring._stop()
        if not fails.failed:
            record_property("times", after)
            return
    pytest.fail("writing takes no end of calls")


@pytest.mark.parametrize("seed", range(10))
def test_short_and_interrupted_calls_go_on(seed: int, record_property: Any) -> None:
    rng = random.Random(seed)
    times = 0

    class Stutters(SimulatedDisk):
        def write(self, handle: int, data: Any) -> int:
            nonlocal times
            times += 1
            if rng.random() < 0.3:
                raise InterruptedError(errno.EINTR, "interrupted")
            return super().write(handle, memoryview(data)[: rng.randrange(1, len(data) + 1)])

        def read(self, handle: int, size: int) -> bytes:
            nonlocal times
            times += 1
            if rng.random() < 0.3:
                raise InterruptedError(errno.EINTR, "interrupted")
            return super().read(handle, rng.randrange(1, size + 1))

        def map(self, handle: int, size: int) -> Any:
            raise OSError(errno.ENODEV, "no mappings here")

    disk = Stutters()
    buffer, _ = make("dict", 25)
    save(buffer, disk)
    assert found(disk) == held(buffer)
    record_property("times", times)


def test_reading_may_fail(record_property: Any) -> None:
    buffer, _ = make("plain", 20)
    disk = SimulatedDisk()
    save(buffer, disk)
    for after in range(100):
        fails = Fails(disk, after, errno.EIO)
        try:
            assert held(load(disk)) == held(buffer)
        except (OSError, StorageError):
            assert fails.failed
        if not fails.failed:
            record_property("times", after)
            return
    pytest.fail("loading takes no end of calls")
