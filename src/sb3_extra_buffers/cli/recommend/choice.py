"""Which method is best, for what the user can spare."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sb3_extra_buffers.cli.errors import CommandError

if TYPE_CHECKING:
    from sb3_extra_buffers.cli.measuring import Measured

USUAL_SPEED = 1.5
"""How many times SB3's time a method may take, for who does not say."""


@dataclass(frozen=True)
class Candidate:
    """
    A method, as far as it matters for the choice.

    :param method: Its name; None for SB3's own buffer
    :param buffer_bytes: What the observations of the whole buffer would take
    :param time: Time of an ``add`` and a ``sample``, over that of SB3
    :param measured: The figures behind it
    """

    method: str | None
    buffer_bytes: float
    time: float
    measured: Measured

    @property
    def name(self) -> str:
        """What to call it."""
        return "SB3's own" if self.method is None else self.method


def candidates(figures: Sequence[Measured], transitions: int, buffer_size: int) -> list[Candidate]:
    """
    Work out what a buffer of the wanted size would take.

    :param figures: What was measured, SB3's own buffer first
    :param transitions: How many transitions that was with
    :param buffer_size: How many there are to be
    :return: All candidates, in the same order
    """
    sb3 = figures[0]
    return [
        Candidate(each.method, each.stored_bytes / transitions * buffer_size, each.step_us / sb3.step_us, each)
        for each in figures
    ]


def choose(among: Sequence[Candidate], memory: int | None, speed: float | None, buffer_size: int) -> tuple[Candidate, str]:
    """
    Choose the best: with a memory budget the fastest that fits, with a speed budget the smallest that is fast enough.

    :param among: All candidates
    :param memory: Bytes that the observations may take, if that was said
    :param speed: How many times SB3's time may be taken, if that was said
    :param buffer_size: Transitions in the buffer
    :return: The best, and why
    """
    from sb3_extra_buffers.cli.formatting import format_bytes

    fitting = [each for each in among if memory is None or each.buffer_bytes <= memory]
    if not fitting:
        smallest = min(among, key=lambda each: each.buffer_bytes)
        assert memory is not None
        most = int(memory / (smallest.buffer_bytes / buffer_size))
        raise CommandError(
            f"{buffer_size:,} transitions do not fit in {format_bytes(memory)}: the smallest method, {smallest.name}, takes "
            f"about {format_bytes(smallest.buffer_bytes)}. Try --buffer-size {most} or more --memory"
        )
    limit = speed if speed is not None else None if memory is not None else USUAL_SPEED
    quick = [each for each in fitting if limit is None or each.time <= limit]
    if not quick:
        fastest = min(fitting, key=lambda each: each.time)
        where = "" if memory is None else f" of those that fit in {format_bytes(memory)}"
        raise CommandError(
            f"no method{where} takes at most {limit:g} times SB3's time; the fastest, {fastest.name}, takes "
            f"{fastest.time:.2f} times. Try --speed {fastest.time * 1.05:.2f}"
        )
    if memory is not None:
        reason = f"the fastest whose observations fit in {format_bytes(memory)}"
        if limit is not None:
            reason += f", at most {limit:g} times SB3's time"
        return min(quick, key=lambda each: each.time), reason
    return min(quick, key=lambda each: each.buffer_bytes), f"the smallest that takes at most {limit:g} times SB3's time"
