"""Counts of what has been collected, and how far collectors may go."""

from __future__ import annotations

import time
from collections.abc import Mapping

from sb3_extra_buffers.distributed.blocks import Who


class PatientClock:
    """
    Time in which this process could look for answers. It advances by ``most`` at most between two looks, so a process that was
    suspended takes the answers that have come meanwhile before it takes an actor for lost.
    """

    def __init__(self, most: float) -> None:
        self.most = most
        self._time, self._looked = 0.0, time.monotonic()

    def now(self) -> float:
        """Return the time."""
        looked, self._looked = self._looked, time.monotonic()
        self._time += min(max(self._looked - looked, 0.0), self.most)
        return self._time


class Clock:
    """
    Counts transitions that have been collected. It knows them by the names of their blocks: a block counts once, to whichever
    incarnations of its shard it was sent. It never goes back: what was collected and then lost has been collected.
    """

    def __init__(self, n_shards: int, cells: int) -> None:
        self.n_shards, self.cells = n_shards, cells
        self.lost = 0
        """Transitions that were acknowledged and are gone with their shard."""
        self.timesteps = 0
        """Transitions that the learner has counted."""
        self._lost_lead = 0  # of the lost ones, those that the learner had not counted yet
        self._blocks = 0
        self._highest: list[dict[Who, int]] = [{} for _ in range(n_shards)]  # the newest block of each collector
        self._gone: list[dict[Who, set[int]]] = [{} for _ in range(n_shards)]  # blocks that are lost
        self._incarnations = [0] * n_shards
        self._added = [0] * n_shards  # by these incarnations, and what they have reserved for blocks that are played now
        self._reserved = [0] * n_shards

    @property
    def total(self) -> int:
        """Transitions that have been collected."""
        return self._blocks * self.cells

    @property
    def lead(self) -> int:
        """Transitions that collectors are ahead of the learner. What was lost before it got there is no lead."""
        return self.total - self._lost_lead - self.timesteps

    def _first(self, shard: int, who: Who) -> int:
        return (shard - who[0]) % self.n_shards  # see Outbox.shard_of

    def _count(self, shard: int, who: Who, highest: int) -> int:
        return (highest - self._first(shard, who)) // self.n_shards + 1

    def note(self, shard: int, incarnation: int, added: int, newest: Mapping[Who, int], reserved: int = 0) -> None:
        """Note what a shard has told: transitions that it has added and reserved, and the newest block of some collectors."""
        known = self._highest[shard]
        for who, sequence in newest.items():
            before = known.get(who)
            if before is None or sequence > before:
                known[who] = sequence
                counted = 0 if before is None else self._count(shard, who, before)
                self._blocks += self._count(shard, who, sequence) - counted
        if incarnation == self._incarnations[shard]:
            self._added[shard], self._reserved[shard] = max(self._added[shard], added), reserved

    def note_seen(self, shard: int, seen: Mapping[Who, tuple[int, set[int]]]) -> None:
        """Note what a shard has from a checkpoint: see ``Shard.seen``."""
        self.note(shard, -1, 0, {who: max(known) for who, (_, known) in seen.items() if known})

    def replace(
        self,
        shard: int,
        incarnation: int,
        added: int,
        seen: Mapping[Who, tuple[int, set[int]]],
        told: Mapping[Who, tuple[int, tuple[int, ...]]],
        capacity: int,
    ) -> int:
        """
        Note that there is another shard in the place of one, and return how many transitions are lost by that. ``added`` and
        ``seen`` are those of the new shard, from a checkpoint. ``told`` is what living collectors say: the number of their
        next block, and those whose acknowledgement they have not heard, which they send again.
        """
        self.note_seen(shard, seen)  # it may have been saved before it could tell
        own: dict[Who, set[int]] = {}
        for who in {*self._highest[shard], *told}:
            following, waiting = told.get(who, (self._highest[shard].get(who, -1) + 1, ()))
            own[who] = {*range(self._first(shard, who), following, self.n_shards)}.difference(waiting)
        self.note(shard, -1, 0, {who: max(blocks) for who, blocks in own.items() if blocks})
        self._incarnations[shard], self._added[shard], self._reserved[shard] = incarnation, added, 0
        count = 0
        for who, blocks in own.items():
            settled, known = seen.get(who, (0, set()))
            gone = self._gone[shard].setdefault(who, set())
            new = {block for block in blocks if block >= settled} - known - gone
            gone |= new
            count += len(new)
        # Of what is gone, a shard of that capacity would have written over the rest by now.
        lost = min(count * self.cells, capacity)
        self.lost += lost
        self._lost_lead += min(lost, max(self.lead, 0))
        return lost

    def limits(self, max_lead: int) -> list[int]:
        """
        How many transitions each shard may add and reserve before collectors wait. While there is room, every shard has
        some, so the lead may exceed ``max_lead`` by a block of each shard.
        """
        each = -(-max(max_lead - self.lead - sum(self._reserved), 0) // self.n_shards)
        return [added + reserved + each for added, reserved in zip(self._added, self._reserved, strict=True)]
