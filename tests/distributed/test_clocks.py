"""How far everybody may go."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sb3_extra_buffers.distributed.clock import Clock, RateLimiter


@given(
    events=st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["add", "late", "kill"]), st.integers(0, 50)), max_size=40),
    max_lead=st.integers(1, 100),
)
def test_the_clock_never_goes_back(events: list[tuple[int, str, int]], max_lead: int) -> None:
    clock, limiter = Clock(3), RateLimiter(max_lead)
    added, incarnations, acknowledged = [0] * 3, [0] * 3, [0] * 3
    before = lost = 0
    for shard, event, number in events:
        if event == "add":
            added[shard] += number
            acknowledged[shard] += number
            clock.note(shard, incarnations[shard], added[shard])
        elif event == "late":
            clock.note(shard, incarnations[shard] - 1, 10**6)
            clock.note(shard, incarnations[shard], added[shard] - number)
        else:
            incarnations[shard] += 1
            restored = min(number, added[shard])
            lost += added[shard] - restored
            assert clock.replace(shard, incarnations[shard], restored, acknowledged[shard], 10**6) == added[shard] - restored
            added[shard] = restored
        assert clock.total >= before and clock.total == sum(acknowledged) and clock.lost == lost
        before = clock.total
        # Together, shards may count what the learner allows, and each has room while all together have.
        limits = limiter.limits(clock, 20, 3)
        room = 20 + max_lead - clock.total
        rooms = [limit - count for limit, count in zip(limits, added, strict=True)]
        assert all(each > 0 for each in rooms) if room > 0 else rooms == [0] * 3
        assert 0 <= sum(rooms) - max(room, 0) < 3


def test_a_small_shard_has_not_lost_more_than_it_held() -> None:
    clock = Clock(1)
    clock.note(0, 0, 1000)
    assert clock.replace(0, 1, 0, 1000, 64) == 64 and clock.total == 1000


def test_what_collectors_know_counts() -> None:
    """The shard died before it could say that it had added anything."""
    clock = Clock(1)
    clock.note(0, 0, 100)
    assert clock.replace(0, 1, 40, 160, 10**6) == 120 and clock.total == 160
    clock.note(0, 1, 60)
    assert clock.replace(0, 2, 40, 200, 10**6) == 40 and clock.total == 200


def test_the_learner_waits_for_collectors() -> None:
    clock, limiter = Clock(2), RateLimiter(10)
    clock.note(1, 0, 31)
    assert limiter.may_step(clock, 31) and not limiter.may_step(clock, 32)
    with pytest.raises(ValueError, match="max_lead is 0"):
        RateLimiter(0)
