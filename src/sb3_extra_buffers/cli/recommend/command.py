"""The options of the recommendation, and its course."""

from __future__ import annotations

import argparse
from math import inf
from typing import TYPE_CHECKING, Any

from sb3_extra_buffers.cli.errors import OK, UsageError, require_extra
from sb3_extra_buffers.cli.options import byte_count, new_command, times_as_long, whole_number

if TYPE_CHECKING:
    from sb3_extra_buffers.cli.recommend.choice import Candidate, Limits, TrainingStep

_REPLAY_SIZE = 100_000
_ROLLOUT_STEPS = 128
_SMALL = 512  # bytes of an observation that compressed buffers store as it is
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
        "Play an environment for a moment, measure the compression methods on its observations, and one update of the "
        "policy that SB3 would train; then say which method is best. Ends with a script to paste.",
        [
            "recommend MsPacman",
            "recommend CarRacing-v3 --memory 2GB --buffer-size 200000",
            "recommend ALE/Breakout-v5 --speed 1.05",
            "recommend Pong --algorithm PPO --script > train.py",
        ],
        "A method that does not fit is never the best. Of those that fit, the best is the one with which training takes the "
        "least time; but half the memory of the whole process is worth 5 % more time. The exit code is 1 if nothing is "
        "within the limits.",
    )
    parser.add_argument("source", metavar="ENV_ID", help="id or name of an environment, or MODULE:ID")
    parser.add_argument(
        "--memory",
        type=byte_count,
        metavar="SIZE",
        help="memory for the observations, for example 2GB (default: 80 %% of this machine's, or of its container's)",
    )
    parser.add_argument(
        "--speed",
        type=times_as_long,
        metavar="FACTOR",
        help="how long a training step may take, as a multiple of that with SB3's own buffer (default: no limit)",
    )
    parser.add_argument(
        "--buffer-size", type=whole_number(1), metavar="N", help=f"transitions to hold (default: {_REPLAY_SIZE:,})"
    )
    parser.add_argument(
        "--algorithm", type=str.upper, choices=_ALGORITHMS, metavar="NAME",
        help=f"who is to train: {', '.join(_ALGORITHMS)} (default: one that suits the actions)",
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
    from sb3_extra_buffers.cli.measuring import rows_to_add
    from sb3_extra_buffers.cli.memory import machine_bytes
    from sb3_extra_buffers.cli.played import observation_bytes, play
    from sb3_extra_buffers.cli.progress import Stage, show_stages
    from sb3_extra_buffers.cli.recommend.choice import USABLE_MEMORY, Limits, candidates, choose
    from sb3_extra_buffers.cli.recommend.script import ON_POLICY, choose_algorithm, write_script
    from sb3_extra_buffers.cli.recommend.training import measure_beside_training

    methods = choose_methods(options.methods)
    source = find_source(options)
    if source.recording is not None:
        raise UsageError(f"{source.recording} is a file; recommend needs an environment (bench also takes recordings)")
    environments = source.environments
    rows = -(-options.size // environments.n_envs)
    measured_rows = (rows + max(1, rows // 4)) * (1 + len(methods))
    stages = [
        Stage(f"Play {source.title}", rows * environments.n_envs, "transitions"),
        Stage(f"Measure {1 + len(methods)} buffers by turns", measured_rows * environments.n_envs, "transitions"),
    ]
    with show_stages(Console(stderr=True), stages) as shown:
        (played,) = run_in_children(Call(play, (environments, rows), shown.begin(0)))
        shown.end(0)
        algorithm = choose_algorithm(options.algorithm, played.action_space)
        assert rows_to_add(played) * (1 + len(methods)) == measured_rows
        call = Call(measure_beside_training, (played, [None, *methods], algorithm), shown.begin(1))
        ((step, figures),) = run_in_children(call)
        shown.end(1)

    usual = _ROLLOUT_STEPS * environments.n_envs if algorithm in ON_POLICY else _REPLAY_SIZE
    buffer_size = options.buffer_size or usual
    among = candidates(figures, played.transitions, buffer_size, step)
    limits = Limits(options.memory or USABLE_MEMORY * machine_bytes(), options.speed or inf)
    obs_bytes = observation_bytes(played.observation_space)
    tiny = obs_bytes if obs_bytes < _SMALL and limits.fits(among[0]) else None
    best = among[0] if tiny else choose(among, limits, buffer_size)
    script = write_script(environments, played.observation_space, algorithm, best.method, buffer_size)
    if not options.script:
        room = "--memory" if options.memory else f"{100 * USABLE_MEMORY:.0f} % of this machine's"
        _tell(Console(), f"{source.title}, {buffer_size:,} transitions", among, limits, room, best)
        _explain(Console(), step, among, limits, buffer_size, best, tiny)
        print("Lines to paste:\n")
    print(script, end="")
    return OK


def _tell(console: Any, title: str, among: list[Candidate], limits: Limits, room: str, best: Candidate) -> None:
    from rich import box
    from rich.table import Table

    from sb3_extra_buffers.cli.formatting import format_bytes
    from sb3_extra_buffers.cli.measuring import BATCH_SIZE
    from sb3_extra_buffers.cli.recommend.choice import rank

    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        title=f"{title}; room for {format_bytes(limits.memory)} ({room})",
        title_style="bold",
        title_justify="left",
    )
    table.add_column("method", no_wrap=True)
    for column in ("memory", "fits", "add", f"sample({BATCH_SIZE})", "of a step", "training"):
        table.add_column(column, justify="right", no_wrap=True)
    for each in sorted(rank(among, limits), key=lambda each: each is not best):
        fits = limits.fits(each)
        table.add_row(
            f"{each.name}{' ←' if each is best else ''}",
            format_bytes(each.buffer_bytes),
            "yes" if fits else "NO",
            f"{each.add:.2f}x",
            f"{each.sample:.2f}x",
            f"{100 * each.share:.1f} %",
            f"{each.training:.2f}x",
            style="bold" if each is best else None if fits else "dim",
        )
    console.print()
    console.print(table)


def _milliseconds(microseconds: float) -> str:
    return f"{microseconds / 1000:.{2 if microseconds < 1e4 else 0}f} ms"


def _explain(
    console: Any,
    step: TrainingStep,
    among: list[Candidate],
    limits: Limits,
    buffer_size: int,
    best: Candidate,
    tiny: int | None,
) -> None:
    from sb3_extra_buffers.cli.bench.report import share
    from sb3_extra_buffers.cli.formatting import format_bytes
    from sb3_extra_buffers.cli.recommend.choice import what_would_change_it

    sb3 = among[0]
    if tiny:
        reason = f"an observation takes only {tiny} bytes, so there is nothing to compress, and SB3's own buffer is fine"
    elif best is sb3:
        reason = f"it takes {format_bytes(sb3.buffer_bytes)}, and no other saves enough of that to be worth a change"
    else:
        fitting = "" if limits.fits(sb3) else ", which does not fit"
        reason = (
            f"{share(best.buffer_bytes, sb3.buffer_bytes)} of the memory of SB3's own{fitting}; "
            f"training takes {best.training:.2f} times as long"
        )
    console.print(f"Best: {best.name} ({reason}).", style="bold", markup=False, highlight=False)
    lines = [
        f"A training step is one update of {step.algorithm} ({_milliseconds(step.update_us)} here) and {step.adds:g} steps of "
        f"all environments ({_milliseconds(step.play_us)} each); 'of a step' is the buffer's share of it. add, sample and "
        "training: multiples of the time with SB3's own buffer."
    ]
    if best.usage is not None:
        lines.append(f"What was played is, in the buffer: {best.usage}.")
    if not tiny:
        changes = what_would_change_it(among, limits, buffer_size, best)
        lines.append(f"What would change the answer: {'; '.join(changes) if changes else 'none of the options'}.")
    for line in lines:
        console.print(line, markup=False, highlight=False)
