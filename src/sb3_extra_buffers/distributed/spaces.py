"""From an environment's spaces to a schema."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.preprocessing import get_action_dim, get_obs_shape

from sb3_extra_buffers.distributed.schema import Field, Schema
from sb3_extra_buffers.storage.methods import default_method, fallback_method

RAW_BELOW = 512
"""Observations of fewer bytes are not worth compressing and are kept as they are."""


def make_schema(
    observation_space: spaces.Space[Any],
    action_space: spaces.Space[Any],
    lanes: int,
    block_steps: int,
    method: str | None = None,
) -> Schema:
    """
    Describe the blocks of environments.

    :param observation_space: What they show, after SB3's wrappers
    :param action_space: What they take
    :param lanes: Environments of a collector
    :param block_steps: Steps of a block
    :param method: How frames are coded; None for the default
    :return: The schema
    """
    is_dict = isinstance(observation_space, spaces.Dict)
    by_key = (
        dict(observation_space.spaces.items()) if isinstance(observation_space, spaces.Dict) else {None: observation_space}
    )
    fields = []
    for key, space in by_key.items():
        if is_dict and not isinstance(key, str):
            raise TypeError(f"keys of observations must be strings, not {key!r}")
        shape: tuple[int, ...] = get_obs_shape(space)  # type: ignore[assignment]
        dtype = np.dtype(space.dtype)
        fields.append(Field(key, shape, dtype.str, math.prod(shape) * dtype.itemsize >= RAW_BELOW))
    dtype = np.dtype(action_space.dtype)
    given = np.dtype(np.float32) if dtype == np.float64 else dtype  # as SB3's buffers store it
    stored = given
    if isinstance(action_space, spaces.Discrete) and action_space.start >= 0 and action_space.start + action_space.n <= 256:
        stored = np.dtype(np.uint8)
    shape = (get_action_dim(action_space),)
    how = default_method() if method is None else method, fallback_method()
    return Schema(tuple(fields), shape, given.str, stored.str, lanes, block_steps, *how)
