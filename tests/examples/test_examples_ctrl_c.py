"""Ctrl-C, as a terminal sends it, in examples with workers: they save what was learned and end without a traceback."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.callbacks import BaseCallback

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")

EXAMPLES = Path(__file__).parents[2] / "examples"
GAMES = ["--envs", "2", "--eval-envs", "2"]
# What trains, what it needs, what it prints when training is under way, and the model that it leaves behind.
TRAINING: dict[str, tuple[str, list[str], Any, str]] = {
    "example_ppo_atari": ("ale_py", GAMES, PPO, "ppo_Pong_1.zip"),
    "example_dqn_atari": ("ale_py", GAMES, DQN, "dqn_MsPacman_4.zip"),
    "example_ppo_vizdoom": ("vizdoom", GAMES, PPO, "ppo_defend_the_center_mask.zip"),
    "example_dqn_vizdoom": ("vizdoom", GAMES, DQN, "dqn_defend_the_center_mask.zip"),
    "example_train_gpu_replay": ("ale_py", ["--envs", "2"], DQN, "model.zip"),
    "example_train_gpu_rollout": ("ale_py", ["--envs", "2"], PPO, "model.zip"),
}
# Each takes as long as it takes to start four workers that import torch.
FAST = ("example_dqn_vizdoom",)


def slow_unless_in(fast: tuple[str, ...], names: list[str]) -> list[Any]:
    return [pytest.param(name, marks=[pytest.mark.slow] * (name not in fast)) for name in names]


def interrupt(name: str, arguments: list[str], until: str, presses: int = 3) -> tuple[int, str]:
    """Start an example, press Ctrl-C as often as an impatient user does when it has said something, and see how it ends."""
    command = [sys.executable, "-u", str(EXAMPLES / f"{name}.py"), *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
    said = ""
    assert process.stdout is not None
    try:
        while until not in said:
            line = process.stdout.readline()
            assert line, said
            said += line
        time.sleep(0.3)
        for _ in range(presses):
            os.killpg(process.pid, signal.SIGINT)
            time.sleep(0.05)
        said += process.communicate(timeout=600)[0]
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    assert "Traceback" not in said and "Error" not in said, said
    return process.returncode, said


@pytest.mark.parametrize("name", slow_unless_in(FAST, list(TRAINING)))
def test_what_was_learned_is_kept(name: str, tmp_path: Path) -> None:
    library, options, algorithm, model = TRAINING[name]
    pytest.importorskip(library)
    where = ["--model", str(tmp_path / model)] if "gpu" in name else ["--folder", str(tmp_path)]
    # SB3 shows the first figures after a rollout of PPO, and after four episodes of DQN.
    code, said = interrupt(name, [*options, *where], until="total_timesteps")
    assert code == 0
    assert "Stopped early; what it has learned so far is kept." in said and f"saved {tmp_path / model}" in said
    # Nothing was learned before 100,000 steps; a replay buffer for so many need not be made.
    loaded = algorithm.load(tmp_path / model, custom_objects={"buffer_size": 1}, device="cpu")
    assert loaded.num_timesteps > 0
    assert [path.name for path in tmp_path.glob("*.zip")] == [model], "nothing unfinished is left"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["example_eval_memory_saving", "example_vizdoom_memory"])
def test_where_nothing_is_learned_it_just_stops(name: str) -> None:
    pytest.importorskip("vizdoom" if "vizdoom" in name else "ale_py")
    code, said = interrupt(name, ["--transitions", "40000"], until="Playing")
    assert code == 130 and said.endswith("Stopped.\n")


@pytest.fixture
def common(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    before = signal.getsignal(signal.SIGINT)
    yield importlib.import_module("common")
    signal.signal(signal.SIGINT, before)


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


class Pressed(BaseCallback):
    """Ctrl-C, twice, in the middle of training."""

    def _on_step(self) -> bool:
        if self.num_timesteps > 20:
            try:
                press()
                time.sleep(1)
            finally:
                press()
        return True


class PressedWhileSaving(PPO):
    """PPO, and somebody who presses Ctrl-C while it saves."""

    def save(self, *args: Any, **kwargs: Any) -> None:
        press()
        super().save(*args, **kwargs)
        press()


def small(algorithm: type[PPO]) -> PPO:
    return algorithm("MlpPolicy", "CartPole-v1", n_steps=64, device="cpu")


def test_pressing_it_again_and_again_does_no_harm(common: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = small(PressedWhileSaving)
    common.run(partial(common.learn, model, 10_000, tmp_path / "here" / "model.zip", Pressed()))
    assert "Stopped early" in capsys.readouterr().out
    assert PPO.load(tmp_path / "here" / "model.zip").num_timesteps == 21
    assert [path.name for path in (tmp_path / "here").iterdir()] == ["model.zip"]


@pytest.mark.parametrize("keep", ["save", "SaveBest"])
def test_a_model_is_saved_whole_or_not_at_all(common: Any, keep: str, tmp_path: Path) -> None:
    class Interrupted(PPO):
        def save(self, path: Any, **kwargs: Any) -> None:  # type: ignore[override]
            Path(path).write_bytes(b"half a mod")
            raise OSError("no space left")

    def with_callback(model: PPO, path: Path) -> None:
        callback = common.SaveBest(path)
        callback.init_callback(model)
        assert callback.on_step()

    put: Callable[[PPO, Path], None] = with_callback if keep == "SaveBest" else common.save
    path = tmp_path / "model.zip"
    before = signal.getsignal(signal.SIGINT)
    put(small(PressedWhileSaving), path)
    assert signal.getsignal(signal.SIGINT) is before
    whole = path.read_bytes()
    with pytest.raises(OSError, match="no space left"):
        put(small(Interrupted), path)
    assert path.read_bytes() == whole
    assert PPO.load(path).n_steps == 64
