"""ViZDoom environments: pictures and masks are what the game shows, play repeats itself, workers play the same."""

from __future__ import annotations

import pickle
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("vizdoom")

from gymnasium.utils.env_checker import check_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv

from sb3_extra_buffers.training_utils.vizdoom import MASK_VALUES, VizdoomEnv, make_env


def play(env: VizdoomEnv, steps: int, seed: int = 0) -> list[Any]:
    """Play at random; a list of what each step gave, resets included."""
    rng = np.random.default_rng(seed)
    seen: list[Any] = [env.reset(seed=seed)[0]]
    for _ in range(steps):
        obs, reward, terminated, truncated, _ = env.step(rng.integers(env.action_space.n))
        seen.append((obs, reward, terminated, truncated))
        if terminated or truncated:
            seen.append(env.reset()[0])
    return seen


@pytest.fixture
def doom() -> Any:
    """Makes environments, and closes them."""
    made: list[VizdoomEnv] = []

    def make(*args: Any, **kwargs: Any) -> VizdoomEnv:
        made.append(VizdoomEnv(*args, **kwargs))
        return made[-1]

    yield make
    for env in made:
        env.close()


@pytest.mark.parametrize("observe", ["rgb", "gray", "mask", "labels"])
def test_it_is_a_gymnasium_environment(doom: Any, observe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    env = doom("basic", observe=observe, shrink=2)
    assert env.observation_space.shape == (60, 80, 3 if observe == "rgb" else 1)
    assert env.action_space.n == 3  # left, right, attack
    check_env(env, skip_render_check=True)
    assert env.render().shape == (120, 160, 3)
    assert not (tmp_path / "_vizdoom.ini").exists(), "settings of ViZDoom were left behind"


def test_a_mask_is_the_class_of_each_object(doom: Any) -> None:
    # The corridor has monsters, an armor vest, and soon corpses and blood.
    env = doom("deadly_corridor", observe="mask")
    rng = np.random.default_rng(0)
    env.reset(seed=0)
    values, numbers = set(), {}
    for _ in range(150):
        obs, _, terminated, truncated, _ = env.step(rng.integers(7))
        if terminated or truncated:
            obs, _ = env.reset()
        state = env.game.get_state()
        mask, labels = obs[..., 0], state.labels_buffer
        # Objects in view are numbered anew in every frame; their classes are not.
        known = {label.value: label for label in state.labels}
        for number in np.unique(labels):
            (value,) = np.unique(mask[labels == number])
            if number in known:
                category = known[number].object_category
                assert value == MASK_VALUES[{"Explosive": "projectile", "Gibs": "gore"}.get(category, category.lower())]
                numbers.setdefault(category, set()).add(int(number))
            else:
                assert value == MASK_VALUES["wall" if number == 0 else "floor"]
            values.add(int(value))
    assert MASK_VALUES["monster"] in values and MASK_VALUES["armor"] in values
    assert len(numbers["Monster"]) > 1, "the labels buffer did not number the monsters differently: nothing was tested"


def test_a_category_without_a_class_of_its_own_is_other(doom: Any) -> None:
    env = doom("predict_position", observe="mask")  # rockets leave smoke, which ViZDoom calls SFX
    rng = np.random.default_rng(0)
    env.reset(seed=0)
    for _ in range(300):
        obs, _, terminated, truncated, _ = env.step(rng.integers(3))
        if terminated or truncated:
            env.reset()
            continue
        state = env.game.get_state()
        smoke = np.isin(state.labels_buffer, [label.value for label in state.labels if label.object_category == "SFX"])
        if smoke.any():
            assert (obs[smoke] == MASK_VALUES["other"]).all()
            return
    pytest.fail("no rocket was fired")


def test_classes_are_told_apart() -> None:
    assert len(set(MASK_VALUES.values())) == len(MASK_VALUES)
    assert min(MASK_VALUES.values()) == MASK_VALUES["wall"] == 0 and max(MASK_VALUES.values()) == 255


def test_both_views_are_those_that_each_shows_alone(doom: Any) -> None:
    envs = {view: doom("basic", observe=view, shrink=2) for view in ("both", "rgb", "mask")}
    seen = {view: [env.reset(seed=3)[0]] for view, env in envs.items()}
    for step in range(100):
        for view, env in envs.items():
            obs, *_, terminated, truncated, _ = env.step(step % 3)
            seen[view].append(obs)
            if terminated or truncated:
                seen[view].append(env.reset()[0])
    for both, rgb, mask in zip(*seen.values(), strict=True):
        assert envs["both"].observation_space.contains(both)
        np.testing.assert_array_equal(both["rgb"], rgb)
        np.testing.assert_array_equal(both["mask"], mask)


def test_shrinking_averages_pictures_and_thins_out_masks(doom: Any) -> None:
    whole, half = doom("basic"), doom("basic", shrink=2)
    picture, small = whole.reset(seed=3)[0], half.reset(seed=3)[0]
    assert np.array_equal(small, picture.reshape(60, 2, 80, 2, 3).mean(axis=(1, 3)).astype(np.uint8))
    whole, half = doom("basic", observe="mask"), doom("basic", observe="mask", shrink=2)
    mask, small = whole.reset(seed=3)[0], half.reset(seed=3)[0]
    assert np.array_equal(small, mask[1::2, 1::2])
    assert MASK_VALUES["monster"] in small


def test_the_same_seed_plays_the_same(doom: Any) -> None:
    def flat(play: list[Any]) -> bytes:
        return pickle.dumps([[np.asarray(part).tobytes() for part in step] for step in play if isinstance(step, tuple)])

    one, two, other = (doom("basic", observe="mask", shrink=2) for _ in range(3))
    first = play(one, 120)
    assert sum(isinstance(step, np.ndarray) for step in first) > 1, "no episode ended"
    assert flat(first) == flat(play(two, 120))
    assert flat(first) == flat(play(one, 120)), "a seed did not start the game anew"
    assert flat(first) != flat(play(other, 120, seed=1))


def test_ends_of_episodes(doom: Any) -> None:
    env = doom("basic", observe="mask", shrink=2)
    env.reset(seed=0)
    before = None
    for step in range(75):  # 300 tics, four a step; walking to the wall does not shoot the monster
        obs, reward, terminated, truncated, _ = env.step(0)
        assert not terminated and truncated == (step == 74)
        assert reward == -4
        if truncated:
            assert np.array_equal(obs, before), "the last observation is the last that was seen"
        before = obs
    # To shoot it is a real end.
    rng = np.random.default_rng(0)
    ends = []
    env.reset(seed=0)
    while True:
        *_, reward, terminated, truncated, _ = env.step(rng.integers(3))
        if terminated or truncated:
            ends.append((terminated, truncated))
            assert terminated == (reward > 0)
            if terminated:
                break
            env.reset()
    assert ends[-1] == (True, False)


def steps_of(env: VecEnv, steps: int) -> list[tuple[bytes, list[float], list[bool], list[float]]]:
    rng = np.random.default_rng(0)
    seen = [(env.reset().tobytes(), [0.0], [False], [0.0])]
    for _ in range(steps):
        obs, rewards, dones, infos = env.step(rng.integers(3, size=env.num_envs))
        scores = [float(info["episode"]["r"]) for info in infos if "episode" in info]
        seen.append((obs.tobytes(), [round(float(r), 5) for r in rewards], dones.tolist(), scores))
    env.close()
    return seen


def test_workers_play_the_same_and_rewards_are_scaled_for_the_model_only() -> None:
    kwargs: dict[str, Any] = {"framestack": 2, "seed": 5, "observe": "mask", "shrink": 2}
    here = steps_of(make_env("basic", 2, DummyVecEnv, **kwargs), 100)
    there = steps_of(make_env("basic", 2, partial(SubprocVecEnv, start_method="spawn"), reward_scale=0.01, **kwargs), 100)
    assert [step[0] for step in here] == [step[0] for step in there]
    assert [step[2:] for step in here] == [step[2:] for step in there]
    assert any(step[3] for step in here), "no episode ended"
    assert np.allclose([step[1] for step in here[1:]], 100 * np.array([step[1] for step in there[1:]]))


def test_environments_differ_and_stack() -> None:
    env = make_env("basic", 3, DummyVecEnv, framestack=4, seed=0, observe="mask", shrink=2)
    obs: Any = env.reset()
    assert obs.shape == (3, 60, 80, 4) and env.action_space.n == 3
    assert len({frame.tobytes() for frame in obs}) == 3
    env.close()


def test_buttons_that_take_an_amount_are_left_out(doom: Any) -> None:
    env = doom("deathmatch")  # 17 buttons, and three that turn and move by an amount
    assert env.action_space.n == 17
    env.reset(seed=0)
    env.step(16)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"scenario": "basics"}, ValueError, "no scenario 'basics'; it has: basic, .*take_cover"),
        ({"scenario": "missing/own.cfg"}, FileNotFoundError, "missing/own.cfg"),
        ({"observe": "depth"}, ValueError, "observe must be one of 'rgb', 'gray', 'mask', 'labels', 'both', not 'depth'"),
        ({"resolution": (80, 60)}, ValueError, "cannot render 80x60"),
        ({"shrink": 7}, ValueError, "shrink must divide both 160 and 120, got 7"),
        ({"shrink": 0}, ValueError, "shrink must divide"),
        ({"frame_skip": 0}, ValueError, "frame_skip must be at least 1"),
        ({"render_mode": "human"}, ValueError, "render_mode must be 'rgb_array' or None, not 'human'"),
        ({"n_envs": 0}, ValueError, "n_envs must be at least 1"),
    ],
)
def test_mistakes_are_named_before_any_worker_starts(arguments: dict[str, Any], error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        make_env(**{"scenario": "basic", "n_envs": 2, **arguments})


def test_a_scenario_file_of_ones_own(doom: Any, tmp_path: Path) -> None:
    import vizdoom

    text = (Path(vizdoom.scenarios_path) / "basic.cfg").read_text()
    wad = (Path(vizdoom.scenarios_path) / "basic.wad").as_posix()
    path = tmp_path / "own.cfg"
    path.write_text(text.replace("basic.wad", wad).replace("        ATTACK\n", ""))
    assert doom(str(path)).action_space.n == 2


def test_without_vizdoom_the_extra_is_named() -> None:
    code = """
import sys
sys.modules["vizdoom"] = None
from sb3_extra_buffers.training_utils.vizdoom import make_env
try:
    make_env("basic")
except ImportError as error:
    assert 'pip install ".[vizdoom]"' in str(error), error
else:
    raise AssertionError("no error")
"""
    subprocess.run([sys.executable, "-c", code], check=True)
