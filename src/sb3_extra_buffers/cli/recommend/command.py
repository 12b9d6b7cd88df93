"""The options of the recommendation, and its course."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from sb3_extra_buffers.cli.errors import OK, UsageError, require_extra
from sb3_extra_buffers.cli.options import byte_count, new_command, times_as_long, whole_number

if TYPE_CHECKING:
    from sb3_extra_buffers.cli.recommend.choice import Candidate

_REPLAY_SIZE = 100_000
_ROLLOUT_STEPS = 128
_ALGORITHMS = ("DQN", "SAC", "TD3", "DDPG", "PPO", "A2C")


def add_command(commands: argparse._SubParsersAction[Any]) -> None:
    """
    Add the recommendation to the command line.

    :param commands: Where commands are added
    """
    from sb3_extra_buffers.cli.bench.command import add_source_options

    parser = new_command(
        commands,
        "recommend",
        "find the best method for your environment, and print the lines to paste",
        "Play an environment for a moment, measure the compression methods on its observations, and say which one is "
        "best: the fastest that fits in --memory, or the smallest that is within --speed. Ends with a script to paste.",
        [
            "recommend MsPacman",
            "recommend CarRacing-v3 --memory 2GB --buffer-size 200000",
            "recommend ALE/Breakout-v5 --speed 1.2",
            "recommend Pong --algorithm PPO --script > train.py",
        ],
        "Time is that of an add and a sample together, relative to SB3's own buffer. The exit code is 1 if nothing is "
        "within the budget.",
    )
    parser.add_argument("source", metavar="ENV_ID", help="id or name of an environment, or MODULE:ID")
    parser.add_argument("--memory", type=byte_count, metavar="SIZE", help="memory for the buffer, for example 2GB")
    parser.add_argument(
        "--speed",
        type=times_as_long,
        metavar="FACTOR",
        help="time allowed, as a multiple of SB3's (default: 1.5, or no limit with --memory)",
    )
    parser.add_argument(
        "--buffer-size", type=whole_number(1), metavar="N", help=f"transitions to hold (default: {_REPLAY_SIZE:,})"
    )
    parser.add_argument(
        "--algorithm", type=str.upper, choices=_ALGORITHMS, metavar="NAME",
        help=f"for the script: {', '.join(_ALGORITHMS)} (default: one that suits the actions)",
    )  # fmt: skip
    parser.add_argument("--script", action="store_true", help="print only the script")
    parser.add_argument("--size", type=whole_number(64), default=2_000, metavar="N", help="transitions to play and store")
    add_source_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """
    Play, measure, choose and tell.

    :param options: Parsed options
    :return: Exit code
    """
    require_extra(("psutil", "rich"), "the recommendation")
    from rich.console import Console

    from sb3_extra_buffers.cli.bench.command import choose_methods, find_source
    from sb3_extra_buffers.cli.children import Call, run_in_children
    from sb3_extra_buffers.cli.measuring import measure_all, rows_to_add
    from sb3_extra_buffers.cli.played import observation_bytes, play
    from sb3_extra_buffers.cli.progress import Stage, show_stages
    from sb3_extra_buffers.cli.recommend.choice import candidates, choose
    from sb3_extra_buffers.cli.recommend.script import ON_POLICY, choose_algorithm, write_script

    methods = choose_methods(options.methods)
    source = find_source(options)
    if source.recording is not None:
        raise UsageError(f"{source.recording} is a file; recommend needs an environment (bench also takes recordings)")
    environments = source.environments
    rows = -(-options.size // environments.n_envs)
    measured_rows = (rows + max(1, rows // 4)) * (1 + len(methods))
    stages = [
        Stage(f"Play {source.title}", rows * environments.n_envs, "transitions"),
        Stage(f"Measure {1 + len(methods)} buffers", measured_rows * environments.n_envs, "transitions"),
    ]
    with show_stages(Console(stderr=True), stages) as shown:
        (played,) = run_in_children(Call(play, (environments, rows), shown.begin(0)))
        shown.end(0)
        algorithm = choose_algorithm(options.algorithm, played.action_space)
        assert rows_to_add(played) * (1 + len(methods)) == measured_rows
        (figures,) = run_in_children(Call(measure_all, (played, [None, *methods]), shown.begin(1)))
        shown.end(1)

    usual = _ROLLOUT_STEPS * environments.n_envs if algorithm in ON_POLICY else _REPLAY_SIZE
    buffer_size = options.buffer_size or usual
    among = candidates(figures, played.transitions, buffer_size)
    obs_bytes = observation_bytes(played.observation_space)
    if obs_bytes < 512:
        best, reason = among[0], f"an observation takes only {obs_bytes} bytes, so there is nothing to compress"
    else:
        best, reason = choose(among, options.memory, options.speed, buffer_size)
    script = write_script(environments, played.observation_space, algorithm, best.method, buffer_size)
    if not options.script:
        _tell(Console(), source.title, among, best, reason, buffer_size)
    print(script, end="")
    return OK


def _tell(console: Any, title: str, among: list[Candidate], best: Candidate, reason: str, buffer_size: int) -> None:
    from rich import box
    from rich.table import Table

    from sb3_extra_buffers.cli.bench.report import format_time, share
    from sb3_extra_buffers.cli.formatting import format_bytes
    from sb3_extra_buffers.cli.measuring import BATCH_SIZE

    sb3 = among[0]
    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        title=f"{title}: what a buffer of {buffer_size:,} transitions would take",
        title_style="bold",
        title_justify="left",
    )
    table.add_column("method")
    for column in ("memory", "of SB3's", "add", f"sample({BATCH_SIZE})", "together"):
        table.add_column(column, justify="right")
    for each in among:
        figures, theirs = each.measured, sb3.measured
        table.add_row(
            f"{each.name}{' ←' if each is best else ''}",
            format_bytes(each.buffer_bytes),
            share(each.buffer_bytes, sb3.buffer_bytes),
            format_time(figures.add_full_us, theirs.add_full_us),
            format_time(figures.sample_us, theirs.sample_us),
            f"{each.time:.2f}x",
            style="bold" if each is best else "dim" if each is sb3 else None,
        )
    console.print()
    console.print(table)
    console.print(f"Best: {best.name} ({reason}).", style="bold", markup=False, highlight=False)
    console.print("Lines to paste:\n", markup=False, highlight=False)
