"""
Long training runs with our buffers: Doom from masks, from pictures and from both, PPO on Pong, DQN on MsPacman.

  python benchmarks/long_runs.py train pong --folder runs          starts the run, or resumes it from its last checkpoint
  python benchmarks/long_runs.py train doom-mask-1 --folder runs   doom-{mask,rgb,both}-{0,1,2}: the last number is the seed
  python benchmarks/long_runs.py report --folder runs              writes results/long_runs.json and the plots

A run may be killed at any time: the same command goes on from its last checkpoint. Episodes that were played again after that
must have the same scores as the first time where games can be saved (Atari); the report counts them.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch as th
from kit.plots import plot_long_runs
from kit.process import digest, resident_bytes
from kit.results import RESULTS, ResultFile, console
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.callbacks import BaseCallback, CallbackList
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecTransposeImage

from sb3_extra_buffers import ResumableCheckpoint, resume
from sb3_extra_buffers.compressed import CompressedDictRolloutBuffer, CompressedReplayBuffer, CompressedRolloutBuffer
from sb3_extra_buffers.training_utils import atari, vizdoom

PUBLISHED_SEED = 1970626835
SCENARIO = "defend_the_center"
COMPARED_STEPS = 200_704  # 196 rollouts of 8 x 128 steps: here Pong's weights are compared with those of SB3's own buffer


@dataclass(frozen=True)
class Run:
    """One run: what is played, for how long, and when it is evaluated."""

    steps: int
    eval_every: int
    game: str
    seed: int = PUBLISHED_SEED
    observe: str = ""
    sb3: bool = False
    enough: float = np.inf

    def make_env(self, n_envs: int, seed: int) -> VecEnv:
        if self.observe:
            return vizdoom.make_env(SCENARIO, n_envs, DummyVecEnv, seed=seed, observe=self.observe, shrink=2)
        stack = 4 if self.game == "MsPacman" else None
        return atari.make_env(f"{self.game}NoFrameskip-v4", n_envs, DummyVecEnv, framestack=stack, seed=seed)

    @property
    def n_envs(self) -> int:
        return 4 if self.game == "MsPacman" else 8

    def make_model(self, env: VecEnv) -> Any:
        if self.game == "MsPacman":
            return DQN(
                "CnnPolicy",
                env,
                buffer_size=1_000_000,
                learning_starts=50_000,
                learning_rate=1e-4,
                batch_size=32,
                train_freq=1,
                gradient_steps=1,
                target_update_interval=1_000,
                exploration_fraction=0.25,
                exploration_final_eps=0.01,
                replay_buffer_class=CompressedReplayBuffer,
                seed=self.seed,
                device="cpu",
            )
        doom = bool(self.observe)
        both = self.observe == "both"
        return PPO(
            "MultiInputPolicy" if both else "CnnPolicy",
            env,
            n_steps=128,
            batch_size=256,
            n_epochs=4,
            learning_rate=2.5e-4 if doom else LinearSchedule(2.5e-4, 0, 1),
            clip_range=0.1 if doom else LinearSchedule(0.1, 0, 1),
            ent_coef=0.01,
            vf_coef=0.5,
            rollout_buffer_class=None if self.sb3 else CompressedDictRolloutBuffer if both else CompressedRolloutBuffer,
            seed=self.seed,
            device="cpu",
        )


RUNS = {
    "pong": Run(10_000_000, 262_144, "Pong", enough=18),
    "pong-sb3": Run(10_000_000, sys.maxsize, "Pong", sb3=True),
    "mspacman": Run(1_000_000, 100_000, "MsPacman"),
    **{
        f"doom-{view}-{seed}": Run(100_000, sys.maxsize, "Doom", seed, view)
        for view in ("mask", "rgb", "both")
        for seed in range(3)
    },
}
STOPS = {"pong-sb3": COMPARED_STEPS + 1}  # the weights are taken when the next rollout starts


def weights(model: Any) -> str:
    """Hash the weights of a policy."""
    return digest(tensor for _, tensor in sorted(model.policy.state_dict().items()))


class Log(BaseCallback):
    """
    Appends one JSON line for each episode, measurement and evaluation, and ends the run when the score is enough.

    Lines are not taken back when a run is resumed: ``report`` finds steps that were played twice.
    """

    def __init__(self, run: Run, folder: Path) -> None:
        super().__init__()
        self._run, self._path = run, folder / "log.jsonl"
        self._start = time.time()
        self._measured = -1

    def write(self, kind: str, **values: Any) -> None:
        line = {"kind": kind, "step": self.num_timesteps, **values}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def _on_training_start(self) -> None:
        self.write("start", time=self._start, pid=os.getpid())

    def _on_step(self) -> bool:
        for env, info in enumerate(self.locals["infos"]):
            if "episode" in info:
                self.write("episode", env=env, score=info["episode"]["r"], length=info["episode"]["l"])
        return True

    def _on_rollout_start(self) -> None:
        """After the update for on-policy algorithms, so the weights are those of a whole number of rollouts."""
        step = self.num_timesteps
        if self._run.game == "Pong" and step == COMPARED_STEPS:
            self.write("weights", digest=weights(self.model))

    def _on_rollout_end(self) -> None:
        step = self.num_timesteps
        if step // 10_000 != self._measured:
            self._measured = step // 10_000
            buffer: Any = getattr(self.model, "replay_buffer", None) or self.model.rollout_buffer  # type: ignore[attr-defined]
            usage = buffer.memory_usage() if hasattr(buffer, "memory_usage") else None
            sizes = {"raw": usage.raw_bytes, "stored": usage.stored_bytes + usage.index_bytes} if usage else {}
            self.write("memory", time=time.time(), rss=resident_bytes(), **sizes)


class Evaluate(BaseCallback):
    """Plays 20 episodes now and then. The games are new ones each time, with the same seeds, so nothing has to be resumed."""

    def __init__(self, run: Run, log: Log, stop: int) -> None:
        super().__init__()
        self._run, self._log, self._stop, self._next = run, log, stop, run.eval_every

    def _on_rollout_start(self) -> None:
        self._next = (self.num_timesteps // self._run.eval_every + 1) * self._run.eval_every

    def _on_step(self) -> bool:
        if self.num_timesteps >= self._stop:
            return False
        if self.num_timesteps >= self._next:
            self._next += self._run.eval_every
            return self.evaluate() < self._run.enough
        return True

    def evaluate(self) -> float:
        env = self._run.make_env(10, self._run.seed + 1000)
        if isinstance(self.model.get_env(), VecTransposeImage):
            env = VecTransposeImage(env)
        scores, _ = evaluate_policy(self.model, env, 20, return_episode_rewards=True)
        env.close()
        self._log.write("evaluation", time=time.time(), scores=[float(score) for score in scores])  # type: ignore[union-attr]
        console.print(f"step {self.num_timesteps:,}: {np.mean(scores):.1f} +/- {np.std(scores):.1f}")
        return float(np.mean(scores))


def train(name: str, folder: Path, stop: int, every: int) -> None:
    """Start a run or go on with it."""
    run, folder = RUNS[name], folder / name
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / "done").exists():
        console.print(f"{name} is done")
        return
    th.set_num_threads(1)
    env = run.make_env(run.n_envs, run.seed)
    try:
        model = resume(folder / "checkpoints", env=env, device="cpu")
    except FileNotFoundError:
        model = run.make_model(env)
    log = Log(run, folder)
    evaluate = Evaluate(run, log, stop)
    checkpoint = ResumableCheckpoint(folder / "checkpoints", every=every, keep=2)
    callback = CallbackList([checkpoint, log, evaluate])
    model.learn(run.steps - model.num_timesteps, callback=callback, reset_num_timesteps=False)
    if not run.sb3:
        evaluate.evaluate()
    model.save(folder / "model.zip")
    (folder / "done").touch()
    env.close()


def read(path: Path) -> dict[str, Any]:
    """Read the log of a run; count restarts and what was played twice."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    episodes: dict[tuple[int, int], dict[str, Any]] = {}
    again = differ = resumed = 0
    seconds = 0.0
    reached, last_time = 0, None
    for line in lines:
        if line["kind"] == "start":
            resumed += line["step"] > 0
            last_time = line["time"]
        elif line["kind"] == "episode":
            key = line["step"], line["env"]
            if line["step"] <= reached:
                again += 1
                differ += episodes.get(key, {}).get("score") != line["score"]
            episodes[key] = line
        elif "time" in line:
            seconds += line["time"] - last_time if last_time is not None else 0.0
            last_time = line["time"]
        reached = max(reached, line["step"])
    memory = {line["step"]: line for line in lines if line["kind"] == "memory"}
    evaluations = {line["step"]: line["scores"] for line in lines if line["kind"] == "evaluation"}
    found = {line["digest"] for line in lines if line["kind"] == "weights"}
    ordered = [episodes[key] for key in sorted(episodes)]
    return {
        "steps": reached,
        "hours": round(seconds / 3600, 2),
        "resumed": resumed,
        "episodes_played_again": again,
        "episodes_that_differ": differ,
        "weights_at_200704": sorted(found),
        "evaluations": [[step, evaluations[step]] for step in sorted(evaluations)],
        "memory": [[step, *(memory[step].get(name, 0) for name in ("rss", "raw", "stored"))] for step in sorted(memory)],
        "episodes": [[line["step"], line["score"], line["length"]] for line in ordered],
    }


