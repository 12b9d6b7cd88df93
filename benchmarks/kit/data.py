"""The rows of the benchmarks: what is played, how much of it, and where its recording is kept."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from kit.recordings import FORMAT, SEED, Recording
from kit.results import CACHE


@dataclass(frozen=True)
class Dataset:
    """
    What a row of the benchmark plays.

    :param name: Short name, for the command line
    :param title: Name in tables
    :param source: Recording that it comes from; ``kit.players`` says who makes it
    :param n_envs: Number of environments
    :param stack: Frames in an observation
    :param transitions: Size of the ring in a full run
    :param actions: Number of actions; if they are continuous, of their components
    :param resumed: Both buffers are saved and loaded before they are filled, and observations come from worker processes
    :param picture: Belongs to the table of colours and cameras
    :param continuous: Actions are numbers from -1 to 1
    :param scaled: Observations are float32 from 0 to 1
    """

    name: str
    title: str
    source: str
    n_envs: int
    stack: int
    transitions: int
    actions: int
    resumed: bool = False
    picture: bool = False
    continuous: bool = False
    scaled: bool = False

    @property
    def action_space(self) -> spaces.Space[Any]:
        """The space that a buffer gets."""
        return spaces.Box(-1, 1, (self.actions,), np.float32) if self.continuous else spaces.Discrete(self.actions)

    @property
    def trained(self) -> bool:
        """Whether a trained agent plays; else actions are drawn at random."""
        return self.source.endswith("-trained")


_PACMAN, _PONG, _BREAKOUT = "MsPacmanNoFrameskip-v4", "PongNoFrameskip-v4", "BreakoutNoFrameskip-v4"

# Of large pictures there are fewer: SB3's buffer has to fit into 5 GB.
DATASETS = {
    dataset.name: dataset
    for dataset in (
        Dataset("mspacman", "MsPacman, stack 4", _PACMAN, 4, 4, 40_000, 9),
        Dataset("pong", "Pong, stack 4", _PONG, 4, 4, 40_000, 6),
        Dataset("breakout", "Breakout, stack 4", _BREAKOUT, 4, 4, 40_000, 4),
        Dataset("mspacman-trained", "MsPacman, trained play, stack 4", "mspacman-trained", 4, 4, 40_000, 9),
        Dataset("breakout-trained", "Breakout, trained play, stack 4", "breakout-trained", 4, 4, 40_000, 4),
        Dataset("pong-single", "Pong, no stack", _PONG, 8, 1, 40_000, 6),
        Dataset("pong-resumed", "Pong, no stack, resumed, worker processes", _PONG, 8, 1, 40_000, 6, resumed=True),
        Dataset("mspacman-float", "MsPacman, float32 in 0..1, stack 4", _PACMAN, 4, 4, 16_000, 9, scaled=True),
        Dataset("doom-labels", "ViZDoom labels 160x120", "doom-labels", 4, 1, 20_000, 7),
        # Many, since SB3 needs only 160 bytes for each: fewer would drown in the noise of the allocator.
        Dataset("vectors", "float32 vectors (17,)", "walk", 4, 1, 400_000, 4),
        Dataset("mspacman-rgb", "MsPacman RGB 210x160", f"{_PACMAN}-rgb", 4, 1, 16_000, 9, picture=True),
        Dataset("breakout-rgb", "Breakout RGB 210x160", f"{_BREAKOUT}-rgb", 4, 1, 16_000, 4, picture=True),
        Dataset("carracing", "CarRacing 96x96", "carracing", 4, 1, 20_000, 5, picture=True),
        Dataset("carracing-stack", "CarRacing 96x96, stack 4", "carracing", 4, 4, 16_000, 5, picture=True),
        Dataset("doom-rgb", "ViZDoom RGB 160x120", "doom-rgb", 4, 1, 20_000, 7, picture=True),
        Dataset("doom-rgb-home", "ViZDoom RGB 160x120, my way home", "doom-rgb-my_way_home", 4, 1, 20_000, 5, picture=True),
        Dataset("doom-rgb-stack", "ViZDoom RGB 160x120, stack 4", "doom-rgb", 4, 4, 8_000, 7, picture=True),
        Dataset("doom-gray", "ViZDoom gray 160x120", "doom-gray", 4, 1, 20_000, 7, picture=True),
        Dataset("walker", "MuJoCo camera 84x84, walker", "walker", 4, 1, 12_000, 6, picture=True, continuous=True),
        Dataset("ant", "MuJoCo camera 84x84, ant", "ant", 4, 1, 12_000, 8, picture=True, continuous=True),
        Dataset("crafter", "Crafter 84x84", "crafter", 4, 1, 20_000, 17, picture=True),
        Dataset("grid", "MiniGrid MultiRoom 84x84", "grid", 4, 1, 20_000, 7, picture=True),
        Dataset("noise", "noise, RGB 84x84", "noise", 4, 1, 12_000, 4, picture=True),
    )
}


# One of each kind, for README; docs/results.md has all of them.
SELECTED = ("mspacman", "breakout", "doom-labels", "doom-rgb", "walker")


def _folder(dataset: Dataset, cache: Path) -> Path:
    return cache / f"{dataset.source.replace('NoFrameskip-v4', '').lower()}-{dataset.n_envs}"


def is_played(dataset: Dataset, transitions: int, cache: Path = CACHE) -> bool:
    """Tell whether a recording is there already."""
    about = _folder(dataset, cache) / "about.json"
    if not about.exists():
        return False
    known = json.loads(about.read_text())
    return bool(known["format"] == FORMAT and known["seed"] == SEED and known["rows"] * dataset.n_envs >= transitions)


def play(dataset: Dataset, transitions: int, cache: Path = CACHE) -> None:
    """Play a game and keep it, unless that was done before."""
    if not is_played(dataset, transitions, cache):
        from kit.players import play_into

        play_into(_folder(dataset, cache), dataset, -(-transitions // dataset.n_envs))


def load(dataset: Dataset, cache: Path = CACHE) -> Recording:
    """Open a recording that ``play`` made."""
    return Recording(_folder(dataset, cache), dataset.scaled)
