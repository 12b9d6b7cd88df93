"""Who plays the recordings. Actions are drawn at random, from a fixed seed, unless a trained agent plays."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.atari_wrappers import EpisodicLifeEnv, MaxAndSkipEnv, NoopResetEnv
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

from kit.recordings import SEED, Array, FrameDigest, Recorder, record_env
from sb3_extra_buffers.codecs._optional import install_hint

if TYPE_CHECKING:
    from kit.data import Dataset

TRAINED = Path(__file__).parents[1] / "play"
"""Actions of trained agents, which ``train_play.py`` keeps here."""
_SIZE = 84
_CRAFTER_STEPS = 1000
_ACTION_REPEAT = 2


def _random_actions(dataset: Dataset, rows: int) -> Iterator[Array]:
    rng = np.random.default_rng(SEED)
    for _ in range(rows):
        if dataset.continuous:
            yield rng.uniform(-1, 1, (dataset.n_envs, dataset.actions)).astype(np.float32)
        else:
            yield rng.integers(0, dataset.actions, dataset.n_envs)


def _play_atari(dataset: Dataset, rows: int, folder: Path) -> None:
    from sb3_extra_buffers.training_utils.atari import make_env

    # Workers take longer to start than a short game takes to play; the game is the same.
    short = rows * dataset.n_envs <= 10_000
    env = make_env(dataset.source, dataset.n_envs, DummyVecEnv if short else SubprocVecEnv, framestack=None, seed=SEED)
    record_env(env, folder, _random_actions(dataset, rows))


def _colour_game(game: str) -> gym.Env[Any, Any]:
    """SB3's preprocessing of Atari games, but for the picture: it stays as large and as colourful as it is."""
    import ale_py

    gym.register_envs(ale_py)
    return EpisodicLifeEnv(MaxAndSkipEnv(NoopResetEnv(gym.make(game), noop_max=30), skip=4))


def _play_colour_atari(dataset: Dataset, rows: int, folder: Path) -> None:
    game = dataset.source.removesuffix("-rgb")
    env = make_vec_env(lambda: _colour_game(game), dataset.n_envs, seed=SEED)
    record_env(env, folder, _random_actions(dataset, rows))


def _play_trained(dataset: Dataset, rows: int, folder: Path) -> None:
    """The actions of an agent that was trained once, played again."""
    from sb3_extra_buffers.training_utils.atari import make_env

    with np.load(TRAINED / f"{dataset.name}.npz") as kept:
        actions, about = kept["actions"].astype(np.int64), json.loads(str(kept["about"]))
    if rows > len(actions):
        raise ValueError(f"{dataset.name}.npz has {len(actions):,} steps, {rows:,} are needed: train_play.py makes more")
    env = make_env(about["game"], dataset.n_envs, DummyVecEnv, framestack=None, seed=about["seed"])
    frames = FrameDigest()
    record_env(env, folder, iter(actions[:rows]), frames)
    if rows == len(actions) and frames.hexdigest() != about["frames"]:
        shutil.rmtree(folder)
        raise ValueError(
            f"{dataset.name} is not the game that was played with {about['versions']}: train_play.py plays a new one"
        )


def _play_doom(dataset: Dataset, rows: int, folder: Path) -> None:
    """The picture, in colour or gray, or what each of its pixels shows. Same seed and same actions: the same game."""
    from sb3_extra_buffers.training_utils.vizdoom import make_env

    observe, _, scenario = dataset.source.removeprefix("doom-").partition("-")
    env = make_env(scenario or "deadly_corridor", dataset.n_envs, DummyVecEnv, seed=SEED, observe=observe)
    record_env(env, folder, _random_actions(dataset, rows))


def _play_walk(dataset: Dataset, rows: int, folder: Path) -> None:
    """A random walk, as the state of a robot might take."""
    rng = np.random.default_rng(SEED)
    shape = (dataset.n_envs, 17)
    state = rng.normal(size=shape).astype(np.float32)
    recorder = Recorder(folder, state)
    for row in range(rows):
        state = state + rng.normal(scale=0.1, size=shape).astype(np.float32)
        done = np.full(dataset.n_envs, row % 1000 == 999)
        terminal = [frame.copy() for frame in state[done]]
        if done.any():
            state = rng.normal(size=shape).astype(np.float32)
        action = rng.integers(0, dataset.actions, dataset.n_envs)
        recorder.add(state, action, rng.normal(size=dataset.n_envs).astype(np.float32), done, done, terminal)
    recorder.close()


def _play_racing(dataset: Dataset, rows: int, folder: Path) -> None:
    env = make_vec_env("CarRacing-v3", dataset.n_envs, seed=SEED, env_kwargs={"continuous": False})
    record_env(env, folder, _random_actions(dataset, rows))


class Crafter(gym.Env[Array, int]):
    """Crafter for Gymnasium: it has the interface of before Gymnasium, and its own spaces."""

    def __init__(self) -> None:
        import crafter

        self._world = crafter.Env(size=(_SIZE, _SIZE), length=_CRAFTER_STEPS, seed=SEED)
        self.observation_space = spaces.Box(0, 255, (_SIZE, _SIZE, 3), np.uint8)
        self.action_space = spaces.Discrete(self._world.action_space.n)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self._world._seed = seed  # its only seed; an episode's world comes from it and the episode's number
        return self._world.reset(), {}

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        obs, reward, over, info = self._world.step(int(action))
        dead = info["discount"] == 0
        return obs, float(reward), dead, over and not dead, {}


