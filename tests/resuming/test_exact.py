"""A run that was stopped and resumed ends as one that was not: the same weights, bit for bit."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from resuming_kit import Walk, assert_same, everything, stop_and_resume, walks
from stable_baselines3 import A2C, DDPG, DQN, PPO, SAC, TD3
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.noise import OrnsteinUhlenbeckActionNoise
from stable_baselines3.common.vec_env import VecFrameStack, VecNormalize

from sb3_extra_buffers import (
    CompressedHerReplayBuffer,
    CompressedNStepReplayBuffer,
    CompressedRecurrentPPO,
    CompressedReplayBuffer,
    CompressedRolloutBuffer,
    GpuReplayBuffer,
    PrioritizedDQN,
    ResumableCheckpoint,
    load_buffer,
    resume,
)

contrib = pytest.importorskip("sb3_contrib")


def small(**others: Any) -> dict[str, Any]:
    """Of a network that learns in no time; made anew each time, because SB3 writes into what it is given."""
    return {"seed": 5, "device": "cpu", "policy_kwargs": {"net_arch": [8]}} | others


def off(**others: Any) -> dict[str, Any]:
    """For what learns from a replay buffer."""
    options = {
        "buffer_size": 90,
        "learning_starts": 20,
        "batch_size": 8,
        "train_freq": 2,
        "replay_buffer_class": CompressedReplayBuffer,
    }
    return small(**options | others)


def on(**others: Any) -> dict[str, Any]:
    """For what learns from rollouts."""
    return small(n_steps=8, **others)


numbers = partial(walks, continuous=True)
normalized = partial(walks, wrap=VecNormalize, continuous=True)


def falling(progress: float) -> float:
    """A schedule."""
    return 1e-3 * progress + 1e-5


def noise() -> OrnsteinUhlenbeckActionNoise:
    """Noise with a memory of its own."""
    return OrnsteinUhlenbeckActionNoise(np.zeros(2), np.full(2, 0.3), dt=0.3)


RUNS: dict[str, tuple[Callable[..., Any], Callable[[], Any]]] = {
    "DQN": (lambda env: DQN("MlpPolicy", env, **off(target_update_interval=30, exploration_fraction=0.6)), walks),
    "DQN, n-step": (
        lambda env: DQN(
            "MlpPolicy", env, **off(replay_buffer_class=CompressedNStepReplayBuffer, replay_buffer_kwargs={"n_steps": 3})
        ),
        walks,
    ),
    "DQN, on a device": (lambda env: DQN("MlpPolicy", env, **off(replay_buffer_class=GpuReplayBuffer)), walks),
    "PrioritizedDQN": (
        lambda env: PrioritizedDQN(
            "MlpPolicy", env, **off(replay_buffer_class=None, replay_buffer_kwargs={"beta": lambda p: 1 - 0.6 * p})
        ),
        walks,
    ),
    "QRDQN": (lambda env: contrib.QRDQN("MlpPolicy", env, **off()), walks),
    "SAC": (lambda env: SAC("MlpPolicy", env, **off(learning_rate=falling)), normalized),
    "SAC, gSDE": (lambda env: SAC("MlpPolicy", env, **off(use_sde=True, sde_sample_freq=5)), numbers),
    "TD3": (lambda env: TD3("MlpPolicy", env, **off(action_noise=noise())), numbers),
    "DDPG, episodes": (
        lambda env: DDPG("MlpPolicy", env, **off(action_noise=noise(), train_freq=(1, "episode"))),
        partial(numbers, 1),
    ),
    "HER": (
        lambda env: SAC("MultiInputPolicy", env, **off(replay_buffer_class=CompressedHerReplayBuffer, learning_starts=40)),
        partial(numbers, goals=True),
    ),
    "CrossQ": (lambda env: contrib.CrossQ("MlpPolicy", env, **off()), numbers),
    "PPO": (lambda env: PPO("MlpPolicy", env, **on(batch_size=4, n_epochs=2, learning_rate=falling)), walks),
    "PPO, gSDE": (lambda env: PPO("MlpPolicy", env, **on(batch_size=4, n_epochs=1, use_sde=True)), normalized),
    "A2C": (lambda env: A2C("MlpPolicy", env, **on(rollout_buffer_class=CompressedRolloutBuffer)), walks),
    "TRPO": (lambda env: contrib.TRPO("MlpPolicy", env, **on(batch_size=4)), walks),
    "MaskablePPO": (lambda env: contrib.MaskablePPO("MlpPolicy", env, **on(batch_size=4, n_epochs=1)), walks),
    "RecurrentPPO": (
        lambda env: CompressedRecurrentPPO(
            "MlpLstmPolicy", env, **on(batch_size=4, n_epochs=1) | {"policy_kwargs": {"net_arch": [8], "lstm_hidden_size": 8}}
        ),
        walks,
    ),
}


@pytest.mark.parametrize("name", RUNS)
def test_every_algorithm(name: str, tmp_path: Path) -> None:
    make, env = RUNS[name]
    uninterrupted = make(env()).learn(160)
    wanted = everything(uninterrupted)
    resumed = stop_and_resume(tmp_path / "run", lambda: make(env()), env, 160, 121)
    assert type(resumed) is type(uninterrupted)
    assert_same(wanted, everything(resumed))


def games() -> VecFrameStack:
    """Breakout with everything that SB3 puts around it, and actions that stick."""
    ale_py = pytest.importorskip("ale_py")
    gym.register_envs(ale_py)
    wrapper_kwargs = {"screen_size": 36, "action_repeat_probability": 0.2}
    return VecFrameStack(make_atari_env("BreakoutNoFrameskip-v4", n_envs=2, wrapper_kwargs=wrapper_kwargs), 3)


@pytest.mark.parametrize("name", ["DQN", "PPO"])
def test_games(name: str, tmp_path: Path) -> None:
    """With the emulator in the middle of a game, lives lost, frames stacked."""
    make, _ = RUNS[name]
    wanted = everything(make(games()).learn(400))
    resumed = stop_and_resume(tmp_path / "run", lambda: make(games()), games, 400, 270, every=80)
    assert_same(wanted, everything(resumed))


def test_sticky_actions_and_random_frame_skips(tmp_path: Path) -> None:
    """What the emulator draws by itself comes from its own generator, which is part of its state."""
    gym.register_envs(pytest.importorskip("ale_py"))

    def env() -> Any:
        options = {"obs_type": "ram", "repeat_action_probability": 0.5, "frameskip": (2, 5)}
        return make_vec_env("ALE/Breakout-v5", n_envs=2, env_kwargs=options)

    make, _ = RUNS["DQN"]
    wanted = everything(make(env()).learn(160))
    assert_same(wanted, everything(stop_and_resume(tmp_path / "run", lambda: make(env()), env, 160, 121)))


def test_a_ring_on_disk_goes_back_to_the_checkpoint(tmp_path: Path) -> None:
    """It was further when the run was stopped; what it held by then is played again."""

    def make(env: Any, folder: str = "ring") -> Any:
        return DQN("MlpPolicy", env, **off(replay_buffer_kwargs={"storage_dir": str(tmp_path / folder), "durability": "full"}))

    uninterrupted = make(walks(), "other").learn(160)
    wanted = everything(uninterrupted)
    resumed = stop_and_resume(tmp_path / "run", lambda: make(walks()), walks, 160, 131)
    assert_same(wanted, everything(resumed))
    resumed.replay_buffer.close()
    ring = load_buffer(tmp_path / "ring")
    assert ring.pos == resumed.replay_buffer.pos and np.array_equal(ring.rewards, resumed.replay_buffer.rewards)


class Pictures(gym.ObservationWrapper[Any, Any, Any]):
    """The walk, large enough to be compressed."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.observation_space = spaces.Box(-3, 3, (200,), np.float32)

    def observation(self, observation: Any) -> Any:
        return np.tile(observation, 50)


