"""What the files in ``tests/data`` hold: observations and transitions that can be made again at any time."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from sb3_extra_buffers import compressed
from sb3_extra_buffers.storage import CompressedArray

VERSION = 3
"""Of the format that ``make.py`` writes."""

ROWS, ENVS, STEPS = 40, 2, 52

# By name: the shape of an observation, its type, and the method; only codecs that every installation has.
CHUNKS: dict[str, tuple[tuple[int, ...], str, str]] = {
    "stack": ((4, 12, 12), "|u1", "delta"),
    "rgb": ((3, 10, 8), "|u1", "delta"),
    "floats": ((2, 6, 7), "<f4", "gzip1"),
    "raw": ((1, 9, 9), "<u2", "none"),
    "packed": ((2, 12, 12), "|u1", "delta-gzip/1"),
    # Since version 2:
    "values": ((2, 12, 12), "<f4", "delta"),
    "textures": ((3, 24, 30), "|u1", "delta"),
    "objects": ((1, 40, 48), "|u1", "delta"),
}
IMAGE = spaces.Box(0, 255, (4, 12, 12), np.uint8)
VECTOR = spaces.Box(-9, 9, (3,), np.float32)
BUFFERS = ("CompressedReplayBuffer", "CompressedDictReplayBuffer", "CompressedNStepReplayBuffer", "CompressedRolloutBuffer")


def observation(step: int, env: int, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """
    Make an observation: a stack of frames, in each of which a bright square has moved on.

    :param step: Number of the step
    :param env: Number of the environment
    :param shape: Its shape
    :param dtype: Its type
    :return: The observation
    """
    if shape == CHUNKS["textures"][0]:
        return _picture(step, env, shape)
    if shape == CHUNKS["objects"][0]:
        return _jumping_thing(step, env, shape)
    obs = np.zeros(shape, dtype)
    for depth in range(shape[0]):
        at = max(step - shape[0] + 1 + depth, 0)
        row, column = (at * 3 + env) % (shape[1] - 1), (at * 5 + 2 * env) % (shape[2] - 1)
        obs[depth] = (np.arange(shape[1])[:, None] * 3 + env) % 7
        obs[depth, row : row + 2, column : column + 2] = 50 + at
    return obs


def _picture(step: int, env: int, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """A picture that no other one helps: few colours at first, then shades."""
    planes, y, x = np.indices(shape)
    speckles = (y * 7 + x * 3 + y * x + step * 11 + env * 5) % 13
    texture = (speckles % 5 * 40 + planes * 9) % 256
    shade = y * (2 + step % 5) + x * 3 + planes * (20 + step) + step * 37 + speckles % 3
    return (texture if step % 40 < 30 else shade).astype(np.uint8)


def _jumping_thing(step: int, env: int, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """A thing that jumps over a pattern, so that the same changes happen again and again."""
    _, y, x = np.indices(shape)
    obs = (y % 4 * 9 + x % 6 * 3).astype(np.uint8)
    row, column = (step * 3 + env) % 9 * 4, (step * 5 + env) % 7 * 6
    obs[0, row : row + 4, column : column + 5] = 100 + np.arange(20).reshape(4, 5)
    return obs


def observations(step: int, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """
    Make an observation of each environment.

    :param step: Number of the step
    :param shape: Shape of one
    :param dtype: Their type
    :return: All of them
    """
    return np.stack([observation(step, env, shape, dtype) for env in range(ENVS)])


def filled_array(name: str) -> tuple[CompressedArray, npt.NDArray[Any]]:
    """
    Make an array that has gone round once and a bit.

    :param name: One of ``CHUNKS``
    :return: The array, and what it holds
    """
    shape, dtype, method = CHUNKS[name]
    options = {"fallback": "gzip/1"} if method == "delta" else {}
    array = CompressedArray((ROWS, ENVS, *shape), dtype, shape, compression_method=method, compression_kwargs=options)
    plain = np.zeros(array.shape, dtype)
    for step in range(STEPS):
        array[step % ROWS] = plain[step % ROWS] = observations(step, shape, dtype)
    return array, plain


def filled_buffer(name: str) -> Any:
    """
    Make a buffer.

    :param name: One of ``BUFFERS``
    :return: The buffer
    """
    import torch as th

    is_dict, is_rollout = "Dict" in name, "Rollout" in name
    space = spaces.Dict({"image": IMAGE, "vector": VECTOR}) if is_dict else IMAGE
    rows = ROWS if is_rollout else ROWS * ENVS
    buffer = getattr(compressed, name)(
        rows, space, spaces.Discrete(5), "cpu", n_envs=ENVS, compression_kwargs={"fallback": "gzip/1"}
    )

    def observed(step: int) -> Any:
        image = observations(step, IMAGE.shape, np.uint8)
        return {"image": image, "vector": np.full((ENVS, 3), step / 8, np.float32)} if is_dict else image

    for step in range(ROWS if is_rollout else STEPS):
        action, reward, done = (
            np.full((ENVS, 1), step % 5),
            np.full(ENVS, step / 4, np.float32),
            np.array([step % 9 == 8, False]),
        )
        if is_rollout:
            value = th.full((ENVS, 1), step / 2)
            buffer.add(observed(step), action, reward, done, value, value[:, 0])
        else:
            infos = [{"TimeLimit.truncated": step % 18 == 17}, {}]
            buffer.add(observed(step), observed(step + 1), action, reward, done, infos)
    return buffer
