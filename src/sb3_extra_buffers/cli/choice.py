"""Which method is best: memory weighed against the time of training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import floor, inf, log2
from typing import TYPE_CHECKING

from sb3_extra_buffers._support import format_bytes
from sb3_extra_buffers.cli.errors import CommandError

if TYPE_CHECKING:
    from sb3_extra_buffers.cli.measure import Measured

DEFAULT_METHOD = "delta"

PROCESS_BYTES = 400_000_000
"""About what a process that trains with SB3 and torch takes beside its buffer."""

WORTH_OF_HALF_THE_MEMORY = 0.05
"""How much longer training may take if its process needs only half the memory for that."""

LEAST_GAIN = 0.01
"""By how much a method has to be better than a simpler one: the default than SB3's own buffer, all others than the default."""

USABLE_MEMORY = 0.8
"""The share of a machine's memory that a buffer may take; the rest is for all that runs beside it."""


@dataclass(frozen=True)
class TrainingStep:
    """What happens between one update of the policy and the next, without the buffer."""

    algorithm: str
    update_us: float
    play_us: float
    adds: float

    @property
    def rest_us(self) -> float:
        """All of it."""
        return self.update_us + self.adds * self.play_us


@dataclass(frozen=True)
class Candidate:
    """A method, as far as it matters for the choice."""

    method: str | None
    buffer_bytes: float
    buffer_us: float
    rest_us: float
    training: float
    add: float
    sample: float
    usage: str | None = None

    @property
    def name(self) -> str:
        """What to call it."""
        return "SB3's own" if self.method is None else self.method

    @property
    def share(self) -> float:
        """The buffer's share of a training step."""
        return self.buffer_us / (self.buffer_us + self.rest_us)


@dataclass(frozen=True)
class Limits:
    """What is allowed."""

    memory: float = inf
    speed: float = inf

    def fits(self, each: Candidate) -> bool:
        """Tell whether there is room for a buffer."""
        return each.buffer_bytes <= self.memory


def candidates(figures: Sequence[Measured], transitions: int, buffer_size: int, step: TrainingStep) -> list[Candidate]:
    """Work out what a buffer of the wanted size would take."""

    def buffer_us(each: Measured) -> float:
        return step.adds * each.add_full_us + each.sample_us

    sb3 = figures[0]
    return [
        Candidate(
            each.method,
            buffer_bytes=each.stored_bytes / transitions * buffer_size,
            buffer_us=buffer_us(each),
            rest_us=step.rest_us,
            training=(buffer_us(each) + step.rest_us) / (buffer_us(sb3) + step.rest_us),
            add=each.add_full_us / sb3.add_full_us,
            sample=each.sample_us / sb3.sample_us,
            usage=each.usage,
        )
        for each in figures
    ]


def score(each: Candidate, limits: Limits) -> tuple[bool, bool, float]:
    """
    Say how good a candidate is; the smallest score is the best.

    What does not fit comes last, then what is too slow. Of the others, the time of training decides, and memory: each time
    that the whole process needs half the memory, training may take ``WORTH_OF_HALF_THE_MEMORY`` longer. So a buffer that
    is slower than SB3's, but takes next to nothing of a training step, is judged by its memory; and memory of a
    buffer that is small beside the process does not count for much.
    """
    worth: float = (1 + WORTH_OF_HALF_THE_MEMORY) ** log2(PROCESS_BYTES + each.buffer_bytes)
    simplicity = (None, DEFAULT_METHOD).index(each.method) if each.method in (None, DEFAULT_METHOD) else 2
    cost = each.training * worth * (1 + LEAST_GAIN) ** simplicity
    return not limits.fits(each), each.training > limits.speed, cost


def rank(among: Sequence[Candidate], limits: Limits) -> list[Candidate]:
    """Put candidates in order."""
    return sorted(among, key=lambda each: score(each, limits))


def choose(among: Sequence[Candidate], limits: Limits, buffer_size: int) -> Candidate:
    """Choose the best of those that are allowed."""
    best = rank(among, limits)[0]
    does_not_fit, too_slow, _ = score(best, limits)
    if does_not_fit:
        smallest = min(among, key=lambda each: each.buffer_bytes)
        most = int(limits.memory / (smallest.buffer_bytes / buffer_size))
        raise CommandError(
            f"{buffer_size:,} transitions do not fit in {format_bytes(limits.memory)}: the smallest method, {smallest.name}, "
            f"takes about {format_bytes(smallest.buffer_bytes)}. Try --buffer-size {most} or more --memory"
        )
    if too_slow:
        fastest = min(filter(limits.fits, among), key=lambda each: each.training)
        raise CommandError(
            f"a training step takes more than {limits.speed:g} times as long as with SB3's own buffer, with any method that "
            f"fits in {format_bytes(limits.memory)}; the fastest, {fastest.name}, takes {fastest.training:.3f} times as long. "
            f"Try --speed {fastest.training + 0.01:.2f}"
        )
    return best


def _round_down(number: float) -> float:
    """Two significant digits, which are easy to type."""
    step: float = 10.0 ** (floor(log2(number) / log2(10)) - 1)
    return floor(number / step) * step


def what_would_change_it(among: Sequence[Candidate], limits: Limits, buffer_size: int, best: Candidate) -> list[str]:
    """Find options that would lead to another choice, by trying them."""
    found: list[str] = []

    def another(option: str, limits: Limits, size: int = buffer_size) -> bool:
        sized = [replace(each, buffer_bytes=each.buffer_bytes / buffer_size * size) for each in among]
        try:
            other = choose(sized, limits, size)
        except CommandError:
            return False
        if other.method != best.method:
            found.append(f"{option} ({other.name})")
        return other.method != best.method

    less = _round_down(0.999 * best.buffer_bytes)
    another(f"--memory {format_bytes(less).replace(' ', '')}", replace(limits, memory=less))
    if not all(map(limits.fits, among)):
        more = 1.01 * max(each.buffer_bytes for each in among)
        another(f"--memory {format_bytes(more).replace(' ', '')}, if you have it", replace(limits, memory=more))
    faster = floor(100 * best.training - 0.5) / 100
    if faster >= 1:  # below that it would be chance
        another(f"--speed {faster:.2f}", replace(limits, speed=faster))
    for factor in (0.5, 2.0):
        for times in range(1, 8):
            size = int(_round_down(buffer_size * factor**times))
            if size < 1 or another(f"--buffer-size {size}", limits, size):
                break
    return found
