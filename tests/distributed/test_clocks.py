"""How far collectors have got, and how far they may go."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sb3_extra_buffers.distributed.clock import Clock, PatientClock


@given(
    events=st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["add", "late", "kill"]), st.integers(1, 5)), max_size=40),
    max_lead=st.integers(1, 100),
)
def test_the_clock_never_goes_back(events: list[tuple[int, str, int]], max_lead: int) -> None:
    """Collector 0 plays blocks of 10; those of shard ``s`` have the numbers ``s``, ``s + 3``, ..."""
    clock = Clock(3, 10)
    clock.timesteps = 20
    sent, added, incarnations = [0] * 3, [0] * 3, [0] * 3
    before = lost = 0
    for shard, event, number in events:
        if event == "add":
            sent[shard] += number
            added[shard] += number
            clock.note(shard, incarnations[shard], 10 * added[shard], {(0, 0): shard + 3 * (sent[shard] - 1)})
        elif event == "late":
            clock.note(shard, incarnations[shard] - 1, 10**6, {(0, 0): shard} if sent[shard] else {})
        else:
            incarnations[shard] += 1
            lost += added[shard]
            told = {(0, 0): (shard + 3 * sent[shard], ())}
            assert clock.replace(shard, incarnations[shard], 0, {}, told, 10**6) == 10 * added[shard]
            added[shard] = 0
        assert clock.total >= before and clock.total == 10 * sum(sent) and clock.lost == 10 * lost
        before = clock.total
        # Together, shards may count what the learner allows, and each has room while all together have.
        limits, room = clock.limits(max_lead), max_lead - clock.lead
        rooms = [limit - 10 * count for limit, count in zip(limits, added, strict=True)]
        assert all(each > 0 for each in rooms) if room > 0 else rooms == [0] * 3
        assert 0 <= sum(rooms) - max(room, 0) < 3


def test_what_is_lost_was_acknowledged_and_is_not_there() -> None:
    clock = Clock(1, 10)
    clock.note(0, 0, 80, {(0, 0): 7})
    # A checkpoint has blocks 0 to 4, and the collector has not heard of 6 and 7: it sends them again.
    seen, told = {(0, 0): (4, {4})}, {(0, 0): (8, (6, 7))}
    assert clock.replace(0, 1, 50, seen, told, 10**6) == 10 and clock.total == 80
    clock.note(0, 1, 70, {(0, 0): 7})
    assert clock.total == 80 and clock.limits(5) == [70]
    # The checkpoint is gone, too; what was lost already is not lost again.
    assert clock.replace(0, 2, 0, {}, {(0, 0): (9, ())}, 10**6) == 80 and clock.total == 90
    # A collector that does not answer has sent what is known to have arrived.
    assert clock.replace(0, 3, 0, {}, {}, 10**6) == 0 and clock.lost == 90


def test_a_small_shard_has_not_lost_more_than_it_held() -> None:
    clock = Clock(1, 10)
    clock.note(0, 0, 1000, {(0, 0): 99})
    assert clock.replace(0, 1, 0, {}, {}, 64) == 64 and clock.total == 1000


def test_what_is_reserved_counts() -> None:
    clock = Clock(2, 10)
    clock.note(0, 0, 100, {(0, 0): 18}, 30)
    clock.timesteps = 90
    assert clock.lead == 10 and clock.limits(50) == [135, 5] and clock.limits(40) == [130, 0]


def test_what_is_lost_is_no_lead() -> None:
    clock = Clock(1, 10)
    clock.note(0, 0, 100, {(0, 0): 9})
    clock.timesteps = 60
    assert clock.lead == 40 and clock.limits(40) == [100]
    clock.replace(0, 1, 0, {}, {}, 10**6)
    assert clock.lead == 0 and clock.limits(40) == [40]


def test_time_in_which_nobody_could_look_does_not_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [50.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    clock = PatientClock(3.0)
    for passed, seen in ((2.0, 2.0), (3.0, 5.0), (1000.0, 8.0), (1.0, 9.0)):
        now[0] += passed
        assert clock.now() == pytest.approx(seen)
