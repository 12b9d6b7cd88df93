"""The random generators that a process shares: those of Python, NumPy and torch."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch as th


def capture_randomness() -> dict[str, Any]:
    """
    Take the state of every generator that the whole process draws from.

    :return: Plain values
    """
    state: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": dict(np.random.get_state(legacy=False)),
        "torch": th.get_rng_state().numpy().copy(),
    }
    if th.cuda.is_available() and th.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["cuda"] = [device.cpu().numpy().copy() for device in th.cuda.get_rng_state_all()]
    return state


def put_back_randomness(state: dict[str, Any]) -> None:
    """
    Make every generator draw what it was about to draw.

    :param state: What ``capture_randomness`` has returned
    """
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    th.set_rng_state(th.from_numpy(state["torch"].copy()))
    if "cuda" in state and th.cuda.is_available():
        for device, generator in enumerate(state["cuda"][: th.cuda.device_count()]):
            th.cuda.set_rng_state(th.from_numpy(generator.copy()), device)
