"""What we aim at: ratios to SB3's own buffers in the same run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

METRICS = {
    "memory": "memory",
    "add_first": "add, first fill",
    "add_full": "add, ring full",
    "sample_32": "sample(32)",
    "sample_256": "sample(256)",
    "get_256": "get(256)",
}

# Above this share of the machine taken by others, times say little: SB3 waits for its threads then, and seems slow.
DISTURBED = 0.1

DEFAULT = "delta"
DENSE = "delta-zstd"

_GAME = {"add_first": 1.0, "add_full": 1.2, "sample_32": 1.0, "sample_256": 0.8, "get_256": 1.0}

TARGETS: dict[str, dict[str, dict[str, float]]] = {
    DEFAULT: {
        "mspacman": {
            "memory": 0.0048,
            "add_first": 0.35,
            "add_full": 0.35,
            "sample_32": 0.65,
            "sample_256": 0.5,
            "get_256": 0.6,
        },
        "pong": {"memory": 0.0035, **_GAME},
        "breakout": {"memory": 0.003, **_GAME},
        "pong-single": {
            "memory": 0.015,
            "add_first": 1.0,
            "add_full": 1.0,
            "sample_32": 0.8,
            "sample_256": 1.0,
            "get_256": 1.0,
        },
        "doom-labels": {
            "memory": 0.02,
            "add_first": 1.4,
            "add_full": 1.4,
            "sample_32": 0.9,
            "sample_256": 1.0,
            "get_256": 0.9,
        },
        "doom-rgb": {"memory": 0.16},
        "vectors": {
            "memory": 1.05,
            "add_first": 1.15,
            "add_full": 1.15,
            "sample_32": 1.05,
            "sample_256": 1.2,
            "get_256": 1.2,
        },
    },
    DENSE: {
        "mspacman": {"memory": 0.005, "sample_32": 10.0},
        "pong": {"memory": 0.002, "sample_32": 10.0},
        "breakout": {"memory": 0.002, "sample_32": 10.0},
    },
}


def target(method: str, dataset: str, metric: str) -> float | None:
    """
    Look up a target.

    :param method: Method
    :param dataset: Dataset
    :param metric: One of ``METRICS``
    :return: The ratio that may not be exceeded, None where none is set
    """
    return TARGETS.get(method, {}).get(dataset, {}).get(metric)


def reached(row: Mapping[str, Any], metric: str) -> bool | None:
    """
    Judge a ratio.

    :param row: Row of ``buffers.json``
    :param metric: One of ``METRICS``
    :return: Whether it is what was aimed at; None without a target, and for times that other programs disturbed
    """
    aim = target(row["method"], row["dataset"], metric)
    if aim is None or (metric != "memory" and row["elsewhere"] > DISTURBED):
        return None
    return bool(row["ratios"][metric] <= aim)
