"""What the examples share: command line, evaluation, video. The buffers, which they are about, are in the examples."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecTransposeImage

from sb3_extra_buffers.recording import CompressedRecordBuffer, export_video
from sb3_extra_buffers.training_utils import eval_model

PUBLISHED_SEED = 1970626835


@contextmanager
def extra(name: str) -> Iterator[None]:
    """
    Import what comes with an extra; if it is not installed, say which one.

    :param name: Name of the extra
    """
    try:
        yield
    except ImportError as error:
        raise SystemExit(
            f'This example needs the extra {name}; in the clone, run: pip install ".[{name}]"\n({error})'
        ) from None


def positive(text: str) -> int:
    """
    Read a number from the command line.

    :param text: What was typed
    :return: The number, at least 1
    """
    value = int(text.replace("_", ""))
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """
    Make a command line that shows the docstring of the example and all defaults.

    :param description: The docstring
    :return: The parser
    """

    class Help(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
        def _get_help_string(self, action: argparse.Action) -> str | None:
            return action.help if action.default is None else super()._get_help_string(action)

    return argparse.ArgumentParser(description=description, formatter_class=Help)


def training_parser(description: str | None, steps: int, envs: int) -> argparse.ArgumentParser:
    """
    Make the command line that all training examples have.

    :param description: The docstring of the example
    :param steps: How long it trains
    :param envs: How many environments it trains in
    :return: The parser, to which an example may add more
    """
    parser = make_parser(description)
    parser.add_argument(
        "action",
        nargs="?",
        default="train",
        choices=("train", "evaluate", "watch"),
        help="train a model, evaluate the best one so far, or watch it play (writes a video)",
    )
    parser.add_argument("--buffer", choices=("compressed", "sb3"), default="compressed", help="whose buffer to train with")
    parser.add_argument("--method", help="compression method of the buffer (default: the package's own, delta)")
    parser.add_argument("--steps", type=positive, default=steps, help="steps to train, counting all environments")
    parser.add_argument("--envs", type=positive, default=envs, help="environments to train in")
    parser.add_argument("--in-process", action="store_true", help="run the environments in this process instead of one each")
    parser.add_argument("--seed", type=int, default=PUBLISHED_SEED, help="seed for everything")
    parser.add_argument("--eval-every", type=positive, default=8_192, help="steps of each environment between two evaluations")
    parser.add_argument("--eval-envs", type=positive, default=10, help="environments to evaluate in")
    parser.add_argument("--episodes", type=positive, default=20, help="episodes per evaluation")
    parser.add_argument("--seconds", type=positive, default=120, help="longest video to write, in seconds")
    parser.add_argument("--folder", type=Path, default=Path(), help="where to write logs/ and the model")
    parser.add_argument("--model", type=Path, help="model to evaluate or watch, instead of the best so far")
    return parser


def add_vizdoom_options(parser: argparse.ArgumentParser, scenario: str = "defend_the_center") -> None:
    """
    Let the command line choose what is played and seen.

    :param parser: The parser
    :param scenario: What is played if nothing is said
    """
    parser.add_argument("--scenario", default=scenario, help="scenario that comes with ViZDoom, or a .cfg file")
    parser.add_argument("--reward-scale", type=float, default=1.0, help="multiply rewards by this for the network")
    parser.add_argument("--observe", choices=("mask", "rgb", "gray", "both"), default="mask", help="what the agent sees")


def vec_env_class(args: argparse.Namespace) -> type[VecEnv]:
    """
    Say where environments run.

    :param args: The command line
    :return: SB3's class for it
    """
    return DummyVecEnv if args.in_process else SubprocVecEnv


class Files:
    """
    Where an example keeps what it makes.

    :param args: The command line
    :param algorithm: Short name of the algorithm, such as ``"ppo"``
    :param task: Name of what it learns
    :param suffix: What the name of the model ends with
    """

    def __init__(self, args: argparse.Namespace, algorithm: str, task: str, suffix: str = "") -> None:
        logs = args.folder / "logs" / task / algorithm
        self.eval = logs / "eval"
        self.best = logs / "best_model" / "best_model.zip"
        self.model = args.folder / f"{algorithm}_{task}{suffix}.zip"
        self.video = self.model.with_suffix(".mp4")
        self._asked = args.model

    def to_load(self) -> Path:
        """
        Find the model to evaluate or to watch.

        :return: The one that was asked for, else the best one, else the last
        """
        candidates = [self._asked] if self._asked else [self.best, self.model]
        for path in candidates:
            if path.exists():
                return path
        raise SystemExit(f"no model found at {' or '.join(map(str, candidates))}: train one first")


def ignore_ctrl_c() -> None:
    """When it has been pressed: what is then done about it, saving and closing, is not interrupted by the next one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def run(main: Callable[[], None]) -> None:
    """
    Run an example. Ctrl-C ends it without a traceback; training that it ends early is saved, see ``learn``.

    :param main: The example
    """
    try:
        main()
    except KeyboardInterrupt:
        ignore_ctrl_c()
        print("Stopped.", file=sys.stderr)
        sys.exit(130)  # what a shell reports for a program that Ctrl-C has ended


