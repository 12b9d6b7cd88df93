"""The plot of learning with a fleet."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from kit.plots import _STYLE, BLUE, GREY, ORANGE


def plot_cluster_learning(row: Mapping[str, Any], path: Path) -> None:
    """Plot learning curves of one machine and of a fleet: each run thin, their mean broad."""
    with plt.rc_context(_STYLE):
        figure, axes = plt.subplots(figsize=(7.5, 4.2), layout="constrained")
        looks = {
            "alone": (ORANGE, "one machine, SB3's buffer"),
            "fleet": (BLUE, "two collectors and two shards, one of each killed"),
        }
        for side, (colour, name) in looks.items():
            runs = row["runs"][side]
            steps = np.array(runs[0]["steps"]) / 1e3
            for run in runs:
                axes.plot(np.array(run["steps"]) / 1e3, run["scores"], color=colour, lw=1, alpha=0.4)
            axes.plot(steps, np.mean([run["scores"] for run in runs], axis=0), color=colour, lw=2.5, label=name)
        for place, who in zip(row["runs"]["fleet"][0]["killed"], ("a collector is killed", "a shard is killed"), strict=True):
            axes.axvline(place / 1e3, color=GREY, lw=1, ls=(0, (4, 3)), zorder=0)
            axes.annotate(who, (place / 1e3, axes.get_ylim()[0]), xytext=(4, 6), textcoords="offset points", rotation=90,
                          va="bottom", fontsize=9, color=GREY)  # fmt: skip
        axes.set(title="DQN catches a ball, from pictures", xlabel="thousand steps", ylabel="mean score, 1 is the best")
        axes.set_xlim(0, None)
        axes.grid(color="#E4E4E4", lw=0.8)
        axes.legend(frameon=False, fontsize=9, loc="lower right")
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=160)
        plt.close(figure)
