"""How far everybody has got, and how far they may go."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class _Count:
    """What is known of one shard."""

    incarnation: int = 0
    added: int = 0
    """Transitions that this incarnation counts."""
    before: int = 0
    """Transitions that earlier ones have counted, and this one does not."""


class Clock:
    """
    Counts transitions that have been collected, over all shards and all their incarnations. It never goes back: what was
    collected and then lost with a shard has been collected.

    :param n_shards: Number of shards
    """

    def __init__(self, n_shards: int) -> None:
        self._counts = [_Count() for _ in range(n_shards)]
        self.lost = 0
        """Transitions that were acknowledged and are gone with their shard."""

    @property
    def total(self) -> int:
        """Transitions that have been collected."""
        return sum(count.before + count.added for count in self._counts)

    def added(self, shard: int) -> int:
        """
        Tell what is known of a shard.

        :param shard: Its number
        :return: Transitions that its incarnation counts
        """
        return self._counts[shard].added

    def note(self, shard: int, incarnation: int, added: int) -> None:
        """
        Note what a shard has told; what is older than what is known changes nothing.

        :param shard: Its number
        :param incarnation: Which incarnation has told that
        :param added: Transitions that it counts
        """
        count = self._counts[shard]
        if incarnation == count.incarnation:
            count.added = max(count.added, added)

    def replace(self, shard: int, incarnation: int, restored: int, acknowledged: int, capacity: int) -> int:
        """
        Note that a shard is gone, and another one in its place.

        :param shard: Its number
        :param incarnation: The new incarnation
        :param restored: Transitions that the new one counts, from a checkpoint
        :param acknowledged: Transitions that collectors know to have been added, to all incarnations of it
        :param capacity: Transitions that a shard holds at most
        :return: How many transitions are lost, of those that were acknowledged
        """
        count = self._counts[shard]
        known = max(count.added, acknowledged - count.before)
        gone = max(known - restored, 0)
        # Of what is gone, a shard of that capacity would have written over the rest by now.
        lost = min(gone, capacity)
        count.before, count.added, count.incarnation = count.before + gone, restored, incarnation
        self.lost += lost
        return lost


class RateLimiter:
    """
    Keeps collectors and learner together.

    The learner takes a step when as many transitions have been collected as its steps need. How often it trains in between
    is the business of ``train_freq``, ``gradient_steps`` and ``learning_starts``, as ever. Collectors wait while they are
    ``max_lead`` transitions ahead of it.

    :param max_lead: Transitions
    """

    def __init__(self, max_lead: int) -> None:
        if max_lead < 1:
            raise ValueError(f"max_lead is {max_lead}; collectors must be allowed to be at least 1 transition ahead")
        self.max_lead = max_lead

    def may_step(self, clock: Clock, timesteps: int) -> bool:
        """
        Find out whether the learner may go on.

        :param clock: The clock
        :param timesteps: Transitions that it counts after its step
        :return: Whether so many have been collected
        """
        return clock.total >= timesteps

    def limits(self, clock: Clock, timesteps: int, n_shards: int) -> list[int]:
        """
        Tell how many transitions each shard may count before collectors wait.

        :param clock: The clock
        :param timesteps: Transitions that the learner has counted
        :param n_shards: Number of shards
        :return: A number for each; together they are what is allowed. While that is more than there is, every shard has room
        """
        room = timesteps + self.max_lead - clock.total
        each = -(-room // n_shards) if room > 0 else 0
        return [clock.added(shard) + each for shard in range(n_shards)]
