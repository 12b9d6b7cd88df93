"""Two small worlds that are seen as pictures: a robot arm with a camera, and a maze."""

from itertools import pairwise

import gymnasium as gym
import numpy as np
from gymnasium import spaces

_LINKS = np.array([1.0, 0.8])


class Arm(gym.Env):
    """
    An arm with two joints, and a camera above it. The tip shall reach a ball.

    The camera sees arm and ball; the joints are measured, too. In a goal environment (for HER) the observation is the
    camera's picture alone, and the goal is a point.

    :param goals: Whether this is a goal environment
    :param size: Height and width of the picture
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 15}  # noqa: RUF012
    render_mode = "rgb_array"
    reach, time_limit = 0.25, 50

    def __init__(self, goals=False, size=64):
        self.goals, self.size = goals, size
        self.action_space = spaces.Box(-1, 1, (2,), np.float32)
        camera = spaces.Box(0, 255, (size, size, 1), np.uint8)
        point = spaces.Box(-2, 2, (2,), np.float32)
        joints = spaces.Box(-1, 1, (4,), np.float32)
        self.observation_space = spaces.Dict(
            {"observation": camera, "achieved_goal": point, "desired_goal": point}
            if goals
            else {"camera": camera, "joints": joints}
        )

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.angles = self.np_random.uniform(-np.pi, np.pi, 2)
        radius, direction = self.np_random.uniform(0.5, 1.7), self.np_random.uniform(-np.pi, np.pi)
        self.ball = radius * np.array([np.cos(direction), np.sin(direction)])
        self.steps = 0
        return self._observe(), {}

    def step(self, action):
        self.angles = self.angles + 0.3 * np.asarray(action, np.float64)
        self.steps += 1
        tip = self._points()[-1]
        there = bool(np.linalg.norm(tip - self.ball) < self.reach)
        reward = float(self.compute_reward(tip, self.ball, {})) if self.goals else 10 * there - np.linalg.norm(tip - self.ball)
        return self._observe(), float(reward), there, self.steps >= self.time_limit, {}

    def compute_reward(self, achieved_goal, desired_goal, info):
        """0 where the goal is reached, -1 elsewhere; for one pair of points or many."""
        return -(np.linalg.norm(np.subtract(achieved_goal, desired_goal), axis=-1) >= self.reach).astype(np.float32)

    def _points(self):
        directions = np.cumsum(self.angles)
        steps = _LINKS[:, None] * np.stack([np.cos(directions), np.sin(directions)], axis=1)
        return np.cumsum([np.zeros(2), *steps], axis=0)

    def _picture(self):
        picture = np.zeros((self.size, self.size, 1), np.uint8)
        points = self._points()
        way = np.linspace(0, 1, self.size)[:, None]
        self._dots(picture, np.concatenate([a + way * (b - a) for a, b in pairwise(points)]), 160, 1)
        self._dots(picture, self.ball[None], 255, 2)
        return picture

    def _dots(self, picture, points, value, radius):
        rows, columns = ((points + 2) / 4 * (self.size - 1)).round().astype(int).T
        for dy in range(-radius, radius + 1):
            for dx in range(-radius, radius + 1):
                picture[np.clip(rows + dy, 0, self.size - 1), np.clip(columns + dx, 0, self.size - 1)] = value

    def _observe(self):
        if self.goals:
            tip, ball = self._points()[-1].astype(np.float32), self.ball.astype(np.float32)
            return {"observation": self._picture(), "achieved_goal": tip, "desired_goal": ball}
        joints = np.concatenate([np.cos(self.angles), np.sin(self.angles)]).astype(np.float32)
        return {"camera": self._picture(), "joints": joints}

    def render(self):
        return np.repeat(self._picture(), 3, axis=2)


class Maze(gym.Env):
    """
    Walk to the flag. Every episode has another maze. ``action_masks`` forbids to walk into walls.

    :param flag_seen: Steps for which the flag is shown; None for always. With few, the agent must remember it
    :param cells: Width and height in cells, an odd number
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 8}  # noqa: RUF012
    render_mode = "rgb_array"
    moves = np.array([[0, 1], [1, 0], [0, -1], [-1, 0]])
    pixels = 6

    def __init__(self, flag_seen=None, cells=7):
        self.flag_seen, self.cells = flag_seen, cells
        self.action_space = spaces.Discrete(4)
        self.observation_space = spaces.Box(0, 255, (cells * self.pixels, cells * self.pixels, 1), np.uint8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.walls = np.ones((self.cells, self.cells), bool)
        self.walls[1:-1, 1:-1] = self.np_random.random((self.cells - 2, self.cells - 2)) < 0.2
        self.walls[1:-1:2, 1:-1] = False  # every second row is free, and a column joins them: no flag is out of reach
        self.walls[1:-1, 1 + self.np_random.integers(self.cells - 2)] = False
        free = np.argwhere(~self.walls[1:-1:2]) * [2, 1] + [1, 0]
        self.place, self.flag = self.np_random.permutation(free)[:2]
        self.steps = 0
        return self._picture(), {}

    def step(self, action):
        if self.action_masks()[action]:
            self.place = self.place + self.moves[action]
        self.steps += 1
        there = bool((self.place == self.flag).all())
        return self._picture(), 1.0 if there else -0.02, there, self.steps >= 50, {}

    def action_masks(self):
        """Which moves are allowed."""
        return ~self.walls[tuple((self.place + self.moves).T)]

    def _picture(self):
        picture = self.walls * np.uint8(80)
        if self.flag_seen is None or self.steps < self.flag_seen:
            picture[tuple(self.flag)] = 255
        picture[tuple(self.place)] = 160
        return np.kron(picture, np.ones((self.pixels, self.pixels), np.uint8))[..., None]

    def render(self):
        return np.repeat(self._picture(), 3, axis=2)
