"""The outcome of the demo as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, MaxNLocator

from sb3_extra_buffers._support import atomic_write
from sb3_extra_buffers.cli.demo.figures import BATCH_SIZE, FRAME_STACK, Comparison
from sb3_extra_buffers.cli.formatting import format_bytes
from sb3_extra_buffers.cli.games import game_title

# Okabe and Ito's palette: told apart with every kind of colour vision, and in print.
SB3_COLOUR = "#D55E00"
OUR_COLOUR = "#0072B2"
QUIET = "#5F6670"
GRID = "#E4E7EB"


def tidy(axes: Any, title: str) -> None:
    """
    Take away what does not help to read a chart.

    :param axes: The chart
    :param title: Its title
    """
    axes.set_title(title, loc="left", fontsize=12, fontweight="bold", pad=14)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(QUIET)
    axes.tick_params(colors=QUIET, length=0, labelsize=10)
    axes.set_axisbelow(True)


def _draw_memory(axes: Any, comparison: Comparison) -> None:
    plan = comparison.plan
    tidy(axes, "Resident memory")
    sides = (
        (comparison.sb3_filling, "SB3 ReplayBuffer", SB3_COLOUR),
        (comparison.our_filling, "CompressedReplayBuffer", OUR_COLOUR),
    )
    top = max(size for _, size in comparison.sb3_filling.memory_history)
    for side, name, colour in sides:
        transitions, sizes = zip(*side.memory_history, strict=True)
        axes.plot(transitions, sizes, color=colour, linewidth=2.6, solid_capstyle="round", clip_on=False)
        label = f"{name}\n{format_bytes(side.memory_bytes)}"
        # Above its line where that is flat, so that neither a legend nor an arrow is needed.
        position = (plan.transitions, side.memory_bytes + 0.03 * top)
        axes.annotate(
            label,
            position,
            xytext=(-7, 0),
            textcoords="offset points",
            color=colour,
            fontsize=10.5,
            fontweight="bold",
            ha="right",
            va="bottom",
        )
    axes.axvline(plan.transitions, color=QUIET, linewidth=1, linestyle=(0, (2, 3)))
    axes.annotate(
        "buffer\nis full", (plan.transitions, 0.45 * top), xytext=(5, 0), textcoords="offset points", color=QUIET, fontsize=9.5
    )
    axes.set_xlim(0, plan.played)
    axes.set_ylim(0, 1.22 * top)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    scale, unit = (1e9, "GB") if top >= 1e9 else (1e6, "MB")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / scale:g} {unit}" if value else "0"))
    axes.set_xlabel("transitions played", color=QUIET)
    axes.grid(axis="y", color=GRID)


def _draw_times(axes: Any, comparison: Comparison) -> None:
    tidy(axes, "Time, compared with SB3")
    titles = ("add, while filling", "add, once full", f"sample({BATCH_SIZE})")
    ratios = comparison.time_ratios
    positions = range(len(ratios))
    right = 1.3 * max(1.0, *ratios.values())
    axes.barh(positions, list(ratios.values()), height=0.56, color=OUR_COLOUR)
    axes.axvline(1, color=SB3_COLOUR, linewidth=2.2)
    for position, title, (name, ratio) in zip(positions, titles, ratios.items(), strict=True):
        ours, theirs = (getattr(side, name) for side in (comparison.our_filling, comparison.sb3_filling))
        left_of_axis: dict[str, Any] = {"xycoords": axes.get_yaxis_transform(), "textcoords": "offset points", "ha": "right"}
        axes.annotate(title, (0, position), xytext=(-10, 3), fontsize=11, **left_of_axis)
        axes.annotate(
            f"{ours:,.0f} µs, SB3 {theirs:,.0f} µs",
            (0, position),
            xytext=(-10, -4),
            fontsize=9.5,
            color=QUIET,
            va="top",
            **left_of_axis,
        )
        axes.annotate(
            f"{ratio:.2f}x",
            (max(ratio, 1), position),  # right of the line too: a number on the line is hard to read
            xytext=(8, 0),
            textcoords="offset points",
            color=OUR_COLOUR,
            fontsize=12,
            fontweight="bold",
            va="center",
        )
    axes.annotate(
        "SB3 = 1",
        (1, -0.5),
        xytext=(6, 0),
        textcoords="offset points",
        color=SB3_COLOUR,
        fontsize=10.5,
        fontweight="bold",
        va="center",
    )
    axes.set_yticks([])
    axes.set_xlim(0, right)
    axes.set_ylim(len(ratios) - 0.6, -0.7)
    axes.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    axes.set_xlabel("shorter is faster", color=QUIET)
    axes.grid(axis="x", color=GRID)


def draw(comparison: Comparison, path: Path) -> None:
    """
    Draw memory while filling, and times.

    :param comparison: The figures
    :param path: PNG to write
    """
    plan = comparison.plan
    figure = Figure(figsize=(12, 5), layout=ConstrainedLayoutEngine(w_pad=0.15, h_pad=0.12))
    finding = "same samples, same weights" if comparison.all_identical else "NOT the same samples and weights"
    headline = f"{game_title(plan.env_id)}: {1 / comparison.memory_ratio:,.0f} times smaller, {finding}"
    figure.suptitle(headline, x=0.014, ha="left", fontsize=15, fontweight="bold")
    setting = (
        f"{plan.transitions:,} transitions from {plan.n_envs} games, stacks of {FRAME_STACK} frames, method {plan.method}. "
        "Memory: what the process grew by. Times: medians."
    )
    figure.supxlabel(setting, x=0.014, ha="left", fontsize=9.5, color=QUIET)
    memory, times = figure.subplots(1, 2, width_ratios=(1.3, 1))
    _draw_memory(memory, comparison)
    _draw_times(times, comparison)
    with atomic_write(path) as beside:
        figure.savefig(beside, dpi=150)
