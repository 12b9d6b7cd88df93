"""Progress of a few stages: bars on a terminal, a few plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

from sb3_extra_buffers.cli.children import Report


@dataclass(frozen=True)
class Stage:
    """One thing to wait for."""

    title: str
    total: int
    unit: str

    @property
    def amount(self) -> str:
        """All of it, in words."""
        return f"{self.total:,} {self.unit.removesuffix('s') if self.total == 1 else self.unit}"


class Stages(Protocol):
    """Shows stages, which run one after the other or side by side."""

    def begin(self, number: int) -> Report:
        """Begin a stage."""

    def end(self, number: int) -> None:
        """End a stage."""

    def note(self, number: int, text: str) -> None:
        """Show what a stage is at, where that changes faster than what is counted."""


class _Seconds(ProgressColumn):
    def render(self, task: Task) -> Text:
        began = task.elapsed is not None and task.fields["counter"]
        return Text(f"{task.elapsed:4.0f} s" if began else "", style="progress.elapsed")


class _Bars:
    def __init__(self, progress: Progress, stages: Sequence[Stage]) -> None:
        self._progress = progress
        self._stages = stages
        # All from the start, so that it is seen what is still to come (bars that are not started would flicker).
        self._tasks = [progress.add_task(stage.title, total=stage.total, counter="") for stage in stages]

    def begin(self, number: int) -> Report:
        task, stage = self._tasks[number], self._stages[number]
        self._progress.reset(task, counter="starting")

        def report(done: int) -> None:
            self._progress.update(task, completed=done, counter=f"{done:,} {stage.unit}")

        return report

    def end(self, number: int) -> None:
        stage = self._stages[number]
        task = self._tasks[number]
        self._progress.update(task, completed=stage.total, counter=stage.amount)
        self._progress.stop_task(task)

    def note(self, number: int, text: str) -> None:
        self._progress.update(self._tasks[number], counter=text)


class _Lines:
    def __init__(self, console: Console, stages: Sequence[Stage]) -> None:
        self._console = console
        self._stages = stages
        self._started = [0.0] * len(stages)

    def _say(self, number: int, text: str) -> None:
        line = f"[{number + 1}/{len(self._stages)}] {self._stages[number].title}: {text}"
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def begin(self, number: int) -> Report:
        self._started[number] = time.monotonic()
        stage = self._stages[number]
        self._say(number, stage.amount)
        told = 0

        def report(done: int) -> None:
            nonlocal told
            quarter = 4 * done // stage.total
            if told < quarter < 4:
                told = quarter
                self._say(number, f"{25 * quarter} %")

        return report

    def end(self, number: int) -> None:
        self._say(number, f"done in {time.monotonic() - self._started[number]:.0f} s")

    def note(self, number: int, text: str) -> None:
        pass  # lines are few


@contextmanager
def show_stages(console: Console, stages: Sequence[Stage]) -> Iterator[Stages]:
    """Show stages until the context is left."""
    if not console.is_interactive or not console.file.isatty():
        yield _Lines(console, stages)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        TextColumn("{task.fields[counter]}", justify="right", style="progress.remaining"),
        _Seconds(),
    )
    with Progress(*columns, console=console, expand=True) as progress:
        yield _Bars(progress, stages)
