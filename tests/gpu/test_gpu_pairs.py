"""Two features at a time, each beside SB3's buffer: reset, saving, copies, resuming, n-step returns and a full heap."""

from __future__ import annotations

import contextlib
import copy
import pickle
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from gpu_kit import Pair, SmallReplay, image, rollout_pair
from gymnasium import Env, spaces
from observation_streams import space_of
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.buffers import NStepReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback

from sb3_extra_buffers import GpuReplayBuffer, GpuRolloutBuffer, ResumableCheckpoint, resume
from sb3_extra_buffers.gpu_buffers import HeapFullError
from sb3_extra_buffers.testing import assert_same

ROWS = 9


def saved(buffer: Any, folder: Path) -> Any:
    buffer.save(folder / "buffer")
    return type(buffer).load(folder / "buffer", device="cpu")


def pickled(buffer: Any, _: Path) -> Any:
    return pickle.loads(pickle.dumps(buffer))


def copied(buffer: Any, _: Path) -> Any:
    return copy.deepcopy(buffer)


def reset(buffer: Any, _: Path) -> Any:
    buffer.reset()
    return buffer


def refused(buffer: Any, _: Path) -> Any:
    """What does not fit is not there."""
    args = (np.zeros((2, 7)), np.zeros((2, 7)), np.zeros(2), np.zeros(2), np.zeros(2), [{}, {}])
    with pytest.raises(ValueError, match="shape"):
        buffer.add(*args)
    return buffer


STEPS: dict[str, Callable[[Any, Path], Any]] = {
    "saved": saved,
    "pickled": pickled,
    "copied": copied,
    "reset": reset,
    "compacted": lambda buffer, _: buffer.compact() or buffer,
    "refused": refused,
}


@pytest.mark.parametrize("method", ["delta", "none", pytest.param("rle", marks=pytest.mark.slow)])
def test_of_a_replay_buffer(method: str, tmp_path: Path) -> None:
    for first, second in product(STEPS, STEPS):
        for before, between in ((5, 0), (2 * ROWS + 3, 4)):
            pair = Pair(image(1), ROWS, compression_method=method)
            pair.add(before)
            for step, count in ((first, between), (second, 3)):
                pair.ours = STEPS[step](pair.ours, tmp_path)
                if step == "reset":
                    pair.theirs.reset()
                pair.add(count)
            try:
                if "saved" in (first, second) and "reset" in (first, second):
                    pair.add(2 * ROWS)  # a file holds the rows in use, so those before a reset are not in it
                pair.check()
                pair.add(ROWS + 2)
                pair.check()
            except AssertionError as error:
                raise AssertionError(f"{before} rows, {first}, {between} rows, {second}: {error}") from error


def test_of_a_rollout_buffer(tmp_path: Path) -> None:
    for first, second in product([name for name in STEPS if name != "refused"], repeat=2):
        stream = image(2)
        ours, theirs = rollout_pair(stream, ROWS)
        rng = np.random.default_rng(0)
        for step, count in ((first, 4), (second, 3), (None, ROWS)):
            while not ours.full and count:
                obs, _, dones, _ = stream.step()
                numbers = rng.standard_normal((2, 2)).astype(np.float32)
                for buffer in (ours, theirs):
                    buffer.add(obs, np.zeros(2), numbers[0], dones, th.zeros(2), th.as_tensor(numbers[1]))
                count -= 1
            if step:
                ours = STEPS[step](ours, tmp_path)
            if step == "reset":
                theirs.reset()
        batches = []
        for buffer in (ours, theirs):
            np.random.seed(0)
            buffer.compute_returns_and_advantage(th.zeros(2), np.zeros(2))
            batches.append([*buffer.get(5), *buffer.get()])
        assert_same(batches[0], batches[1], f"{first}, then {second}: minibatches")


class GpuNStep(NStepReplayBuffer, SmallReplay):
    """SB3's n-step returns over observations on a device."""


