"""The public checks: ours pass (see the other tests), and what is broken does not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer, RolloutBuffer

from sb3_extra_buffers.codecs import COMPRESSION_METHOD_MAP, Codec, CodecError, make_codec
from sb3_extra_buffers.testing import assert_same, check_codec, check_replay_buffer, check_rollout_buffer


@pytest.mark.parametrize("name", sorted(COMPRESSION_METHOD_MAP))
def test_our_codecs_pass(name: str) -> None:
    if not COMPRESSION_METHOD_MAP[name].is_available():
        pytest.skip(f"the library of {name} is missing")
    check_codec(make_codec(name))


@dataclass(frozen=True)
class Honest(Codec):
    """What a third party writes: bytes turned over."""

    name: ClassVar[str] = "honest"
    wire_format = "turned"

    def _encode_payload(self, data: Any) -> bytes:
        return (data ^ 255).tobytes()

    def _decode_payload(self, payload: Any, out: Any) -> None:
        if payload.size != out.size:
            raise CodecError("wrong size")
        out[:] = payload ^ 255


@dataclass(frozen=True)
class Lossy(Honest):
    def _encode_payload(self, data: Any) -> bytes:
        return super()._encode_payload(data & 254)


@dataclass(frozen=True)
class Gullible(Honest):
    def _decode_payload(self, payload: Any, out: Any) -> None:
        n = min(payload.size, out.size)
        out[:n] = payload[:n] ^ 255


@dataclass(frozen=True)
class Crashing(Honest):
    def _decode_payload(self, payload: Any, out: Any) -> None:
        out[:] = payload ^ 255


@dataclass(frozen=True)
class Restless(Honest):
    def _encode_payload(self, data: Any) -> bytes:
        return super()._encode_payload(data) + np.random.bytes(1)

    def _decode_payload(self, payload: Any, out: Any) -> None:
        super()._decode_payload(payload[:-1], out)


@dataclass(frozen=True, eq=False)
class Nobody(Honest):
    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__


def test_a_codec_of_a_third_party_passes() -> None:
    check_codec(Honest())


@pytest.mark.parametrize(
    ("codec", "message"),
    [
        (Lossy(), "did not come back"),
        (Gullible(), "was decoded, not refused"),
        (Crashing(), "ValueError, not CodecError"),
        (Restless(), "two different blobs"),
        (Nobody(), "does not equal it"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_broken_codecs_do_not_pass(codec: Codec, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_codec(codec)


class KeepsReferences(ReplayBuffer):
    def add(self, obs: Any, next_obs: Any, *args: Any) -> None:
        super().add(obs, next_obs, *args)
        self.last = obs

    def sample(self, *args: Any) -> Any:
        self.observations[self.pos - 1] = self.last
        return super().sample(*args)


class DrawsOnceMore(ReplayBuffer):
    def sample(self, *args: Any) -> Any:
        samples = super().sample(*args)
        np.random.rand()
        return samples


class LosesTerminals(ReplayBuffer):
    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: Any) -> None:
        next_obs[done] = 0
        super().add(obs, next_obs, action, reward, done, infos)


class HandsOutItsMemory(ReplayBuffer):
    def to_torch(self, array: Any, copy: bool = True) -> Any:
        return super().to_torch(array, copy=False)

    def sample(self, batch_size: int, env: Any = None) -> Any:
        samples = super().sample(batch_size, env)
        return samples if env else samples._replace(rewards=self.to_torch(self.rewards[: self.size(), :1]))


class Refuses(ReplayBuffer):
    def sample(self, *args: Any) -> Any:
        raise ValueError("no")


@pytest.mark.parametrize("cls", [KeepsReferences, DrawsOnceMore, LosesTerminals, HandsOutItsMemory, Refuses])
def test_broken_replay_buffers_do_not_pass(cls: Any) -> None:
    with pytest.raises(AssertionError, match=cls.__name__):
        check_replay_buffer(cls, ReplayBuffer)


def test_an_oracle_that_cannot_be_sampled_proves_nothing() -> None:
    with pytest.raises(AssertionError, match="could not be sampled"):
        check_replay_buffer(Refuses, Refuses)


class Casts(RolloutBuffer):
    def _get_samples(self, *args: Any) -> Any:
        samples = super()._get_samples(*args)
        return samples._replace(observations=samples.observations.double())


def test_broken_rollout_buffers_do_not_pass() -> None:
    with pytest.raises(AssertionError, match=r"Casts.*observations has dtype float64"):
        check_rollout_buffer(Casts, RolloutBuffer)


@pytest.mark.parametrize(
    "space",
    [spaces.Box(-1, 1, (3,), np.float64), spaces.Discrete(5), spaces.MultiBinary(6), spaces.MultiDiscrete([3, 4])],
    ids=str,
)
def test_sb3s_own_buffers_pass_with_any_space(space: Any) -> None:
    check_replay_buffer(ReplayBuffer, ReplayBuffer, observation_space=space, action_space=spaces.Box(-1, 1, (2,)))
    check_rollout_buffer(RolloutBuffer, RolloutBuffer, observation_space=space, action_space=spaces.Box(-1, 1, (2,)))


@pytest.mark.parametrize(
    ("got", "expected", "message"),
    [
        (np.zeros(3), np.zeros(3, np.float32), "dtype float64"),
        (np.zeros(3), np.zeros((3, 1)), r"shape \(3,\)"),
        (np.array([[0.0, 1.0]]), np.array([[0.0, 2.0]]), r"1 of 2 elements; the first is \(0, 1\)"),
        (np.array([0.0]), np.array([-0.0]), "differs in 1 of 1"),
        ({"a": 1}, {"b": 1}, "keys"),
        ([1, 2], [1, 2, 3], "2 parts"),
        ({"a": [1, 2]}, {"a": [1, 3]}, r"value\['a'\]\[1\] is 2, expected is 3"),
        (1, 1.0, "int"),
    ],
)
def test_assert_same_says_what_differs(got: Any, expected: Any, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        assert_same(got, expected)


def test_assert_same_takes_nan_for_itself() -> None:
    assert_same({"a": np.array([np.nan])}, {"a": np.array([np.nan])})