def _play_crafter(dataset: Dataset, rows: int, folder: Path) -> None:
    record_env(make_vec_env(Crafter, dataset.n_envs, seed=SEED), folder, _random_actions(dataset, rows))


def _grid_world() -> gym.Env[Any, Any]:
    """Six rooms, of which the agent sees seven by seven tiles of twelve pixels in front of it."""
    from minigrid.wrappers import ImgObsWrapper, RGBImgPartialObsWrapper

    return ImgObsWrapper(RGBImgPartialObsWrapper(gym.make("MiniGrid-MultiRoom-N6-v0"), tile_size=12))


def _play_grid(dataset: Dataset, rows: int, folder: Path) -> None:
    record_env(make_vec_env(_grid_world, dataset.n_envs, seed=SEED), folder, _random_actions(dataset, rows))


class Walker(gym.Env[Array, Array]):
    """The walker of dm_control, seen by its camera; each action is applied twice, as papers on pixels do."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0, 255, (_SIZE, _SIZE, 3), np.uint8)
        self.action_space = spaces.Box(-1, 1, (6,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        from dm_control import suite

        super().reset(seed=seed)
        if seed is not None:
            self._world = suite.load("walker", "walk", task_kwargs={"random": seed})
        self._world.reset()
        return self._look(), {}

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        reward = 0.0
        for _ in range(_ACTION_REPEAT):
            step = self._world.step(action)
            reward += step.reward or 0.0
        # An episode ends only when its time is up.
        return self._look(), reward, False, step.last(), {}

    def _look(self) -> Array:
        frame: Array = self._world.physics.render(_SIZE, _SIZE, camera_id=0)
        return frame


def _ant() -> gym.Env[Any, Any]:
    """Gymnasium's ant, seen by the camera that follows it."""
    env = gym.make("Ant-v5", render_mode="rgb_array", width=_SIZE, height=_SIZE)
    # Shadows are drawn on a square of 4,096 points otherwise, which takes a processor three times as long as all the rest.
    game: Any = env.unwrapped
    game.model.vis.quality.shadowsize = 1024
    return gym.wrappers.AddRenderObservation(env, render_only=True)


def _play_robot(dataset: Dataset, rows: int, folder: Path) -> None:
    # Drawn by the processor where there is no graphics card, so that a picture takes some 30 ms.
    os.environ.setdefault("MUJOCO_GL", "egl")
    make: Callable[[], gym.Env[Any, Any]] = Walker if dataset.source == "walker" else _ant
    try:
        env = make_vec_env(make, dataset.n_envs, seed=SEED)
        env.reset()
    except Exception as error:  # whatever the layers of OpenGL raise
        raise RuntimeError(
            f"MuJoCo cannot draw without a screen: {type(error).__name__}: {error}. Install libegl1 and libgl1-mesa-dri, or "
            f"libosmesa6 and set MUJOCO_GL=osmesa (it is {os.environ['MUJOCO_GL']!r})"
        ) from error
    record_env(env, folder, _random_actions(dataset, rows))


def _play_noise(dataset: Dataset, rows: int, folder: Path) -> None:
    """Nothing is smaller than this."""
    rng = np.random.default_rng(SEED)
    shape = (dataset.n_envs, _SIZE, _SIZE, 3)

    def draw() -> Array:
        return rng.integers(0, 256, shape, np.uint8)

    recorder = Recorder(folder, draw())
    for row, action in enumerate(_random_actions(dataset, rows)):
        done = np.full(dataset.n_envs, row % 250 == 249)
        terminal = list(draw()) if done.any() else []
        recorder.add(draw(), action, rng.normal(size=dataset.n_envs).astype(np.float32), done, done, terminal)
    recorder.close()


_PLAYERS: dict[str, Callable[[Dataset, int, Path], None]] = {
    "mspacman-trained": _play_trained,
    "breakout-trained": _play_trained,
    "MsPacmanNoFrameskip-v4-rgb": _play_colour_atari,
    "BreakoutNoFrameskip-v4-rgb": _play_colour_atari,
    "doom-rgb": _play_doom,
    "doom-rgb-my_way_home": _play_doom,
    "doom-gray": _play_doom,
    "doom-labels": _play_doom,
    "walk": _play_walk,
    "carracing": _play_racing,
    "crafter": _play_crafter,
    "grid": _play_grid,
    "walker": _play_robot,
    "ant": _play_robot,
    "noise": _play_noise,
}
# What only the extra `benchmarks` brings: modules, by the source that needs them.
_NEEDED = {
    "carracing": ("Box2D",),
    "crafter": ("crafter",),
    "grid": ("minigrid",),
    "walker": ("mujoco", "dm_control"),
    "ant": ("mujoco",),
}


def missing_for(dataset: Dataset) -> str | None:
    """Find out whether a dataset can be played here."""
    modules = _NEEDED.get(dataset.source, ())
    lacking = [name for name in modules if importlib.util.find_spec(name) is None]
    if not lacking:
        return None
    return f"{dataset.title} needs {' and '.join(lacking)}: {install_hint('benchmarks')}"


def play_into(folder: Path, dataset: Dataset, rows: int) -> None:
    """Play a dataset."""
    missing = missing_for(dataset)
    if missing is not None:
        raise ImportError(missing)
    _PLAYERS.get(dataset.source, _play_atari)(dataset, rows, folder)
