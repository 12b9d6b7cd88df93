"""The prioritized buffers: what they sample, and that it is what SB3's buffers hold at these places."""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.save_util import load_from_pkl, save_to_pkl
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from sb3_extra_buffers.compressed.n_step import CompressedDictNStepReplayBuffer
from sb3_extra_buffers.compressed.prioritized import (
    CompressedDictPrioritizedReplayBuffer,
    CompressedPrioritizedReplayBuffer,
    PrioritizedReplayBuffer,
    PrioritizedReplayBufferSamples,
)
from sb3_extra_buffers.storage import CompressedArray

IMAGE = spaces.Box(0, 255, (4, 24, 24), np.uint8)
BOTH = spaces.Dict({"image": IMAGE, "vector": spaces.Box(-1, 1, (3,), np.float32)})
ACTIONS = spaces.Discrete(5)
N_ENVS = 3


def fill(buffers: list[Any], steps: int, seed: int = 0) -> None:
    """The same transitions for all: stacked frames, ends and time-outs."""
    rng = np.random.default_rng(seed)
    is_dict = isinstance(buffers[0].observation_space, spaces.Dict)
    stack = np.zeros((N_ENVS, *IMAGE.shape), np.uint8)

    def observe(stack: npt.NDArray[Any]) -> Any:
        if is_dict:
            return {"image": stack, "vector": stack.reshape(N_ENVS, -1)[:, -3:].astype(np.float32) / 255}
        return stack

    for _ in range(steps):
        frame = rng.integers(0, 256, (N_ENVS, 1, 24, 24)).astype(np.uint8)
        following = np.concatenate([stack[:, 1:], frame], axis=1)
        done = rng.random(N_ENVS) < 0.15
        infos = [{"TimeLimit.truncated": bool(d and rng.random() < 0.5)} for d in done]
        action, reward = rng.integers(0, 5, N_ENVS), rng.normal(size=N_ENVS)
        for buffer in buffers:
            buffer.add(observe(stack), observe(following), action, reward, done, infos)
        stack = np.where(done[:, None, None, None], 0, following).astype(np.uint8)


def make(cls: type[Any] = CompressedPrioritizedReplayBuffer, rows: int = 20, space: Any = IMAGE, **kwargs: Any) -> Any:
    return cls(rows * N_ENVS, space, ACTIONS, device="cpu", n_envs=N_ENVS, **kwargs)


def assert_equal(expected: Any, got: Any) -> None:
    for name in ("observations", "actions", "next_observations", "dones", "rewards", "discounts"):
        one, other = getattr(expected, name), getattr(got, name)
        if not isinstance(one, dict):
            one, other = {name: one}, {name: other}
        assert one.keys() == other.keys()
        for key in one:
            if one[key] is None:
                assert other[key] is None, key
            else:
                assert one[key].dtype == other[key].dtype and th.equal(one[key], other[key]), key


