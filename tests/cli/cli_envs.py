"""Environments of a user's own, which the command line finds as ``cli_envs:Name-v0``, also in fresh processes."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

SIZE = 40


class Spots(gym.Env[Any, Any]):
    """
    A spot wanders through a picture for 20 steps.

    :param render_mode: Only ``"rgb_array"``
    :param kind: What actions and observations are like
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 12}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None, kind: str = "discrete") -> None:
        self.render_mode = render_mode
        picture = spaces.Box(0, 255, (SIZE, SIZE, 3), np.uint8)
        self.observation_space: Any = picture
        self.action_space: Any = spaces.Discrete(2)
        self.kind = kind
        if kind == "continuous":
            self.action_space = spaces.Box(-2, 2, (1,), np.float32)
        elif kind == "dict":
            self.observation_space = spaces.Dict({"camera": picture, "step": spaces.Box(0, 20, (1,), np.float32)})
        elif kind == "tuple":
            self.observation_space = spaces.Tuple((picture, picture))
        elif kind == "buttons":
            self.action_space = spaces.MultiBinary(3)
        elif kind == "mission":  # as MiniGrid
            self.observation_space = spaces.Dict({"image": picture, "mission": spaces.Text(100)})
        elif kind == "nested":
            self.observation_space = spaces.Dict({"image": picture, "arm": spaces.Dict({"joint": spaces.Discrete(3)})})
        elif kind == "two_hands":
            self.action_space = spaces.Tuple((spaces.Discrete(2), spaces.Discrete(2)))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.steps = int(self.np_random.integers(SIZE)), 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        self.place = (self.place + 1) % SIZE
        return self._observe(), 1.0, False, self.steps == 20, {}

    def render(self) -> Any:
        picture = np.zeros((SIZE, SIZE, 3), np.uint8)
        picture[self.place, :, 0] = 250
        picture[:, self.steps, 1] = 120
        return picture

    def _observe(self) -> Any:
        picture = self.render()
        return {"camera": picture, "step": np.array([self.steps], np.float32)} if self.kind == "dict" else picture


class Broken(Spots):
    """Cannot be made."""

    def __init__(self, render_mode: str | None = None) -> None:
        raise RuntimeError("the simulator is not licensed")


class Blind(Spots):
    """Shows no pictures."""

    metadata = {"render_modes": []}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__(None)


gym.register("Spots-v0", "cli_envs:Spots")
for _kind in ("continuous", "dict", "tuple", "buttons", "mission", "nested", "two_hands"):
    gym.register(f"Spots-{_kind}-v0", "cli_envs:Spots", kwargs={"kind": _kind})
gym.register("Broken-v0", "cli_envs:Broken")
gym.register("Blind-v0", "cli_envs:Blind")
