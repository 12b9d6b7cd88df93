"""How busy other programs keep the machine while something is measured."""

from __future__ import annotations

import os
import time

import psutil

_MUCH = 0.25
"""Share of the machine that other programs may have without distorting times by much."""


class Load:
    """Other programs, from the moment that this is made."""

    def __init__(self) -> None:
        self._began, self._busy, self._own = self._now()

    def _now(self) -> tuple[float, float, float]:
        times = psutil.cpu_times()
        busy = times.user + times.system + sum(getattr(times, name, 0.0) for name in ("nice", "irq", "softirq", "steal"))
        return time.monotonic(), busy, sum(os.times()[:4])  # children count once they have ended

    def other_cores(self) -> float:
        """How many cores other programs had on average; 0 where the times of our own children are not known."""
        now, busy, own = self._now()
        if os.name != "posix" or now <= self._began:
            return 0.0
        return max(0.0, (busy - self._busy - (own - self._own)) / (now - self._began))


def busy_warning(other_cores: float) -> str | None:
    """A sentence for a machine that was busy; None for one that was not."""
    cores = psutil.cpu_count() or 1
    if other_cores < _MUCH * cores:
        return None
    return (
        f"The machine was busy: other programs had {other_cores:.1f} of its {cores} cores meanwhile. Memory is right, but "
        "times are rough; measure again when it is quiet."
    )