def test_a_ring_of_pictures_is_written_after_resuming(tmp_path: Path) -> None:
    """While the run goes on, not only when it ends: the columns of the buffer are others than those that it was made with."""

    def make(env: Any) -> Any:
        return DQN("MlpPolicy", env, **off(buffer_size=400, replay_buffer_kwargs={"storage_dir": str(tmp_path / "ring")}))

    def env() -> Any:
        return make_vec_env(Walk, n_envs=2, wrapper_class=Pictures)

    resumed = stop_and_resume(tmp_path / "run", lambda: make(env()), env, 300, 131)
    assert resumed.replay_buffer.pos == 150
    until = time.monotonic() + 60
    while load_buffer(tmp_path / "ring").size() < 128:  # chunks of 32 rows
        assert time.monotonic() < until, "nothing is written"
        time.sleep(0.05)
    resumed.replay_buffer.close()
    assert np.array_equal(load_buffer(tmp_path / "ring").observations[:150], resumed.replay_buffer.observations[:150])


def test_a_her_ring_goes_back_to_the_checkpoint(tmp_path: Path) -> None:
    def make(env: Any, folder: str = "ring") -> Any:
        options = {"storage_dir": str(tmp_path / folder)}
        of_goals = {"replay_buffer_class": CompressedHerReplayBuffer, "replay_buffer_kwargs": options, "buffer_size": 400}
        return DQN("MultiInputPolicy", env, **off(**of_goals, learning_starts=50))

    env = partial(walks, goals=True)
    wanted = everything(make(env(), "other").learn(200))
    assert_same(wanted, everything(stop_and_resume(tmp_path / "run", lambda: make(env()), env, 200, 131)))


