"""BufferStatsCallback: what it logs is true, reaches every kind of log, and leaves the buffer as it was."""

from __future__ import annotations

import copy
import csv
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from small_envs import PicturesAndPlaces, several
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.callbacks import BaseCallback, CallbackList, CheckpointCallback
from stable_baselines3.common.logger import configure

from sb3_extra_buffers.compressed import CompressedReplayBuffer, CompressedRolloutBuffer, compressed_kwargs
from sb3_extra_buffers.training_utils import BufferStatsCallback, CompressRollouts

KEYS = {"buffer/rss_mb", "buffer/stored_mb", "buffer/ratio", "buffer/add_us", "buffer/sample_us"}


def dqn(**options: Any) -> DQN:
    return DQN(
        "CnnPolicy", several(stack=4), buffer_size=900, learning_starts=30, batch_size=4, seed=1, device="cpu", **options
    )


def ppo(**options: Any) -> PPO:
    return PPO("CnnPolicy", several(stack=4), n_steps=16, batch_size=12, n_epochs=1, seed=1, device="cpu", **options)


MODELS = {
    "dqn": dqn,
    "dqn-compressed": lambda: dqn(replay_buffer_class=CompressedReplayBuffer),
    "ppo": ppo,
    "ppo-compressed": lambda: ppo(rollout_buffer_class=CompressedRolloutBuffer),
}


def buffer_of(model: Any) -> Any:
    return getattr(model, "replay_buffer", None) or model.rollout_buffer


class Probe(BaseCallback):
    """Runs something of its own at every step."""

    def __init__(self, look: Any) -> None:
        super().__init__()
        self.look = look

    def _on_step(self) -> bool:
        self.look(self.model)
        return True


