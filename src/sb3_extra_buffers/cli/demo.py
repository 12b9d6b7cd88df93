"""``sb3-extra-buffers demo``: SB3's replay buffer and ours, side by side on a real game; then training with both."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from sb3_extra_buffers.cli.bench import add_output_options
from sb3_extra_buffers.cli.environments import Environments, find_game, game_title
from sb3_extra_buffers.cli.errors import FAILED, OK, UsageError, require_extra
from sb3_extra_buffers.cli.options import LEVELS, invocation, new_command, whole_number

if TYPE_CHECKING:
    from rich.console import Console

    from sb3_extra_buffers.cli.children import Report
    from sb3_extra_buffers.cli.measure import Results

# Everything that needs SB3 or an extra is imported when the demo runs: `--help` works without them, and at once.

FRAME_STACK = 4
_BATCHES = 100
_WORTH_TELLING = 5_000_000


@dataclass(frozen=True)
class Plan:
    """What to do. Both sides do the same."""

    env_id: str
    n_envs: int
    size: int
    train_steps: int
    seed: int
    method: str

    @property
    def environments(self) -> Environments:
        return Environments(self.env_id, self.n_envs, FRAME_STACK, self.seed)


@dataclass(frozen=True)
class Training:
    """Hashes of the tensors that were trained, how many of them training changed, and how often the policy was updated."""

    parameter_digests: Mapping[str, str]
    changed: int
    updates: int
    seconds: float


@dataclass(frozen=True)
class Comparison:
    """Both sides: filled buffers, and training with them."""

    plan: Plan
    filling: Results
    sb3_training: Training
    our_training: Training

    @property
    def equal_parameters(self) -> int:
        ours = self.our_training.parameter_digests
        return sum(ours.get(name) == digest for name, digest in self.sb3_training.parameter_digests.items())

    @property
    def weights_identical(self) -> bool:
        """Whether training changed the weights, and to the same values."""
        same_names = self.sb3_training.parameter_digests.keys() == self.our_training.parameter_digests.keys()
        all_equal = self.equal_parameters == len(self.sb3_training.parameter_digests)
        return same_names and all_equal and self.sb3_training.changed > 0

    @property
    def all_identical(self) -> bool:
        return self.filling.all_identical and self.weights_identical

    @property
    def memory_ratio(self) -> float:
        return self.filling.ratios(self.filling.ours[0])["memory_bytes"]

    def as_json(self) -> dict[str, Any]:
        filling, (ours,) = self.filling, self.filling.ours
        ratios = filling.ratios(ours)
        return {
            "plan": {**asdict(self.plan), "transitions": filling.transitions},
            "outcome": {
                "memory_ratio": ratios.pop("memory_bytes"),
                "time_ratios": ratios,
                "samples_identical": filling.identical(ours),
                "weights_identical": self.weights_identical,
            },
            "other_cores": filling.other_cores,
            "sb3": {"filling": asdict(filling.sb3), "training": asdict(self.sb3_training)},
            "compressed": {"filling": asdict(ours), "training": asdict(self.our_training)},
            "made_with": filling.as_json()["made_with"],
        }


def add_command(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command."""
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
    parser.add_argument("--n-envs", type=whole_number(1, 64), default=4, metavar="N", help="games played side by side")
    parser.add_argument("--train-steps", type=whole_number(64), default=1_000, metavar="N", help="steps to train DQN")
    parser.add_argument(
        "--seed", type=whole_number(0, 2**31), default=0, metavar="N", help="seed for the games and the training"
    )
    add_output_options(parser, "demo-output")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the demo."""
    require_extra(("ale_py", "cv2", "psutil", "rich", *([] if options.no_plot else ["matplotlib"])), "the demo")
    from rich.console import Console

    from sb3_extra_buffers._support import format_bytes, free_bytes
    from sb3_extra_buffers.cli.errors import check_folder, check_method
    from sb3_extra_buffers.cli.tables import say, write_json

    plan = Plan(
        find_game(options.game), options.n_envs, options.size, options.train_steps, options.seed, check_method(options.method)
    )  # fmt: skip
    needed, free = plan.size * 2 * FRAME_STACK * 84 * 84, free_bytes()
    if needed > 0.9 * free:
        raise UsageError(
            f"SB3's buffer alone takes {format_bytes(needed)} for {plan.size:,} transitions, and {format_bytes(free)} are "
            "free: choose a smaller --size"
        )
    check_folder(options.output)
    # Progress goes to stderr: what is piped elsewhere is the outcome.
    comparison = compare(plan, Console(stderr=True))
    console = Console()
    print_report(console, comparison)
    files = [options.output / "demo.json"]
    write_json(files[0], comparison.as_json())
    if not options.no_plot:
        from sb3_extra_buffers.cli.plot import draw

        files.append(options.output / "demo.png")
        weights = "identical" if comparison.weights_identical else "NOT identical"
        draw(comparison.filling, files[1], f"After {plan.train_steps:,} steps of DQN, its weights are {weights} with both.")
    say(console, f"Written: {', '.join(map(str, files))}", wrap=False)
    if comparison.all_identical:
        _print_next_commands(console, game_title(plan.env_id), invocation())
    return OK if comparison.all_identical else FAILED


def compare(plan: Plan, console: Any) -> Comparison:
    """Fill and train with both buffers, each in a process of its own."""
    from sb3_extra_buffers.cli import children, measure
    from sb3_extra_buffers.cli.progress import Stage, show_stages

    source = measure.Source(plan.environments)
    size = source.rows(plan.size) * plan.n_envs
    # One stage for both sides, which work at the same time: a time of each would read as that of its buffer.
    stages = [
        Stage(f"Play {source.title}", size, "transitions"),
        Stage("Fill SB3's buffer and ours, by turns", size, "transitions"),
        Stage("Train DQN with SB3's buffer and ours, side by side", plan.train_steps, "steps"),
    ]
    with show_stages(console, stages) as shown:
        filling = measure.compare(source, size, [plan.method], shown, _BATCHES)
        report, done = shown.begin(2), [0, 0]

        def tell(side: int, count: int) -> None:
            done[side] = count
            report(sum(done) // 2)

        sides = enumerate((None, plan.method))
        calls = [children.Call(train, (plan, method), partial(tell, side)) for side, method in sides]
        trainings = children.run_in_children(*calls)
        shown.end(2)
    return Comparison(plan, filling, *trainings)


def train(plan: Plan, method: str | None, report: Report) -> Training:
    """Train DQN for a moment, with a compressed buffer or with SB3's own."""
    import hashlib
    import time

    from stable_baselines3 import DQN

    from sb3_extra_buffers.cli.environments import make_environments
    from sb3_extra_buffers.cli.measure import hash_array, prepare_process
    from sb3_extra_buffers.compressed import CompressedReplayBuffer

    def digests() -> dict[str, str]:
        found = {}
        for name, tensor in model.policy.state_dict().items():
            digest = hashlib.sha256()
            hash_array(digest, tensor.numpy())
            found[name] = digest.hexdigest()
        return found

    def tell(_locals: dict[str, Any], _globals: dict[str, Any]) -> bool:
        report(model.num_timesteps)
        return True

    prepare_process()
    model = DQN(
        "CnnPolicy",
        make_environments(plan.environments),
        # Half of what is played, so that training also sees a ring that was overwritten.
        buffer_size=plan.train_steps // 2,
        learning_starts=min(plan.train_steps // 5, 1000),
        train_freq=1,
        target_update_interval=max(1, plan.train_steps // 4),
        replay_buffer_class=None if method is None else CompressedReplayBuffer,
        replay_buffer_kwargs=None if method is None else {"compression_method": method},
        seed=plan.seed,
        device="cpu",  # on a GPU, two trainings with one buffer need not agree to the bit
    )
    untrained = digests()
    start = time.perf_counter()
    model.learn(plan.train_steps, callback=tell)
    seconds = time.perf_counter() - start
    trained = digests()
    changed = sum(trained[name] != digest for name, digest in untrained.items())
    return Training(trained, changed, model._n_updates, seconds)


def print_report(console: Console, comparison: Comparison) -> None:
    """Print the table, and what it means."""
    from rich.text import Text

    from sb3_extra_buffers._support import format_bytes, machine_bytes
    from sb3_extra_buffers.cli.measure import BATCH_SIZE, busy_warning
    from sb3_extra_buffers.cli.tables import format_ratio, format_time, new_table, say, share, verdict

    plan, filling = comparison.plan, comparison.filling
    sides = theirs, ours = filling.sb3, filling.ours[0]
    game, ratios = filling.source.title, filling.ratios(ours)
    title = f"{game}: {filling.transitions:,} transitions, {plan.n_envs} games, method {plan.method}"
    table = new_table(title, ["", "SB3", "compressed", "compared"], ["compared"])
    smaller = f"{1 / ratios['memory_bytes']:,.0f}x smaller ({share(ours.memory_bytes, theirs.memory_bytes)})"
    table.add_row("memory of the buffer", *(format_bytes(each.memory_bytes) for each in sides), Text(smaller, style="bold"))
    table.add_row("libraries, on top of it", *(format_bytes(each.start_up_bytes) for each in sides), "once per process")
    titles = {"add_us": "add, while filling", "add_full_us": "add, once full", "sample_us": f"sample({BATCH_SIZE})"}
    for name, text in titles.items():
        table.add_row(
            text, *(format_time(getattr(each, name)) for each in sides), f"{format_ratio(ratios[name])} the time"
        )  # fmt: skip
    equal, tensors = filling.equal_batches(ours), len(comparison.sb3_training.parameter_digests)
    table.add_row("samples", f"{len(theirs.sample_digests)} batches", f"{equal} equal", verdict(filling.identical(ours)))
    table.add_row(
        "trained weights", f"{tensors} tensors", f"{comparison.equal_parameters} equal", verdict(comparison.weights_identical)
    )
    console.print()
    console.print(table)
    lines = [
        "Memory is how much the process grew at most with the buffer. Times are medians; add stores one step of all "
        f"{plan.n_envs} games. DQN trained for {plan.train_steps:,} steps, {comparison.sb3_training.updates:,} updates."
    ]
    start_up = ours.start_up_bytes - theirs.start_up_bytes
    if start_up > _WORTH_TELLING:
        lines.append(
            "Libraries: what the first use of each buffer loads on top of SB3 and torch. Ours takes "
            f"{format_bytes(start_up)} more, however large the buffer is."
        )
    if warning := busy_warning(filling.other_cores):
        lines.append(warning)
    for line in lines:
        say(console, line, "dim")
    console.print()
    if not comparison.all_identical:
        say(console, "There should be no difference here. Please report it, and attach the files below.")
        return
    memory = machine_bytes()
    fits = [_round_number(memory / (each.memory_bytes / filling.transitions)) for each in sides]
    say(
        console,
        f"The {format_bytes(memory)} of this machine would hold about {fits[0]} transitions of {game} in SB3's buffer, and "
        f"about {fits[1]} in the compressed one.",
    )


def _round_number(count: float) -> str:
    """Two significant digits: more would promise what an estimate cannot hold."""
    rounded = int(float(f"{count:.1e}"))
    return f"{rounded / 1e6:,.0f} million" if rounded >= 10_000_000 else f"{rounded:,}"


def _print_next_commands(console: Console, game: str, program: str) -> None:
    from sb3_extra_buffers.cli.tables import say

    say(console, "\nTry next, with this game or with your own environment:")
    for command, text in (
        (f"{program} recommend {game}", "find the best method, and the lines to paste"),
        (f"{program} bench {game}", "compare the methods"),
        (f"{program} record {game} && {program} view {game.replace('/', '-')}.rec", "watch an episode in your browser"),
    ):
        say(console, f"  {command}", "bold", wrap=False)
        say(console, f"      {text}", "dim")
