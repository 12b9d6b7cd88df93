"""
Train DQN and PPO on Pong with SB3's buffer and with ours, each run in its own process, all from one seed.

The two take turns, a thousand steps each, so that a machine that is slow for a minute is slow for both. Says how much longer
ours takes, and whether all weights are equal to the bit.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Mapping
from typing import Any

from kit.process import digest, report, resident_bytes, run_in_turns, take_turn
from kit.results import ResultFile, console, options
from kit.targets import DISTURBED
from stable_baselines3.common.callbacks import BaseCallback

LIMIT = 1.02
GAME = "PongNoFrameskip-v4"
SIDES = ("sb3", "ours")


class Turns(BaseCallback):
    """
    Stops the training, and the clock, while it is the other one's turn.

    :param every: Steps between two turns
    """

    def __init__(self, every: int) -> None:
        super().__init__()
        self.seconds = 0.0
        self._every = self._next = every
        self._start = 0.0

    def begin(self) -> None:
        """Wait for the first turn."""
        take_turn()
        self._start = time.perf_counter()

    def end(self) -> None:
        """Stop the clock."""
        self.seconds += time.perf_counter() - self._start

    def _on_step(self) -> bool:
        if self.num_timesteps >= self._next:
            self._next += self._every
            self.end()
            self.begin()
        return True


def train(job: Mapping[str, Any]) -> dict[str, Any]:
    """
    Train once.

    :param job: ``algorithm``, ``side``, ``steps``, ``turn``
    :return: Seconds, hash of the weights, resident memory at the end
    """
    from stable_baselines3 import DQN, PPO
    from stable_baselines3.common.vec_env import DummyVecEnv

    from sb3_extra_buffers.training_utils.atari import make_env

    options: dict[str, Any] = {}
    model: Any
    if job["algorithm"] == "dqn":
        env = make_env(GAME, 4, DummyVecEnv, framestack=4, seed=0)
        if job["side"] == "ours":
            from sb3_extra_buffers.compressed import CompressedReplayBuffer

            options["replay_buffer_class"] = CompressedReplayBuffer
        # With four games, a gradient step after each of their steps is DQN's usual one in four.
        model = DQN("CnnPolicy", env, buffer_size=20_000, learning_starts=1_000, train_freq=1, seed=0, device="cpu", **options)
    else:
        env = make_env(GAME, 8, DummyVecEnv, framestack=4, seed=0)
        if job["side"] == "ours":
            from sb3_extra_buffers.compressed import CompressedRolloutBuffer

            options["rollout_buffer_class"] = CompressedRolloutBuffer
        model = PPO("CnnPolicy", env, n_steps=128, batch_size=256, n_epochs=4, seed=0, device="cpu", **options)
    turns = Turns(job["turn"])
    turns.begin()
    model.learn(job["steps"], callback=turns)
    turns.end()
    weights = digest(tensor for _, tensor in sorted(model.policy.state_dict().items()))
    return {"seconds": round(turns.seconds, 2), "weights": weights, "resident": resident_bytes()}


def main() -> None:
    """Run what the command line says."""
    parser = options(__doc__, cache=False)
    parser.add_argument("--algorithm", nargs="+", choices=("dqn", "ppo"), default=["dqn", "ppo"], help="what to train")
    parser.add_argument("--steps", type=int, default=20_000, help="steps of the games, all together")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each side")
    parser.add_argument("--turn", type=int, default=1_000, help="steps after which the other side has its turn")
    args = parser.parse_args()
    if args.worker:
        report(train(json.loads(args.worker)))
        return
    results = ResultFile("training", args.results)
    for algorithm in args.algorithm:
        about = {"algorithm": algorithm, "steps": args.steps, "rounds": args.rounds}
        if args.resume and results.has(algorithm, **about):
            continue
        runs: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
        for _ in range(args.rounds):
            job = {"algorithm": algorithm, "steps": args.steps, "turn": args.turn}
            for side, run in run_in_turns("training", {side: {**job, "side": side} for side in SIDES}).items():
                runs[side].append(run)
                console.print(f"{algorithm} {side:<5} {run.get('error') or str(run['seconds']) + ' s'}")
        errors = [run["error"] for side in SIDES for run in runs[side] if "error" in run]
        if errors:
            results.put(algorithm, {**about, "error": errors[0]})
            continue
        seconds = {side: [run["seconds"] for run in runs[side]] for side in SIDES}
        ratio = round(statistics.median(seconds["ours"]) / statistics.median(seconds["sb3"]), 4)
        identical = len({run["weights"] for side in SIDES for run in runs[side]}) == 1
        elsewhere = max(run["elsewhere"] for side in SIDES for run in runs[side])
        row = {
            **about,
            "seconds": seconds,
            "ratio": ratio,
            "ratio_of_best": round(min(seconds["ours"]) / min(seconds["sb3"]), 4),
            "identical": identical,
            "resident": {side: max(run["resident"] for run in runs[side]) for side in SIDES},
            "elsewhere": elsewhere,
            "reached": {"time": None if elsewhere > DISTURBED else ratio <= LIMIT, "weights": identical},
        }
        results.put(algorithm, row)
        console.print(f"[bold]{algorithm}[/bold]: {ratio}x of SB3's time, weights {'identical' if identical else 'DIFFERENT'}")


if __name__ == "__main__":
    main()
