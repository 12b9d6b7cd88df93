"""``sb3-extra-buffers record``: play an environment into a recording."""

from __future__ import annotations

import argparse
import json
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sb3_extra_buffers._support import need
from sb3_extra_buffers.cli.errors import OK, UsageError, require_extra
from sb3_extra_buffers.cli.options import invocation, new_command, whole_number

if TYPE_CHECKING:
    import numpy.typing as npt
    from stable_baselines3.common.vec_env import VecEnv

    from sb3_extra_buffers.cli.progress import Stages
    from sb3_extra_buffers.recording import RecordBuffer

_ALGORITHMS = {
    **dict.fromkeys(("A2C", "DDPG", "DQN", "PPO", "SAC", "TD3"), "stable_baselines3"),
    **dict.fromkeys(("ARS", "CrossQ", "MaskablePPO", "QRDQN", "RecurrentPPO", "TQC", "TRPO"), "sb3_contrib"),
}


def add_command(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command."""
    parser = new_command(
        commands,
        "record",
        "play an environment, at random or with a trained model, into a recording",
        "Play an environment and record it. The recording is compressed, and is written whole or not at all.",
        [
            "record Pong",
            "record CarRacing-v3 --steps 500 --output drive.rec",
            "record MsPacman --model ppo_MsPacman_4.zip --episodes 3",
            "record Breakout --frames observation",
        ],
        "Loading a model runs code that is saved in it, so use only models that you trust.",
    )
    parser.add_argument("env_id", metavar="ENV_ID", help="id or name of an environment, or MODULE:ID")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="the recording (default: the name with .rec)")
    amount = parser.add_mutually_exclusive_group()
    amount.add_argument("--episodes", type=whole_number(1), metavar="N", help="whole episodes to record (default: 1)")
    amount.add_argument("--steps", type=whole_number(1), metavar="N", help="steps to record instead")
    parser.add_argument("--model", type=Path, metavar="ZIP", help="a model saved by SB3; without it, actions are random")
    parser.add_argument(
        "--algorithm",
        type=lambda text: {name.upper(): name for name in _ALGORITHMS}.get(text.upper(), text),
        choices=tuple(_ALGORITHMS),
        metavar="NAME",
        help="algorithm of the model (default: read from the file)",
    )
    parser.add_argument(
        "--frames",
        choices=("render", "observation", "none"),
        default="render",
        help="what to record: the rendered picture, what the agent sees, or only rewards and actions",
    )
    parser.add_argument(
        "--stack", type=whole_number(1, 64), metavar="N", help="as for training (default: 4 for Atari, else 1)"
    )
    parser.add_argument(
        "--seed", type=whole_number(0, 2**31), default=0, metavar="N", help="seed for the environment and the actions"
    )
    parser.add_argument("--force", action="store_true", help="replace an existing recording")
    parser.set_defaults(run=run)


class _Random:
    """Acts at random."""

    def __init__(self, env: VecEnv, seed: int) -> None:
        self._space = env.action_space
        self._space.seed(seed)

    def predict(self, obs: Any, **_: Any) -> tuple[npt.NDArray[Any], None]:
        """Act."""
        import numpy as np

        return np.stack([self._space.sample()]), None


def guess_algorithm(path: Path) -> str:
    """Find out which algorithm a model is of, without running code from it."""
    try:
        with zipfile.ZipFile(path) as archive:
            data = json.loads(archive.read("data"))
        module = data["policy_class"]["__module__"]
    except (OSError, KeyError, TypeError, ValueError, zipfile.BadZipFile) as error:
        raise UsageError(f"{path} is not a model saved by SB3") from error
    package, *parts = str(module).upper().split(".")
    kinds = {"DDPG": "TD3", "MASKABLE": "MaskablePPO", "RECURRENT": "RecurrentPPO"}  # DDPG is TD3 without delay and noise
    for name in (*kinds, *_ALGORITHMS):
        if name.upper() in parts:
            return kinds.get(name, name)
    if package == "STABLE_BASELINES3":
        return "TRPO" if "cg_max_steps" in data else "PPO" if "clip_range" in data else "A2C"
    raise UsageError(f"cannot tell which algorithm {path} was trained with ({module}): name it with --algorithm")


def _load_model(path: Path, algorithm: str | None, env: VecEnv) -> Any:
    name = algorithm or guess_algorithm(path)
    try:
        library = need(_ALGORITHMS[name], "contrib", f"a {name} model")
        return getattr(library, name).load(path, env=env, device="cpu")
    except Exception as error:  # loading runs whatever is in the file
        raise UsageError(f"cannot play {path} as a {name} model here: {type(error).__name__}: {error}") from error


def run(options: argparse.Namespace) -> int:
    """Play and record."""
    require_extra(("psutil", "rich"), "record")
    from rich.console import Console

    from sb3_extra_buffers._support import counted, format_bytes
    from sb3_extra_buffers.cli.environments import (
        Environments,
        default_stack,
        find_environment,
        hush,
        is_atari,
        make_environments,
    )
    from sb3_extra_buffers.cli.errors import check_file, check_new_file
    from sb3_extra_buffers.cli.progress import Stage, show_stages
    from sb3_extra_buffers.recording import VecRecordWrapper

    hush()
    env_id = find_environment(options.env_id)
    stack = options.stack if options.stack is not None else default_stack(env_id)
    wanted = Environments(env_id, 1, stack, options.seed)
    output = options.output or Path(f"{wanted.title.replace('/', '-')}.rec")
    check_new_file(output, inputs=[options.model], replace=options.force)
    if options.model is not None:
        check_file(options.model)
    games = make_environments(wanted, whole_games=True)
    if options.frames == "render" and games.render_mode != "rgb_array":
        raise UsageError(f"{env_id} cannot render pictures: use --frames observation or --frames none")
    env = VecRecordWrapper(games, frames=options.frames)
    player: Any = _Random(env, options.seed) if options.model is None else _load_model(options.model, options.algorithm, env)
    total, unit = (options.steps, "steps") if options.steps else (options.episodes or 1, "episodes")
    with show_stages(Console(stderr=True), [Stage(f"Record {wanted.title}", total, unit)]) as shown:
        try:
            rewards = _play(env, player, total, unit, shown)
        except (TypeError, ValueError) as error:
            raise UsageError(f"cannot record {env_id}: {error}") from error
        shown.end(0)
    buffer: RecordBuffer = env.buffer
    if is_atari(env_id):
        buffer.metadata["fps"] = 15  # 60 frames a second, of which SB3's preprocessing shows every fourth
    buffer.save(output, progress=True)
    usage = buffer.memory_usage()
    told = f", rewards {', '.join(f'{reward:g}' for reward in rewards[:10])}{' …' if len(rewards) > 10 else ''}"
    print(f"{counted(len(buffer), 'step')}, {counted(buffer.n_episodes, 'episode')}{told if rewards else ''}")
    print(
        f"Written: {output}, {format_bytes(output.stat().st_size)} ({format_bytes(usage.raw_bytes)} uncompressed). "
        f"Look at it with: {invocation()} view {output}"
    )
    env.close()
    return OK


def _play(env: VecEnv, player: Any, total: int, unit: str, shown: Stages) -> list[float]:
    import numpy as np

    report = shown.begin(0)
    rewards: list[float] = []
    reward_so_far = 0.0
    steps = 0
    obs: Any = env.reset()
    state, starts = None, np.ones(1, dtype=bool)
    while (steps if unit == "steps" else len(rewards)) < total:
        action, state = player.predict(obs, state=state, episode_start=starts, deterministic=True)
        obs, reward, starts, _ = env.step(action)
        steps += 1
        reward_so_far += float(reward[0])
        if starts[0]:
            rewards.append(reward_so_far)
            reward_so_far = 0.0
        report(steps if unit == "steps" else len(rewards))
        if unit == "episodes":
            shown.note(0, f"{len(rewards):,} episodes, {steps:,} steps")  # one episode may take a while
    return rewards
