"""
What ``BufferStatsCallback`` costs a training run.

DQN and PPO play Pong twice from one seed, with the callback and without it, in two processes that take turns. Two answers:
how much longer the run with the callback takes, which also has all the noise of the machine in it; and the share of the
processor's time that goes into the callback itself and into the two calls of the clock around each ``add``, ``sample`` and
minibatch, which is added up while it trains.
"""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
from kit.process import digest, report, run_in_turns, time_calls
from kit.results import ResultFile, console, options
from stable_baselines3.common.callbacks import CallbackList
from training import Turns

from sb3_extra_buffers.training_utils.buffer_stats import BufferStatsCallback, _Timed

GAME = "PongNoFrameskip-v4"
LIMIT = 0.005
"""The share of a training run that counts as negligible: half a percent."""
EVERY = 500
SIDES = ("without", "with")


class Counted(BufferStatsCallback):
    """The callback, with a clock around all that it does."""

    seconds = 0.0
    calls = 0

    def _clocked(self, name: str) -> Any:
        # Time of this thread: while others use the processor, nothing is counted.
        start = time.thread_time()
        result = getattr(super(), name)()
        self.seconds += time.thread_time() - start
        return result

    def _on_rollout_start(self) -> None:
        self._clocked("_on_rollout_start")

    def _on_step(self) -> bool:
        return bool(self._clocked("_on_step"))

    def _on_rollout_end(self) -> None:
        self._clocked("_on_rollout_end")

    def _on_training_end(self) -> None:
        for mean in (self._add, self._sample):
            assert mean is not None
            self.calls += mean.timed.calls
        super()._on_training_end()


class Nothing:
    """A buffer that does nothing, to see what the clock around it costs."""

    def add(self) -> None:
        """Do nothing."""


def seconds_a_timed_call() -> float:
    """Measure what standing before a method costs."""
    plain, timed = Nothing(), Nothing()
    _Timed.before(timed, "add")  # type: ignore[arg-type]

    def thousand(buffer: Nothing) -> None:
        for _ in range(1000):
            buffer.add()

    costs = []
    for _ in range(5):
        ours, theirs = (time_calls(lambda buffer=buffer: thousand(buffer), 0.2)["p50"] for buffer in (timed, plain))
        costs.append((ours - theirs) / 1000)
    return float(np.median(costs)) / 1e6


def train(job: dict[str, Any]) -> dict[str, Any]:
    """Train once."""
    import torch as th
    from stable_baselines3 import DQN, PPO
    from stable_baselines3.common.logger import configure
    from stable_baselines3.common.vec_env import DummyVecEnv

    from sb3_extra_buffers.compressed import compressed_kwargs
    from sb3_extra_buffers.training_utils.atari import make_env

    th.set_num_threads(1)
    algorithm = {"DQN": DQN, "PPO": PPO}[job["algorithm"]]
    env = make_env(GAME, 4, DummyVecEnv, framestack=4, seed=0)
    settings: dict[str, Any] = {"seed": 0, "device": "cpu", **compressed_kwargs(algorithm, env)}
    if job["algorithm"] == "DQN":
        settings |= {"buffer_size": 20_000, "learning_starts": 400}
    else:
        settings |= {"n_steps": 128, "batch_size": 256, "n_epochs": 4}
    model = algorithm("CnnPolicy", env, **settings)
    model.set_logger(configure(None, ["csv"]))  # which dumps, as TensorBoard would
    turns = Turns(EVERY)
    stats = Counted() if job["side"] == "with" else None
    turns.begin()
    start = time.thread_time()
    model.learn(job["steps"], callback=CallbackList([turns, *([stats] if stats else [])]))
    turns.end()
    worked = time.thread_time() - start
    result = {"seconds": turns.seconds, "digest": digest(model.policy.state_dict().values())}
    if stats is not None:
        clock = seconds_a_timed_call()
        result |= {
            "callback_us_a_step": round(stats.seconds / (job["steps"] / 4) * 1e6, 3),
            "clock_ns_a_call": round(clock * 1e9, 1),
            "share": round((stats.seconds + stats.calls * clock) / worked, 6),
        }
    return result


def main() -> None:
    """Run what the command line says."""
    parser = options(__doc__, cache=False)
    parser.add_argument("--steps", type=int, default=6_000, help="steps to train")
    args = parser.parse_args()
    if args.worker:
        report(train(json.loads(args.worker)))
        return
    results = ResultFile("buffer_stats", args.results)
    for algorithm in ("DQN", "PPO"):
        if args.resume and results.has(algorithm, steps=args.steps):
            continue
        jobs = {side: {"algorithm": algorithm, "side": side, "steps": args.steps} for side in SIDES}
        done = run_in_turns("buffer_stats", jobs)
        error = next((done[side]["error"] for side in SIDES if "error" in done[side]), None)
        if error:
            results.put(algorithm, {"steps": args.steps, "error": error})
            continue
        plain, watched = (done[side] for side in SIDES)
        row = {
            "steps": args.steps,
            "seconds": {side: round(done[side]["seconds"], 2) for side in SIDES},
            "ratio": round(watched["seconds"] / plain["seconds"], 4),
            **{name: watched[name] for name in ("callback_us_a_step", "clock_ns_a_call", "share")},
            "same_weights": plain["digest"] == watched["digest"],
            "elsewhere": watched["elsewhere"],
            "reached": {"share": watched["share"] <= LIMIT, "weights": plain["digest"] == watched["digest"]},
        }
        results.put(algorithm, row)
    for name, row in results.rows.items():
        console.print(f"[bold]{name}[/bold] {row}", soft_wrap=True)


if __name__ == "__main__":
    main()
