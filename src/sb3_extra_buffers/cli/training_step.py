"""How long a training step takes here, buffers aside, and what buffers take beside it."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any

import gymnasium as gym
import stable_baselines3
import torch as th
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import DummyVecEnv

from sb3_extra_buffers.cli.children import Report
from sb3_extra_buffers.cli.choice import TrainingStep
from sb3_extra_buffers.cli.measure import (
    BATCH_SIZE,
    Measured,
    Played,
    add,
    by_turns,
    measuring,
    median_us,
    prepare_process,
    sample,
)
from sb3_extra_buffers.cli.recommend import ON_POLICY, policy_for

_SECONDS_OF_UPDATES = 6.0
_MOST_UPDATES = 30


class _Spaces(gym.Env[Any, Any]):
    """Only says what is seen and done."""

    def __init__(self, played: Played) -> None:
        self.observation_space = played.observation_space
        self.action_space = played.action_space


def processor_clock() -> Callable[[], int]:
    """
    Choose a clock that stands still while other programs have the processor; all threads of this one count.

    Otherwise other programs would slow a long update more than a short ``add``.
    """
    return time.process_time_ns if time.get_clock_info("process_time").resolution < 1e-6 else time.perf_counter_ns


def _make_model(played: Played, algorithm: str) -> tuple[Any, float]:
    """Make an algorithm with SB3's defaults, and tell how many steps of all environments it makes for each update."""
    env = DummyVecEnv([lambda: _Spaces(played)] * played.n_envs)
    kind, policy = getattr(stable_baselines3, algorithm), policy_for(played.observation_space)
    rows = max(2, -(-BATCH_SIZE // played.n_envs))
    if algorithm in ON_POLICY:
        batch: dict[str, Any] = {"batch_size": rows * played.n_envs, "n_epochs": 1} if algorithm == "PPO" else {}
        epochs = inspect.signature(kind).parameters["n_epochs"].default if algorithm == "PPO" else 1
        return kind(policy, env, n_steps=rows, **batch), BATCH_SIZE / (epochs * played.n_envs)
    model = kind(policy, env, buffer_size=rows * played.n_envs)
    return model, model.train_freq.frequency / max(1, model.gradient_steps)


def _updating(played: Played, algorithm: str) -> Generator[int, None, TrainingStep]:
    """Update a policy again and again, with one batch of what was played: the time of a buffer is measured elsewhere."""
    prepare_process()
    model, adds = _make_model(played, algorithm)
    model.set_logger(Logger(folder=None, output_formats=[]))
    on_policy = algorithm in ON_POLICY
    buffer = model.rollout_buffer if on_policy else model.replay_buffer
    for _, step in zip(range(buffer.buffer_size), played.replay(), strict=False):
        add(buffer, step)
    batch = sample(buffer, BATCH_SIZE)
    if on_policy:
        buffer.get = lambda *_, **__: iter([batch])
    else:
        buffer.sample = lambda *_, **__: batch
    clock = processor_clock() if model.device.type == "cpu" else time.perf_counter_ns
    times: list[int] = []
    for number in range(1 + _MOST_UPDATES):
        start = clock()
        model.train() if on_policy else model.train(gradient_steps=1, batch_size=BATCH_SIZE)
        if model.device.type == "cuda":
            th.cuda.synchronize(model.device)
        if number > 0:  # the first allocates what the others use
            times.append(clock() - start)
        if sum(times) > 1e9 * _SECONDS_OF_UPDATES:
            break
        yield 0
    return TrainingStep(algorithm, median_us(times), played.step_us, adds)


def measure_beside_training(
    played: Played, methods: Sequence[str | None], algorithm: str, report: Report
) -> tuple[TrainingStep, list[Measured]]:
    """Measure the update of a policy and buffers by turns, in one process; None is SB3's own buffer."""
    on_policy, clock = algorithm in ON_POLICY, processor_clock()
    buffers = [measuring(played, method, 20, on_policy, clock) for method in methods]
    step, *figures = by_turns([_updating(played, algorithm), *buffers], report)
    return step, figures