def test_the_callback_changes_nothing(tmp_path: Path) -> None:
    for name in ("SAC, gSDE", "PPO, gSDE"):
        make, env = RUNS[name]
        checkpoint = ResumableCheckpoint(tmp_path / name, every=10)
        assert_same(everything(make(env()).learn(96)), everything(make(env()).learn(96, callback=checkpoint)))


def test_callbacks_go_on_too(tmp_path: Path) -> None:
    """Evaluations come at the same steps, with the same results, and the best one is still known."""
    make, env = RUNS["DQN"]

    def callbacks() -> list[EvalCallback]:
        evaluated = walks(1)
        evaluated.seed(3)
        return [EvalCallback(evaluated, n_eval_episodes=2, eval_freq=7, deterministic=False, verbose=0, warn=False)]

    model = make(env())
    (evaluated,) = callbacks()  # after the model has set its seed, as below: making environments draws a number, too
    wanted = everything(model.learn(160, callback=evaluated))
    resumed = stop_and_resume(tmp_path / "run", lambda: make(env()), env, 160, 121, callbacks=callbacks)
    (again,) = resumed.callbacks_of_the_test
    assert_same(wanted, everything(resumed))
    assert again.evaluations_timesteps == evaluated.evaluations_timesteps == []  # nothing is logged without a path
    names = ("best_mean_reward", "last_mean_reward", "n_calls")
    assert [getattr(again, name) for name in names] == [getattr(evaluated, name) for name in names]
    assert evaluated.best_mean_reward > -np.inf


def test_a_run_that_has_ended_goes_on_as_if_learn_had_been_called_twice(tmp_path: Path) -> None:
    for name in ("DQN", "SAC, gSDE", "PPO"):
        make, env = RUNS[name]
        once = make(env()).learn(64, callback=ResumableCheckpoint(tmp_path / name, every=1000))
        wanted = everything(once.learn(64, reset_num_timesteps=False))
        resumed = resume(tmp_path / name, env=env())
        assert resumed.num_timesteps == 64
        th.rand(3)
        resumed.learn(64, reset_num_timesteps=False, callback=ResumableCheckpoint(tmp_path / name, every=1000))
        assert_same(wanted, everything(resumed))
