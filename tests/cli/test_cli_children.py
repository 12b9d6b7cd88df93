"""Work in a process of its own, and how it is shown."""

import io
import os
import signal
import time
from itertools import pairwise
from pathlib import Path

import pytest

from sb3_extra_buffers.cli.children import Call, Report, run_in_children
from sb3_extra_buffers.cli.errors import CommandError

psutil = pytest.importorskip("psutil")
pytest.importorskip("rich")


def count(to: int, report: Report) -> tuple[int, int]:
    for number in range(to):
        report(number)
        time.sleep(0.06)
    return os.getpid(), to


def fail(report: Report) -> None:
    raise ValueError("on purpose")


def die_after(file: Path, code: int, report: Report) -> None:
    while not (file.exists() and file.read_text()):
        time.sleep(0.02)
    os._exit(code)


def be_killed(report: Report) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def ignore(done: int) -> None:
    pass


def stay(pid_file: Path, report: Report) -> None:
    pid_file.write_text(str(os.getpid()))
    while True:
        report(1)
        time.sleep(0.05)


def test_results_and_progress() -> None:
    seen: tuple[list[int], list[int]] = ([], [])
    results = run_in_children(Call(count, (8,), seen[0].append), Call(count, (4,), seen[1].append))
    assert [total for _, total in results] == [8, 4]
    assert len({os.getpid(), *(pid for pid, _ in results)}) == 3
    assert all(reports and reports == sorted(reports) for reports in seen)


def work_and_wait(times: int, seconds: float, report: Report) -> list[tuple[float, float]]:
    """When it was at work, between one report and the next."""
    report(0)
    spans = []
    for number in range(times):
        begin = time.monotonic()
        time.sleep(seconds)
        spans.append((begin, time.monotonic()))
        report(number)
    return spans


def test_only_one_works_at_a_time_if_they_take_turns() -> None:
    long, short, third = run_in_children(
        Call(work_and_wait, (60, 0.03), ignore),
        Call(work_and_wait, (20, 0.03), ignore),
        Call(work_and_wait, (0, 0.0), ignore),
        in_turns=True,
    )
    assert (len(long), len(short), third) == (60, 20, [])
    spans = sorted([(span, "long") for span in long] + [(span, "short") for span in short])
    for (before, _), (after, _) in pairwise(spans):
        assert before[1] <= after[0]
    names = [name for _, name in spans]
    changes = sum(one != other for one, other in pairwise(names))
    assert changes >= 4 and names[-1] == "long", "by turns, and in the end alone"


def test_one_that_fails_ends_those_that_wait_for_their_turn() -> None:
    with pytest.raises(CommandError, match="on purpose"):
        run_in_children(Call(work_and_wait, (5, 0.01), ignore), Call(fail, (), ignore), in_turns=True)


def wait_for_ever(pid_file: Path, report: Report) -> None:
    pid_file.write_text(str(os.getpid()))
    report(0)
    while True:
        report(1)


def kill_the_other(pid_file: Path, report: Report) -> None:
    while not (pid_file.exists() and pid_file.read_text()):
        time.sleep(0.02)
    report(0)
    os.kill(int(pid_file.read_text()), signal.SIGKILL)
    report(1)
    time.sleep(0.2)
    report(2)  # it would be the other one's turn


def test_one_that_is_killed_before_its_turn_is_reported_as_killed(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="killed the measuring process"):
        run_in_children(
            Call(wait_for_ever, (tmp_path / "pid",), ignore), Call(kill_the_other, (tmp_path / "pid",), ignore), in_turns=True
        )


def test_an_exception_comes_with_its_traceback() -> None:
    with pytest.raises(CommandError, match=r"ValueError: on purpose(?s:.)*Traceback"):
        run_in_children(Call(fail, (), ignore))


def test_a_dead_child_is_noticed_and_the_other_ended(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="exit code 7"):
        run_in_children(Call(stay, (tmp_path / "pid",), ignore), Call(die_after, (tmp_path / "pid", 7), ignore))
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL here")
def test_a_killed_child_hints_at_memory() -> None:
    with pytest.raises(CommandError, match="smaller --size"):
        run_in_children(Call(be_killed, (), ignore))


def test_an_interrupt_ends_the_child(tmp_path: Path) -> None:
    def interrupt(done: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_in_children(Call(stay, (tmp_path / "pid",), interrupt))
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))
    if hasattr(signal, "pthread_sigmask"):
        assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("file", [io.StringIO(), Terminal()], ids=["pipe", "terminal"])
def test_progress(file: io.StringIO) -> None:
    from rich.console import Console

    from sb3_extra_buffers.cli.progress import Stage, show_stages

    console = Console(file=file, width=100, force_terminal=file.isatty())
    stages = [Stage("First", 1000, "things"), Stage("Second", 10, "steps"), Stage("Third", 1, "episodes")]
    with show_stages(console, stages) as shown:
        for number, stage in enumerate(stages):
            report = shown.begin(number)
            for done in range(stage.total):
                report(done)
            shown.end(number)
    text = file.getvalue()
    assert "First" in text and "Second" in text and "1,000 things" in text
    assert "1 episode" in text and "1 episodes" not in text
    if not file.isatty():
        assert "\x1b" not in text
        assert len(text.splitlines()) == 2 * 5 + 2


def test_a_note_shows_that_something_happens() -> None:
    from rich.console import Console

    from sb3_extra_buffers.cli.progress import Stage, show_stages

    for file in (io.StringIO(), Terminal()):
        with show_stages(
            Console(file=file, width=100, force_terminal=file.isatty()), [Stage("Record", 1, "episodes")]
        ) as shown:
            shown.begin(0)(0)
            shown.note(0, "0 episodes, 123 steps")
            time.sleep(0.3)  # bars are drawn ten times a second
        assert ("123 steps" in file.getvalue()) == file.isatty()
