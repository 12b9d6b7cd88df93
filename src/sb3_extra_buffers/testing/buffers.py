"""What every compressed buffer promises: to be indistinguishable from SB3's."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Mapping
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import DictReplayBuffer, DictRolloutBuffer, ReplayBuffer, RolloutBuffer

from sb3_extra_buffers.testing.compare import assert_same
from sb3_extra_buffers.testing.worlds import DEFAULT_DICT_SPACE, DEFAULT_SPACE, World, copied, normalizer

StepKwargs = Callable[[World], Mapping[str, Any]]


def check_replay_buffer(
    buffer_class: type[ReplayBuffer],
    oracle_class: type[ReplayBuffer],
    *,
    observation_space: spaces.Space[Any] | None = None,
    action_space: spaces.Space[Any] | None = None,
    n_envs: int = 2,
    rows: int = 24,
    batch_size: int = 40,
    seed: int = 0,
    kwargs: Mapping[str, Any] | None = None,
    buffer_kwargs: Mapping[str, Any] | None = None,
) -> None:
    """
    Check that a replay buffer gives the very samples of another one, whatever happens to both.

    They are filled past the end twice, with ends of episodes and time-outs; sampled with and without ``VecNormalize``;
    copied, pickled, reset and filled again. What is compared are samples to the bit, and the state of NumPy's global
    generator after them; where one raises an error, the other must raise the same. Arrays that were handed over are
    overwritten afterwards, and so are the tensors that were handed out.

    :param buffer_class: The class to check
    :param oracle_class: The one to compare with, usually SB3's
    :param observation_space: A stack of small frames by default; a Dict of that and others for Dict buffers
    :param action_space: ``Discrete(3)`` by default
    :param n_envs: Number of environments
    :param rows: Steps that fit into the buffer
    :param batch_size: Number of transitions in a sample
    :param seed: Seed of all that happens
    :param kwargs: Arguments of both classes, for example ``n_steps`` or ``env``
    :param buffer_kwargs: Arguments of the class to check
    """
    space = observation_space or (DEFAULT_DICT_SPACE if issubclass(oracle_class, DictReplayBuffer) else DEFAULT_SPACE)
    world = World(space, action_space or spaces.Discrete(3), n_envs, seed)
    shared: dict[str, Any] = {"device": "cpu", "n_envs": n_envs, **(kwargs or {})}
    pair = _make_pair(buffer_class, oracle_class, (rows * n_envs, space, world.action_space), shared, buffer_kwargs)
    normalize = normalizer(world)
    succeeded = []

    def compare(moment: str) -> None:
        _check_state(pair, moment)
        for number, env in enumerate((None, normalize)):
            samples = [_seeded(seed + number, buffer.sample, batch_size, env) for buffer in pair]
            label = f"{buffer_class.__name__} {moment}{', normalized' if env else ''}: sample"
            assert_same(samples[0], samples[1], label)
            succeeded.append(not isinstance(samples[1][0], type))
            _scribble(samples[0])

    for length, moment in ((rows // 2, "half full"), (rows, "after wrapping around"), (rows + 3, "after wrapping twice")):
        for _ in range(length):
            _add_transition(pair, world)
        compare(moment)
    for label, twin in (("copied", copy.deepcopy), ("pickled", _pickled)):
        pair = _twins(pair, twin)
        compare(f"after being {label}")
        _add_transition(pair, world)
        compare(f"written to after being {label}")
    for buffer in pair:
        buffer.reset()
    for _ in range(rows - 2):
        _add_transition(pair, world)
    compare("after reset")
    assert any(succeeded), f"{oracle_class.__name__} itself could not be sampled: {_seeded(seed, pair[1].sample, batch_size)}"


def check_rollout_buffer(
    buffer_class: type[RolloutBuffer],
    oracle_class: type[RolloutBuffer],
    *,
    observation_space: spaces.Space[Any] | None = None,
    action_space: spaces.Space[Any] | None = None,
    n_envs: int = 2,
    rows: int = 20,
    batch_size: int = 7,
    seed: int = 0,
    kwargs: Mapping[str, Any] | None = None,
    buffer_kwargs: Mapping[str, Any] | None = None,
    step_kwargs: StepKwargs | None = None,
) -> None:
    """
    Check that a rollout buffer gives the very minibatches of another one, for several rollouts in a row.

    :param buffer_class: The class to check
    :param oracle_class: The one to compare with, usually SB3's
    :param observation_space: A stack of small frames by default; a Dict of that and others for Dict buffers
    :param action_space: ``Discrete(3)`` by default
    :param n_envs: Number of environments
    :param rows: Steps of a rollout
    :param batch_size: Size of a minibatch
    :param seed: Seed of all that happens
    :param kwargs: Arguments of both classes, for example ``hidden_state_shape``
    :param buffer_kwargs: Arguments of the class to check
    :param step_kwargs: What ``add`` gets beside what all rollout buffers get, for example ``action_masks``; is given
        the pretended environments
    """
    space = observation_space or (DEFAULT_DICT_SPACE if issubclass(oracle_class, DictRolloutBuffer) else DEFAULT_SPACE)
    world = World(space, action_space or spaces.Discrete(3), n_envs, seed)
    shared: dict[str, Any] = {"device": "cpu", "n_envs": n_envs, "gamma": 0.9, "gae_lambda": 0.8, **(kwargs or {})}
    pair = _make_pair(buffer_class, oracle_class, (rows, space, world.action_space), shared, buffer_kwargs)
    for rollout in range(3):
        for buffer in pair:
            buffer.reset()
        starts = np.ones(n_envs, dtype=bool)
        for _ in range(rows):
            starts = _add_step(pair, world, starts, dict(step_kwargs(world)) if step_kwargs else {})
        if rollout == 1:
            pair = _twins(pair, _pickled)
        last_values = th.as_tensor(world.rng.standard_normal(n_envs), dtype=th.float32)
        for buffer in pair:
            buffer.compute_returns_and_advantage(last_values, starts)
        _check_state(pair, f"in rollout {rollout}")
        for epoch, size in enumerate((batch_size, batch_size, None)):
            batches = [_seeded(seed + epoch, _minibatches, buffer, size) for buffer in pair]
            assert_same(batches[0], batches[1], f"{buffer_class.__name__}, rollout {rollout}, epoch {epoch}: minibatches")
            _scribble(batches[0])


def _make_pair(
    buffer_class: Any, oracle_class: Any, args: tuple[Any, ...], shared: dict[str, Any], own: Mapping[str, Any] | None
) -> tuple[Any, Any]:
    return buffer_class(*args, **shared, **(own or {})), oracle_class(*args, **shared)


def _add_transition(pair: tuple[Any, Any], world: World) -> None:
    obs, next_obs, dones, infos = world.step()
    actions, rewards = world.actions(), world.rng.standard_normal(world.n_envs)
    for buffer in pair:
        given = (copied(obs), copied(next_obs), actions.copy(), rewards.copy(), dones.copy())
        buffer.add(*given, copy.deepcopy(infos))
        _scribble(given)


def _add_step(pair: tuple[Any, Any], world: World, starts: Any, step_kwargs: dict[str, Any]) -> Any:
    obs, _, dones, _ = world.step()
    actions, rewards = world.actions(), world.rng.standard_normal(world.n_envs)
    value, log_prob = th.as_tensor(world.rng.standard_normal((2, world.n_envs)), dtype=th.float32)
    for buffer in pair:
        given = (copied(obs), actions.copy(), rewards.copy(), starts.copy(), value.clone(), log_prob.clone())
        buffer.add(*given, **copy.deepcopy(step_kwargs))
        _scribble(given)
    return dones


def _check_state(pair: tuple[Any, Any], moment: str) -> None:
    for name in ("pos", "full", "buffer_size", "n_envs", "observation_space", "action_space", "obs_shape", "action_dim"):
        label = f"{type(pair[0]).__name__}.{name} {moment}"
        assert getattr(pair[0], name) == getattr(pair[1], name), f"{label} is {getattr(pair[0], name)}"


def _seeded(seed: int, draw: Callable[..., Any], *args: Any) -> tuple[Any, Any]:
    """What is drawn with this seed and what the generator looks like afterwards; or the error and its message."""
    np.random.seed(seed)
    try:
        return draw(*args), np.random.get_state()
    except Exception as error:
        return type(error), str(error)


def _minibatches(buffer: Any, size: int | None) -> list[Any]:
    return list(buffer.get(size))


def _pickled(buffer: Any) -> Any:
    return pickle.loads(cloudpickle.dumps(buffer))  # takes classes that are defined inside of a test, too


def _twins(pair: tuple[Any, Any], twin: Callable[[Any], Any]) -> tuple[Any, Any]:
    twins = []
    for buffer in pair:
        copied_buffer = twin(buffer)
        if hasattr(copied_buffer, "set_env"):  # HER leaves its environment behind
            copied_buffer.set_env(buffer.env)
        twins.append(copied_buffer)
    return twins[0], twins[1]


def _scribble(values: Any) -> None:
    """Overwrite what was given away or received; nobody else may notice."""
    if isinstance(values, Mapping):
        values = tuple(values.values())
    if isinstance(values, (tuple, list)):
        for value in values:
            _scribble(value)
    elif isinstance(values, (np.ndarray, th.Tensor)):
        values[...] = 1