def csv_rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "progress.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("name", MODELS)
def test_figures_reach_every_log(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    model = MODELS[name]()
    model.set_logger(configure(str(tmp_path), ["stdout", "csv", "tensorboard"]))
    model.learn(300, callback=BufferStatsCallback(every_seconds=0))
    model.logger.close()

    rows = csv_rows(tmp_path)
    assert len(rows) >= 3 and rows[-1].keys() >= KEYS
    last = {key: float(rows[-1][key]) for key in KEYS}
    assert min(last.values()) > 0
    events = event_accumulator.EventAccumulator(str(tmp_path))
    events.Reload()
    assert set(events.Tags()["scalars"]) >= KEYS
    for key in KEYS:
        assert events.Scalars(key)[-1].value == pytest.approx(last[key], rel=1e-6)
    shown = capsys.readouterr().out
    assert "buffer/" in shown and "rss_mb" in shown and "sample_us" in shown

    buffer = buffer_of(model)
    if "compressed" in name:
        assert last["buffer/ratio"] > 2
        # Off-policy, a little was added after the last episode that was logged.
        usage = buffer.memory_usage()
        assert last["buffer/stored_mb"] == pytest.approx(usage.total_bytes / 1e6, rel=0.2)
    else:
        arrays = [buffer.observations, *([buffer.next_observations] if "dqn" in name else [])]
        assert last["buffer/stored_mb"] == sum(array.nbytes for array in arrays) / 1e6
        assert last["buffer/ratio"] == 1
    psutil = pytest.importorskip("psutil")
    assert last["buffer/rss_mb"] == pytest.approx(psutil.Process().memory_info().rss / 1e6, rel=0.2)


def test_times_are_those_of_the_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that only the buffer moves on: 5 µs an add, 7 µs a sample."""
    now = [0]
    monkeypatch.setattr("sb3_extra_buffers.training_utils.buffer_stats.perf_counter_ns", lambda: now[0])

    class Slow(CompressedReplayBuffer):
        def add(self, *args: Any, **kwargs: Any) -> None:
            super().add(*args, **kwargs)
            now[0] += 5_000

        def sample(self, *args: Any, **kwargs: Any) -> Any:
            now[0] += 7_000
            return super().sample(*args, **kwargs)

    model = dqn(replay_buffer_class=Slow)
    model.set_logger(configure(str(tmp_path), ["csv"]))
    model.learn(200, callback=BufferStatsCallback(every_seconds=1000))
    rows = csv_rows(tmp_path)
    assert {row["buffer/add_us"] for row in rows[1:]} == {"5.0"}
    assert rows[-1]["buffer/sample_us"] == "7.0"


def test_times_of_minibatches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0]
    monkeypatch.setattr("sb3_extra_buffers.training_utils.buffer_stats.perf_counter_ns", lambda: now[0])

    class Slow(CompressedRolloutBuffer):
        def get(self, batch_size: int | None = None) -> Any:
            for batch in super().get(batch_size):
                now[0] += 3_000
                yield batch
                now[0] += 0

    model = ppo(rollout_buffer_class=Slow)
    model.set_logger(configure(str(tmp_path), ["csv"]))
    model.learn(16 * 3 * 3, callback=BufferStatsCallback())
    rows = csv_rows(tmp_path)
    # The log is written before the first training, so that one has no minibatch yet.
    assert [row.get("buffer/sample_us") or None for row in rows] == [None, "3.0", "3.0"]


@pytest.mark.parametrize("name", MODELS)
def test_training_is_the_same_and_nothing_is_left(name: str) -> None:
    plain = MODELS[name]().learn(150)
    watched = MODELS[name]()
    before = set(vars(buffer_of(watched)))
    watched.learn(150, callback=BufferStatsCallback(every_seconds=0))
    for one, other in zip(plain.policy.parameters(), watched.policy.parameters(), strict=True):
        assert th.equal(one, other)
    left = set(vars(buffer_of(watched))) - before
    assert not left & {"add", "sample", "get"}, left


def test_the_buffer_can_be_saved_meanwhile(tmp_path: Path) -> None:
    model = dqn(replay_buffer_class=CompressedReplayBuffer)
    saving = CheckpointCallback(20, str(tmp_path), save_replay_buffer=True)
    copies: list[Any] = []
    look = Probe(lambda model: copies.append(copy.deepcopy(model.replay_buffer)) if model.num_timesteps == 150 else None)
    model.learn(180, callback=CallbackList([BufferStatsCallback(every_seconds=0), saving, look]))

    saved = sorted(tmp_path.glob("*replay_buffer*"), key=lambda path: path.stat().st_mtime)
    assert len(saved) == 3
    loaded = pickle.loads(saved[-1].read_bytes())
    assert b"buffer_stats" not in saved[-1].read_bytes()
    for buffer in (loaded, copies[0]):
        pos = buffer.pos
        assert 0 < pos < model.replay_buffer.pos  # type: ignore[union-attr]
        buffer.add(*[np.zeros((3, 4, 36, 36), np.uint8)] * 2, np.zeros((3, 1)), np.ones(3), np.zeros(3), [{}] * 3)
        assert buffer.pos == pos + 1, "its own add, not that of the buffer it was copied from"
        assert buffer.sample(8).observations.shape == (8, 4, 36, 36)

    # A model that is saved while it is watched, and one that goes on with the loaded buffer.
    other = DQN.load(tmp_path / "rl_model_180_steps.zip", env=several(stack=4), device="cpu")
    other.load_replay_buffer(saved[-1])
    other.learn(60, callback=BufferStatsCallback(), reset_num_timesteps=False)
    assert other.replay_buffer.pos == loaded.pos - 1 + 20  # type: ignore[union-attr]


def test_two_callbacks_share_the_timing() -> None:
    model = dqn()
    model.learn(60, callback=[BufferStatsCallback(), BufferStatsCallback()])
    assert not {"add", "sample"} & set(vars(model.replay_buffer))


def test_after_an_interrupt_it_goes_on() -> None:
    def interrupt(model: Any) -> None:
        raise KeyboardInterrupt

    model = dqn()
    stats = BufferStatsCallback()
    with pytest.raises(KeyboardInterrupt):
        model.learn(60, callback=[stats, Probe(interrupt)])
    model.learn(60, callback=stats)
    assert not {"add", "sample"} & set(vars(model.replay_buffer))


def test_a_buffer_that_another_callback_puts_in_place(tmp_path: Path) -> None:
    model = ppo()
    model.set_logger(configure(str(tmp_path), ["csv"]))
    model.learn(16 * 3 * 2, callback=[BufferStatsCallback(), CompressRollouts()])
    assert float(csv_rows(tmp_path)[-1]["buffer/ratio"]) > 2

    class Replace(BaseCallback):
        """Puts another buffer in place after training has started."""

        def _on_training_start(self) -> None:
            self.model.rollout_buffer = copy.deepcopy(self.model.rollout_buffer)  # type: ignore[attr-defined]

        def _on_step(self) -> bool:
            return True

    first = model.rollout_buffer
    model.learn(16 * 3 * 2, callback=[BufferStatsCallback(), Replace()])
    assert model.rollout_buffer is not first
    assert float(csv_rows(tmp_path)[-1]["buffer/add_us"]) > 0
    assert not {"add", "get"} & set(vars(first))


def test_dict_observations(tmp_path: Path) -> None:
    env = several(PicturesAndPlaces)
    for kwargs, ratio in ((compressed_kwargs(DQN, env), 2), ({}, 1)):
        model = DQN("MultiInputPolicy", env, buffer_size=90, learning_starts=30, batch_size=4, device="cpu", **kwargs)
        model.set_logger(configure(str(tmp_path), ["csv"]))
        model.learn(120, callback=BufferStatsCallback(every_seconds=0))
        logged = float(csv_rows(tmp_path)[-1]["buffer/ratio"])
        assert logged > ratio if ratio > 1 else logged == 1


def test_a_model_without_a_buffer() -> None:
    stats = BufferStatsCallback()
    model = ppo()
    model.rollout_buffer = None  # type: ignore[assignment]
    with pytest.raises(TypeError, match="PPO has no replay or rollout buffer"):
        model.learn(16, callback=stats)
    with pytest.raises(ValueError, match="every_seconds must be at least 0, got -1"):
        BufferStatsCallback(every_seconds=-1)


def test_the_callback_can_be_pickled_while_it_watches() -> None:
    stats = BufferStatsCallback()
    loaded: list[Any] = []
    dqn().learn(30, callback=[stats, Probe(lambda model: loaded.append(copy.copy(stats).__getstate__()["_buffer"]))])
    assert loaded and set(loaded) == {None}
