"""
ViZDoom as a Gymnasium environment: the picture, or a mask that says what each of its pixels shows.

Masks come from ViZDoom's labels buffer, which numbers the objects in view, and numbers them anew in every frame. Here each
object has the value of its class, so that a monster looks the same in every frame: a network can learn from that, and it
compresses well.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecFrameStack

from sb3_extra_buffers._support import need
from sb3_extra_buffers.training_utils._workers import ctrl_c_ignored, start_envs

__all__ = ["MASK_VALUES", "VizdoomEnv", "make_env"]

_CLASSES = (
    *("wall", "floor", "self", "gore", "other", "ammo", "weapon"),
    *("armor", "health", "key", "power", "projectile", "player", "monster"),
)
MASK_VALUES: dict[str, int] = {name: round(255 * i / (len(_CLASSES) - 1)) for i, name in enumerate(_CLASSES)}
"""The value of each class in a mask. They are spread over 0 to 255, as SB3 divides by 255 before a network sees them."""

# ViZDoom knows more categories; those that are not here are "other".
_CLASS_OF_CATEGORY = {
    **{"Self": "self", "Gore": "gore", "Gibs": "gore", "Ammo": "ammo", "Weapon": "weapon", "Armor": "armor"},
    **{"Health": "health", "Key": "key", "Power": "power", "Powerup": "power", "Artifact": "power"},
    **{"Explosive": "projectile", "Player": "player", "Monster": "monster"},
}
# In the labels buffer everything that is no object has one of two values: walls 0, floors and ceilings 1.
_FLOOR = 1
_CHANNELS = {"rgb": 3, "gray": 1, "mask": 1, "labels": 1}
# What each choice of `observe` shows; several views make a Dict observation.
_VIEWS = {**{name: (name,) for name in _CHANNELS}, "both": ("rgb", "mask")}
_PICTURES = ("rgb", "gray")

Array = np.ndarray[Any, np.dtype[np.uint8]]
Observation = Array | dict[str, Array]


def _config_of(scenario: str, bundled: Path) -> Path:
    """Find the file of a scenario: one that is bundled with ViZDoom, or a ``.cfg`` file."""
    is_file = scenario.endswith(".cfg")
    path = Path(scenario) if is_file else bundled / f"{scenario}.cfg"
    if not path.is_file():
        if is_file:
            raise FileNotFoundError(f"there is no scenario file {scenario!r}")
        names = ", ".join(sorted(file.stem for file in bundled.glob("*.cfg") if file.with_suffix(".wad").exists()))
        raise ValueError(f"ViZDoom has no scenario {scenario!r}; it has: {names}. A file of your own ends in .cfg")
    return path


class VizdoomEnv(gym.Env[Observation, np.int64]):
    """
    One game of Doom. It is made of plain values, so a factory for ``SubprocVecEnv`` is ``partial(VizdoomEnv, ...)``.

    There is one action for each on/off button of the scenario; buttons that take an amount are left out.
    An episode that runs out of time is truncated; any other end terminates it. The game has no picture once it is over, so
    the last observation of an episode is the last one before that.

    ``render()`` gives the picture in full size, whatever is observed; it is gray where gray pictures are observed.

    :param scenario: Name of a scenario that comes with ViZDoom, for example ``"basic"``, or the path of a ``.cfg`` file
    :param observe: ``"rgb"`` for the picture, ``"gray"`` for the same in ViZDoom's shades of gray, ``"mask"`` for a class for
        each pixel (``MASK_VALUES``), ``"labels"`` for ViZDoom's labels buffer as it is, ``"both"`` for a Dict of ``"rgb"`` and
        ``"mask"``
    :param resolution: Width and height that ViZDoom renders; (160, 120) is the smallest
    :param shrink: Factor by which to shrink the width and height of observations; pictures are averaged, masks subsampled
    :param frame_skip: Game tics per step; there are 35 in a second
    :param render_mode: ``"rgb_array"`` or None; ``render()`` gives a picture either way
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 35}  # noqa: RUF012  (Gymnasium's way)

    def __init__(
        self,
        scenario: str = "basic",
        observe: str = "rgb",
        resolution: tuple[int, int] = (160, 120),
        shrink: int = 1,
        frame_skip: int = 4,
        render_mode: str | None = "rgb_array",
    ) -> None:
        vizdoom = need("vizdoom", "vizdoom", "a ViZDoom environment")
        config = _config_of(scenario, Path(vizdoom.scenarios_path))
        width, height = resolution
        size = getattr(vizdoom.ScreenResolution, f"RES_{width}X{height}", None)
        if size is None:
            raise ValueError(
                f"ViZDoom cannot render {width}x{height}; use for example 160x120, 320x240 or 640x480, and shrink it"
            )
        if observe not in _VIEWS:
            raise ValueError(f"observe must be one of {', '.join(map(repr, _VIEWS))}, not {observe!r}")
        if shrink < 1 or width % shrink or height % shrink:
            raise ValueError(f"shrink must divide both {width} and {height}, got {shrink}")
        if frame_skip < 1:
            raise ValueError(f"frame_skip must be at least 1, got {frame_skip}")
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"render_mode must be 'rgb_array' or None, not {render_mode!r}: there is no window")

        self.render_mode = render_mode
        self.observe, self.shrink, self.frame_skip = observe, shrink, frame_skip
        self.game = vizdoom.DoomGame()
        self.game.load_config(str(config))
        # ViZDoom would write its settings to the current folder.
        self.game.set_doom_config_path(os.devnull)
        self.game.set_screen_resolution(size)
        self.game.set_screen_format(vizdoom.ScreenFormat.GRAY8 if observe == "gray" else vizdoom.ScreenFormat.RGB24)
        self.game.set_labels_buffer_enabled(observe not in _PICTURES)
        self.game.set_window_visible(False)
        buttons = self.game.get_available_buttons()
        pressed = [i for i, button in enumerate(buttons) if not vizdoom.is_delta_button(button)]
        self._presses = [[float(i == button) for i in range(len(buttons))] for button in pressed]

        boxes = {
            view: spaces.Box(0, 255, (height // shrink, width // shrink, _CHANNELS[view]), np.uint8)
            for view in _VIEWS[observe]
        }
        self.observation_space: spaces.Space[Any] = spaces.Dict({**boxes}) if len(boxes) > 1 else boxes[observe]
        self.action_space = spaces.Discrete(len(self._presses))
        self._last: dict[str, Array] = {view: np.zeros(box.shape, np.uint8) for view, box in boxes.items()}
        self._screen: Array = np.zeros((height, width, 3), np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode, with another seed if there is one."""
        super().reset(seed=seed)
        if seed is not None:
            self.game.set_seed(seed % 2**32)
        if self.game.is_running():
            self.game.new_episode()
        else:
            # Or Ctrl-C would end the game, which is a process of its own, before anybody can save and close.
            with ctrl_c_ignored():
                self.game.init()
        return self._look(), {}

    def step(self, action: np.int64 | int) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Press one button for as many tics as ``frame_skip`` says."""
        reward = float(self.game.make_action(self._presses[int(action)], self.frame_skip))
        over = bool(self.game.is_episode_finished())
        timeout = over and bool(self.game.is_episode_timeout_reached()) and not self.game.is_player_dead()
        return self._look(), reward, over and not timeout, timeout, {}

    def _look(self) -> Observation:
        state = self.game.get_state()
        if state is not None:  # the game goes on
            self._screen = state.screen_buffer
            self._last = {view: np.array(self._view(view, state)) for view in _VIEWS[self.observe]}
        if self.observe in self._last:
            return self._last[self.observe].copy()
        return {view: frame.copy() for view, frame in self._last.items()}

    def _view(self, view: str, state: Any) -> Array:
        k = self.shrink
        if view in _PICTURES:
            frame: Array = state.screen_buffer if state.screen_buffer.ndim == 3 else state.screen_buffer[..., None]
            if k > 1:
                height, width, channels = frame.shape
                blocks = frame.reshape(height // k, k, width // k, k, channels)
                frame = blocks.mean(axis=(1, 3)).astype(np.uint8)
            return frame
        frame = state.labels_buffer[k // 2 :: k, k // 2 :: k, None]
        if view == "mask":
            value_of = np.zeros(256, np.uint8)
            value_of[_FLOOR] = MASK_VALUES["floor"]
            for label in state.labels:
                value_of[label.value] = MASK_VALUES[_CLASS_OF_CATEGORY.get(label.object_category, "other")]
            frame = value_of[frame]
        return frame

    def render(self) -> Array:
        """Return the last picture of the game as RGB, in the size that ViZDoom renders."""
        return self._screen.copy() if self._screen.ndim == 3 else np.repeat(self._screen[..., None], 3, axis=2)

    def close(self) -> None:
        """End the game and its process."""
        self.game.close()


def make_env(
    scenario: str = "basic",
    n_envs: int = 1,
    vec_env_cls: Callable[[list[Callable[[], gym.Env[Any, Any]]]], VecEnv] = SubprocVecEnv,
    framestack: int | None = None,
    seed: int | None = None,
    reward_scale: float = 1.0,
    **env_kwargs: Any,
) -> VecEnv:
    """
    Create ViZDoom environments, each with a ``Monitor``.

    The workers do not import the main script, so it needs no ``if __name__ == "__main__":`` for them. They and the games
    ignore Ctrl-C: it raises ``KeyboardInterrupt`` in the main process only, which can then save and close.

    :param scenario: As ``VizdoomEnv`` takes it
    :param n_envs: Number of environments
    :param vec_env_cls: What makes a ``VecEnv`` from the list of environment factories; one environment always gets a
        ``DummyVecEnv``
    :param framestack: Number of frames per observation; None or less than 2 for no stacking
    :param seed: Seed of the first environment, the others follow
    :param reward_scale: Multiply rewards by this, for the algorithm only: ``Monitor`` reports those of the game
    :param env_kwargs: Passed to ``VizdoomEnv``, for example ``observe="mask"``
    :return: The vectorized environment; observations are channel-last
    """
    if n_envs < 1:
        raise ValueError(f"n_envs must be at least 1, got {n_envs}")
    # An error inside a worker reaches the parent as a broken pipe: what is wrong is found out here. The game starts at reset.
    VizdoomEnv(scenario, **env_kwargs).close()

    make_venv = DummyVecEnv if n_envs == 1 else vec_env_cls
    scaled = partial(gym.wrappers.TransformReward, func=partial(operator.mul, reward_scale))
    venv = make_vec_env(
        partial(VizdoomEnv, scenario, **env_kwargs),
        n_envs=n_envs,
        seed=seed,
        # SB3 only calls them.
        vec_env_cls=cast(type[SubprocVecEnv], partial(start_envs, make_venv)),
        wrapper_class=None if reward_scale == 1 else scaled,
    )
    if framestack is None or framestack < 2:
        return venv
    return VecFrameStack(venv, n_stack=framestack)
