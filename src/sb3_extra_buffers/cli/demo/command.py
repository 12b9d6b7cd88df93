"""The options of the demo, their checks, and its course."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sb3_extra_buffers.cli.demo.figures import Comparison, Plan
from sb3_extra_buffers.cli.errors import FAILED, OK, UsageError, require_extra
from sb3_extra_buffers.cli.options import LEVELS, invocation, new_command, whole_number

if TYPE_CHECKING:
    from stable_baselines3.common.buffers import ReplayBuffer

# Everything that needs SB3 or an extra is imported when the demo runs: `--help` works without them, and at once.

MAX_ENVS = 64


def add_command(commands: argparse._SubParsersAction[Any]) -> None:
    """
    Add the demo to the command line.

    :param commands: Where commands are added
    """
    parser = new_command(
        commands,
        "demo",
        "play an Atari game, fill SB3's buffer and ours, train with both, compare",
        "Play an Atari game, fill SB3's ReplayBuffer and CompressedReplayBuffer with the very same transitions, "
        "train DQN with each from one seed, and compare memory, speed, samples and trained weights.",
        ["demo", "demo --game Breakout --size 50000", "demo --game Pong --method zstd-3 --no-plot"],
        "The exit code is 0 only if samples and trained weights are identical.",
    )
    parser.add_argument("--game", default="MsPacman", help="Atari game: Pong, or a full id such as PongNoFrameskip-v4")
    parser.add_argument("--size", type=whole_number(64), default=16_000, metavar="N", help="transitions in the buffer")
    parser.add_argument("--method", help=f"compression method, for example zstd/3 (default: the package's default); {LEVELS}")
    parser.add_argument("--n-envs", type=whole_number(1, MAX_ENVS), default=4, metavar="N", help="games played side by side")
    parser.add_argument("--train-steps", type=whole_number(64), default=1_000, metavar="N", help="steps to train DQN")
    parser.add_argument(
        "--seed", type=whole_number(0, 2**31), default=0, metavar="N", help="seed for the games and the training"
    )
    parser.add_argument(
        "--output", type=Path, default=Path("demo-output"), metavar="FOLDER", help="where the plot and the JSON go"
    )
    parser.add_argument("--no-plot", action="store_true", help="do not draw a plot (matplotlib is then not needed)")
    parser.set_defaults(run=run)


def _check_memory(plan: Plan) -> None:
    from sb3_extra_buffers.cli.formatting import format_bytes
    from sb3_extra_buffers.cli.memory import free_bytes

    needed, free = plan.transitions * plan.raw_bytes_per_transition, free_bytes()
    if needed > 0.9 * free:
        raise UsageError(
            f"SB3's buffer alone takes {format_bytes(needed)} for {plan.transitions:,} transitions, "
            f"and {format_bytes(free)} are free: choose a smaller --size"
        )


def make_plan(options: argparse.Namespace) -> Plan:
    """
    Check the options, as far as can be done without playing.

    :param options: Parsed options
    :return: What the demo is to do
    """
    drawing = [] if options.no_plot else ["matplotlib"]
    require_extra(("ale_py", "cv2", "psutil", "rich", *drawing), "the demo")
    from sb3_extra_buffers.cli.checks import check_folder, check_method
    from sb3_extra_buffers.cli.games import find_game

    plan = Plan(
        env_id=find_game(options.game),
        n_envs=options.n_envs,
        rows=-(-options.size // options.n_envs),
        train_steps=options.train_steps,
        seed=options.seed,
        method=check_method(options.method),
    )
    _check_memory(plan)
    check_folder(options.output)
    return plan


def run(options: argparse.Namespace) -> int:
    """
    Run the demo.

    :param options: Parsed options
    :return: Exit code
    """
    plan = make_plan(options)
    from sb3_extra_buffers.compressed import CompressedReplayBuffer

    return run_plan(plan, options.output, CompressedReplayBuffer, plot=not options.no_plot)


def run_plan(plan: Plan, output: Path, compressed_class: type[ReplayBuffer], plot: bool = True) -> int:
    """
    Compare a buffer class with SB3's, show the outcome and write it down.

    :param plan: What to play and train
    :param output: Existing folder for the files
    :param compressed_class: The buffer to compare; takes ``compression_method``
    :param plot: Whether to draw
    :return: Exit code
    """
    from rich.console import Console

    from sb3_extra_buffers.cli.demo.report import print_next_commands, print_report

    # Progress goes to stderr: what is piped elsewhere is the outcome.
    comparison = compare(plan, compressed_class, Console(stderr=True))
    console = Console()
    print_report(console, comparison)
    files = [output / "demo.json"]
    comparison.write_json(files[0])
    if plot:
        from sb3_extra_buffers.cli.demo.plot import draw

        files.append(output / "demo.png")
        draw(comparison, files[-1])
    console.print(f"Written: {', '.join(map(str, files))}", markup=False, highlight=False, soft_wrap=True)
    if comparison.all_identical:
        print_next_commands(console, plan.env_id, invocation())
    return OK if comparison.all_identical else FAILED


def compare(plan: Plan, compressed_class: type[ReplayBuffer], console: Any) -> Comparison:
    """
    Fill and train with both buffers, each in a process of its own.

    :param plan: What to play and train
    :param compressed_class: The buffer to compare with SB3's
    :param console: Where progress is shown
    :return: The figures
    """
    from stable_baselines3.common.buffers import ReplayBuffer

    from sb3_extra_buffers.cli.children import Call, run_in_children
    from sb3_extra_buffers.cli.demo.tasks import fill, train
    from sb3_extra_buffers.cli.games import game_title
    from sb3_extra_buffers.cli.load import Load
    from sb3_extra_buffers.cli.progress import Stage, show_stages

    buffers: list[tuple[type[ReplayBuffer], dict[str, Any]]] = [
        (ReplayBuffer, {}),
        (compressed_class, {"compression_method": plan.method}),
    ]
    # One stage for both sides, which are done at the same time: a time of each would read as that of its buffer.
    stages = [
        Stage(f"Play {game_title(plan.env_id)} into SB3's buffer and ours, by turns", plan.transitions, "transitions"),
        Stage("Train DQN with SB3's buffer and ours, side by side", plan.train_steps, "steps"),
    ]
    with show_stages(console, stages) as shown:

        def run_both(number: int, task: Callable[..., Any], of_each: int, in_turns: bool) -> list[Any]:
            report, done = shown.begin(number), [0, 0]

            def report_side(side: int, count: int) -> None:
                done[side] = count
                report(stages[number].total * sum(done) // (2 * of_each))

            calls = [Call(task, (plan, *buffers[side]), partial(report_side, side)) for side in (0, 1)]
            return run_in_children(*calls, in_turns=in_turns)

        # What is timed takes turns, so that each has the machine to itself; of training only the weights count.
        load = Load()
        theirs, ours = run_both(0, fill, plan.played, in_turns=True)
        other_cores = load.other_cores()
        shown.end(0)
        their_training, our_training = run_both(1, train, plan.train_steps, in_turns=False)
        shown.end(1)
    return Comparison(plan, theirs, ours, their_training, our_training, other_cores)
