"""
Pictures that change all over from one to the next, as a camera sees them: walks through rooms with textured or shaded walls.

A helper module for the tests of storage and buffers. Everything is driven by one seed. ``observation_streams`` has what most
games look like.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from observation_streams import Stack, Stream

COLOURS = (1, 2, 15, 16, 17, 254, 255, 256, 257, 1000)
"""How many colours a room may have: few, as many as tables have entries, one more or less, and many."""

KINDS = (*(f"{colours} colours" for colours in COLOURS), "shaded", "dusk", "noise", "strobe")
"""
What a camera sees: rooms with so many colours; walls with soft shading; a room that grows darker, so that no colour stays;
noise; and a room whose colours are others in every third picture.
"""

TYPES = ("uint8", "float32", "float64", "uint16", "many float32", "NaNs")
"""
How a picture is handed out: as it is; as k / 255 in either precision; as a depth in 16 bits, of few values; with so many
values that no table of 256 holds them, from the 40th picture on; and with NaNs whose payloads differ.
"""


class Camera:
    """
    One camera that walks through rooms. It is in another room after each ``cut``.

    :param rng: Source of randomness
    :param shape: Height, width and channels; a fourth channel is a mask, with areas of one value
    :param kind: One of KINDS
    """

    def __init__(self, rng: np.random.Generator, shape: tuple[int, int, int], kind: str) -> None:
        self.rng, self.shape, self.kind = rng, shape, kind
        self.seen = 0
        self.cut()

    def cut(self) -> None:
        """Go to another room: other walls, other colours."""
        height, width, channels = self.shape
        size = (height + 24, width + 24)
        self.light = 1.0
        self.place = self.rng.integers(0, 24, 2)
        count = int(self.kind.split()[0]) if "colours" in self.kind else 40
        # Bricks, so that neighbours are alike, with some that are not.
        rows, columns = (np.arange(side) // step for side, step in zip(size, (3, 5), strict=True))
        bricks = self.rng.integers(0, count, (rows[-1] + 1, columns[-1] + 1))[rows][:, columns]
        grains = self.rng.integers(0, count, size)
        self.indices = np.where(self.rng.random(size) < 0.8, bricks, grains)
        self.colours = self.rng.integers(0, 256, (count, min(channels, 3)), dtype=np.uint8)
        waves = self.rng.uniform(0.02, 0.2, (2, min(channels, 3)))
        slope = rows[:, None, None] * waves[0] + columns[None, :, None] * waves[1]
        self.shades = 128 + 100 * np.sin(slope) + self.rng.normal(0, 2, (*size, 1))
        self.mask = (bricks * 37).astype(np.uint8)

    def __iter__(self) -> Iterator[np.ndarray]:
        return self

    def __next__(self) -> np.ndarray:
        height, width, channels = self.shape
        self.seen += 1
        self.place = np.clip(self.place + self.rng.integers(-3, 4, 2), 0, 24)
        top, left = self.place
        here = (slice(top, top + height), slice(left, left + width))
        if self.kind == "noise":
            return self.rng.integers(0, 256, self.shape, dtype=np.uint8)
        if self.kind == "strobe" and self.seen % 3 == 0:
            picture = 255 - self.colours[self.indices[here]]
        elif self.kind == "shaded":
            picture = self.shades[here].astype(np.uint8)
        else:
            picture = self.colours[self.indices[here]]
        if self.kind == "dusk":
            self.light *= 0.98
            picture = (picture * self.light).astype(np.uint8)
        return np.concatenate([picture, self.mask[here][..., None]], axis=2) if channels == 4 else picture


def as_type(picture: np.ndarray, type_name: str, number: int) -> np.ndarray:
    """
    Hand a picture out in another type.

    :param picture: uint8
    :param type_name: One of TYPES
    :param number: Which picture of the camera's it is
    :return: The same picture
    """
    if type_name in ("float32", "float64"):
        return picture.astype(type_name) / np.dtype(type_name).type(255)
    if type_name == "uint16":
        return picture.astype(np.uint16) * 257 % 60_000
    if type_name == "many float32":
        scaled = picture.astype(np.float32) / np.float32(255)
        return scaled + np.arange(scaled.size, dtype=np.float32).reshape(scaled.shape) if number % 80 > 40 else scaled
    if type_name == "NaNs":
        scaled = picture.astype(np.float32) / np.float32(255)
        bits = scaled.view(np.uint32)
        bits[picture == 7] = 0x7FC00000 + number % 3  # NaNs that differ in their payload
        bits[picture == 9] = 0x80000000  # -0.0
        return scaled
    return picture


class PictureStream(Stream):
    """
    Cameras of parallel environments, each in another room after each end of an episode.

    :param seed: Seed
    :param n_envs: Number of environments
    :param shape: Height, width and channels
    :param kind: One of KINDS
    :param type_name: One of TYPES
    :param channels_first: Whether a frame is handed out channels first
    :param depth: Frames in an observation
    :param padding: What stands before the first frame of an episode, as ``Stack`` has it
    :param done_rate: How likely an episode ends
    """

    def __init__(
        self,
        seed: int,
        n_envs: int,
        shape: tuple[int, int, int],
        kind: str,
        type_name: str = "uint8",
        channels_first: bool = True,
        depth: int = 1,
        padding: str = "zeros",
        done_rate: float = 0.05,
    ) -> None:
        self.cameras = [Camera(np.random.default_rng([seed, env]), shape, kind) for env in range(n_envs)]
        dtype = as_type(np.zeros(shape, np.uint8), type_name, 0).dtype
        stack = Stack(depth, 0 if channels_first else 2, padding) if depth > 1 else None
        self._first, self._type = channels_first, type_name
        super().__init__(seed, n_envs, shape, dtype, "zeros", stack, done_rate)
        self.frames: Any = [self._pictures(camera) for camera in self.cameras]
        for env in range(n_envs):
            self._reset(env)
        self.obs = self._observe()

    def _pictures(self, camera: Camera) -> Iterator[np.ndarray]:
        for picture in camera:
            typed = as_type(picture, self._type, camera.seen)
            yield np.ascontiguousarray(typed.transpose(2, 0, 1)) if self._first else typed

    def _reset(self, env: int) -> None:
        self.cameras[env].cut()
        super()._reset(env)
