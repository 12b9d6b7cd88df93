"""
Learn to play Doom with SB3's buffer and with ours, from one seed, and draw both learning curves.

It runs the example ``examples/example_ppo_vizdoom.py`` twice: PPO on ``defend_the_center``, from semantic masks. The curves
must lie on each other exactly, evaluation by evaluation and episode by episode, and the networks must be equal to the bit;
otherwise the program fails. What random play reaches is drawn beside them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from kit.plots import plot_learning
from kit.process import BENCHMARKS, digest
from kit.results import ResultFile, console, options
from stable_baselines3 import PPO
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from sb3_extra_buffers.training_utils.vizdoom import make_env

SCENARIO = "defend_the_center"
EXAMPLE = BENCHMARKS.parent / "examples" / "example_ppo_vizdoom.py"
SIDES = {"sb3": "sb3", "ours": "compressed"}


class RandomPlay:
    """Chooses every action at random."""

    def __init__(self, env: VecEnv) -> None:
        self._env = env
        self._env.action_space.seed(0)

    def predict(self, obs: Any, state: Any = None, **_: Any) -> tuple[Any, Any]:
        """Choose actions."""
        return np.array([self._env.action_space.sample() for _ in range(self._env.num_envs)]), state


def play_randomly(episodes: int) -> list[float]:
    """Play without a model."""
    env = make_env(SCENARIO, 4, DummyVecEnv, seed=0, observe="mask", shrink=2)
    rewards, _ = evaluate_policy(RandomPlay(env), env, episodes, return_episode_rewards=True)
    env.close()
    return [float(reward) for reward in rewards]  # type: ignore[union-attr]


def learn(side: str, steps: int, every: int, episodes: int) -> dict[str, Any]:
    """Run the example."""
    with tempfile.TemporaryDirectory() as name:
        numbers = {"steps": steps, "eval-every": every, "episodes": episodes}
        words = [word for option, value in numbers.items() for word in (f"--{option}", str(value))]
        command = [sys.executable, str(EXAMPLE), "--in-process", "--buffer", SIDES[side], "--folder", name, *words]
        start = time.perf_counter()
        # One thread: a sum over several is not the same on every machine.
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})
        seconds = time.perf_counter() - start
        files = Path(name)
        (log,) = files.rglob("evaluations.npz")
        (model,) = files.glob("*.zip")
        with np.load(log) as found:
            steps_done, rewards = found["timesteps"].tolist(), found["results"].tolist()
        weights = digest(tensor for _, tensor in sorted(PPO.load(model, device="cpu").policy.state_dict().items()))
    return {"steps": steps_done, "rewards": rewards, "seconds": round(seconds), "weights": weights}


def main() -> int:
    """Run what the command line says."""
    parser = options(__doc__ or "", cache=False)
    parser.add_argument("--steps", type=int, default=32_000, help="steps to train, of all environments together")
    parser.add_argument("--eval-every", type=int, default=400, help="steps of each of the 8 environments between evaluations")
    parser.add_argument("--episodes", type=int, default=10, help="episodes of an evaluation")
    parser.add_argument("--random-episodes", type=int, default=100, help="episodes that are played at random")
    args = parser.parse_args()
    results = ResultFile("learning", args.results)
    about = {"scenario": SCENARIO, "total": args.steps, "every": args.eval_every, "episodes": args.episodes}
    if not (args.resume and results.has(SCENARIO, **about)):
        with ThreadPoolExecutor() as pool:  # of processes that have a thread each
            started = {side: pool.submit(learn, side, args.steps, args.eval_every, args.episodes) for side in SIDES}
            runs = {side: run.result() for side, run in started.items()}
        for side, run in runs.items():
            best = max(float(np.mean(rewards)) for rewards in run["rewards"])
            console.print(f"{side}: {run['seconds']} s, best evaluation {best:.1f}")
        identical = all(runs["sb3"][what] == runs["ours"][what] for what in ("steps", "rewards", "weights"))
        row = {**about, "random": play_randomly(args.random_episodes), "runs": runs, "reached": {"identical": identical}}
        results.put(SCENARIO, row)
    row = results.rows[SCENARIO]
    plot_learning(row, args.results / "learning.png")
    identical = row["reached"]["identical"]
    console.print(
        f"curves and weights are {'identical' if identical else 'DIFFERENT'}; random play: {np.mean(row['random']):.1f}"
    )
    return 0 if identical else 1


if __name__ == "__main__":
    sys.exit(main())
