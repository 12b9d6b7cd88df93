"""How a fleet is."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sb3_extra_buffers.distributed.fleet import Fleet


def figures_of(fleet: Fleet) -> dict[str, float]:
    """
    Tell what goes to SB3's logger.

    :param fleet: The fleet
    :return: Figures by name
    """
    known = [stats for stats in (fleet.shards.stats if fleet.shards is not None else []) if stats is not None]
    received = max(sum(stats.received for stats in known), 1)
    seconds = max(time.monotonic() - fleet.began, 1e-9)
    return {
        "transitions": float(fleet.clock.total),
        "adds_per_second": (fleet.clock.total - fleet.restored) / seconds,
        "wire_bytes_per_transition": sum(stats.wire_bytes for stats in known) / received,
        "waiting_for_collectors": fleet.waited / seconds,
        "waiting_for_samples": (fleet.client.waited if fleet.client is not None else 0.0) / seconds,
        "policy_lag": float(max((stats.policy_lag for stats in known), default=0)),
        "lost": float(fleet.clock.lost),
        "duplicates": float(sum(stats.duplicates for stats in known)),
    }


@dataclass(frozen=True)
class FleetStatus:
    """
    Figures of one moment; ``str`` makes a table of them.

    :param shards: ``Stats`` of each shard, None of those that have not told yet
    :param collectors: ``Progress`` of each collector, likewise
    :param collector_incarnations: How often each collector has been replaced
    :param figures: What goes to SB3's logger
    :param events: What has gone wrong
    """

    shards: tuple[Any, ...]
    collectors: tuple[Any, ...]
    collector_incarnations: tuple[int, ...]
    figures: dict[str, float]
    events: tuple[str, ...]

    @classmethod
    def of(cls, fleet: Fleet) -> FleetStatus:
        """
        Take them of a fleet.

        :param fleet: The fleet
        :return: The figures
        """
        crew = fleet.collectors
        shards = () if fleet.shards is None else tuple(fleet.shards.stats)
        return cls(shards, tuple(crew.progress), tuple(crew.incarnations), figures_of(fleet), tuple(fleet.events))

    def __str__(self) -> str:
        lines = ["shard      replaced      added       held   of   bytes each  twice"]
        for number, stats in enumerate(self.shards):
            if stats is None:
                lines.append(f"{number:<5} has not answered yet")
                continue
            wire = stats.wire_bytes / max(stats.received, 1)
            lines.append(
                f"{number:<10} {stats.incarnation:>8} {stats.added:>10,} {stats.size:>10,} {stats.size / stats.capacity:>5.0%}"
                f" {wire:>10.0f} {stats.duplicates:>6}"
            )
        lines.append("collector  replaced      steps     resent   policy  coding")
        for number, progress in enumerate(self.collectors):
            if progress is None:
                lines.append(f"{number:<5} has not answered yet")
                continue
            coding = progress.coding_seconds / max(progress.cpu_seconds, 1e-9)
            lines.append(
                f"{number:<10} {self.collector_incarnations[number]:>8} {progress.steps:>10,} {progress.resent:>10,} "
                f"{progress.version:>8} {coding:>7.0%}"
            )
        lines += [f"{name.replace('_', ' '):<28} {value:>14,.2f}" for name, value in self.figures.items()]
        lines += self.events
        return "\n".join(lines)
