"""
Hindsight experience replay: SB3's buffer and ours, alternating, each in its own process, on goals with and without pictures.

SB3 looks through every slot of the buffer at each sample to see which are valid; ours keeps count.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from kit.process import anonymous_bytes, digest, report, run_worker, settle, summary
from kit.results import ResultFile, console, options

SIDES = ("sb3", "ours")
LIMIT = 1.0
N_ENVS, EPISODE, BATCH = 4, 50, 256
SIZES = {"vectors": 200_000, "images": 20_000}
METRICS = ("memory", "add", "sample")


def space_of(kind: str) -> spaces.Dict:
    """Say what observations look like."""
    seen = spaces.Box(0, 255, (3, 64, 64), np.uint8) if kind == "images" else spaces.Box(-1, 1, (20,), np.float32)
    goal = spaces.Box(0, 64, (2,), np.float32)
    return spaces.Dict({"observation": seen, "achieved_goal": goal, "desired_goal": goal})


class Goals(gym.Env[dict[str, Any], np.ndarray[Any, Any]]):
    """What the buffer asks an environment: its reward."""

    def __init__(self, kind: str) -> None:
        self.observation_space: Any = space_of(kind)
        self.action_space: Any = spaces.Box(-1, 1, (2,), np.float32)

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
        """Reward being near."""
        return -(np.linalg.norm(achieved - desired, axis=-1) > 1).astype(np.float32)


class Walk:
    """A square that moves over a picture, or a vector that drifts, in each environment."""

    def __init__(self, kind: str) -> None:
        rng = np.random.default_rng(0)
        self._ground = rng.integers(0, 255, (N_ENVS, 3, 64, 64), dtype=np.uint8) if kind == "images" else None
        self._table = rng.random((1009, N_ENVS, 20), dtype=np.float32)

    def at(self, step: int) -> dict[str, Any]:
        """Give the observations of a step."""
        places = [((2 * step + 9 * env) % 56, (step + 5 * env) % 56) for env in range(N_ENVS)]
        if self._ground is None:
            seen = self._table[step % len(self._table)]
        else:
            seen = self._ground.copy()
            for env, (x, y) in enumerate(places):
                seen[env, :, y : y + 8, x : x + 8] = 200
        achieved = np.array(places, dtype=np.float32)
        return {"observation": seen, "achieved_goal": achieved, "desired_goal": np.full((N_ENVS, 2), 30, np.float32)}

    def add(self, buffer: Any, step: int) -> int:
        """Add a step."""
        obs, following = self.at(step), self.at(step + 1)
        done = np.array([(step + 7 * env) % EPISODE == 0 for env in range(N_ENVS)])
        start = time.perf_counter_ns()
        buffer.add(obs, following, np.zeros((N_ENVS, 2), np.float32), np.zeros(N_ENVS), done, [{}] * N_ENVS)
        return time.perf_counter_ns() - start


def measure(job: Mapping[str, Any]) -> dict[str, Any]:
    """Measure one side."""
    from stable_baselines3 import HerReplayBuffer
    from stable_baselines3.common.vec_env import DummyVecEnv

    from sb3_extra_buffers.compressed import CompressedHerReplayBuffer

    kind = job["kind"]
    cls = HerReplayBuffer if job["side"] == "sb3" else CompressedHerReplayBuffer
    env = DummyVecEnv([lambda: Goals(kind)] * N_ENVS)
    walk, space = Walk(kind), space_of(kind)
    small = cls(400, space, env.action_space, env, "cpu", N_ENVS)
    for step in range(150):
        walk.add(small, step)
    small.sample(BATCH)
    del small
    settle()
    before = anonymous_bytes()
    buffer = cls(job["transitions"], space, env.action_space, env, "cpu", N_ENVS)
    rows = job["transitions"] // N_ENVS + EPISODE
    adds = [walk.add(buffer, step) for step in range(rows)]
    settle()
    memory = anonymous_bytes() - before
    np.random.seed(0)
    samples = []
    digests = []
    for number in range(job["samples"]):
        walk.add(buffer, rows + number)
        start = time.perf_counter_ns()
        batch = buffer.sample(BATCH)
        samples.append(time.perf_counter_ns() - start)
        if number < 5:
            digests.append(digest([*batch.observations.values(), *batch.next_observations.values(), *batch[1:2], *batch[3:5]]))
    return {"memory": memory, "add": summary(adds), "sample": summary(samples), "digests": digests}


def compare(kind: str, transitions: int, rounds: int, samples: int) -> dict[str, Any]:
    """Measure both sides in turns."""
    done: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
    for number in range(rounds):
        for side in SIDES:
            run = run_worker("her", {"kind": kind, "side": side, "transitions": transitions, "samples": samples})
            if "error" in run:
                return {"error": run["error"]}
            done[side].append(run)
            console.print(
                f"{kind} {number + 1}/{rounds} {side:5} {run['memory'] / 1e6:,.1f} MB  add {run['add']['p25']:.0f} µs  "
                f"sample({BATCH}) {run['sample']['p25']:,.0f} µs"
            )
    middle = {
        side: {
            "memory": statistics.median(run["memory"] for run in runs),
            **{name: statistics.median(run[name]["p25"] for run in runs) for name in ("add", "sample")},
        }
        for side, runs in done.items()
    }
    ratios = {name: round(middle["ours"][name] / middle["sb3"][name], 4) for name in METRICS}
    identical = len({json.dumps(run["digests"]) for runs in done.values() for run in runs}) == 1
    return {
        "transitions": transitions,
        "rounds": rounds,
        **middle,
        "ratios": ratios,
        "identical": identical,
        "elsewhere": max(run["elsewhere"] for runs in done.values() for run in runs),
        "reached": {"sample": ratios["sample"] <= LIMIT, "identical": identical},
    }


def main() -> None:
    """Run what the command line says."""
    parser = options(__doc__, cache=False)
    parser.add_argument("--rounds", type=int, default=3, help="runs of each side")
    parser.add_argument("--transitions", type=int, help="size of the buffers")
    parser.add_argument("--samples", type=int, default=200, help="samples to time")
    args = parser.parse_args()
    if args.worker:
        report(measure(json.loads(args.worker)))
        return
    results = ResultFile("her", args.results)
    for kind, transitions in SIZES.items():
        results.put(kind, compare(kind, args.transitions or transitions, args.rounds, args.samples))
        console.print(results.rows[kind], soft_wrap=True)


if __name__ == "__main__":
    main()
