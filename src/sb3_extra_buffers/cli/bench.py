"""``sb3-extra-buffers bench``: compression methods side by side, on any environment or on a recording."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sb3_extra_buffers.cli.errors import FAILED, OK, UsageError, require_extra
from sb3_extra_buffers.cli.options import LEVELS, new_command, whole_number

if TYPE_CHECKING:
    from rich.console import Console

    from sb3_extra_buffers.cli.measure import Results, Source

# One of each kind; those whose library is not installed are left out.
DEFAULT_METHODS = ("delta", "delta-zstd", "zstd-3", "lz4-frame/1", "rle-jit", "gzip1")
DEFAULT_SIZE = 10_000
SMALL = 512
"""Observations of fewer bytes are stored as they are."""


def add_source_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say what is played and measured."""
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


def add_output_options(parser: argparse.ArgumentParser, folder: str) -> None:
    """Add the options that say where files go."""
    parser.add_argument("--output", type=Path, default=Path(folder), metavar="FOLDER", help="where the plot and the JSON go")
    parser.add_argument("--no-plot", action="store_true", help="do not draw a plot (matplotlib is then not needed)")


def add_command(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command."""
    parser = new_command(
        commands,
        "bench",
        "compare compression methods on an environment or a recording",
        "Play an environment at random, or read a recording, and put the very same transitions into SB3's ReplayBuffer "
        "and into a compressed one for each method. Prints a table; writes bench.json and bench.png.",
        [
            "bench MsPacman",
            "bench CarRacing-v3 --methods delta,zstd-3,lz4-frame/5 --size 2000",
            "bench ALE/Pong-v5 --rgb",
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
    add_output_options(parser, "bench-output")
    parser.set_defaults(run=run)


def choose_methods(text: str | None) -> list[str]:
    """Check the methods of `--methods`; None is one of each kind."""
    from sb3_extra_buffers.cli.errors import check_method

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
    """What the user wants to play."""
    from sb3_extra_buffers.cli.environments import Environments, default_stack, find_environment, hush
    from sb3_extra_buffers.cli.measure import Source

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


def run(options: argparse.Namespace) -> int:
    """Run the benchmark."""
    require_extra(("psutil", "rich", *([] if options.no_plot else ["matplotlib"])), "the benchmark")
    from rich.console import Console

    from sb3_extra_buffers.cli.errors import check_folder, check_not_an_input
    from sb3_extra_buffers.cli.measure import compare
    from sb3_extra_buffers.cli.progress import Stage, show_stages
    from sb3_extra_buffers.cli.tables import say, write_json

    methods = choose_methods(options.methods)
    source = find_source(options)
    check_folder(options.output)
    files = [options.output / name for name in ("bench.json", *([] if options.no_plot else ["bench.png"]))]
    for file in files:  # these are replaced by the next run, unless one of them is the recording
        check_not_an_input(file, [source.recording])
    steps = source.recorded_steps  # a recording is not repeated unless the user asks for more than it has
    size = options.size or (DEFAULT_SIZE if steps is None else max(64, min(steps, DEFAULT_SIZE)))
    size = source.rows(size) * source.environments.n_envs
    stages = [
        Stage(f"{'Play' if source.recording is None else 'Read'} {source.title}", size, "transitions"),
        Stage(f"Measure SB3's buffer and {', '.join(methods)}, by turns", size, "transitions"),
    ]
    with show_stages(Console(stderr=True), stages) as shown:
        results = compare(source, size, methods, shown)
    console = Console()
    print_report(console, results)
    write_json(files[0], results.as_json())
    if not options.no_plot:
        from sb3_extra_buffers.cli.plot import draw

        draw(results, files[1])
    say(console, f"Written: {', '.join(map(str, files))}", wrap=False)
    return OK if results.all_identical else FAILED


def print_report(console: Console, results: Results) -> None:
    """Print the table, and what it does not say."""
    from rich.text import Text

    from sb3_extra_buffers._support import format_bytes
    from sb3_extra_buffers.cli.measure import BATCH_SIZE, busy_warning
    from sb3_extra_buffers.cli.tables import format_ratio, format_time, new_table, say, share, verdict

    source, sb3 = results.source, results.sb3
    n_envs, stack = source.environments.n_envs, source.environments.stack or 1
    title = f"{source.title}: {results.transitions:,} transitions"
    title += f", {n_envs} environments" if source.recording is None else ""
    title += f", stacks of {stack}" if stack > 1 else ""
    table = new_table(title, ["method", "memory", "of SB3's", "add", f"sample({BATCH_SIZE})", "samples"], ["samples"])

    def times(measured: Any) -> list[str]:
        names = ("add_full_us", "sample_us")
        return [f"{format_time(getattr(measured, n))}  {format_ratio(getattr(measured, n) / getattr(sb3, n))}" for n in names]

    table.add_row("SB3's own", format_bytes(sb3.memory_bytes), "100 %", *times(sb3), "", style="dim")
    for each in results.ours:
        memory = Text(share(each.memory_bytes, sb3.memory_bytes), style="bold")
        table.add_row(
            str(each.method), format_bytes(each.memory_bytes), memory, *times(each), verdict(results.identical(each))
        )  # fmt: skip
    console.print()
    console.print(table)
    rows = "one transition" if n_envs == 1 else f"one step of all {n_envs} environments"
    lines = [
        "Memory is how much the process grew at most, once the libraries were loaded. Times are medians, with their ratio to "
        f"SB3's; add stores {rows} in a full buffer."
    ]
    lines += [f"{each.method}: {each.usage}." for each in results.ours[:1] if each.usage]
    steps = source.recorded_steps
    if steps and results.transitions > steps:
        lines.append(f"The recording has {steps:,} steps, so it was read {results.transitions / steps:.1f} times over.")
    if warning := busy_warning(results.other_cores):
        lines.append(warning)
    if results.raw_bytes < 2 * SMALL:
        lines.append(
            f"An observation takes only {results.raw_bytes // 2} bytes here: compressed buffers store such small ones as they "
            "are, so there is nothing to gain."
        )
    for line in lines:
        say(console, line, "dim")
    if not results.all_identical:
        say(console, "There should be no difference here. Please report it, and attach the files below.", "bold red")
