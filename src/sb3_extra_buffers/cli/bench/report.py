"""The outcome of the benchmark as a table."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sb3_extra_buffers.cli.bench.compare import Results
from sb3_extra_buffers.cli.formatting import format_bytes
from sb3_extra_buffers.cli.load import busy_warning
from sb3_extra_buffers.cli.measuring import BATCH_SIZE, Measured


def format_time(microseconds: float, compared: float) -> str:
    """
    Write a time, and how it compares.

    :param microseconds: The time
    :param compared: What it is compared with
    :return: Both
    """
    ratio = microseconds / compared
    time = f"{microseconds:.0f} µs" if microseconds < 9_999.5 else f"{microseconds / 1000:.1f} ms"
    return f"{time}  {ratio:.2f}x" if ratio < 9.995 else f"{time}  {ratio:.1f}x" if ratio < 99.95 else f"{time}  {ratio:.0f}x"


def share(ours: float, theirs: float) -> str:
    """
    Write a share of SB3's memory.

    :param ours: Our bytes
    :param theirs: SB3's
    :return: Percent
    """
    percent = 100 * ours / theirs
    return f"{percent:.2f} %" if percent < 10 else f"{percent:.0f} %"


def make_table(results: Results) -> Table:
    """
    Make the table.

    :param results: The figures
    :return: One row a method
    """
    source, sb3 = results.source, results.sb3
    stack = f", stacks of {source.environments.stack}" if (source.environments.stack or 1) > 1 else ""
    envs = f", {source.environments.n_envs} environments" if source.recording is None else ""
    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        title=f"{source.title}: {results.transitions:,} transitions{envs}{stack}",
        title_style="bold",
        title_justify="left",
    )
    table.add_column("method")
    for column in ("memory", "of SB3's", "add", f"sample({BATCH_SIZE})"):
        table.add_column(column, justify="right")
    table.add_column("samples")
    table.add_row(
        "SB3's own", format_bytes(sb3.memory_bytes), "100 %", format_time(sb3.add_full_us, sb3.add_full_us),
        format_time(sb3.sample_us, sb3.sample_us), "", style="dim",
    )  # fmt: skip
    for measured in results.ours:
        table.add_row(
            str(measured.method),
            format_bytes(measured.memory_bytes),
            Text(share(measured.memory_bytes, sb3.memory_bytes), style="bold"),
            format_time(measured.add_full_us, sb3.add_full_us),
            format_time(measured.sample_us, sb3.sample_us),
            _verdict(results, measured),
        )
    return table


def _verdict(results: Results, measured: Measured) -> Text:
    return Text("identical", "green") if results.identical(measured) else Text("DIFFERENT", "bold red")


def print_report(console: Console, results: Results) -> None:
    """
    Print table and sentences.

    :param console: Where
    :param results: The figures
    """
    console.print()
    console.print(make_table(results))
    n_envs = results.source.environments.n_envs
    rows = "one transition" if n_envs == 1 else f"one step of all {n_envs} environments"
    lines = [
        f"Memory is how much the process grew at most, once the libraries were loaded. Times are medians, with their "
        f"ratio to SB3's; add stores {rows} in a full buffer."
    ]
    lines += [f"{each.method}: {each.usage}." for each in results.ours[:1] if each.usage]
    steps = results.source.recorded_steps
    if steps and results.transitions > steps:
        lines.append(f"The recording has {steps:,} steps, so it was read {results.transitions / steps:.1f} times over.")
    if warning := busy_warning(results.other_cores):
        lines.append(warning)
    if results.raw_bytes < 2 * 512:
        lines.append(
            f"An observation takes only {results.raw_bytes // 2} bytes here: compressed buffers store "
            "such small ones as they are, so there is nothing to gain."
        )
    for line in lines:
        console.print(line, style="dim", markup=False, highlight=False)
    if not results.all_identical:
        console.print("There should be no difference here. Please report it, and attach the files below.", style="bold red")
