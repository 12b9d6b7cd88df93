"""Observations whose elements take few values, for the tests of tables of values."""

from __future__ import annotations

from typing import Any

import numpy as np
from observation_streams import Stack, Stream


def make_values(dtype: Any, count: int, seed: int = 0) -> np.ndarray:
    """
    Make values that are all different as bits: zero, then, of floats, NaNs with payloads, a negative zero and infinities.

    :param dtype: Their type
    :param count: How many
    :param seed: Seed
    :return: The values
    """
    dtype = np.dtype(dtype)
    rng = np.random.default_rng(seed)
    chosen = {bytes(dtype.itemsize): None}
    if dtype.kind == "f":
        nan = np.array([np.nan], dtype).tobytes()
        bits = f"{dtype.byteorder}u{dtype.itemsize}"
        payload = (np.frombuffer(nan, bits) ^ 1).astype(bits).tobytes()
        others = [np.array([value], dtype).tobytes() for value in (-0.0, np.inf, -np.inf)]
        chosen |= dict.fromkeys([nan, payload, *others])
    while len(chosen) < count:
        chosen[rng.bytes(dtype.itemsize)] = None
    return np.frombuffer(b"".join(list(chosen)[:count]), dtype)


class ValueStream:
    """
    A ``Stream`` of numbers, each of which stands for a value.

    :param dtype: Type of the values
    :param amount: How many values there are; may be changed at any time
    :param seed: Seed
    :param n_envs: Number of environments
    :param frame_shape: Shape of a frame
    :param content: As for ``Stream``
    :param stack: Likewise
    :param done_rate: Likewise
    """

    def __init__(
        self,
        dtype: Any,
        amount: int,
        seed: int,
        n_envs: int = 2,
        frame_shape: tuple[int, ...] = (1, 6, 5),
        content: str = "mixed",
        stack: Stack | None = None,
        done_rate: float = 0.1,
    ) -> None:
        self.numbers = Stream(seed, n_envs, frame_shape, np.uint16, content, stack, done_rate)
        self.dtype, self.amount, self.stack = np.dtype(dtype), amount, stack
        self.values = make_values(dtype, 256 if self.dtype.itemsize == 1 else 1000, seed)
        self.n_envs, self.obs_shape = n_envs, self.numbers.obs_shape

    def step(self) -> tuple[Any, Any, Any, Any]:
        """
        Go on by one step.

        :return: As ``Stream.step``
        """
        obs, next_obs, dones, infos = self.numbers.step()
        return self.values[obs % self.amount], self.values[next_obs % self.amount], dones, infos
