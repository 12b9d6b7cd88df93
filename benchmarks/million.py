"""
A million transitions of MsPacman, really played, in a DQN that really trains: memory of the whole process, time of a sample.

SB3's own loop plays with random actions (exploration stays at 1) and takes a gradient step now and then, so that everything
that a training process holds is in memory. Writes its figures as it goes.
"""

from __future__ import annotations

import time
from typing import Any

from kit.plots import plot_million
from kit.process import resident_bytes, settle, time_calls
from kit.results import ResultFile, console, options
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback

from sb3_extra_buffers.compressed import CompressedReplayBuffer
from sb3_extra_buffers.training_utils.atari import make_env

LIMIT, SLOWER = 1_000_000_000, 1.3


class Watch(BaseCallback):
    """
    Looks at the process while it trains.

    :param total: Transitions to come
    :param first: Number of transitions at which a sample is timed first
    :param row: Row of the results, completed on the way
    :param results: File of the results
    """

    def __init__(self, total: int, first: int, row: dict[str, Any], results: ResultFile) -> None:
        super().__init__()
        self._total, self._first, self._row, self._results = total, first, row, results
        self._every = max(total // 200, 1000)
        self._next = 0
        self._start = time.perf_counter()
        self._peak = 0

    @property
    def _buffer(self) -> CompressedReplayBuffer:
        buffer: Any = self.model.replay_buffer  # type: ignore[attr-defined]
        return buffer

    def _on_step(self) -> bool:
        if "early" not in self._row and self.num_timesteps > self._first:
            self._row["early"] = self.time_sample()
            self._row["early_at"] = self.num_timesteps
        if self.num_timesteps >= self._next:
            self._next += self._every
            self._look()
        return True

    def _look(self) -> None:
        usage, resident = self._buffer.memory_usage(), resident_bytes()
        self._peak = max(self._peak, resident)
        point = {"transitions": self.num_timesteps, "rss": resident, "stored": usage.stored_bytes + usage.index_bytes}
        self._row["series"].append(point)
        self._row["peak_rss"] = self._peak
        self._results.put("million", self._row)
        gone = time.perf_counter() - self._start
        left = gone / max(self.num_timesteps, 1) * max(self._total - self.num_timesteps, 0)
        console.print(
            f"{self.num_timesteps:>9,} of {self._total:,}  {resident / 1e6:,.0f} MB  "
            f"{self.num_timesteps / gone:,.0f} a second  {left / 60:.1f} min left   ",
            end="\r" if console.is_terminal else "\n",
            soft_wrap=True,
        )

    def time_sample(self) -> dict[str, float]:
        """
        Time ``sample(32)``; the games stand still meanwhile.

        :return: Summary of the times
        """
        return time_calls(lambda: self._buffer.sample(32), seconds=2.0, at_most=1000)

    def finish(self) -> None:
        """Look and time for the last time."""
        self._row["late"] = self.time_sample()
        self._look()


def main() -> None:
    """Run what the command line says."""
    parser = options(__doc__, cache=False)
    parser.add_argument("--transitions", type=int, default=1_000_000, help="how many, and the size of the buffer")
    parser.add_argument("--envs", type=int, default=8, help="number of games in processes of their own")
    parser.add_argument("--train-every", type=int, default=64, help="steps of all games between two gradient steps")
    parser.add_argument("--early", type=int, default=40_000, help="when to time a sample first")
    args = parser.parse_args()
    results = ResultFile("million", args.results)
    row: dict[str, Any] = {"transitions": args.transitions, "envs": args.envs, "train_every": args.train_every, "series": []}
    env = make_env("MsPacmanNoFrameskip-v4", args.envs, framestack=4, seed=0)
    model = DQN(
        "CnnPolicy",
        env,
        buffer_size=args.transitions,
        learning_starts=min(10_000, args.transitions // 4),
        train_freq=args.train_every,
        exploration_initial_eps=1.0,
        exploration_final_eps=1.0,
        replay_buffer_class=CompressedReplayBuffer,
        seed=0,
        device="cpu",
    )
    watch = Watch(args.transitions, min(args.early, args.transitions // 2), row, results)
    start = time.perf_counter()
    try:
        model.learn(args.transitions, callback=watch)
    finally:
        env.close()
    row["seconds"] = round(time.perf_counter() - start)
    settle()
    watch.finish()
    buffer: Any = model.replay_buffer
    row["usage"] = str(buffer.memory_usage())
    row["sample_ratio"] = round(row["late"]["p25"] / row["early"]["p25"], 3)
    row["reached"] = {"rss": row["peak_rss"] < LIMIT, "sample": row["sample_ratio"] <= SLOWER}
    results.put("million", row)
    plot_million(row, args.results / "million.png")
    console.print(
        f"\n{args.transitions:,} transitions in {row['seconds'] / 60:.1f} min; "
        f"process at most {row['peak_rss'] / 1e6:,.0f} MB; "
        f"sample(32) {row['early']['p25']:.0f} µs, then {row['late']['p25']:.0f} µs ({row['sample_ratio']}x); "
        f"reached: {row['reached']}"
    )


if __name__ == "__main__":
    main()
