"""
Learn a small game on one machine and with a fleet, and draw both learning curves.

The game is that of ``examples/example_dqn_cluster.py``: pictures of a ball that falls and of a paddle that has to catch it. On
one side DQN learns with SB3's buffer and eight games in one process; on the other with two collectors of four games each and
two shards, of which one collector and one shard are killed on the way. Nothing was saved before, so what the shard held is
gone. Settings are the same, and so are the seeds, three of them on each side.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any

# Before Ray is imported: everything stays on the loopback interface.
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"

import numpy as np
from kit.cluster_plots import plot_cluster_learning
from kit.process import BENCHMARKS, report, run_worker
from kit.results import ResultFile, console, options

EXAMPLES = BENCHMARKS.parent / "examples"
SIDES = ("alone", "fleet")
COLLECTORS, GAMES, SHARDS = 2, 4, 2
SETTINGS: dict[str, Any] = {
    "buffer_size": 20_000,
    "learning_starts": 500,
    "train_freq": 1,
    "gradient_steps": 2,
    "target_update_interval": 800,
    "exploration_fraction": 0.3,
    "learning_rate": 5e-4,
    "device": "cpu",
}
SMALL = {"net_arch": [64], "features_extractor_kwargs": {"features_dim": 64}}
ENOUGH = 0.05
"""By how much the mean of the last evaluations may be lower than on one machine."""


def learn(job: Mapping[str, Any]) -> dict[str, Any]:
    """Train once."""
    sys.path.insert(0, str(EXAMPLES))
    import torch as th
    from example_dqn_cluster import Catch
    from stable_baselines3 import DQN
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy

    th.set_num_threads(1)

    class Scores(BaseCallback):
        """Evaluates, and does other things at certain steps."""

        def __init__(self) -> None:
            super().__init__()
            self.steps: list[int] = []
            self.scores: list[float] = []
            self.things: dict[int, Any] = {}

        def _on_step(self) -> bool:
            for step in [step for step in self.things if self.num_timesteps >= step]:
                self.things.pop(step)()
            if self.num_timesteps % job["every"] == 0:
                games = make_vec_env(Catch, 4, seed=1000)
                mean, _ = evaluate_policy(self.model, games, job["games"])
                self.steps.append(self.num_timesteps)
                self.scores.append(round(float(mean), 4))  # type: ignore[arg-type]
            return True

    def make_model(env: Any, **kwargs: Any) -> Any:
        own = {name: dict(value) if isinstance(value, dict) else value for name, value in SMALL.items()}  # SB3 writes to it
        return DQN("CnnPolicy", env, seed=job["seed"], policy_kwargs=own, **SETTINGS, **kwargs)

    scores = Scores()
    if job["side"] == "alone":
        make_model(make_vec_env(Catch, COLLECTORS * GAMES, seed=job["seed"])).learn(job["steps"], callback=scores)
        return {"steps": scores.steps, "scores": scores.scores}
    import ray

    from sb3_extra_buffers.distributed import Fleet, ShardedReplayBuffer

    os.environ["PYTHONPATH"] = os.pathsep.join([str(EXAMPLES), *filter(None, [os.environ.get("PYTHONPATH")])])
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    shape = {"n_collectors": COLLECTORS, "envs_per_collector": GAMES, "n_shards": SHARDS, "block_steps": 32}
    options = {"publish_every": 50, "max_lead": 512, "collector_options": {"num_cpus": 0.5}}
    with Fleet(Catch, **shape, **options, seed=job["seed"]) as fleet:
        kwargs = {"replay_buffer_class": ShardedReplayBuffer, "replay_buffer_kwargs": {"fleet": fleet}}
        model = make_model(fleet.env, **kwargs)
        killed = [job["steps"] // 4, job["steps"] * 3 // 8]
        scores.things = {
            killed[0]: lambda: os.kill(fleet.collectors.infos[0].pid, signal.SIGKILL),
            killed[1]: lambda: os.kill(fleet.shards.infos[1].pid, signal.SIGKILL),  # type: ignore[union-attr]
        }
        model.learn(job["steps"], callback=[fleet.callback(), scores])
        lost, events = fleet.clock.lost, fleet.events
    ray.shutdown()
    told = {"killed": killed, "lost": lost, "events": events}
    return {"steps": scores.steps, "scores": scores.scores, **told}


def main() -> int:
    """Run what the command line says."""
    parser = options(__doc__ or "", cache=False)
    parser.add_argument("--steps", type=int, default=12_000, help="steps to train, of all games together")
    parser.add_argument("--every", type=int, default=600, help="steps between evaluations; a multiple of 8")
    parser.add_argument("--games", type=int, default=100, help="games of an evaluation")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each side")
    args = parser.parse_args()
    if args.worker:
        report(learn(json.loads(args.worker)))
        return 0
    results = ResultFile("cluster_learning", args.results)
    about = {"total": args.steps, "every": args.every, "games": args.games, "seeds": args.seeds}
    if not (args.resume and results.has("catch", **about)):
        runs: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
        for seed in range(args.seeds):
            for side in SIDES:
                job = {"side": side, "seed": seed, "steps": args.steps, "every": args.every, "games": args.games}
                run = run_worker("cluster_learning", job, timeout=1800)
                if "error" in run:
                    console.print(f"{side}, seed {seed}: {run['error']}")
                    return 1
                run.pop("elsewhere")
                runs[side].append(run)
                console.print(f"{side}, seed {seed}: {run['scores'][-1]:.2f} at last", *run.get("events", ()), sep="\n  ")
        # Of the last quarter of the evaluations: one alone is a matter of luck.
        last = {
            side: [round(float(np.mean(run["scores"][-max(len(run["scores"]) // 4, 1) :])), 3) for run in runs[side]]
            for side in SIDES
        }
        same = float(np.mean(last["fleet"])) >= float(np.mean(last["alone"])) - ENOUGH
        results.put("catch", {**about, "runs": runs, "last": last, "reached": {"same": same}})
    row = results.rows["catch"]
    plot_cluster_learning(row, args.results / "cluster_learning.png")
    for side in SIDES:
        console.print(f"{side}: {np.mean(row['last'][side]):.3f} in the last quarter")
    return 0 if row["reached"]["same"] else 1


if __name__ == "__main__":
    sys.exit(main())
