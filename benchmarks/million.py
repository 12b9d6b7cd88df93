"""
A million transitions of MsPacman, really played, in a DQN that really trains: memory of the whole process, time of a sample.

SB3's own loop plays with random actions (exploration stays at 1) and takes a gradient step now and then, so that everything
that a training process holds is in memory. Writes its figures as it goes. At the end, samples of all transitions and of a
buffer that holds the first 40,000 of them are timed in turns, so that a machine that is slow for a while is slow for both.
"""

from __future__ import annotations

import statistics
import time
from functools import partial
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
    """Looks at the process while it trains."""

    def __init__(self, total: int, row: dict[str, Any], results: ResultFile) -> None:
        super().__init__()
        self._total, self._row, self._results = total, row, results
        self._every = max(total // 200, 1000)
        self._next = 0
        self._start = time.perf_counter()
        self._peak = 0

    @property
    def _buffer(self) -> CompressedReplayBuffer:
        buffer: Any = self.model.replay_buffer  # type: ignore[attr-defined]
        return buffer

    def _on_step(self) -> bool:
        if self.num_timesteps >= self._next:
            self._next += self._every
            self.look()
        return True

    def look(self) -> None:
        """Note what the process takes."""
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


def first_of(buffer: CompressedReplayBuffer, transitions: int) -> CompressedReplayBuffer:
    """Copy the first transitions into a buffer of their own."""
    few = CompressedReplayBuffer(transitions, buffer.observation_space, buffer.action_space, "cpu", buffer.n_envs)
    for row in range(few.buffer_size):
        infos = [{"TimeLimit.truncated": bool(cut)} for cut in buffer.timeouts[row]]
        obs, next_obs = buffer.observations[row], buffer.next_observations[row]
        few.add(obs, next_obs, buffer.actions[row], buffer.rewards[row], buffer.dones[row], infos)
    return few


def time_samples(few: CompressedReplayBuffer, all_of_them: CompressedReplayBuffer, turns: int = 9) -> dict[str, float]:
    """Time ``sample(32)`` of two buffers in turns."""
    times: dict[str, list[float]] = {"few": [], "all": []}
    for _ in range(turns):
        for name, buffer in (("few", few), ("all", all_of_them)):
            times[name].append(time_calls(partial(buffer.sample, 32), seconds=1.0, at_most=400)["p25"])
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    """Run what the command line says."""
    parser = options(__doc__, cache=False)
    parser.add_argument("--transitions", type=int, default=1_000_000, help="how many, and the size of the buffer")
    parser.add_argument("--envs", type=int, default=8, help="number of games in processes of their own")
    parser.add_argument("--train-every", type=int, default=64, help="steps of all games between two gradient steps")
    parser.add_argument("--few", type=int, default=40_000, help="transitions in the buffer to compare samples with")
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
    watch = Watch(args.transitions, row, results)
    start = time.perf_counter()
    try:
        model.learn(args.transitions, callback=watch)
    finally:
        env.close()
    row["seconds"] = round(time.perf_counter() - start)
    settle()
    watch.look()
    buffer: Any = model.replay_buffer
    row["usage"] = str(buffer.memory_usage())
    row["few"] = min(args.few, args.transitions // 2)
    row["sample"] = time_samples(first_of(buffer, row["few"]), buffer)
    row["sample_ratio"] = round(row["sample"]["all"] / row["sample"]["few"], 3)
    row["reached"] = {"rss": row["peak_rss"] < LIMIT, "sample": row["sample_ratio"] <= SLOWER}
    results.put("million", row)
    plot_million(row, args.results / "million.png")
    console.print(
        f"\n{args.transitions:,} transitions in {row['seconds'] / 60:.1f} min; "
        f"process at most {row['peak_rss'] / 1e6:,.0f} MB; "
        f"sample(32) of {row['few']:,} takes {row['sample']['few']:.0f} µs, of all {row['sample']['all']:.0f} µs "
        f"({row['sample_ratio']}x); "
        f"reached: {row['reached']}"
    )


if __name__ == "__main__":
    main()
