"""The outcome of the demo as a table and a few sentences."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sb3_extra_buffers.cli.demo.figures import BATCH_SIZE, Comparison
from sb3_extra_buffers.cli.formatting import format_bytes
from sb3_extra_buffers.cli.games import game_title
from sb3_extra_buffers.cli.load import busy_warning
from sb3_extra_buffers.cli.memory import machine_bytes

_WORTH_TELLING = 5_000_000


def _verdict(identical: bool) -> Text:
    return Text("identical", style="bold green") if identical else Text("DIFFERENT", style="bold red")


def _round_number(count: float) -> str:
    """Two significant digits: more would promise what an estimate cannot hold."""
    rounded = int(float(f"{count:.1e}"))
    return f"{rounded / 1e6:,.0f} million" if rounded >= 10_000_000 else f"{rounded:,}"


def make_table(comparison: Comparison) -> Table:
    """
    Make the table.

    :param comparison: The figures
    :return: One row a figure
    """
    plan, theirs, ours = comparison.plan, comparison.sb3_filling, comparison.our_filling
    table = Table(
        box=box.SIMPLE_HEAD,
        title=f"{game_title(plan.env_id)}: {plan.transitions:,} transitions, {plan.n_envs} games, method {plan.method}",
        title_style="bold",
        title_justify="left",
    )
    table.add_column("")
    table.add_column("SB3", justify="right")
    table.add_column("compressed", justify="right")
    table.add_column("compared")

    table.add_row("transitions", f"{plan.transitions:,}", f"{plan.transitions:,}", _verdict(comparison.same_game))
    table.add_row(
        "memory of the buffer",
        format_bytes(theirs.memory_bytes),
        format_bytes(ours.memory_bytes),
        Text(f"{1 / comparison.memory_ratio:,.0f}x smaller ({100 * comparison.memory_ratio:.2f} %)", style="bold"),
    )
    table.add_row(
        "libraries, on top of it",
        format_bytes(theirs.start_up_bytes),
        format_bytes(ours.start_up_bytes),
        "once per process",
    )
    titles = {
        "add_filling_us": "add, while filling",
        "add_full_us": "add, once full",
        "sample_us": f"sample({BATCH_SIZE})",
    }
    for name, ratio in comparison.time_ratios.items():
        times = [f"{getattr(side, name):,.0f} µs" for side in (theirs, ours)]
        table.add_row(titles[name], *times, f"{ratio:.2f}x the time")

    batches, tensors = len(theirs.sample_digests), len(comparison.sb3_training.parameter_digests)
    table.add_row("samples", f"{batches} batches", f"{comparison.equal_batches} equal", _verdict(comparison.samples_identical))
    table.add_row(
        "trained weights", f"{tensors} tensors", f"{comparison.equal_parameters} equal", _verdict(comparison.weights_identical)
    )
    return table


def notes(comparison: Comparison) -> list[str]:
    """
    Say what the table does not.

    :param comparison: The figures
    :return: Sentences
    """
    plan, training = comparison.plan, comparison.sb3_training
    lines = [
        f"Memory is how much the process grew at most with the buffer. Times are medians; add stores one step of all "
        f"{plan.n_envs} games. DQN trained for {plan.train_steps:,} steps, {training.updates:,} updates."
    ]
    start_up = comparison.our_filling.start_up_bytes - comparison.sb3_filling.start_up_bytes
    if start_up > _WORTH_TELLING:
        lines.append(
            "Libraries: what the first use of each buffer loads on top of SB3 and torch. Ours takes "
            f"{format_bytes(start_up)} more, however large the buffer is."
        )
    if warning := busy_warning(comparison.other_cores):
        lines.append(warning)
    return lines


def closing_sentence(comparison: Comparison, memory: int) -> str:
    """
    Say what the outcome means.

    :param comparison: The figures
    :param memory: Memory of the machine in bytes
    :return: One sentence
    """
    if not comparison.all_identical:
        return "There should be no difference here. Please report it, and attach the files below."
    fits = [
        _round_number(memory / (side.memory_bytes / comparison.plan.transitions))
        for side in (comparison.sb3_filling, comparison.our_filling)
    ]
    return (
        f"The {format_bytes(memory)} of this machine would hold about {fits[0]} transitions of "
        f"{game_title(comparison.plan.env_id)} in SB3's buffer, and about {fits[1]} in the compressed one."
    )


def print_report(console: Console, comparison: Comparison) -> None:
    """
    Print table and sentences.

    :param console: Where
    :param comparison: The figures
    """
    console.print()
    console.print(make_table(comparison))
    for line in notes(comparison):
        console.print(line, style="dim", markup=False, highlight=False)
    console.print()
    console.print(closing_sentence(comparison, machine_bytes()), markup=False, highlight=False)


def next_commands(env_id: str, program: str) -> list[tuple[str, str]]:
    """
    Suggest what to try next.

    :param env_id: The game
    :param program: How the program is started
    :return: Pairs of a command and what it does
    """
    game = game_title(env_id)
    return [
        (f"{program} recommend {game}", "find the best method, and the lines to paste"),
        (f"{program} bench {game}", "compare the methods"),
        (f"{program} record {game} && {program} view {game}.rec", "watch an episode in your browser"),
    ]


def print_next_commands(console: Console, env_id: str, program: str) -> None:
    """
    Print what to try next.

    :param console: Where
    :param env_id: The game
    :param program: How the program is started
    """
    console.print("\nTry next, with this game or with your own environment:", markup=False, highlight=False)
    for command, text in next_commands(env_id, program):
        console.print(f"  {command}", style="bold", markup=False, highlight=False, soft_wrap=True)
        console.print(f"      {text}", style="dim", markup=False, highlight=False)
