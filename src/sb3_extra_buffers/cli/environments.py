"""From what a user calls an environment to the environments that are played."""

from __future__ import annotations

import importlib
import logging
import os
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sb3_extra_buffers._support import importable, install_hint, nearest
from sb3_extra_buffers.cli.errors import UsageError

if TYPE_CHECKING:
    import gymnasium as gym
    from stable_baselines3.common.vec_env import VecEnv

_ATARI_SUFFIX = "NoFrameskip-v4"
_VERSION = re.compile(r"-v(\d+)$")
# What registers environments of its own, and the extra that brings it.
_LIBRARIES = {"ale_py": "extra", "vizdoom.gymnasium_wrapper": "vizdoom"}


@dataclass(frozen=True)
class Environments:
    """
    What to play: plain values that a fresh process makes environments from.

    Before the colon of an `env_id` there may be a module to import first. `stack` is None for one frame, `seed` that of the
    first environment, and `rgb` plays an Atari game in colour, 210x160, without SB3's preprocessing.
    """

    env_id: str
    n_envs: int = 1
    stack: int | None = None
    seed: int = 0
    rgb: bool = False

    @property
    def title(self) -> str:
        return game_title(self.env_id.rpartition(":")[2])


def plain(name: str) -> str:
    """Forget how a name is spelt: ``"Ms-Pacman"`` is ``"mspacman"``."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def game_title(env_id: str) -> str:
    """Shorten the id of a game: ``"MsPacmanNoFrameskip-v4"`` is ``"MsPacman"``."""
    return env_id.removesuffix(_ATARI_SUFFIX)


def _register() -> None:
    for module in _LIBRARIES:
        if importable(module.partition(".")[0]):
            importlib.import_module(module)  # both register their environments when they are imported


def _titles() -> dict[str, str]:
    """What environments may be called, and their ids: Atari games as SB3 plays them, the newest version of all others."""
    import gymnasium as gym

    newest: dict[str, tuple[int, str]] = {}
    for env_id in gym.registry:
        version = _VERSION.search(env_id)
        title = plain(_VERSION.sub("", env_id))
        newest[title] = max(newest.get(title, (-1, "")), (int(version[1]) if version else 0, env_id))
    titles = {title: env_id for title, (_, env_id) in newest.items()}
    games = [env_id for env_id in gym.registry if env_id.endswith(_ATARI_SUFFIX)]
    return {**titles, **{plain(game_title(env_id)): env_id for env_id in games}}


def find_environment(name: str) -> str:
    """The id of an environment: of an id, of ``module:id``, or of a name in any spelling such as ``"MsPacman"``."""
    import gymnasium as gym

    _register()
    module, colon, env_id = name.rpartition(":")
    if colon:
        _look_in_the_current_folder()
        with _explained(f"cannot import {module!r}"):
            importlib.import_module(module)
        if env_id not in gym.registry:
            raise UsageError(f"{module!r} was imported, but it does not register {env_id!r}")
        return env_id if module in _LIBRARIES else name  # theirs are always imported
    if name in gym.registry:
        return name
    titles = _titles()
    if plain(name) in titles:
        return titles[plain(name)]
    raise UsageError(_unknown(name, titles))


def find_game(name: str) -> str:
    """The id of an Atari game: of an id, or of a name in any spelling."""
    import gymnasium as gym

    _register()
    module, _, env_id = name.rpartition(":")
    if is_atari(env_id) and module in ("", "ale_py"):
        return env_id
    games = {plain(game_title(env_id)): env_id for env_id in gym.registry if env_id.endswith(_ATARI_SUFFIX)}
    if plain(name) in games:
        return games[plain(name)]
    meant = " or ".join(game_title(games[game]) for game in nearest(plain(name), games, 3, 0.4))
    hint = f"; did you mean {meant}?" if meant else "."
    raise UsageError(f"unknown Atari game {name!r}{hint} There are {len(games)}, for example Pong, Breakout and MsPacman.")


def _look_in_the_current_folder() -> None:
    """Find modules as ``python -m`` does, which the console script does not; spawned processes take the path over."""
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.insert(0, os.getcwd())


def _unknown(name: str, titles: dict[str, str]) -> str:
    message = f"unknown environment {name!r}"
    for module, extra in _LIBRARIES.items():
        library = module.partition(".")[0]
        wanted = {"ale_py": ("noframeskip", "ale"), "vizdoom": ("vizdoom",)}[library]
        if not importable(library) and any(word in name.lower() for word in wanted):
            return f"{message}: it needs {library}, which is not installed: {install_hint(extra)}"
    if meant := nearest(plain(name), titles, 3):
        return f"{message}; did you mean {' or '.join(titles[title] for title in meant)}?"
    ending = "" if importable("ale_py") else f" For Atari games: {install_hint('extra')}"
    return (
        f"{message}. Name one that Gymnasium knows, such as CartPole-v1 or PongNoFrameskip-v4, or write MODULE:ID to "
        f"import a module of yours first.{ending}"
    )


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """Errors of foreign code in one line: a traceback does not help after a typing error."""
    try:
        yield
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(f"{what}: {type(error).__name__}: {error}") from error


def is_atari(env_id: str) -> bool:
    import gymnasium as gym

    spec = gym.registry.get(env_id)
    return spec is not None and str(spec.entry_point).startswith("ale_py")


def atari_options(env_id: str, rgb: bool = False) -> dict[str, Any]:
    """
    What ``gymnasium.make`` needs so that a step of an Atari game takes four frames: SB3's preprocessing skips frames, and so
    do games that are called v5 (together they would skip sixteen); a game in colour has no preprocessing.
    """
    import gymnasium as gym

    wanted = 4 if rgb else 1
    return {} if gym.spec(env_id).kwargs.get("frameskip") == wanted else {"frameskip": wanted}


def make_environments(wanted: Environments, whole_games: bool = False) -> VecEnv:
    """Make environments, in this process. `whole_games` of Atari go on when a life is lost, with their real rewards."""
    import gymnasium as gym
    from stable_baselines3.common.env_util import make_atari_env, make_vec_env
    from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack

    find_environment(wanted.env_id)
    if wanted.rgb and not is_atari(wanted.env_id):
        raise UsageError(f"--rgb is for Atari games, not for {wanted.env_id}, which is played as it is")
    with _explained(f"cannot make {wanted.env_id}"):
        if wanted.rgb:
            game = atari_options(wanted.env_id, rgb=True)
            venv: VecEnv = make_vec_env(wanted.env_id, wanted.n_envs, wanted.seed, env_kwargs=game, vec_env_cls=DummyVecEnv)
        elif is_atari(wanted.env_id):
            options: dict[str, Any] = {"terminal_on_life_loss": False, "clip_reward": False} if whole_games else {}
            game = atari_options(wanted.env_id)
            venv = make_atari_env(
                wanted.env_id, wanted.n_envs, wanted.seed, env_kwargs=game, wrapper_kwargs=options, vec_env_cls=DummyVecEnv
            )
        else:
            spec = gym.spec(wanted.env_id.rpartition(":")[2])  # its module has been imported
            venv = make_vec_env(_maker(spec), wanted.n_envs, wanted.seed, vec_env_cls=DummyVecEnv)
    if wanted.stack is None or wanted.stack < 2:
        return venv
    with _explained(f"cannot stack {wanted.stack} observations of {wanted.env_id}"):
        return VecFrameStack(venv, wanted.stack)


def _maker(spec: gym.envs.registration.EnvSpec) -> Any:
    def make(**options: Any) -> gym.Env[Any, Any]:
        import gymnasium as gym

        # What can show itself as pictures does, so that it can be recorded; what cannot is made all the same.
        try:
            env = gym.make(spec, render_mode="rgb_array", **options)
        except TypeError:
            env = gym.make(spec, **options)
        _check_spaces(env, spec.id)  # before SB3 trips over them
        return env

    return make


def _check_spaces(env: gym.Env[Any, Any], env_id: str) -> None:
    from gymnasium import spaces

    def holdable(part: gym.Space[Any]) -> bool:
        return isinstance(part, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary)

    if not holdable(env.action_space):
        raise UsageError(f"{env_id} acts in {env.action_space}, which no SB3 buffer can hold: wrap it, and register that")
    space = env.observation_space
    if not isinstance(space, spaces.Dict):
        if not holdable(space):
            raise UsageError(
                f"{env_id} observes {space}, which no SB3 buffer can hold: wrap it so that observations are arrays, or a "
                "Dict of arrays, and register that"
            )
        return
    bad = {key: part for key, part in space.spaces.items() if not holdable(part)}
    if bad:
        named = ", ".join(f"{key!r} ({type(part).__name__})" for key, part in bad.items())
        rest = [key for key in space.spaces if key not in bad]
        leave_out = f"leave it out with gymnasium.wrappers.FilterObservation(env, {rest}), or " if rest else ""
        raise UsageError(
            f"{env_id} observes {named} in its Dict, which no SB3 buffer can hold: {leave_out}turn it into an array with a "
            "wrapper of yours; register that under a name of your own, and write MODULE:ID"
        )


def default_stack(env_id: str) -> int | None:
    """The frames that an observation holds unless the user says otherwise: 4 for Atari games, as usual."""
    return 4 if is_atari(env_id) else None


def hush() -> None:
    """Let libraries say only errors in this process: anything else would tear a progress bar apart."""
    import gymnasium as gym

    warnings.simplefilter("ignore")
    gym.logger.min_level = gym.logger.ERROR
    logging.getLogger("sb3_extra_buffers").setLevel(logging.ERROR)
    try:
        import ale_py
    except ImportError:
        return
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
