"""What the parent's ``add`` gets to see, what is left when it fails, and that a changed ``sample`` is called."""

from __future__ import annotations

import inspect
import pickle
import re
import subprocess
import sys
import warnings
from typing import Any

import numpy as np
import pytest
import stable_baselines3
import torch as th
from gymnasium import spaces
from observation_streams import assert_same_samples, sampled
from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer, RolloutBuffer
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from sb3_extra_buffers.compressed import (
    CompressedDictReplayBuffer,
    CompressedHerReplayBuffer,
    CompressedNStepReplayBuffer,
    CompressedReplayBuffer,
    CompressedRolloutBuffer,
)
from sb3_extra_buffers.compressed.base import warn_of_untested_version

SPACE = spaces.Box(0, 255, (1, 24, 24), np.uint8)
ACTIONS = spaces.Discrete(3)


def steps(count: int, n_envs: int = 2) -> Any:
    rng = np.random.default_rng(0)
    for _ in range(count):
        obs, next_obs = (rng.integers(0, 255, (n_envs, *SPACE.shape), np.uint8) for _ in range(2))
        yield obs, next_obs, rng.integers(0, 3, (n_envs, 1)), rng.random(n_envs), np.zeros(n_envs), [{}] * n_envs


class Brightness(ReplayBuffer):
    """A buffer of somebody else, whose ``add`` looks at observations and changes one."""

    def add(self, obs: Any, next_obs: Any, *args: Any, **kwargs: Any) -> None:
        self.brightness = float(obs.mean())
        next_obs = next_obs.copy()
        next_obs[0] = 7
        super().add(obs, next_obs, *args, **kwargs)


class CompressedBrightness(Brightness, CompressedReplayBuffer):
    """The same, over ours."""


class BrightnessOnTop(CompressedReplayBuffer):
    """A subclass of ours that looks at them first."""

    def add(self, obs: Any, *args: Any, **kwargs: Any) -> None:
        self.brightness = float(obs.mean())
        super().add(obs, *args, **kwargs)


def test_other_peoples_buffers_see_observations() -> None:
    theirs = Brightness(10, SPACE, ACTIONS, "cpu", 2)
    ours = CompressedBrightness(10, SPACE, ACTIONS, "cpu", 2)
    on_top = BrightnessOnTop(10, SPACE, ACTIONS, "cpu", 2)
    for step in steps(15):
        for buffer in (theirs, ours, on_top):
            buffer.add(*step)
        assert theirs.brightness == ours.brightness == on_top.brightness
    np.testing.assert_array_equal(np.asarray(ours.observations), theirs.observations)
    np.testing.assert_array_equal(np.asarray(ours.next_observations), theirs.next_observations)
    np.testing.assert_array_equal(np.asarray(on_top.observations), theirs.observations)


@pytest.mark.parametrize("full", [False, True])
def test_an_add_that_fails_leaves_observations_as_they_were(full: bool) -> None:
    """SB3 finds the wrong action before it stores anything."""
    theirs = ReplayBuffer(8, SPACE, ACTIONS, "cpu", 2)
    ours = CompressedReplayBuffer(8, SPACE, ACTIONS, "cpu", 2)
    transitions = list(steps(14))
    for step in transitions[: 6 if full else 3]:
        for buffer in (theirs, ours):
            buffer.add(*step)
    for buffer in (theirs, ours):
        with pytest.raises(ValueError, match="reshape"):
            buffer.add(*transitions[8][:2], np.zeros((2, 5)), *transitions[8][3:])
    for step in transitions[9:]:
        np.testing.assert_array_equal(np.asarray(ours.observations), theirs.observations)
        np.testing.assert_array_equal(np.asarray(ours.next_observations), theirs.next_observations)
        for buffer in (theirs, ours):
            buffer.add(*step)


def test_observations_may_be_used_again_by_the_caller() -> None:
    """SB3 copies what it is given; environments reuse their memory, and dicts belong to who made them."""
    space = spaces.Dict({"image": SPACE, "small": spaces.Box(0, 1, (3,), np.float32)})
    theirs = DictReplayBuffer(10, space, ACTIONS, "cpu", 2)
    ours = CompressedDictReplayBuffer(10, space, ACTIONS, "cpu", 2)
    image, following = (np.zeros((2, *SPACE.shape), np.uint8) for _ in range(2))
    small = np.zeros((2, 3), np.float32)
    obs, next_obs = {"image": image, "small": small}, {"image": following, "small": small}
    for step in steps(7):
        image[:], following[:] = step[:2]
        small += 1
        for buffer in (theirs, ours):
            buffer.add(obs, next_obs, *step[2:])
        assert obs["image"] is image and next_obs["image"] is following, "the caller's dict was changed"
    for key in space.spaces:
        np.testing.assert_array_equal(np.asarray(ours.observations[key]), theirs.observations[key])
        np.testing.assert_array_equal(np.asarray(ours.next_observations[key]), theirs.next_observations[key])


