"""``make_env`` gives what SB3 gives, in this process and in fresh ones."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

ale_py = pytest.importorskip("ale_py")
pytest.importorskip("cv2")

from stable_baselines3.common.env_util import make_atari_env  # noqa: E402
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecFrameStack  # noqa: E402

from sb3_extra_buffers.training_utils import atari  # noqa: E402
from sb3_extra_buffers.training_utils.atari import make_env  # noqa: E402

# Random play loses a life within a few dozen steps, so the comparison crosses episode ends.
GAME = "BreakoutNoFrameskip-v4"
STEPS = 150

WORKERS = {
    "dummy": DummyVecEnv,
    "spawn": partial(SubprocVecEnv, start_method="spawn"),
    "forkserver": partial(SubprocVecEnv, start_method="forkserver"),
}


@contextmanager
def closing(venv: VecEnv) -> Iterator[VecEnv]:
    try:
        yield venv
    finally:
        venv.close()


def without_clock(info: dict[str, Any]) -> dict[str, Any]:
    """The info of a step, less what Monitor measures in seconds."""
    info = dict(info)
    if "episode" in info:
        info["episode"] = {key: value for key, value in info["episode"].items() if key != "t"}
    return info


def assert_same_play(ours: VecEnv, theirs: VecEnv, steps: int = STEPS) -> int:
    """Play both alike; returns how many episodes ended."""
    assert ours.num_envs == theirs.num_envs
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
    for our_space, their_space in zip(ours.get_attr("action_space"), theirs.get_attr("action_space"), strict=True):
        assert [our_space.sample() for _ in range(8)] == [their_space.sample() for _ in range(8)]

    np.testing.assert_array_equal(ours.reset(), theirs.reset(), strict=True)
    rng = np.random.default_rng(0)
    ended = 0
    for _ in range(steps):
        actions = rng.integers(ours.action_space.n, size=ours.num_envs)
        our_step, their_step = ours.step(actions), theirs.step(actions)
        for our_part, their_part in zip(our_step[:3], their_step[:3], strict=True):
            # SB3's DummyVecEnv gives rewards as float32, its SubprocVecEnv as they come.
            strict = our_part.dtype.kind != "f" or type(ours.unwrapped) is type(theirs.unwrapped)
            np.testing.assert_array_equal(our_part, their_part, strict=strict)
        for our_info, their_info in zip(our_step[3], their_step[3], strict=True):
            np.testing.assert_equal(without_clock(our_info), without_clock(their_info))
        ended += int(our_step[2].sum())
    return ended


@pytest.mark.parametrize("workers", WORKERS)
def test_plays_as_sb3s_own(workers: str) -> None:
    gym.register_envs(ale_py)
    with (
        closing(make_env(GAME, n_envs=2, vec_env_cls=WORKERS[workers], framestack=4, seed=7)) as ours,
        closing(VecFrameStack(make_atari_env(GAME, n_envs=2, seed=7), n_stack=4)) as theirs,
    ):
        assert isinstance(ours.unwrapped, DummyVecEnv if workers == "dummy" else SubprocVecEnv)
        assert assert_same_play(ours, theirs) > 0


def test_env_kwargs_reach_the_game() -> None:
    kwargs: dict[str, Any] = {"full_action_space": True, "repeat_action_probability": 0.25, "render_mode": None}
    gym.register_envs(ale_py)
    with (
        closing(make_env(GAME, 2, vec_env_cls=DummyVecEnv, framestack=3, seed=1, **kwargs)) as ours,
        closing(VecFrameStack(make_atari_env(GAME, n_envs=2, seed=1, env_kwargs=kwargs), n_stack=3)) as theirs,
    ):
        assert ours.action_space.n == 18
        assert ours.render_mode == theirs.render_mode is None
        assert_same_play(ours, theirs, steps=40)


@pytest.mark.parametrize("framestack", [None, 1, 0, -1])
def test_no_framestack(framestack: int | None) -> None:
    with closing(make_env(GAME, n_envs=1, framestack=framestack)) as venv:
        assert not isinstance(venv, VecFrameStack)
        assert venv.reset().shape == (1, 84, 84, 1)


@pytest.mark.parametrize("framestack", [2, 4, 5])
def test_framestack(framestack: int) -> None:
    with closing(make_env(GAME, n_envs=1, framestack=framestack)) as venv:
        assert venv.observation_space.shape == (84, 84, framestack)
        assert venv.reset().shape == (1, 84, 84, framestack)


def test_defaults() -> None:
    with closing(make_env(env_id=GAME, n_envs=2)) as venv:
        assert isinstance(venv, VecFrameStack)
        assert isinstance(venv.unwrapped, SubprocVecEnv)
        assert venv.render_mode == "rgb_array"
        assert venv.reset().shape == (2, 84, 84, 4)


def test_one_env_stays_in_this_process() -> None:
    with closing(make_env(GAME, n_envs=1, vec_env_cls=SubprocVecEnv)) as venv:
        assert isinstance(venv.unwrapped, DummyVecEnv)


def test_without_seed_sb3_seeds_at_random() -> None:
    with closing(make_env(GAME, n_envs=1, seed=None)) as one, closing(make_env(GAME, n_envs=1, seed=None)) as other:
        assert one.unwrapped._seeds != other.unwrapped._seeds


@pytest.mark.parametrize("n_envs", [0, -3])
def test_too_few_envs(n_envs: int) -> None:
    with pytest.raises(ValueError, match=f"n_envs must be at least 1, got {n_envs}"):
        make_env(GAME, n_envs=n_envs)


@pytest.mark.parametrize("n_envs", [1, 2])
def test_unknown_game_is_gymnasiums_error(n_envs: int) -> None:
    with pytest.raises(gym.error.Error, match="Brekout"):
        make_env("BrekoutNoFrameskip-v4", n_envs=n_envs)


@pytest.mark.parametrize("n_envs", [1, 2])
def test_the_games_own_error_comes_out_of_the_worker(n_envs: int) -> None:
    with pytest.raises(TypeError, match="no_such_option"):
        make_env(GAME, n_envs=n_envs, no_such_option=1)


@pytest.mark.parametrize("module", ["ale_py", "cv2"])
def test_missing_library_names_the_extra(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=r'pip install "\.\[extra\]"'):
        atari.make_env(GAME, n_envs=1)


def test_a_script_needs_no_guard(tmp_path: Path) -> None:
    """Workers do not run the script that starts them again, so ``if __name__ == "__main__":`` is not needed."""
    script = tmp_path / "unguarded.py"
    script.write_text(
        "from sb3_extra_buffers.training_utils.atari import make_env\n"
        f"env = make_env({GAME!r}, n_envs=2, framestack=4)\n"
        "print('started', env.reset().shape)\n"
        "env.close()\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("started (2, 84, 84, 4)") == 1