def test_of_n_step_returns(tmp_path: Path) -> None:
    for first, second in product(["pickled", "copied", "reset", "compacted"], repeat=2):
        pair = Pair(image(3), ROWS)
        args = (ROWS * 2, space_of(pair.stream), spaces.Discrete(4), "cpu", 2)
        pair.ours, pair.theirs = (cls(*args, n_steps=3, gamma=0.9) for cls in (GpuNStep, NStepReplayBuffer))
        for step in (first, second):
            pair.add(ROWS + 4)
            pair.ours = STEPS[step](pair.ours, tmp_path)
            if step == "reset":
                pair.theirs.reset()
            pair.add(2)
            samples = []
            for buffer in (pair.ours, pair.theirs):
                np.random.seed(0)
                samples.append(buffer.sample(20))
            assert_same(samples[0], samples[1], f"n-step, {first}, {second}: sample")


def test_of_a_full_heap(tmp_path: Path) -> None:
    """The heap refuses rows, before and after it is copied or emptied, and those that it has taken stay."""
    for step in STEPS:
        pair = Pair(image(9, "noise", 1), 40, heap_bytes=3000)
        for action in (None, step, "reset"):
            if action:
                pair.ours = STEPS[action](pair.ours, tmp_path)
            if action == "reset":
                pair.theirs.reset()
            refusals = 0
            for _ in range(60):
                given = pair.draw()
                try:
                    pair.ours.add(*given)
                except HeapFullError:
                    refusals += 1
                else:
                    pair.theirs.add(*given)
            if step != "saved":
                pair.check()
            assert refusals > 0 or action == "saved", step  # a loaded buffer looks for a stack again, with room to spare
            used = np.asarray(pair.ours.observations)[: pair.ours.pos]
            assert np.array_equal(used, pair.theirs.observations[: pair.theirs.pos]), step


class Pictures(Env[Any, Any]):
    """Frames of a square that is moved, in stacks of three."""

    observation_space = spaces.Box(0, 255, (3, 36, 36), np.uint8)
    action_space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.steps = int(self.np_random.integers(4, 30)), 0
        self.stack = np.zeros((3, 36, 36), np.uint8)
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.place, self.steps = (self.place + int(action) - 1) % 30, self.steps + 1
        return self._observe(), float(self.place == 15), self.place == 15, self.steps >= 12, {}

    def _observe(self) -> Any:
        frame = np.zeros((1, 36, 36), np.uint8)
        frame[0, self.place : self.place + 5, self.steps : self.steps + 5] = 200
        self.stack = np.concatenate([self.stack[1:], frame])
        return self.stack.copy()


class StopTrainingAt(BaseCallback):
    """Ctrl-C after so many steps."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps = steps

    def _on_step(self) -> bool:
        if self.num_timesteps >= self.steps:
            raise KeyboardInterrupt
        return True


@pytest.mark.parametrize("algorithm", [DQN, PPO])
def test_of_a_run_that_is_resumed(algorithm: Any, tmp_path: Path, one_thread: Any) -> None:
    """It is resumed twice, and ends with the weights of a run with SB3's buffer that was never stopped."""
    options: dict[str, Any] = {"seed": 3, "device": "cpu", "policy_kwargs": {"net_arch": [8]}}
    kind = {"rollout_buffer_class": GpuRolloutBuffer}
    options |= {"n_steps": 16, "batch_size": 16, "n_epochs": 2}
    if algorithm is DQN:
        kind = {"replay_buffer_class": GpuReplayBuffer}
        options = {**options, "buffer_size": 70, "learning_starts": 20, "batch_size": 8}
        del options["n_steps"], options["n_epochs"]
    whole = algorithm("MlpPolicy", Pictures(), **options).learn(160)
    model = algorithm("MlpPolicy", Pictures(), **options, **kind)
    for stop in (53, 101, 161):
        callbacks = [ResumableCheckpoint(tmp_path, every=16), StopTrainingAt(stop)]
        with contextlib.suppress(KeyboardInterrupt):
            model.learn(160 - model.num_timesteps, callback=callbacks, reset_num_timesteps=model.num_timesteps == 0)
        if stop < 160:
            model = resume(tmp_path, Pictures(), device="cpu")
            assert stop - 40 < model.num_timesteps < stop
    assert model.num_timesteps == whole.num_timesteps
    assert_same(dict(model.policy.state_dict()), dict(whole.policy.state_dict()))
    if algorithm is DQN:
        assert isinstance(model.replay_buffer, GpuReplayBuffer) and model.replay_buffer.full
