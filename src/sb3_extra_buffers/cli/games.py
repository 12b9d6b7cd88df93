"""From what a user calls an Atari game to its id."""

from __future__ import annotations

import difflib
import re

from sb3_extra_buffers.cli.errors import UsageError

ATARI_SUFFIX = "NoFrameskip-v4"


def plain(name: str) -> str:
    """
    Forget how a name is spelt.

    :param name: For example ``"Ms-Pacman"``
    :return: For example ``"mspacman"``
    """
    return re.sub(r"[^a-z0-9]", "", name.lower())


def game_title(env_id: str) -> str:
    """
    Shorten the id of a game.

    :param env_id: For example ``"MsPacmanNoFrameskip-v4"``
    :return: For example ``"MsPacman"``
    """
    return env_id.removesuffix(ATARI_SUFFIX)


def find_game(name: str) -> str:
    """
    Find an Atari game.

    :param name: Its name in any spelling, such as ``"MsPacman"`` or ``"ms-pacman"``, or a full id
    :return: Its id
    """
    import ale_py
    import gymnasium as gym

    gym.register_envs(ale_py)
    ids = [env_id for env_id, spec in gym.registry.items() if str(spec.entry_point).startswith("ale_py")]
    if name in ids:
        return name
    titles = {plain(game_title(env_id)): env_id for env_id in ids if env_id.endswith(ATARI_SUFFIX)}
    if plain(name) in titles:
        return titles[plain(name)]
    nearest = difflib.get_close_matches(plain(name), titles, n=3, cutoff=0.4)
    message = f"unknown Atari game {name!r}"
    if nearest:
        message += f"; did you mean {' or '.join(game_title(titles[key]) for key in nearest)}?"
    raise UsageError(f"{message} There are {len(titles)}, for example Pong, Breakout and MsPacman.")
