"""The options of the benchmark, their checks, and its course."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sb3_extra_buffers.cli.errors import FAILED, OK, UsageError, require_extra
from sb3_extra_buffers.cli.options import LEVELS, new_command, whole_number

if TYPE_CHECKING:
    from sb3_extra_buffers.cli.bench.compare import Source

# One of each kind; those whose library is not installed are left out.
DEFAULT_METHODS = ("delta", "delta-zstd", "zstd-3", "lz4-frame/1", "rle-jit", "gzip1")


DEFAULT_SIZE = 10_000


def add_source_options(parser: argparse.ArgumentParser) -> None:
    """
    Add the options that say what is played.

    :param parser: Where
    """
    parser.add_argument(
        "--methods", metavar="A,B,C", help=f"methods to measure (default: one of each kind that is installed); {LEVELS}"
    )
    parser.add_argument("--n-envs", type=whole_number(1, 64), default=4, metavar="N", help="environments side by side")
    parser.add_argument(
        "--stack", type=whole_number(1, 64), metavar="N", help="frames per observation (default: 4 for Atari, else 1)"
    )
    parser.add_argument(
        "--rgb", action="store_true",
        help="play an Atari game in colour, 210x160, not as SB3 preprocesses it (the default stack is then 1)",
    )  # fmt: skip
    parser.add_argument(
        "--seed", type=whole_number(0, 2**31), default=0, metavar="N", help="seed for the environments and the actions"
    )


def add_command(commands: argparse._SubParsersAction[Any]) -> None:
    """
    Add the benchmark to the command line.

    :param commands: Where commands are added
    """
    parser = new_command(
        commands,
        "bench",
        "compare compression methods on an environment or a recording",
        "Play an environment at random, or read a recording, and put the very same transitions into SB3's ReplayBuffer "
        "and into a compressed one for each method. Prints a table; writes bench.json and bench.png.",
        [
            "bench MsPacman",
            "bench CarRacing-v3 --methods delta,zstd-3,lz4-frame/5 --size 2000",
            "bench my_package.envs:MyEnv-v0 --n-envs 1",
            "bench play.rec --stack 4",
        ],
        "Memory is what the process grew by; times are medians. The exit code is 0 only if every method gave the same "
        "samples as SB3's buffer, bit for bit.",
    )
    parser.add_argument("source", metavar="ENV_ID|FILE", help="id or name of an environment, MODULE:ID, or a recording")
    parser.add_argument(
        "--size", type=whole_number(64), metavar="N",
        help=f"transitions to store (default: {DEFAULT_SIZE:,}, or all of a recording if it has fewer)",
    )  # fmt: skip
    add_source_options(parser)
    parser.add_argument(
        "--output", type=Path, default=Path("bench-output"), metavar="FOLDER", help="where the plot and the JSON go"
    )
    parser.add_argument("--no-plot", action="store_true", help="do not draw a plot (matplotlib is then not needed)")
    parser.set_defaults(run=run)


def choose_methods(text: str | None) -> list[str]:
    """
    Check the methods.

    :param text: Their names, with commas between them; None for one of each kind
    :return: Their full names
    """
    from sb3_extra_buffers.cli.checks import check_method

    if text is not None:
        methods = [check_method(name.strip()) for name in text.split(",") if name.strip()]
        if not methods:
            raise UsageError("--methods is empty; write for example --methods delta,zstd-3")
        return list(dict.fromkeys(methods))
    here = []
    for method in DEFAULT_METHODS:
        try:
            here.append(check_method(method))
        except UsageError:
            continue
    return here


def find_source(options: argparse.Namespace) -> Source:
    """
    Find out what the user wants to play.

    :param options: Parsed options
    :return: Environments, or a recording
    """
    from sb3_extra_buffers.cli.bench.compare import Source
    from sb3_extra_buffers.cli.environments import Environments, default_stack, find_environment
    from sb3_extra_buffers.cli.silence import hush

    hush()
    path = Path(options.source)
    # Names of environments have no suffix: a file without one is meant only if it begins as a recording does.
    if path.is_file() and (path.suffix or path.open("rb").read(2) == b"PK"):
        return Source(Environments(path.name, 1, options.stack), path)
    if path.suffix == ".rec":
        raise UsageError(f"there is no recording {path}")
    env_id = find_environment(options.source)
    stack = options.stack if options.stack is not None or options.rgb else default_stack(env_id)
    return Source(Environments(env_id, options.n_envs, stack, options.seed, options.rgb))


def choose_size(size: int | None, source: Source) -> int:
    """
    Choose how many transitions to store.

    :param size: What the user wants; None if that was not said
    :param source: Environments, or a recording
    :return: How many; a recording is not repeated unless the user asks for more than it has
    """
    if size is not None:
        return size
    steps = source.recorded_steps
    return DEFAULT_SIZE if steps is None else max(64, min(steps, DEFAULT_SIZE))


def run(options: argparse.Namespace) -> int:
    """
    Run the benchmark.

    :param options: Parsed options
    :return: Exit code
    """
    require_extra(("psutil", "rich", *([] if options.no_plot else ["matplotlib"])), "the benchmark")
    from rich.console import Console

    from sb3_extra_buffers.cli.bench.compare import compare
    from sb3_extra_buffers.cli.bench.report import print_report
    from sb3_extra_buffers.cli.checks import check_folder, check_not_an_input

    methods = choose_methods(options.methods)
    source = find_source(options)
    check_folder(options.output)
    files = [options.output / name for name in ("bench.json", *([] if options.no_plot else ["bench.png"]))]
    for file in files:  # these are replaced by the next run, unless one of them is the recording
        check_not_an_input(file, [source.recording])
    results, _ = compare(source, choose_size(options.size, source), methods, Console(stderr=True))
    console = Console()
    print_report(console, results)
    results.write_json(files[0])
    if not options.no_plot:
        from sb3_extra_buffers.cli.bench.plot import draw

        draw(results, files[1])
    console.print(f"Written: {', '.join(map(str, files))}", markup=False, highlight=False, soft_wrap=True)
    return OK if results.all_identical else FAILED
