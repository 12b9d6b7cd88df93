"""What the parent's ``add`` gets to see, what is left when it fails, and that a changed ``sample`` is called."""

from __future__ import annotations

import inspect
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
from observation_streams import assert_same_samples
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer
from stable_baselines3.common.type_aliases import ReplayBufferSamples

from sb3_extra_buffers.compressed import CompressedDictReplayBuffer, CompressedReplayBuffer
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
