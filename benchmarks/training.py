"""
Train DQN and PPO on Pong with SB3's buffer and with ours, each run in its own process, all from one seed.

The two take turns, a thousand steps each, so that a machine that is slow for a minute is slow for both. Says how much longer
ours takes, how much of it is spent in the buffer, how many page faults the process has, and whether all weights are equal to
the bit.

PPO is trained four times in each round: with SB3's buffer and with ours, and with each of them once more while the C library
keeps what torch has freed (``keep_freed_memory``). Without that, some of the time goes into fetching the same memory again;
how much depends on what happens to lie where.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from kit.metrics import DISTURBED
from kit.process import digest, page_faults, peak_bytes, report, run_in_turns, take_turn
from kit.results import ResultFile, console, options
from stable_baselines3.common.callbacks import BaseCallback

LIMIT = 1.02
GAME = "PongNoFrameskip-v4"
SIDES = ("sb3", "ours")
KEPT = "-kept"


class Turns(BaseCallback):
    """Stops the training, and the clock, while it is the other one's turn."""

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


class Inside:
    """Adds up the time that a training run spends in its buffer; what is compiled or loaded at first use is included."""

    def __init__(self, buffer: Any) -> None:
        self.seconds = 0.0
        for name in ("add", "sample"):
            if hasattr(buffer, name):
                setattr(buffer, name, self._timed(getattr(buffer, name)))
        if hasattr(buffer, "get"):
            buffer.get = self._timed_batches(buffer.get)

    def _timed(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            result = method(*args, **kwargs)
            self.seconds += time.perf_counter() - start
            return result

        return call

    def _timed_batches(self, get: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        def batches(*args: Any, **kwargs: Any) -> Iterator[Any]:
            following = self._timed(get(*args, **kwargs).__next__)
            while True:
                try:
                    batch = following()
                except StopIteration:
                    return
                yield batch

        return batches


def train(job: Mapping[str, Any]) -> dict[str, Any]:
    """Train once."""
    from stable_baselines3 import DQN, PPO
    from stable_baselines3.common.vec_env import DummyVecEnv

    from sb3_extra_buffers.compressed import keep_freed_memory
    from sb3_extra_buffers.training_utils.atari import make_env

    options: dict[str, Any] = {}
    model: Any
    side, kept = job["side"].removesuffix(KEPT), job["side"].endswith(KEPT)
    if kept:
        keep_freed_memory()
    if job["algorithm"] == "dqn":
        env = make_env(GAME, 4, DummyVecEnv, framestack=4, seed=0)
        if side == "ours":
            from sb3_extra_buffers.compressed import CompressedReplayBuffer

            options["replay_buffer_class"] = CompressedReplayBuffer
        # With four games, a gradient step after each of their steps is DQN's usual one in four.
        model = DQN("CnnPolicy", env, buffer_size=20_000, learning_starts=1_000, train_freq=1, seed=0, device="cpu", **options)
    else:
        env = make_env(GAME, 8, DummyVecEnv, framestack=4, seed=0)
        if side == "ours":
            from sb3_extra_buffers.compressed import CompressedRolloutBuffer

            options["rollout_buffer_class"] = CompressedRolloutBuffer
            options["rollout_buffer_kwargs"] = {"keep_freed_memory": kept}
        model = PPO("CnnPolicy", env, n_steps=128, batch_size=256, n_epochs=4, seed=0, device="cpu", **options)
    turns = Turns(job["turn"])
    inside = Inside(model.replay_buffer if job["algorithm"] == "dqn" else model.rollout_buffer)
    faults = page_faults()
    turns.begin()
    model.learn(job["steps"], callback=turns)
    turns.end()
    weights = digest(tensor for _, tensor in sorted(model.policy.state_dict().items()))
    return {
        "seconds": round(turns.seconds, 2),
        "inside": round(inside.seconds, 2),
        "faults": page_faults() - faults,
        "weights": weights,
        "peak": peak_bytes(),
    }


def main() -> None:
    """Run what the command line says."""
    parser = options(__doc__, cache=False)
    parser.add_argument("--algorithm", nargs="+", choices=("dqn", "ppo"), default=["dqn", "ppo"], help="what to train")
    parser.add_argument("--steps", type=int, default=20_000, help="steps of the games, all together")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each side")
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
        endings = ("", KEPT) if algorithm == "ppo" else ("",)
        runs: dict[str, list[dict[str, Any]]] = {side + ending: [] for ending in endings for side in SIDES}
        for _ in range(args.rounds):
            job = {"algorithm": algorithm, "steps": args.steps, "turn": args.turn}
            for side, run in run_in_turns("training", {side: {**job, "side": side} for side in runs}).items():
                runs[side].append(run)
                console.print(f"{algorithm} {side:<9} {run.get('error') or str(run['seconds']) + ' s'}")
        for ending in endings:
            row = compare({side: runs[side + ending] for side in SIDES})
            if ending and "error" not in row:
                row["kept_to_not"] = ratios_of_rounds(runs["ours"], runs["ours" + KEPT])
            results.put(algorithm + ending, {**about, "kept": bool(ending), **row})
            same = "" if "error" in row else ", weights " + ("identical" if row["identical"] else "DIFFERENT")
            console.print(f"[bold]{algorithm}{ending}[/bold]: {row.get('error') or row['ratio']}x of SB3's time{same}")


def ratios_of_rounds(first: Sequence[Mapping[str, Any]], second: Sequence[Mapping[str, Any]]) -> list[float]:
    """Compare two sides round by round."""
    return [round(b["seconds"] / a["seconds"], 4) for a, b in zip(first, second, strict=True)]


def compare(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """Compare the runs of both sides."""
    errors = [run["error"] for side in SIDES for run in runs[side] if "error" in run]
    if errors:
        return {"error": errors[0]}
    by_side: dict[str, dict[str, list[Any]]] = {
        what: {side: [run[what] for run in runs[side]] for side in SIDES} for what in ("seconds", "inside", "faults", "peak")
    }
    seconds = by_side["seconds"]
    identical = len({run["weights"] for side in SIDES for run in runs[side]}) == 1
    elsewhere = max(run["elsewhere"] for side in SIDES for run in runs[side])
    # Of all rounds together: each is slow or fast for both, and a median of three would leave two thirds out.
    ratio = round(sum(seconds["ours"]) / sum(seconds["sb3"]), 4)
    return {
        "seconds": seconds,
        "ratio": ratio,
        "ratio_of_rounds": ratios_of_rounds(runs["sb3"], runs["ours"]),
        "identical": identical,
        "inside": by_side["inside"],
        "faults": by_side["faults"],
        "peak": {side: max(peaks) for side, peaks in by_side["peak"].items()},
        "elsewhere": elsewhere,
        "reached": {"time": None if elsewhere > DISTURBED else ratio <= LIMIT, "weights": identical},
    }


if __name__ == "__main__":
    main()
