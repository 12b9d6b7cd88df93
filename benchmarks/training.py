"""
Train DQN and PPO on Pong with SB3's buffer and with ours, each run in its own process, all from one seed.

The two take turns, a thousand steps each, so that a machine that is slow for a minute is slow for both. Says how much longer
ours takes, how much of it is spent in the buffer, how many page faults the process has, and whether all weights are equal to
the bit.

Our rollout buffer has the C library keep what torch has freed: without that, a good part of the time goes into fetching the
same memory again. With ``--keep-memory`` SB3's side gets the same, by environment variables, so that only the buffers differ;
with ``--return-memory`` neither side does, and what is left of the difference depends on what happens to lie where.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kit.process import digest, page_faults, peak_bytes, report, run_in_turns, take_turn
from kit.results import ResultFile, console, options
from kit.targets import DISTURBED
from stable_baselines3.common.callbacks import BaseCallback

LIMIT = 1.02
GAME = "PongNoFrameskip-v4"
SIDES = ("sb3", "ours")
KEEP = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(1 << 30)}
"""Tells glibc not to hand freed memory back to the system, only to fetch it again for the next minibatch."""


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


class Inside:
    """
    Adds up the time that a training run spends in its buffer; what is compiled or loaded at first use is included.

    :param buffer: The buffer; its methods are replaced
    """

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
    """
    Train once.

    :param job: ``algorithm``, ``side``, ``steps``, ``turn``, ``returned``
    :return: Seconds in all and inside of the buffer, page faults, hash of the weights, largest resident memory
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
            options["rollout_buffer_kwargs"] = {"keep_freed_memory": not job["returned"]}
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
    freed = parser.add_mutually_exclusive_group()
    freed.add_argument("--keep-memory", action="store_true", help="let glibc keep freed memory, on both sides")
    freed.add_argument("--return-memory", action="store_true", help="let glibc keep no more than usual, on both sides")
    parser.add_argument("--steps", type=int, default=20_000, help="steps of the games, all together")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each side")
    parser.add_argument("--turn", type=int, default=1_000, help="steps after which the other side has its turn")
    args = parser.parse_args()
    if args.worker:
        report(train(json.loads(args.worker)))
        return
    results = ResultFile("training", args.results)
    for algorithm in args.algorithm:
        key = f"{algorithm}-kept" if args.keep_memory else f"{algorithm}-returned" if args.return_memory else algorithm
        about = {"algorithm": algorithm, "steps": args.steps, "rounds": args.rounds}
        about |= {"kept": args.keep_memory, "returned": args.return_memory}
        if args.resume and results.has(key, **about):
            continue
        runs: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
        for _ in range(args.rounds):
            job = {"algorithm": algorithm, "steps": args.steps, "turn": args.turn, "returned": args.return_memory}
            jobs = {side: {**job, "side": side} for side in SIDES}
            for side, run in run_in_turns("training", jobs, KEEP if args.keep_memory else None).items():
                runs[side].append(run)
                console.print(f"{algorithm} {side:<5} {run.get('error') or str(run['seconds']) + ' s'}")
        errors = [run["error"] for side in SIDES for run in runs[side] if "error" in run]
        if errors:
            results.put(key, {**about, "error": errors[0]})
            continue
        seconds = {side: [run["seconds"] for run in runs[side]] for side in SIDES}
        # Of all rounds together: each is slow or fast for both, and a median of three would leave two thirds out.
        ratio = round(sum(seconds["ours"]) / sum(seconds["sb3"]), 4)
        identical = len({run["weights"] for side in SIDES for run in runs[side]}) == 1
        elsewhere = max(run["elsewhere"] for side in SIDES for run in runs[side])
        row = {
            **about,
            "seconds": seconds,
            "ratio": ratio,
            "ratio_of_rounds": [round(b / a, 4) for a, b in zip(seconds["sb3"], seconds["ours"], strict=True)],
            "identical": identical,
            "inside": {side: [run["inside"] for run in runs[side]] for side in SIDES},
            "faults": {side: [run["faults"] for run in runs[side]] for side in SIDES},
            "peak": {side: max(run["peak"] for run in runs[side]) for side in SIDES},
            "elsewhere": elsewhere,
            "reached": {"time": None if elsewhere > DISTURBED else ratio <= LIMIT, "weights": identical},
        }
        results.put(key, row)
        console.print(f"[bold]{key}[/bold]: {ratio}x of SB3's time, weights {'identical' if identical else 'DIFFERENT'}")


if __name__ == "__main__":
    main()
