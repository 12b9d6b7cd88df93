"""A goal environment that RL Zoo can find by its name: ``--gym-packages zoo_goals``."""

from __future__ import annotations

import gymnasium as gym
from stable_baselines3.common.envs import BitFlippingEnv


def make(render_mode: str | None = None) -> BitFlippingEnv:
    """
    Make it.

    :param render_mode: As Gymnasium passes it
    :return: Bits to flip by continuous actions
    """
    return BitFlippingEnv(n_bits=8, continuous=True)


gym.register("Bits-v0", entry_point=make)
