"""``sb3-extra-buffers recommend``: the method that suits an environment, and the lines to paste."""

from __future__ import annotations

import argparse
from math import inf
from typing import TYPE_CHECKING, Any

from sb3_extra_buffers.cli.bench import SMALL, add_source_options, choose_methods, find_source
from sb3_extra_buffers.cli.environments import Environments, atari_options, is_atari
from sb3_extra_buffers.cli.errors import OK, UsageError, require_extra
from sb3_extra_buffers.cli.options import byte_count, new_command, times_as_long, whole_number

if TYPE_CHECKING:
    import gymnasium as gym

    from sb3_extra_buffers.cli.choice import Candidate, Limits, TrainingStep

ALGORITHMS = ("DQN", "SAC", "TD3", "DDPG", "PPO", "A2C")
ON_POLICY = ("PPO", "A2C")
STEPS = 10_000
_REPLAY_SIZE = 100_000
_ROLLOUT_STEPS = 128


def add_command(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the recommendation to the command line."""
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
        "--algorithm", type=str.upper, choices=ALGORITHMS, metavar="NAME",
        help=f"algorithm to train with: {', '.join(ALGORITHMS)} (default: one that suits the actions)",
    )  # fmt: skip
    parser.add_argument("--script", action="store_true", help="print only the script")
    parser.add_argument("--size", type=whole_number(64), default=2_000, metavar="N", help="transitions to play and store")
    add_source_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Play, measure, choose and tell."""
    require_extra(("psutil", "rich"), "the recommendation")
    from rich.console import Console

    from sb3_extra_buffers._support import machine_bytes
    from sb3_extra_buffers.cli import children
    from sb3_extra_buffers.cli.choice import USABLE_MEMORY, Limits, candidates, choose
    from sb3_extra_buffers.cli.measure import Load, busy_warning, observation_bytes
    from sb3_extra_buffers.cli.progress import Stage, show_stages
    from sb3_extra_buffers.cli.training_step import measure_beside_training

    methods = choose_methods(options.methods)
    source = find_source(options)
    if source.recording is not None:
        raise UsageError(f"{source.recording} is a file; recommend needs an environment (bench also takes recordings)")
    environments = source.environments
    size = source.rows(options.size) * environments.n_envs
    stages = [
        Stage(f"Play {source.title}", size, "transitions"),
        Stage(f"Measure {1 + len(methods)} buffers and an update of the policy, by turns", size, "transitions"),
    ]
    with (
        show_stages(Console(stderr=True), stages) as shown,
        source.played(source.rows(options.size), shown.begin(0)) as played,
    ):
        shown.end(0)
        algorithm = choose_algorithm(options.algorithm, played.action_space)
        report, in_all = shown.begin(1), played.rows_to_add * played.n_envs * (1 + len(methods))
        load = Load()
        call = children.Call(
            measure_beside_training, (played, [None, *methods], algorithm), lambda done: report(done * size // in_all)
        )
        ((step, figures),) = children.run_in_children(call)
        warning = busy_warning(load.other_cores())
        shown.end(1)

    usual = _ROLLOUT_STEPS * environments.n_envs if algorithm in ON_POLICY else _REPLAY_SIZE
    buffer_size = options.buffer_size or usual
    among = candidates(figures, played.transitions, buffer_size, step)
    limits = Limits(options.memory or USABLE_MEMORY * machine_bytes(), options.speed or inf)
    obs_bytes = observation_bytes(played.observation_space)
    tiny = obs_bytes if obs_bytes < SMALL and limits.fits(among[0]) else None
    best = among[0] if tiny else choose(among, limits, buffer_size)
    script = write_script(environments, played.observation_space, algorithm, best.method, buffer_size)
    if not options.script:
        room = "--memory" if options.memory else f"{100 * USABLE_MEMORY:.0f} % of this machine's"
        _tell(Console(), f"{source.title}, {buffer_size:,} transitions", among, limits, room, best)
        _explain(Console(), step, among, limits, buffer_size, best, tiny, warning)
        print("Lines to paste:\n")
    print(script, end="")
    return OK


def _tell(console: Any, title: str, among: list[Candidate], limits: Limits, room: str, best: Candidate) -> None:
    from sb3_extra_buffers._support import format_bytes
    from sb3_extra_buffers.cli.choice import rank
    from sb3_extra_buffers.cli.measure import BATCH_SIZE
    from sb3_extra_buffers.cli.tables import new_table

    title = f"{title}; room for {format_bytes(limits.memory)} ({room})"
    columns = ["method", "memory", "fits", "add", f"sample({BATCH_SIZE})", "of a step", "training"]
    table = new_table(title, columns)
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
    warning: str | None,
) -> None:
    from sb3_extra_buffers._support import format_bytes
    from sb3_extra_buffers.cli.choice import what_would_change_it
    from sb3_extra_buffers.cli.tables import say, share

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
    say(console, f"Best: {best.name} ({reason}).", "bold")
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
    for line in [*lines, *([warning] if warning else [])]:
        say(console, line)


def choose_algorithm(name: str | None, action_space: gym.Space[object]) -> str:
    """The algorithm that the user names, or else one that can act."""
    from gymnasium import spaces

    able = ["PPO", "A2C"]
    if isinstance(action_space, spaces.Discrete):
        able = ["DQN", *able]
    elif isinstance(action_space, spaces.Box):
        able = ["SAC", "TD3", "DDPG", *able]
    if name is None:
        return able[0]
    if name not in able:
        raise UsageError(f"{name} cannot act in {action_space}; these can: {', '.join(able)}")
    return name


def policy_for(space: gym.Space[object]) -> str:
    """Choose the policy that SB3 has for a space."""
    from gymnasium import spaces
    from stable_baselines3.common.preprocessing import is_image_space

    if isinstance(space, spaces.Dict):
        return "MultiInputPolicy"
    return "CnnPolicy" if is_image_space(space) else "MlpPolicy"


def write_script(
    environments: Environments, space: gym.Space[object], algorithm: str, method: str | None, buffer_size: int
) -> str:
    """Write a training script."""
    from gymnasium import spaces

    kind = "rollout" if algorithm in ON_POLICY else "replay"
    buffer = f"Compressed{'Dict' if isinstance(space, spaces.Dict) else ''}{kind.title()}Buffer"
    n_envs, stack = environments.n_envs, environments.stack or 1
    atari = is_atari(environments.env_id)
    theirs = [f"from stable_baselines3 import {algorithm}"]
    ours = [] if method is None else [f"from sb3_extra_buffers.compressed import {buffer}"]
    if atari and not environments.rgb:
        ours.append("from sb3_extra_buffers.training_utils import make_env")
        options = "".join(f", {name}={value}" for name, value in atari_options(environments.env_id).items())
        make = [f'env = make_env("{environments.env_id}", n_envs={n_envs}, framestack={stack}{options})']
    else:
        theirs.append("from stable_baselines3.common.env_util import make_vec_env")
        frames = atari_options(environments.env_id, rgb=True) if atari else {}
        options = f', env_kwargs={{"frameskip": {frames["frameskip"]}}}' if frames else ""
        make = [f'env = make_vec_env("{environments.env_id}", n_envs={n_envs}{options})']
        if atari:
            theirs.insert(0, "import ale_py\nimport gymnasium as gym")
            make.insert(0, "gym.register_envs(ale_py)")
        if stack > 1:
            theirs.append("from stable_baselines3.common.vec_env import VecFrameStack")
            make.append(f"env = VecFrameStack(env, {stack})")
        if environments.env_id.startswith("Vizdoom"):
            theirs.insert(0, "import vizdoom.gymnasium_wrapper  # makes its environments known to Gymnasium")
    arguments = [f'"{policy_for(space)}"', "env"]
    arguments.append(f"n_steps={max(2, buffer_size // n_envs)}" if kind == "rollout" else f"buffer_size={buffer_size:_}")
    if method is not None:
        arguments.append(f"{kind}_buffer_class={buffer}")
        arguments.append(f'{kind}_buffer_kwargs={{"compression_method": "{method}"}}')
    model = [f"model = {algorithm}(", *(f"    {argument}," for argument in arguments), ")"]
    blocks = [theirs, ours, [*make, *model, f"model.learn(total_timesteps={STEPS:_})"]]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"
