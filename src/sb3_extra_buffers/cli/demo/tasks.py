"""What is measured, each in a process of its own: filling a buffer, and training with it."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from copy import deepcopy
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from stable_baselines3 import DQN
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecTransposeImage

from sb3_extra_buffers.cli.children import Report
from sb3_extra_buffers.cli.demo.figures import BATCH_SIZE, FRAME_STACK, Filling, Plan, Training
from sb3_extra_buffers.cli.environments import atari_options, find_environment
from sb3_extra_buffers.cli.measuring import batch_digest, hash_array, median_microseconds, use_one_thread
from sb3_extra_buffers.cli.memory import resident_bytes, resident_bytes_after_release
from sb3_extra_buffers.cli.silence import hush
from sb3_extra_buffers.training_utils.atari import make_env

_WARM_UP_ROWS = 16
_COMPARED_BATCHES = 100
_TIMED_SAMPLES = 300
_POINTS_OF_HISTORY = 100


def _prepare_process() -> None:
    # The parent has said what there is to say.
    hush()
    use_one_thread()


class _Transition(NamedTuple):
    """The arguments of ``ReplayBuffer.add``: one step of all games."""

    obs: npt.NDArray[Any]
    next_obs: npt.NDArray[Any]
    action: npt.NDArray[Any]
    reward: npt.NDArray[Any]
    done: npt.NDArray[Any]
    infos: list[dict[str, Any]]


def _make_games(plan: Plan) -> VecEnv:
    # Not in processes of their own: those would compete for the cores while we measure.
    find_environment(plan.env_id)  # makes the games known in this process
    options = atari_options(plan.env_id)
    games = make_env(plan.env_id, plan.n_envs, DummyVecEnv, framestack=FRAME_STACK, seed=plan.seed, **options)
    return VecTransposeImage(games)  # as SB3's algorithms hand observations to a buffer


def _play(games: VecEnv, rows: int, rng: np.random.Generator) -> Iterator[_Transition]:
    """Play at random; yields what ``OffPolicyAlgorithm`` would store."""
    obs: Any = games.reset()
    n_actions = int(games.action_space.n)  # type: ignore[attr-defined]
    for _ in range(rows):
        action = rng.integers(0, n_actions, games.num_envs)
        new_obs, reward, done, infos = games.step(action)
        next_obs: Any = deepcopy(new_obs)
        for env in np.flatnonzero(done):
            next_obs[env] = infos[env]["terminal_observation"]
        yield _Transition(obs, next_obs, action.reshape(-1, 1), reward, done, infos)
        obs = new_obs


def fill(plan: Plan, buffer_class: type[ReplayBuffer], buffer_kwargs: dict[str, Any], report: Report) -> Filling:
    """
    Play the game into a buffer, and measure it.

    :param plan: What to play
    :param buffer_class: Class of the buffer
    :param buffer_kwargs: Its arguments beyond SB3's
    :param report: Told the number of transitions played
    :return: The figures
    """
    _prepare_process()
    games = _make_games(plan)
    rng = np.random.default_rng(plan.seed)

    def make_buffer(rows: int) -> ReplayBuffer:
        spaces = games.observation_space, games.action_space
        return buffer_class(rows * plan.n_envs, *spaces, device="cpu", n_envs=plan.n_envs, **buffer_kwargs)

    # Libraries and compiled code are loaded by a small buffer first: they come once, however large a buffer is.
    before_start_up = resident_bytes_after_release()
    small = make_buffer(_WARM_UP_ROWS)
    for transition in _play(games, 3 * _WARM_UP_ROWS, rng):
        small.add(*transition)
        small.sample(BATCH_SIZE)
    del small, transition
    before = resident_bytes_after_release()

    buffer = make_buffer(plan.rows)
    played = hashlib.sha256()
    add_times: list[int] = []
    history = [(0, 0)]
    stride = max(1, plan.rows_played // _POINTS_OF_HISTORY)
    for row, transition in enumerate(_play(games, plan.rows_played, rng), start=1):
        start = time.perf_counter_ns()
        buffer.add(*transition)
        add_times.append(time.perf_counter_ns() - start)
        for array in transition[:5]:
            # In the order it lies in memory: both sides play alike, and a gigabyte need not be transposed for this.
            hash_array(played, array.ravel(order="K"))
        if row % stride == 0 or row in (plan.rows, plan.rows_played):
            history.append((row * plan.n_envs, resident_bytes() - before))
        report(row * plan.n_envs)

    digests = [batch_digest(buffer, BATCH_SIZE, seed) for seed in range(_COMPARED_BATCHES)]
    sample_times = []
    for _ in range(_TIMED_SAMPLES):
        start = time.perf_counter_ns()
        buffer.sample(BATCH_SIZE)
        sample_times.append(time.perf_counter_ns() - start)
        report(plan.played)  # the other side may have its turn
    games.close()
    return Filling(
        played_digest=played.hexdigest(),
        start_up_bytes=before - before_start_up,
        memory_bytes=max(size for _, size in history),
        memory_history=history,
        add_filling_us=median_microseconds(add_times[: plan.rows]),
        add_full_us=median_microseconds(add_times[plan.rows :]),
        sample_us=median_microseconds(sample_times),
        sample_digests=digests,
    )


def _parameter_digests(model: DQN) -> dict[str, str]:
    digests = {}
    for name, tensor in model.policy.state_dict().items():
        digest = hashlib.sha256()
        hash_array(digest, tensor.numpy())
        digests[name] = digest.hexdigest()
    return digests


def train(plan: Plan, buffer_class: type[ReplayBuffer], buffer_kwargs: dict[str, Any], report: Report) -> Training:
    """
    Train DQN for a moment.

    :param plan: What to train on, and for how long
    :param buffer_class: Class of the replay buffer
    :param buffer_kwargs: Its arguments beyond SB3's
    :param report: Told the number of steps
    :return: The trained weights
    """
    _prepare_process()
    model = DQN(
        "CnnPolicy",
        _make_games(plan),
        # Half of what is played, so that training also sees a ring that was overwritten.
        buffer_size=plan.train_steps // 2,
        learning_starts=min(plan.train_steps // 5, 1000),
        train_freq=1,
        target_update_interval=max(1, plan.train_steps // 4),
        replay_buffer_class=buffer_class,
        replay_buffer_kwargs=buffer_kwargs,
        seed=plan.seed,
        device="cpu",  # on a GPU, two trainings with one buffer need not agree to the bit
    )

    def tell(_locals: dict[str, Any], _globals: dict[str, Any]) -> bool:
        report(model.num_timesteps)
        return True

    untrained = _parameter_digests(model)
    start = time.perf_counter()
    model.learn(plan.train_steps, callback=tell)
    seconds = time.perf_counter() - start
    trained = _parameter_digests(model)
    return Training(
        parameter_digests=trained,
        changed=sum(trained[name] != digest for name, digest in untrained.items()),
        updates=model._n_updates,
        seconds=seconds,
    )