@pytest.mark.parametrize("steps", [1, 13, 20, 47])
@pytest.mark.parametrize("n_steps", [1, 3])
def test_samples_what_sb3_holds_there(n_steps: int, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = make(n_steps=n_steps, gamma=0.9)
    theirs = make(NStepReplayBuffer, n_steps=3, gamma=0.9) if n_steps > 1 else make(ReplayBuffer)
    fill([ours, theirs], steps)
    timeouts = ours.timeouts.copy()
    assert isinstance(ours.observations, CompressedArray)
    for seed in range(5):
        np.random.seed(seed)
        got = ours.sample(16)
        ours.update_priorities(got.indices, np.random.rand(16))
        rows, envs = np.divmod(got.indices, N_ENVS)
        with monkeypatch.context() as patch:
            patch.setattr(np.random, "randint", lambda *_, envs=envs, **__: envs)
            expected = theirs._get_samples(rows)
        assert_equal(expected, got)
        assert (rows < ours.size()).all()
    np.testing.assert_array_equal(ours.timeouts, timeouts)  # which n-step returns change for a moment


@pytest.mark.parametrize("n_steps", [1, 3])
def test_dict_observations(n_steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = make(CompressedDictPrioritizedReplayBuffer, space=BOTH, n_steps=n_steps, gamma=0.9)
    theirs = make(CompressedDictNStepReplayBuffer, space=BOTH, n_steps=n_steps, gamma=0.9)
    fill([ours, theirs], 33)
    np.random.seed(0)
    got = ours.sample(25)
    rows, envs = np.divmod(got.indices, N_ENVS)
    with monkeypatch.context() as patch:
        patch.setattr(np.random, "randint", lambda *_, **__: envs)
        expected = theirs._get_samples(rows)
    if n_steps == 1:
        expected = expected._replace(discounts=None)
    assert_equal(expected, got)


def test_compressed_and_plain_sample_the_same() -> None:
    ours, plain = make(), make(PrioritizedReplayBuffer)
    for part in range(4):
        fill([ours, plain], 13, seed=part)
        batches = []
        for buffer in (ours, plain):
            np.random.seed(part)
            batches.append(buffer.sample(32))
            buffer.update_priorities(batches[-1].indices, np.random.rand(32) ** 4)
        assert_equal(*batches)
        assert th.equal(batches[0].weights, batches[1].weights)
        np.testing.assert_array_equal(batches[0].indices, batches[1].indices)
        np.testing.assert_array_equal(ours.priorities, plain.priorities)


def test_with_vec_normalize(monkeypatch: pytest.MonkeyPatch) -> None:
    import gymnasium as gym

    space = spaces.Box(-1, 1, (200,), np.float32)

    class Noise(gym.Env[Any, Any]):
        observation_space, action_space = space, ACTIONS

        def reset(self, **_: Any) -> Any:
            return space.sample(), {}

        def step(self, action: Any) -> Any:
            return space.sample(), 1.0, False, False, {}

    env = VecNormalize(DummyVecEnv([Noise]))
    env.reset()
    for _ in range(10):
        env.step([0])
    ours = CompressedPrioritizedReplayBuffer(10, space, ACTIONS, device="cpu")
    theirs = ReplayBuffer(10, space, ACTIONS, device="cpu")
    for _ in range(7):
        obs, following = space.sample()[None], space.sample()[None]
        for buffer in (ours, theirs):
            buffer.add(obs, following, np.array([1]), np.array([3.0]), np.array([False]), [{}])
    got = ours.sample(8, env=env)
    assert_equal(theirs._get_samples(got.indices, env=env), got)


def test_fields_are_those_of_sb3_and_two_more() -> None:
    from stable_baselines3.common.type_aliases import DictReplayBufferSamples, ReplayBufferSamples

    fields = PrioritizedReplayBufferSamples._fields
    assert fields[:-2] == ReplayBufferSamples._fields == DictReplayBufferSamples._fields
    assert fields[-2:] == ("weights", "indices")
    buffer = make()
    fill([buffer], 5)
    samples = buffer.sample(4)
    assert samples.weights.shape == (4, 1) and samples.weights.dtype == th.float32
    assert samples.indices.shape == (4,) and samples.indices.dtype == np.int64
    loaded = pickle.loads(pickle.dumps(samples))
    assert_equal(samples, loaded)


def test_frequencies_follow_priorities() -> None:
    buffer = make(rows=5, alpha=0.7, beta=0.0, eps=1e-3)
    fill([buffer], 5)
    priorities = np.random.default_rng(0).uniform(0, 3, 15)
    priorities[4] = 0
    buffer.update_priorities(np.arange(15), priorities)
    shares = (priorities + 1e-3) ** 0.7
    np.testing.assert_allclose(buffer.priorities.ravel(), shares, rtol=1e-15)
    np.random.seed(0)
    counts = np.bincount(np.concatenate([buffer.sample(4).indices for _ in range(2000)]), minlength=15)
    expected = shares / shares.sum() * counts.sum()
    assert ((counts - expected) ** 2 / expected).sum() < 36.1  # 14 degrees of freedom, p = 0.001; the seed is fixed


def test_alpha_zero_is_uniform() -> None:
    buffer = make(rows=8, alpha=0.0, beta=1.0)
    fill([buffer], 8)
    buffer.update_priorities(np.arange(24), np.linspace(0, 1e6, 24))
    samples = buffer.sample(24)
    np.testing.assert_array_equal(samples.indices, np.arange(24))  # one range a transition
    assert th.equal(samples.weights, th.ones(24, 1))


@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
def test_weights(beta: float) -> None:
    buffer = make(rows=7, beta=beta)
    fill([buffer], 5)
    buffer.update_priorities(np.arange(15), np.random.default_rng(0).uniform(0, 3, 15))
    samples = buffer.sample(10)
    shares = buffer.priorities.ravel()
    probabilities = shares / shares.sum()
    weights = (15 * probabilities[samples.indices]) ** -beta
    np.testing.assert_allclose(samples.weights.numpy().ravel(), weights / weights.max(), rtol=1e-6)
    assert samples.weights.max() == 1


def test_new_transitions_get_the_highest_priority_so_far() -> None:
    buffer = make(rows=6, alpha=1.0, eps=0.5)
    fill([buffer], 4)
    np.testing.assert_array_equal(buffer.priorities, np.repeat([1, 0], [4, 2])[:, None] * np.ones(3))
    buffer.update_priorities([0, 1], [7.0, 0.0])
    buffer.update_priorities([0], [2.0])  # the highest so far, not the highest there is
    fill([buffer], 1)
    np.testing.assert_array_equal(buffer.priorities[4], [7.5] * 3)
    np.testing.assert_array_equal(buffer.priorities[0], [2.5, 0.5, 1.0])


def test_overwritten_slots_get_the_highest_priority() -> None:
    buffer = make(rows=6, alpha=1.0)
    fill([buffer], 6)
    buffer.update_priorities(np.arange(18), np.full(18, 0.01))
    fill([buffer], 2)
    assert (buffer.priorities[:2] == 1).all() and (buffer.priorities[2:] < 0.011).all()


def test_only_written_slots_are_sampled() -> None:
    buffer = make(rows=1000)
    fill([buffer], 3)
    for _ in range(50):
        assert buffer.sample(64).indices.max() < 9


def test_a_priority_given_twice() -> None:
    buffer = make(alpha=1.0)
    fill([buffer], 4)
    buffer.update_priorities([2, 5, 2], th.tensor([[1.0], [2.0], [3.0]], requires_grad=True))
    np.testing.assert_allclose(buffer.priorities.ravel()[[2, 5]], [3.000001, 2.000001])


def test_extreme_priorities_stay_reachable() -> None:
    buffer = make(rows=2, alpha=60.0)
    fill([buffer], 2)
    buffer.update_priorities(np.arange(6), [0.0] * 6)  # 1e-360 would be 0
    assert len(set(buffer.sample(6).indices)) == 6
    buffer.update_priorities([0], [1e300])  # ** 60 would be infinite
    samples = buffer.sample(6)
    assert set(samples.indices) == {0} and th.equal(samples.weights, th.ones(6, 1))


def test_reset() -> None:
    buffer = make()
    fill([buffer], 10)
    buffer.update_priorities([0], [9.0])
    buffer.reset()
    assert not buffer.priorities.any()
    with pytest.raises(ValueError, match="empty buffer"):
        buffer.sample(1)
    fill([buffer], 2)
    np.testing.assert_array_equal(buffer.priorities[:2], np.ones((2, 3)))


def test_beta_follows_its_schedule() -> None:
    buffer = make()
    assert buffer.beta == 0.4
    buffer.update_beta(0.5)
    assert buffer.beta == pytest.approx(0.7)
    buffer.update_beta(0.0)
    assert buffer.beta == 1.0
    constant = make(beta=0.5)
    constant.update_beta(0.0)
    assert constant.beta == 0.5
    constant.beta = 0.6
    assert constant.beta == 0.6
    with pytest.raises(ValueError, match="beta is -0"):
        make(beta=lambda progress: progress - 0.5).update_beta(0.0)


@pytest.mark.parametrize("cls", [CompressedPrioritizedReplayBuffer, CompressedDictPrioritizedReplayBuffer])
def test_pickle(cls: type[Any]) -> None:
    space = BOTH if cls is CompressedDictPrioritizedReplayBuffer else IMAGE
    buffer = make(cls, space=space, beta=lambda progress: 1 - progress, n_steps=2, gamma=0.9)
    fill([buffer], 25)
    buffer.update_priorities(np.arange(30), np.random.default_rng(0).random(30))
    buffer.update_beta(0.25)
    file = io.BytesIO()
    save_to_pkl(file, buffer)
    file.seek(0)
    loaded = load_from_pkl(file)
    batches = []
    for each in (buffer, loaded):
        np.random.seed(0)
        batches.append(each.sample(32))
    assert_equal(*batches)
    assert th.equal(batches[0].weights, batches[1].weights)
    assert loaded.beta == 0.75
    loaded.update_beta(0.0)
    assert loaded.beta == 1.0


def test_same_seed_same_batch() -> None:
    buffer = make()
    fill([buffer], 25)
    indices = []
    for _ in range(2):
        np.random.seed(7)
        indices.append(buffer.sample(16).indices)
    np.testing.assert_array_equal(*indices)


@pytest.mark.parametrize(
    ("option", "value"),
    [("alpha", -0.1), ("alpha", np.nan), ("beta", -1.0), ("beta", np.inf), ("eps", 0.0), ("eps", -1.0), ("n_steps", 0)],
)
def test_bad_options(option: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{option} is"):
        make(**{option: value})


def test_bad_updates_change_nothing() -> None:
    buffer = make()
    fill([buffer], 4)
    before = buffer.priorities
    for value in (-1.0, np.nan, np.inf):
        with pytest.raises(ValueError, match="finite and not negative"):
            buffer.update_priorities([0, 1], [1.0, value])
    for index in (-1, 12):  # 12 is the first that is not written yet
        with pytest.raises(IndexError, match="12 stored transitions"):
            buffer.update_priorities([0, index], [2.0, 2.0])
    with pytest.raises(ValueError, match="2 indices, but 3 priorities"):
        buffer.update_priorities([0, 1], [1.0, 2.0, 3.0])
    with pytest.raises(TypeError, match="integers"):
        buffer.update_priorities([0.5], [1.0])
    with pytest.raises(ValueError, match="batch_size is 0"):
        buffer.sample(0)
    with pytest.raises(ValueError, match="empty"):
        make(PrioritizedReplayBuffer).sample(1)
    buffer.update_priorities([], [])
    np.testing.assert_array_equal(buffer.priorities, before)


def test_what_cannot_be_stored_gets_no_priority() -> None:
    buffer = make()
    with pytest.raises(ValueError, match="shape"):
        buffer.add(np.zeros((N_ENVS, 2)), np.zeros((N_ENVS, 2)), np.zeros(3), np.zeros(3), np.zeros(3), [{}] * 3)
    assert not buffer.priorities.any()