def plus_one(step: Any) -> Any:
    def changed(*args: Any, **kwargs: Any) -> Any:
        result = step(*args, **kwargs)
        return result._replace(rewards=result.rewards + 1) if isinstance(result, ReplayBufferSamples) else result + 1

    return changed


def filled(cls: Any) -> Any:
    buffer = cls(10, SPACE, ACTIONS, "cpu", 2)
    for step in steps(14):
        buffer.add(*step)
    return buffer


def samples_of(buffer: Any, *args: Any, **kwargs: Any) -> Any:
    np.random.seed(3)
    return buffer.sample(16, *args, **kwargs)


@pytest.mark.parametrize("name", ["sample", "_get_samples", "_normalize_obs", "_normalize_reward", "to_torch"])
@pytest.mark.parametrize("theirs_is_a_buffer", [False, True])
def test_other_peoples_samples_are_theirs(name: str, theirs_is_a_buffer: bool) -> None:
    """A class that changes a step of a sample, by itself or as somebody else's buffer, has it called, and can call ours."""
    if name in ("sample", "_get_samples"):

        def changed(self: Any, *args: Any, **kwargs: Any) -> Any:
            return plus_one(getattr(super(change, self), name))(*args, **kwargs)

    else:
        changed = plus_one(getattr(ReplayBuffer, name))
    is_static = isinstance(inspect.getattr_static(ReplayBuffer, name), staticmethod)
    parents: tuple[type, ...] = (ReplayBuffer,) if theirs_is_a_buffer else ()
    change: Any = type("Changed", parents, {name: staticmethod(changed) if is_static else changed})
    theirs = change if theirs_is_a_buffer else type("Theirs", (change, ReplayBuffer), {})
    ours = type("Ours", (change, CompressedReplayBuffer), {})
    expected = samples_of(filled(theirs))
    assert_same_samples(expected, samples_of(filled(ours)))
    usual = samples_of(filled(ReplayBuffer))
    assert not all(th.equal(one, other) for one, other in zip(expected, usual, strict=True) if one is not None)


class ReadsArrays(ReplayBuffer):
    """Somebody else's buffer that reads the arrays itself, as SB3's code does."""

    def _get_samples(self, batch_inds: Any, env: Any = None) -> Any:
        envs = np.random.randint(0, high=self.n_envs, size=(len(batch_inds),))
        next_obs = self._normalize_obs(self.next_observations[batch_inds, envs, :], env)
        final = self.dones[batch_inds, envs] * (1 - self.timeouts[batch_inds, envs])
        data = (
            self._normalize_obs(self.observations[batch_inds, envs, :], env),
            self.actions[batch_inds, envs, :],
            next_obs,
            final.reshape(-1, 1),
            self._normalize_reward(self.rewards[batch_inds, envs].reshape(-1, 1) * 2, env),
        )
        return ReplayBufferSamples(*map(self.to_torch, data))


class CompressedReadsArrays(ReadsArrays, CompressedReplayBuffer):
    """The same, over ours."""


def test_other_peoples_code_may_read_the_arrays() -> None:
    assert_same_samples(samples_of(filled(ReadsArrays)), samples_of(filled(CompressedReadsArrays)))


@pytest.mark.parametrize("version", ["2.6.0", "2.10.0", "3.0.0a1"])
def test_a_version_of_sb3_that_was_not_tested_gives_a_warning(version: str) -> None:
    with pytest.warns(UserWarning, match=rf"has been tested with Stable-Baselines3 2\.7, .*, not with {re.escape(version)}"):
        warn_of_untested_version(version)


