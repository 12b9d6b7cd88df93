"""
The blind cliff walk: how many updates until the one reward is learned, uniform against prioritized replay.

After Schaul et al. 2016, section 3.1 and appendix B.1. A corridor of n states; in each, one of two actions goes on and the
other falls off the cliff. Only a whole walk is rewarded: of the 2 ** (n + 1) - 2 transitions that all 2 ** n action
sequences give, exactly one. The buffer is filled with all of them, then updates are counted.

    python benchmarks/cliffwalk.py            # measure and draw; took 18 minutes on two busy cores
    python benchmarks/cliffwalk.py --quick    # up to 8 states and 3 seeds, half a minute; draws nothing
    python benchmarks/cliffwalk.py --draw     # draw the figure from the results that are there
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import stable_baselines3
import torch as th
from gymnasium import spaces
from stable_baselines3 import DQN
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.logger import configure
from stable_baselines3.common.utils import polyak_update

from sb3_extra_buffers import __version__
from sb3_extra_buffers.compressed import CompressedReplayBuffer
from sb3_extra_buffers.compressed.prioritized import CompressedPrioritizedReplayBuffer
from sb3_extra_buffers.training_utils.prioritized_dqn import PrioritizedDQN

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "cliffwalk.json"
FIGURE = ROOT / "docs" / "_static" / "cliffwalk.png"

STEP_SIZE = 0.25
LARGEST_ERROR = 1e-3
BATCH = 32
TARGET_EVERY = 100
CHECK_EVERY = 10

Transition = tuple[int, int, float, bool]


class CliffWalk(gym.Env[np.ndarray, int]):
    """The corridor, seen as a one-hot vector. Which action goes on alternates, so that nothing generalises."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.state = 0
        self.observation_space = spaces.Box(0, 1, (n,), np.float32)
        self.action_space = spaces.Discrete(2)

    def _observe(self) -> np.ndarray:
        return np.eye(self.n, dtype=np.float32)[self.state % self.n]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.state = 0
        return self._observe(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        on = int(action) == self.state % 2
        self.state += 1
        arrived = on and self.state == self.n
        return self._observe(), float(arrived), arrived or not on, False, {}


def all_walks(n: int, rng: np.random.Generator) -> Iterator[Transition]:
    """State, action, reward and end of every step of all action sequences, in random order."""
    for sequence in rng.permutation(2**n):
        for state in range(n):
            action = int(sequence >> state) & 1
            on = action == state % 2
            arrived = on and state == n - 1
            yield state, action, float(arrived), arrived or not on
            if not on:
                break


def fill(buffer: ReplayBuffer, n: int, rng: np.random.Generator, observe: Callable[[int], Any]) -> None:
    for state, action, reward, end in all_walks(n, rng):
        obs, following = np.array([observe(state)]), np.array([observe((state + 1) % n)])
        buffer.add(obs, following, np.array([action]), np.array([reward]), np.array([end]), [{}])


def true_values(n: int) -> np.ndarray:
    gamma = 1 - 1 / n
    values = np.zeros((n, 2))
    for state in range(n):
        values[state, state % 2] = gamma ** (n - 1 - state)
    return values


class QTable:
    """Q-learning, one transition at a time. Plain numbers: an array of 26 would be slower."""

    def __init__(self, n: int, rng: np.random.Generator) -> None:
        self.gamma = 1 - 1 / n
        self.truth = true_values(n).tolist()
        self.values = rng.normal(0, 0.1, (n, 2)).tolist()
        self.allowed = LARGEST_ERROR * 2 * n

    def error(self, state: int, action: int, reward: float, following: int, end: float) -> float:
        return reward + (1 - end) * self.gamma * max(self.values[following]) - self.values[state][action]

    def update(self, state: int, action: int, reward: float, following: int, end: float) -> float:
        error = self.error(state, action, reward, following, end)
        self.values[state][action] += STEP_SIZE * error
        return abs(error)

    def learned(self) -> bool:
        total = 0.0
        for (one, other), (true_one, true_other) in zip(self.values, self.truth, strict=True):
            total += (one - true_one) ** 2 + (other - true_other) ** 2
            if total >= self.allowed:
                return False
        return True


def tabular_uniform(n: int, seed: int) -> int:
    rng = np.random.default_rng(seed)
    buffer = CompressedReplayBuffer(2 ** (n + 1) - 2, spaces.Discrete(n), spaces.Discrete(2), device="cpu")
    fill(buffer, n, rng, lambda state: state)
    np.random.seed(seed)
    table = QTable(n, rng)
    updates = 0
    while True:
        # Uniform draws do not depend on what is learned: many at a time are the same as one at a time, but cheaper.
        batch = buffer.sample(256)
        columns = (batch.observations, batch.actions, batch.rewards, batch.next_observations, batch.dones)
        for transition in zip(*(column.ravel().tolist() for column in columns), strict=True):
            table.update(*transition)
            updates += 1
            if table.learned():
                return updates


def tabular_prioritized(n: int, seed: int) -> int:
    rng = np.random.default_rng(seed)
    buffer = CompressedPrioritizedReplayBuffer(
        2 ** (n + 1) - 2, spaces.Discrete(n), spaces.Discrete(2), device="cpu", beta=0.0
    )  # nothing to correct for: a table and a world without chance have the same values whatever is replayed
    fill(buffer, n, rng, lambda state: state)
    np.random.seed(seed)
    table = QTable(n, rng)
    updates = 0
    while True:
        batch = buffer.sample(1)
        error = table.update(
            int(batch.observations), int(batch.actions), float(batch.rewards), int(batch.next_observations), float(batch.dones)
        )
        buffer.update_priorities(batch.indices, [error])
        updates += 1
        if table.learned():
            return updates


def tabular_oracle(n: int, seed: int) -> int:
    """Always the transition that, in hindsight, brings the table closest to the truth."""
    table = QTable(n, np.random.default_rng(seed))
    distinct = [
        (state, action, reward, (state + 1) % n, end)
        for state, action, reward, end in set(all_walks(n, np.random.default_rng(0)))
    ]

    def closer(transition: tuple[int, int, float, int, float]) -> float:
        state, action = transition[:2]
        before = table.values[state][action] - table.truth[state][action]
        return float(before**2 - (before + STEP_SIZE * table.error(*transition)) ** 2)

    updates = 0
    while not table.learned():
        table.update(*max(distinct, key=closer))
        updates += 1
    return updates


def deep(algorithm: type[DQN], n: int, seed: int) -> int:
    """Gradient steps until a network knows the values; nothing but the class differs."""
    model = algorithm(
        "MlpPolicy",
        CliffWalk(n),
        learning_rate=1e-3,
        buffer_size=2 ** (n + 1) - 2,
        gamma=1 - 1 / n,
        replay_buffer_class=None if algorithm is PrioritizedDQN else CompressedReplayBuffer,
        policy_kwargs={"net_arch": [64]},
        seed=seed,
        device="cpu",
    )
    model.set_logger(configure(format_strings=[]))
    states = np.eye(n, dtype=np.float32)
    assert model.replay_buffer is not None
    fill(model.replay_buffer, n, np.random.default_rng(seed), lambda state: states[state])
    everywhere, truth = th.as_tensor(states), th.as_tensor(true_values(n))
    updates = 0
    while True:
        model.train(gradient_steps=CHECK_EVERY, batch_size=BATCH)
        updates += CHECK_EVERY
        if updates % TARGET_EVERY == 0:
            polyak_update(model.q_net.parameters(), model.q_net_target.parameters(), 1.0)
        with th.no_grad():
            if th.mean((model.q_net(everywhere) - truth) ** 2) < LARGEST_ERROR:
                return updates


def deep_uniform(n: int, seed: int) -> int:
    return deep(DQN, n, seed)


def deep_prioritized(n: int, seed: int) -> int:
    return deep(PrioritizedDQN, n, seed)


METHODS = {f.__name__: f for f in (tabular_uniform, tabular_prioritized, tabular_oracle, deep_uniform, deep_prioritized)}


def _one_thread() -> None:
    th.set_num_threads(1)


def _run(job: tuple[str, int, int]) -> int:
    method, n, seed = job
    return METHODS[method](n, seed)


def measure(sizes: list[int], seeds: int, deep_seeds: int, processes: int) -> dict[str, Any]:
    jobs = [
        (method, n, seed)
        for n in sorted(sizes, reverse=True)  # the long ones first, so that no process is left alone with one at the end
        for method in METHODS
        for seed in range(deep_seeds if method.startswith("deep") else seeds)
    ]
    start = time.perf_counter()
    found: dict[tuple[str, int, int], int] = {}
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), _one_thread) as pool:
        for job, count in zip(jobs, pool.map(_run, jobs), strict=True):
            found[job] = count
            print(f"{len(found)} of {len(jobs)}: {job[0]}, {job[1]} states: {count}", flush=True)
    updates: dict[str, dict[str, list[int]]] = {method: {str(n): [] for n in sizes} for method in METHODS}
    for (method, n, _), count in sorted(found.items()):
        updates[method][str(n)].append(count)
    return {
        "what": "updates until the mean squared error of the values is below largest_error, one number a seed",
        "settings": {
            "step_size": STEP_SIZE,
            "largest_error": LARGEST_ERROR,
            "gamma": "1 - 1/n",
            "alpha": 0.6,
            "beta": {"tabular": 0, "deep": 0.4},
            "deep": {"batch": BATCH, "learning_rate": 1e-3, "net_arch": [64], "target_every": TARGET_EVERY},
        },
        "updates": updates,
        "seconds": round(time.perf_counter() - start),
        "versions": {
            "sb3_extra_buffers": __version__,
            "stable_baselines3": stable_baselines3.__version__,
            "torch": th.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
    }


# Colours that a colour-blind reader can tell apart (Okabe and Ito), and other markers for a black-and-white print.
STYLES: dict[str, dict[str, Any]] = {
    "uniform": {"color": "#0072B2", "marker": "o"},
    "prioritized": {"color": "#D55E00", "marker": "s"},
    "oracle": {"color": "#5F5F5F", "marker": None, "linestyle": (0, (4, 2))},
}
PANELS = {
    "Q-learning, a table": {
        "uniform": ("tabular_uniform", "CompressedReplayBuffer"),
        "prioritized": ("tabular_prioritized", "CompressedPrioritizedReplayBuffer"),
        "oracle": ("tabular_oracle", "oracle: the best transition in hindsight"),
    },
    "Deep Q-network, batches of 32": {
        "uniform": ("deep_uniform", "DQN"),
        "prioritized": ("deep_prioritized", "PrioritizedDQN"),
    },
}


def draw(results: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    plt.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "axes.titlelocation": "left"})
    figure, axes = plt.subplots(1, 2, figsize=(10, 4.4), layout="constrained")
    for axis, (title, curves) in zip(axes, PANELS.items(), strict=True):
        last: dict[str, float] = {}
        for kind, (method, label) in curves.items():
            counts = {int(n): values for n, values in results["updates"][method].items()}
            x = [2 ** (n + 1) - 2 for n in counts]
            median = [float(np.median(values)) for values in counts.values()]
            low, high = (list(map(edge, counts.values())) for edge in (min, max))
            style = STYLES[kind]
            axis.fill_between(x, low, high, color=style["color"], alpha=0.15, linewidth=0)
            axis.plot(x, median, label=label, linewidth=2, markersize=5, **style)
            last[kind] = median[-1]
        gain = last["uniform"] / last["prioritized"]
        axis.annotate(
            "",
            (x[-1] * 1.35, last["prioritized"]),
            (x[-1] * 1.35, last["uniform"]),
            arrowprops={"arrowstyle": "<->", "color": "#333333", "shrinkA": 0, "shrinkB": 0},
            annotation_clip=False,
        )
        middle = np.sqrt(last["uniform"] * last["prioritized"])
        axis.text(x[-1] * 1.5, middle, f"{gain:.1f}\N{MULTIPLICATION SIGN}", va="center", fontweight="bold", color="#333333")
        axis.set(xscale="log", yscale="log", title=title, xlabel="transitions in the buffer, one of them rewarded")
        few = max(last.values()) < 20_000  # less than two decades want more than a number a decade
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if few else (1,)))
        for each in (axis.xaxis, axis.yaxis):
            each.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
            each.set_minor_formatter(NullFormatter())
        axis.grid(True, which="major", color="#DDDDDD", linewidth=0.7)
        axis.set_axisbelow(True)
        axis.legend(frameon=False, loc="upper left", fontsize=9)
    axes[0].set_ylabel("updates until learned (MSE < 0.001)")
    axes[1].set_ylabel("gradient steps until learned (MSE < 0.001)")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=160)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description="Blind cliff walk: uniform against prioritized replay.")
    parser.add_argument("--draw", action="store_true", help="draw the figure from the results that are there")
    parser.add_argument("--quick", action="store_true", help="a small run that is printed only")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    if options.quick:
        results = measure(list(range(2, 9)), seeds=3, deep_seeds=2, processes=options.processes)
    elif options.draw:
        results = json.loads(RESULTS.read_text(encoding="utf-8"))
    else:
        results = measure(list(range(2, 14)), seeds=10, deep_seeds=5, processes=options.processes)
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    for method, counts in results["updates"].items():
        print(f"{method:20}", *(f"{int(np.median(values)):>7}" for values in counts.values()))
    if not options.quick:
        draw(results, FIGURE)
        print(f"drew {FIGURE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