def learn(model: BaseAlgorithm, steps: int, path: Path, callback: BaseCallback | None = None) -> None:
    """
    Train a model until it is done or Ctrl-C is pressed, and save it.

    :param model: The model
    :param steps: How long
    :param path: File to save it in
    :param callback: What to do meanwhile
    """
    try:
        model.learn(steps, callback=callback)
    except KeyboardInterrupt:
        ignore_ctrl_c()
        print("Stopped early; what it has learned so far is kept.")
    save(model, path)
    print(f"Trained {model.num_timesteps:,} steps, saved {path}")


def save(model: BaseAlgorithm, path: Path) -> None:
    """
    Save a model, all of it or nothing: Ctrl-C is ignored meanwhile, and what was there before is replaced at the end.

    :param model: The model
    :param path: Name of the file
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"unfinished_{path.stem}.zip")
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        model.save(unfinished)
        os.replace(unfinished, path)
    finally:
        signal.signal(signal.SIGINT, before)


class SaveBest(BaseCallback):
    """
    Saves the model whenever it is called, which is when an evaluation finds the best one so far.

    :param path: Name of the file
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def _on_step(self) -> bool:
        save(self.model, self.path)
        return True


def train(
    model: BaseAlgorithm, eval_env: VecEnv, files: Files, args: argparse.Namespace, evaluation: type = EvalCallback
) -> None:
    """
    Train a model, evaluate it meanwhile, keep the best and the last, and say how large the buffer is.

    :param model: The model
    :param eval_env: Environments to evaluate in
    :param files: Where to
    :param args: The command line
    :param evaluation: Class of the callback that evaluates
    """
    if isinstance(model.get_env(), VecTransposeImage):
        eval_env = VecTransposeImage(eval_env)  # SB3 has done the same for the environments that the model trains in
    callback = evaluation(
        eval_env,
        n_eval_episodes=args.episodes,
        eval_freq=args.eval_every,
        callback_on_new_best=SaveBest(files.best),
        log_path=str(files.eval),
        verbose=0,
    )
    learn(model, args.steps, files.model, callback)
    buffer: Any = getattr(model, "replay_buffer", None) or getattr(model, "rollout_buffer", None)
    if hasattr(buffer, "memory_usage"):
        print(f"{type(buffer).__name__}: {buffer.memory_usage()}")
    else:
        held = [getattr(buffer, name, ()) for name in ("observations", "next_observations")]
        arrays = [array for part in held for array in (part.values() if isinstance(part, dict) else [part])]
        print(f"{type(buffer).__name__}: {sum(getattr(array, 'nbytes', 0) for array in arrays) / 1e6:,.1f} MB of observations")
    model.get_env().close()
    eval_env.close()


def show(model: Any, make_envs: Callable[[int], VecEnv], files: Files, args: argparse.Namespace) -> None:
    """
    Evaluate a model or make a video of it.

    :param model: The model
    :param make_envs: Makes so many environments
    :param files: Where to
    :param args: The command line
    """
    if args.action == "watch":
        watch(model, make_envs(1), files.video, args.seconds)
    else:
        print(eval_model(args.episodes, make_envs(args.eval_envs), model).summary)


def watch(model: Any, env: VecEnv, path: Path, seconds: int, fps: int = 15) -> None:
    """
    Write a video of one episode; no screen is needed.

    :param model: The model
    :param env: One environment that renders pictures; it is closed
    :param path: Name of the video
    :param seconds: Stop after so long, even if the episode is not over
    :param fps: Pictures a second
    """
    obs, state, start = env.reset(), None, [True]
    shape, dtype = env.action_space.shape, env.action_space.dtype
    record = CompressedRecordBuffer(None, env.get_images()[0].shape, action_shape=shape, action_dtype=dtype)
    over = False
    while not over and len(record) < fps * seconds:
        frame = env.get_images()[0]
        action, state = model.predict(obs, state=state, episode_start=start, deterministic=True)
        obs, reward, start, infos = env.step(action)
        over = "episode" in infos[0]  # Monitor's word; in Atari an episode of the model is only a life
        record.add(frame, reward[0], action[0], done=over)
    env.close()
    export_video(record, path, fps=fps)
    score = f"score {infos[0]['episode']['r']:g}" if over else "not over yet"
    print(f"Video of {len(record)} pictures in {path}, {score}")