@pytest.mark.parametrize("version", [stable_baselines3.__version__, "2.7.0", "2.8.1", "2.9.0a3"])
def test_a_version_that_was_tested_gives_none(version: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_untested_version(version)


def test_the_warning_comes_once_in_a_process() -> None:
    program = (
        "import warnings, stable_baselines3\n"
        "stable_baselines3.__version__ = '9.1.0'\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    import numpy as np\n"
        "    from gymnasium import spaces\n"
        "    from sb3_extra_buffers import CompressedReplayBuffer, CompressedRolloutBuffer\n"
        "    for cls in (CompressedReplayBuffer, CompressedRolloutBuffer, CompressedReplayBuffer):\n"
        "        cls(10, spaces.Box(0, 255, (1, 30, 30), np.uint8), spaces.Discrete(2), 'cpu')\n"
        "print(sum('not with 9.1.0' in str(warning.message) for warning in caught))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=600)
    assert done.stdout.strip() == "1", done.stdout + done.stderr


@pytest.mark.parametrize("given", [((), {}), ((None,), {}), ((), {"env": None})], ids=str)
def test_a_plain_sample(given: Any) -> None:
    args, kwargs = given
    ours = filled(CompressedReplayBuffer)
    assert_same_samples(samples_of(filled(ReplayBuffer)), samples_of(ours, *args, **kwargs))
    for wrong in ({"envs": None}, {"env": None, "beta": None}):
        with pytest.raises(TypeError, match="unexpected keyword"):
            ours.sample(16, **wrong)
    one, other = samples_of(ours), samples_of(ours)
    one.observations.zero_()
    one.rewards.zero_()
    assert_same_samples(other, samples_of(ours))  # they share no memory, neither with each other nor with the buffer


# -- columns of subclasses, and rows counted from the end ---------------------------------------------------------------------


class Advantages(RolloutBuffer):
    """A buffer of somebody else that makes its own column in ``reset``, which SB3's constructor calls."""

    def reset(self) -> None:
        self.weights = np.ones((self.buffer_size, self.n_envs))
        super().reset()


class CompressedAdvantages(Advantages, CompressedRolloutBuffer):
    """The same, over ours."""


@pytest.mark.parametrize("cls", [Advantages, CompressedAdvantages])
def test_columns_that_a_reset_makes(cls: Any) -> None:
    buffer = cls(5, SPACE, ACTIONS, "cpu", n_envs=2)
    assert buffer.weights.shape == (5, 2)
    buffer.add(*next(steps(1))[:1], np.zeros((2, 1)), np.zeros(2), np.zeros(2), th.zeros(2), th.zeros(2))
    assert buffer.pos == 1


@pytest.mark.parametrize("n_steps", [1, 3])
def test_rows_from_the_end_of_a_replay_buffer(n_steps: int) -> None:
    theirs: Any = ReplayBuffer if n_steps == 1 else NStepReplayBuffer
    ours: Any = CompressedReplayBuffer if n_steps == 1 else CompressedNStepReplayBuffer
    options = {} if n_steps == 1 else {"n_steps": n_steps}
    pair = [cls(20, SPACE, ACTIONS, "cpu", 2, **options) for cls in (ours, theirs)]
    for step in steps(14):
        for buffer in pair:
            buffer.add(*step)
    samples = []
    for buffer in pair:
        np.random.seed(0)
        samples.append(buffer._get_samples(np.array([-1, 3, -10, buffer.pos - 6])))
        with pytest.raises(IndexError):
            pair[0]._get_samples(np.array([-11]))
    assert_same_samples(*samples)


def test_rows_from_the_end_of_a_rollout() -> None:
    pair = [cls(5, SPACE, ACTIONS, "cpu", n_envs=2) for cls in (CompressedRolloutBuffer, RolloutBuffer)]
    rng = np.random.default_rng(0)
    for step in steps(5):
        value = th.as_tensor(rng.random(2))
        for buffer in pair:
            buffer.add(*step[:1], *step[2:4], np.zeros(2), value, value)
    samples = []
    for buffer in pair:
        np.random.seed(0)
        next(buffer.get(4))
        samples.append(buffer._get_samples(np.array([-1, 3, -10])))
    assert_same_samples(*samples)


# -- HER, as others change it -------------------------------------------------------------------------------------------------

GOAL = spaces.Box(-1, 1, (2,), np.float32)
GOALS = spaces.Dict({"observation": SPACE, "achieved_goal": GOAL, "desired_goal": GOAL})


class Lengths:
    """Writes lengths of episodes itself: through the attribute, through another name for it, as another array."""

    def forget(self, way: str) -> None:
        buffer: Any = self
        if way == "attribute":
            buffer.ep_length[3:6] = 0
        elif way == "function":
            np.multiply(buffer.ep_length, np.arange(buffer.n_envs) > 0, out=buffer.ep_length)
        else:
            buffer.ep_length = np.where(np.arange(buffer.buffer_size)[:, None] % 3 == 0, buffer.ep_length, 0)


class TheirHer(Lengths, HerReplayBuffer):
    """A buffer of somebody else."""


class CompressedTheirHer(Lengths, CompressedHerReplayBuffer):
    """The same, over ours."""


class Rewards:
    """What HER asks of an environment."""

    observation_space = GOALS

    def env_method(self, name: str, achieved: Any, desired: Any, infos: Any, indices: Any) -> Any:
        return [np.abs(achieved - desired).sum(axis=1)]


def her_pair(**options: Any) -> list[Any]:
    pair = [
        cls(60, GOALS, ACTIONS, env=Rewards(), device="cpu", n_envs=2, **options) for cls in (CompressedTheirHer, TheirHer)
    ]
    rng = np.random.default_rng(0)
    for number, (obs, next_obs, *rest) in enumerate(steps(45)):
        goals = {key: rng.random((2, 2), np.float32) for key in ("achieved_goal", "desired_goal")}
        rest[2] = np.array([number % 4 == 3, number % 7 == 6])
        for buffer in pair:
            buffer.add({"observation": obs, **goals}, {"observation": next_obs, **goals}, *rest)
    return pair


def assert_same_her(pair: list[Any]) -> None:
    samples = []
    for buffer in pair:
        np.random.seed(0)
        samples.append(buffer.sample(40))
    assert_same_samples(*samples)


@pytest.mark.parametrize("way", ["attribute", "function", "array"])
def test_lengths_of_episodes_that_others_write(way: str) -> None:
    pair = her_pair()
    assert_same_her(pair)
    for buffer in pair:
        buffer.forget(way)
    assert_same_her(pair)
    pair[0] = pickle.loads(pickle.dumps(pair[0]))
    pair[0].set_env(Rewards())
    assert_same_her(pair)


@pytest.mark.parametrize("copy_info_dict", [False, True])
def test_infos_that_others_write(copy_info_dict: bool) -> None:
    pair = her_pair(copy_info_dict=copy_info_dict)
    for buffer in pair:
        assert buffer.infos.shape == (30, 2) and buffer.infos[4, 1] == {}
        if not copy_info_dict:  # else it is the environment's
            buffer.infos[4, 1]["seen"] = True
        buffer.infos[5, 0] = {"seen": False}
    for ours in (pair[0], pickle.loads(pickle.dumps(pair[0]))):
        assert ours.infos.tolist() == pair[1].infos.tolist()
    assert_same_her(pair)


# -- observations as a whole --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [4, 10, 14])
def test_observations_that_are_assigned(rows: int) -> None:
    """What is assigned is what is sampled, as with SB3; what cannot be stored is refused."""
    space = spaces.Dict({"image": SPACE, "vector": GOAL})
    rng = np.random.default_rng(0)
    for is_dict in (False, True):
        ours: Any = CompressedDictReplayBuffer if is_dict else CompressedReplayBuffer
        theirs: Any = DictReplayBuffer if is_dict else ReplayBuffer
        pair = [cls(20, space if is_dict else SPACE, ACTIONS, "cpu", 2) for cls in (ours, theirs)]
        image, vector = rng.integers(0, 255, (10, 2, *SPACE.shape), np.uint8), rng.random((10, 2, 2), np.float32)
        for buffer in pair:
            for obs, next_obs, *rest in steps(rows):
                given = [{"image": part, "vector": np.ones((2, 2))} if is_dict else part for part in (obs, next_obs)]
                buffer.add(*given, *rest)
            if is_dict:
                buffer.observations["vector"] = vector
                buffer.observations["image"] = image.copy()
                buffer.next_observations = {"vector": vector + 1, "image": image[::-1]}
            else:
                buffer.observations = image
                buffer.next_observations = image[::-1]
        samples = [sampled(buffer, 0, 30)[0] for buffer in pair]
        assert_same_samples(*samples)
        buffer = pair[0]
        kept = buffer.observations
        buffer.observations = buffer.observations
        assert buffer.observations is kept
        with pytest.raises(ValueError, match=r"observations.* has shape \(10, 2, .*\); an array of shape \(3, 2"):
            if is_dict:
                buffer.observations["image"] = image[:3]
            else:
                buffer.observations = image[:3]
        if is_dict:
            with pytest.raises(ValueError, match=r"must be a dict with the keys \['image', 'vector'\], not \['image'\]"):
                buffer.observations = {"image": image}
        assert_same_samples(sampled(buffer, 0, 30)[0], samples[1])
