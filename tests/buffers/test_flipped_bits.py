"""A flipped bit anywhere in a saved buffer is an error when it is loaded, or changes nothing: never other contents."""

from __future__ import annotations

import contextlib
import os
import pickle
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from buffer_contents import contents
from gymnasium import spaces
from sb3_contrib.common.recurrent.type_aliases import RNNStates
from stable_baselines3.common.buffers import BaseBuffer
from stable_baselines3.common.vec_env import DummyVecEnv

from sb3_extra_buffers import compressed

try:
    import resource
except ImportError:  # on Windows
    resource = None  # type: ignore[assignment]

ROWS, ENVS = 5, 2
IMAGE, VECTOR = spaces.Box(0, 255, (2, 5, 4), np.uint8), spaces.Box(-9, 9, (2,), np.float32)
DICT = spaces.Dict({"image": IMAGE, "vector": VECTOR, "place": spaces.Discrete(3)})
GOALS = spaces.Dict({"observation": IMAGE, "achieved_goal": VECTOR, "desired_goal": VECTOR})
ACTIONS = spaces.Discrete(3)


class Goals(gym.Env[Any, Any]):
    observation_space, action_space = GOALS, ACTIONS


class Small:
    raw_below = 20  # images are compressed


def small(cls: type[Any]) -> type[Any]:
    """A subclass whose small images are compressed; pickle finds it in this module."""
    made = type(f"Small{cls.__name__}", (Small, cls), {"__module__": __name__})
    globals()[made.__name__] = made
    return made


REPLAYS: dict[str, tuple[type[Any], spaces.Space[Any], dict[str, Any]]] = {
    "replay": (small(compressed.CompressedReplayBuffer), IMAGE, {}),
    "other methods": (globals()["SmallCompressedReplayBuffer"], IMAGE, {"compression_method": "gzip1"}),
    "vectors": (globals()["SmallCompressedReplayBuffer"], VECTOR, {}),
    "dict": (small(compressed.CompressedDictReplayBuffer), DICT, {}),
    "n-step": (small(compressed.CompressedNStepReplayBuffer), IMAGE, {"n_steps": 2}),
    "prioritized": (small(compressed.CompressedPrioritizedReplayBuffer), IMAGE, {}),
    "her": (small(compressed.CompressedHerReplayBuffer), GOALS, {}),
    "her with infos": (globals()["SmallCompressedHerReplayBuffer"], GOALS, {"copy_info_dict": True}),
}
ROLLOUTS: dict[str, tuple[type[Any], spaces.Space[Any], dict[str, Any]]] = {
    "rollout": (small(compressed.CompressedRolloutBuffer), IMAGE, {}),
    "dict rollout": (small(compressed.CompressedDictRolloutBuffer), DICT, {}),
    "maskable rollout": (small(compressed.CompressedMaskableRolloutBuffer), IMAGE, {}),
    "recurrent rollout": (
        small(compressed.CompressedRecurrentRolloutBuffer),
        IMAGE,
        {"hidden_state_shape": (ROWS, 1, ENVS, 2)},
    ),
}
KINDS = (*REPLAYS, *ROLLOUTS, *(f"{kind}, read" for kind in ROLLOUTS))


def observed(space: Any, rng: np.random.Generator) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: observed(part, rng) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Discrete):
        return rng.integers(0, space.n, ENVS)
    return rng.integers(0, 9, (ENVS, *space.shape)).astype(space.dtype)