def report(folder: Path, to: Path) -> None:
    """Write the results, the scores of all episodes as a small file, and the plots."""
    results = ResultFile("long_runs", to)
    curves = {}
    for name, run in RUNS.items():
        path = folder / name / "log.jsonl"
        if not path.exists():
            continue
        row = read(path)
        episodes = row.pop("episodes")
        curves[name] = {**row, "episodes": episodes}
        text = io.StringIO()
        csv.writer(text).writerows([("step", "score", "length"), *episodes])
        (to / f"long_run_{name}.csv.gz").write_bytes(gzip.compress(text.getvalue().encode(), mtime=0))
        row["done"] = (folder / name / "done").exists()
        row["seed"], row["train"] = run.seed, f"python benchmarks/long_runs.py train {name} --folder runs"
        results.put(name, row)
        last = row["evaluations"][-1][1] if row["evaluations"] else []
        score = f"{np.mean(last):.1f} +/- {np.std(last):.1f} in {len(last)} episodes" if last else "not evaluated"
        console.print(f"{name}: {row['steps']:,} steps, {row['hours']} h, resumed {row['resumed']} times, {score}")
    plot_long_runs(curves, to)


def main() -> None:
    """Run what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("train", "report"))
    parser.add_argument("run", nargs="?", choices=RUNS, help="which run to train")
    parser.add_argument("--folder", type=Path, required=True, help="checkpoints and logs")
    parser.add_argument("--stop", type=int, help="end the run after this many steps")
    parser.add_argument("--checkpoint-every", type=int, default=20_000, help="steps between two checkpoints")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the result files")
    args = parser.parse_args()
    if args.action == "report":
        report(args.folder, args.results)
    elif args.run is None:
        parser.error("name a run to train")
    else:
        train(args.run, args.folder, args.stop or STOPS.get(args.run, sys.maxsize), args.checkpoint_every)


if __name__ == "__main__":
    main()
