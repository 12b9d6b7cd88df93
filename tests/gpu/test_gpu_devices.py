"""A buffer that was saved on a device and is loaded where there is none: all of it is on the CPU, and goes on."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from gpu_kit import METHODS, Pair, rollout_pair
from observation_streams import DictStream, Stack, Stream, assert_same_bits, sampled
from stable_baselines3 import DQN

from sb3_extra_buffers.gpu_buffers import GpuReplayBuffer

GONE = th.device("cuda:63")  # no machine has so many
CPU = th.device("cpu")


def holders(thing: Any, seen: set[int] | None = None) -> Iterator[tuple[Any, str, Any]]:
    """All attributes, and entries, that are devices or tensors, in an object and in all that it holds."""
    seen = set() if seen is None else seen
    if id(thing) in seen:
        return
    seen.add(id(thing))
    if isinstance(thing, Mapping):
        parts = [(str(key), value) for key, value in thing.items()]
    elif isinstance(thing, (list, tuple, set)):
        parts = [(str(place), value) for place, value in enumerate(thing)]
    else:
        parts = list(getattr(thing, "__dict__", {}).items())
    for name, value in parts:
        if isinstance(value, (th.device, th.Tensor)):
            yield thing, name, value
        elif not isinstance(value, (str, bytes, int, np.ndarray, np.dtype, type)):
            yield from holders(value, seen)


def devices(buffer: Any) -> list[tuple[str, th.device]]:
    """Every device in a buffer."""
    found = [(f"{type(owner).__name__}.{name}", getattr(value, "device", value)) for owner, name, value in holders(buffer)]
    assert {"device", "buffer_device"} <= {name.rpartition(".")[2] for name, _ in found}
    return found


def saved_elsewhere(buffer: Any) -> bytes:
    """What pickle writes on a machine that has the device."""
    changed = [(owner, name) for owner, name, value in holders(buffer) if isinstance(value, th.device)]
    assert len(changed) >= 3, "the buffer, and its stores"
    for owner, name in changed:
        setattr(owner, name, GONE)
    data = pickle.dumps(buffer)
    for owner, name in changed:
        setattr(owner, name, CPU)
    return data


def loaded(data: bytes) -> Any:
    with pytest.warns(UserWarning, match="saved on cuda:63, which is not available"):
        buffer = pickle.loads(data)
    assert {device for _, device in devices(buffer)} == {CPU}, devices(buffer)
    return buffer


def stream_of(kind: str) -> Stream | DictStream:
    frames = Stream(3, 2, (1, 12, 12), np.uint8, "mixed", Stack(3, 0))
    if kind == "plain":
        return frames
    return DictStream({"image": frames, "vector": Stream(4, 2, (5,), np.float32, "mixed")})


@pytest.mark.parametrize("kind", ["plain", "dict"])
@pytest.mark.parametrize("method", METHODS)
def test_a_replay_buffer_goes_on_without_its_device(method: str, kind: str) -> None:
    for rows in (0, 5, 30):
        pair = Pair(stream_of(kind), 8, compression_method=method)
        pair.add(rows)
        pair.ours = loaded(saved_elsewhere(pair.ours))
        for array in pair.ours.observations.values() if kind == "dict" else [pair.ours.observations]:
            assert array[:0].device == array[np.array([], dtype=np.int64)].device == CPU
        pair.check()
        pair.add(20)
        pair.check()
        sample, _ = sampled(pair.ours, 1, 9)
        assert sample.rewards.device == sample.actions.device == CPU


@pytest.mark.parametrize("kind", ["plain", "dict"])
@pytest.mark.parametrize("method", ["delta", "none"])
def test_a_rollout_buffer_goes_on_without_its_device(method: str, kind: str) -> None:
    stream, rng = stream_of(kind), np.random.default_rng(0)
    ours, theirs = rollout_pair(stream, 8, compression_method=method)
    for step in range(8):
        if step == 4:
            ours = loaded(saved_elsewhere(ours))
        obs = stream.step()[0]
        rest = (np.zeros((2, 1)), rng.standard_normal(2), np.zeros(2), th.zeros(2), th.zeros(2))
        for buffer in (ours, theirs):
            buffer.add(obs, *rest)
    ours = loaded(saved_elsewhere(ours))
    np.random.seed(5)
    got = list(ours.get(4))
    np.random.seed(5)
    for mine, expected in zip(got, theirs.get(4), strict=True):
        assert_same_bits(mine.observations, expected.observations)
        assert_same_bits(mine.advantages, expected.advantages)
    ours.reset()
    ours.add(obs, *rest)


def test_a_model_trains_on_with_a_buffer_from_elsewhere(tmp_path: Path, one_thread: Any) -> None:
    options: dict[str, Any] = {"buffer_size": 300, "learning_starts": 10, "replay_buffer_class": GpuReplayBuffer}
    model = DQN("MlpPolicy", "CartPole-v1", device="cpu", **options)
    model.learn(50)
    (tmp_path / "buffer.pkl").write_bytes(saved_elsewhere(model.replay_buffer))
    with pytest.warns(UserWarning, match="not available"):
        model.load_replay_buffer(tmp_path / "buffer.pkl")
    assert {device for _, device in devices(model.replay_buffer)} == {CPU}
    model.learn(50, reset_num_timesteps=False)
    assert model.replay_buffer is not None and model.replay_buffer.size() >= 100


def test_a_device_that_is_here_stays() -> None:
    pair = Pair(stream_of("plain"), 8)
    pair.add(5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pair.ours = pickle.loads(pickle.dumps(pair.ours))
    assert {device for _, device in devices(pair.ours)} == {CPU}