def filled(kind: str) -> Any:
    rng = np.random.default_rng(0)
    if kind in REPLAYS:
        cls, space, options = REPLAYS[kind]
        env = {"env": DummyVecEnv([Goals] * ENVS)} if kind.startswith("her") else {}
        buffer = cls(ROWS * ENVS, space, ACTIONS, device="cpu", n_envs=ENVS, **env, **options)
        obs = observed(space, rng)
        for step in range(ROWS + 3):
            following, done = observed(space, rng), np.array([step % 3 == 2, step % 4 == 3])
            infos = [{"TimeLimit.truncated": step % 2 == 0, "number": step}, {}]
            buffer.add(obs, following, rng.integers(0, 3, (ENVS, 1)), rng.random(ENVS), done, infos)
            obs = following
        if kind == "prioritized":
            buffer.update_priorities(np.arange(4), rng.random(4))
        return buffer
    cls, space, options = ROLLOUTS[kind.removesuffix(", read")]
    buffer = cls(ROWS, space, ACTIONS, device="cpu", n_envs=ENVS, **options)
    for _ in range(ROWS):
        more: dict[str, Any] = {}
        if "maskable" in kind:
            more["action_masks"] = rng.integers(0, 2, (ENVS, 3))
        elif "recurrent" in kind:
            states = th.as_tensor(rng.random((4, 1, ENVS, 2)), dtype=th.float32)
            more["lstm_states"] = RNNStates((states[0], states[1]), (states[2], states[3]))
        floats = th.as_tensor(rng.random(ENVS), dtype=th.float32)
        buffer.add(
            observed(space, rng), rng.integers(0, 3, (ENVS, 1)), rng.random(ENVS), np.zeros(ENVS), floats, floats, **more
        )
    buffer.compute_returns_and_advantage(th.zeros(ENVS), np.zeros(ENVS))
    if kind.endswith(", read"):
        assert len(list(buffer.get(4))) == 3
    return buffer


def all_of(buffer: Any) -> dict[str, Any]:
    """What is in a buffer, and what it is like."""
    known = (bool, int, float, str, tuple, type(None), th.device, spaces.Space)
    plain = {name: repr(value) for name, value in vars(buffer).items() if isinstance(value, known)}
    return contents(buffer) | plain | {"class": type(buffer).__name__, "attributes": sorted(vars(buffer))}


@contextlib.contextmanager
def little_memory() -> Iterator[None]:
    """A damaged length must not take gigabytes: beyond this, memory is refused."""
    if resource is None:
        yield
        return
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def results_of(flips: list[tuple[int, int]], data: bytes, expected: dict[str, Any]) -> Iterator[str]:
    """
    Load damaged data.

    :param flips: Bytes and bits
    :param data: What was saved
    :param expected: What is in it
    :return: For each flip what has come of it: ``"refused"``, ``"same"`` or ``"other"``
    """
    for at, bit in flips:
        flipped = bytearray(data)
        flipped[at] ^= 1 << bit
        try:
            loaded = pickle.loads(bytes(flipped))
        except Exception:
            yield "refused"
        else:
            is_buffer = isinstance(loaded, BaseBuffer)  # else pickle has stopped early, and SB3 refuses what it has got
            yield "refused" if not is_buffer else "same" if all_of(loaded) == expected else "other"


def in_child(flips: list[tuple[int, int]], data: bytes, expected: dict[str, Any]) -> list[str]:
    """The same in another process, as far as it gets; it may crash."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            with little_memory():
                for result in results_of(flips, data, expected):
                    os.write(writer, result.encode() + b"\n")
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, encoding="ascii") as file:
        results = file.read().split()
    os.waitpid(child, 0)
    return results


def check_flips(kind: str, bits: Callable[[int], Iterable[int]]) -> None:
    buffer = filled(kind)
    data = pickle.dumps(buffer, protocol=4)
    expected = all_of(pickle.loads(data))
    assert contents(pickle.loads(data)) == contents(buffer)
    flips = [(at, bit) for at in range(len(data)) for bit in bits(at)]
    results: list[str] = []
    while len(results) < len(flips):
        results += in_child(flips[len(results) :], data, expected)
        if len(results) < len(flips):
            results.append("crash")
    for (at, bit), result in zip(flips, results, strict=True):
        assert result in ("refused", "same"), f"{result}: bit {bit} of byte {at}: {data[max(at - 20, 0) : at + 20]!r}"
    assert results.count("refused") > 0.9 * len(flips)


@pytest.mark.skipif(resource is None, reason="memory cannot be limited")
@pytest.mark.parametrize("kind", KINDS)
def test_a_bit_of_every_byte(kind: str) -> None:
    rng = random.Random(kind)
    check_flips(kind, lambda at: [rng.randrange(8)])


@pytest.mark.slow
@pytest.mark.skipif(resource is None, reason="memory cannot be limited")
@pytest.mark.parametrize("kind", KINDS)
def test_every_bit(kind: str) -> None:
    check_flips(kind, lambda at: range(8))
