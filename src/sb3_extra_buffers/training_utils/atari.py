"""Atari environments as SB3 makes them, frame-stacked, that also start in fresh worker processes."""

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import gymnasium as gym
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecFrameStack

from sb3_extra_buffers._support import install_hint
from sb3_extra_buffers.training_utils._workers import start_envs

__all__ = ["make_env"]


def _register_games() -> None:
    """Make the Atari games known to Gymnasium, in this process."""
    try:
        import ale_py

        # SB3's AtariWrapper resizes with it, and without it fails only at the first reset.
        import cv2  # noqa: F401
    except ImportError as error:
        raise ImportError(f"Atari environments need ale-py and OpenCV: {install_hint('extra')}") from error
    gym.register_envs(ale_py)


def _make_game(env_id: str, /, **env_kwargs: Any) -> gym.Env[Any, Any]:
    """
    Make one game, without SB3's wrappers. This runs in the worker, and a worker that was spawned (or came from a fork
    server) knows nothing of what its parent registered.
    """
    _register_games()
    # SB3 gives a game that is named by its id this render mode, and one made by a callable none.
    return gym.make(env_id, **{"render_mode": "rgb_array", **env_kwargs})


def make_env(
    env_id: str,
    n_envs: int,
    vec_env_cls: Callable[[list[Callable[[], gym.Env[Any, Any]]]], VecEnv] = SubprocVecEnv,
    framestack: int | None = 4,
    seed: int | None = None,
    **env_kwargs: Any,
) -> VecEnv:
    """
    Create Atari environments with SB3's usual preprocessing, stacked in frames.

    The same, for the same seed and actions, as ``VecFrameStack(make_atari_env(env_id, n_envs, seed), framestack)``,
    but the games are registered in the worker processes too.

    The workers do not import the main script, so it needs no ``if __name__ == "__main__":`` for them. They ignore Ctrl-C,
    which a terminal sends to them as well: it raises ``KeyboardInterrupt`` in the main process only, which can then save the
    model and close the environments.

    :param env_id: Id of the game, for example ``"PongNoFrameskip-v4"``
    :param n_envs: Number of environments
    :param vec_env_cls: What makes a ``VecEnv`` from the list of environment factories: a class, or for instance
        ``functools.partial(SubprocVecEnv, start_method="spawn")``. One environment always gets a ``DummyVecEnv``.
    :param framestack: Number of frames per observation; None or less than 2 for no stacking
    :param seed: Seed of the first environment, the others follow; None leaves them unseeded, as in SB3
    :param env_kwargs: Passed to ``gymnasium.make`` for every environment, for example ``full_action_space=True``
    :return: The vectorized environment; observations are channel-last, as SB3's ``VecFrameStack`` makes them
    """
    if n_envs < 1:
        raise ValueError(f"n_envs must be at least 1, got {n_envs}")
    _register_games()
    # An error inside a worker reaches the parent as a broken pipe: what can be checked here is checked here.
    gym.spec(env_id)

    make_vec_env = DummyVecEnv if n_envs == 1 else vec_env_cls
    game = partial(_make_game, env_id)
    try:
        venv = make_atari_env(
            game,
            n_envs=n_envs,
            seed=seed,
            env_kwargs=env_kwargs,
            # SB3 only calls it.
            vec_env_cls=cast(type[SubprocVecEnv], partial(start_envs, make_vec_env)),
        )
    except (EOFError, ConnectionError):
        # A worker died while starting. If that is the game's doing, it does the same here and says why.
        game(**env_kwargs).close()
        raise
    if framestack is None or framestack < 2:
        return venv
    return VecFrameStack(venv, n_stack=framestack)
