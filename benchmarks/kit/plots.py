"""Plots of the results, in colours that everyone can tell apart (Okabe and Ito's)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, NullFormatter
from matplotlib.transforms import Bbox

from kit.data import DATASETS, SELECTED
from kit.metrics import DEFAULT, DENSE

BLUE, ORANGE, GREEN, RED, PURPLE, SKY, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#5A5A5A"

# What a method's name begins with: colour, marker, name in the legend.
FAMILIES = {
    "delta": (BLUE, "o", "delta (this package's own)"),
    "zstd": (GREEN, "s", "zstd"),
    "lz4": (ORANGE, "^", "lz4"),
    "gzip": (RED, "v", "gzip, igzip"),
    "igzip": (RED, "v", "gzip, igzip"),
    "rle": (PURPLE, "D", "run lengths"),
    "none": (SKY, "P", "none (frames shared only)"),
}

# A level or two of each; all of them would hide each other, and are in the table.
SHOWN = (DEFAULT, DENSE, "none", "rle", "rle-jit", "gzip1", "igzip1", "zstd1", "zstd-100", "lz4-frame/1", "lz4-block/1")

Point = tuple[float, float, str]
_STYLE = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.labelcolor": "#222222",
    "xtick.color": GREY,
    "ytick.color": GREY,
    "axes.titlesize": 11.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
}


def _family(method: str) -> tuple[str, str, str]:
    return next(style for start, style in FAMILIES.items() if method.startswith(start))


def _percent(value: float, _: object = None) -> str:
    return f"{value * 100:g} %"


def _times(value: float, _: object = None) -> str:
    return f"{value:g}x"


def place_labels(axes: Axes, points: Sequence[Point], bold: Iterable[str] = ()) -> None:
    """Write a name beside each point so that nothing overlaps, with a thin line where it had to go further off."""
    figure = axes.figure
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    pixel = figure.dpi / 72
    frame = axes.get_window_extent(renderer)
    spots = [axes.transData.transform((x, y)) for x, y, _ in points]
    taken = [Bbox.from_bounds(x - 6 * pixel, y - 6 * pixel, 12 * pixel, 12 * pixel) for x, y in spots]
    ways = ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, 1), (1, -1), (-1, -1))
    tries = [(dx * far, dy * far) for far in (9, 16, 26, 38, 52, 70, 90) for dx, dy in ways]
    if legend := axes.get_legend():
        taken.append(legend.get_window_extent(renderer))
    for number, (x, y, name) in enumerate(points):
        for dx, dy in tries:
            far = max(abs(dx), abs(dy)) > 9 or (dx != 0 and dy != 0)
            label = axes.annotate(
                name,
                (x, y),
                xytext=(dx, dy),
                textcoords="offset points",
                ha={1: "left", 0: "center", -1: "right"}[(dx > 0) - (dx < 0)],
                va={1: "bottom", 0: "center", -1: "top"}[(dy > 0) - (dy < 0)],
                fontsize=9,
                fontweight="bold" if name in bold else "normal",
                color="#222222",
                zorder=5,
                arrowprops={"arrowstyle": "-", "color": "#9A9A9A", "lw": 0.7, "shrinkA": 1, "shrinkB": 4} if far else None,
            )
            box = label.get_window_extent(renderer) if not far else _text_box(label, renderer)
            inside = frame.x0 <= box.x0 and box.x1 <= frame.x1 + 30 * pixel and frame.y0 <= box.y0 and box.y1 <= frame.y1
            line = _line_boxes(spots[number], box, pixel) if far else []
            others = [other for index, other in enumerate(taken) if index != number]
            if inside and not any(mine.overlaps(other) for mine in (box, *line) for other in others):
                taken += [box.expanded(1.02, 1.1), *line]
                break
            label.remove()
        else:
            raise RuntimeError(f"no room for the label {name!r}")


def _line_boxes(spot: Any, box: Bbox, pixel: float) -> list[Bbox]:
    """The line from a point to its label, as small boxes, so that nothing is written over it."""
    end = (min(max(spot[0], box.x0), box.x1), min(max(spot[1], box.y0), box.y1))
    parts = [part / 8 for part in range(2, 8)]
    middles = [tuple(a + (b - a) * part for a, b in zip(spot, end, strict=True)) for part in parts]
    return [Bbox.from_bounds(x - pixel, y - pixel, 2 * pixel, 2 * pixel) for x, y in middles]


def _text_box(label: Any, renderer: Any) -> Bbox:
    label.update_positions(renderer)
    return Text.get_window_extent(label, renderer)  # not the annotation's, which counts the line as well


def _prepare(axes: Axes, points: Sequence[Point], title: str) -> None:
    axes.set(xscale="log", yscale="log", title=title)
    axes.set_xlabel("time of sample(32), SB3's = 1x")
    axes.set_ylabel("resident memory, SB3's = 100 %")
    xs, ys = [x for x, *_ in points], [y for _, y, _ in points]
    axes.set_xlim(min(*xs, 1) / 2.2, max(*xs, 1) * 2.6)
    axes.set_ylim(min(*ys, 1) / 2.2, max(*ys, 1) * 2.5)
    axes.set_xticks(
        [t for t in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100) if axes.get_xlim()[0] < t < axes.get_xlim()[1]]
    )
    ticks = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1)
    axes.set_yticks([t for t in ticks if axes.get_ylim()[0] < t < axes.get_ylim()[1]])
    for axis, text in ((axes.xaxis, _times), (axes.yaxis, _percent)):
        axis.set_major_formatter(FuncFormatter(text))
        axis.set_minor_formatter(NullFormatter())
        axis.set_tick_params(which="minor", length=0)
    axes.grid(which="major", color="#E4E4E4", lw=0.8, zorder=0)
    axes.axvline(1, color="#BDBDBD", lw=1, ls=(0, (4, 3)), zorder=1)
    axes.axhline(1, color="#BDBDBD", lw=1, ls=(0, (4, 3)), zorder=1)
    axes.axvspan(axes.get_xlim()[0], 1, color=BLUE, alpha=0.05, lw=0, zorder=0)
    axes.plot(1, 1, "X", ms=10, color="black", zorder=4)


def plot_buffers(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """
    Plot memory against time, in two pictures: every kind of method on MsPacman, and beside it, as ``…-data``, the default on
    data of each kind.
    """
    good = [row for row in rows if "error" not in row]
    own = [row for row in good if row.get("baseline", "sb3") == "sb3"]
    point = {(row["dataset"], row["method"]): (row["ratios"]["sample_32"], row["ratios"]["memory"]) for row in own}
    names = [name for name in DATASETS if any(data == name for data, _ in point)]
    if not names:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    first = "mspacman" if "mspacman" in names else names[0]
    methods: list[Point] = [(*xy, method) for (data, method), xy in point.items() if data == first and method in SHOWN]
    if methods:
        _plot_points(methods, f"Every kind of method, {DATASETS[first].title}", path, families=True)
    shown = [name for name in names if (name, DEFAULT) in point]
    # Those that lie where another of their kind does are left out: labels would have no room.
    selected = [name for name in shown if name in SELECTED] or shown[:1]
    data: list[Point] = [(*point[name, DEFAULT], DATASETS[name].title) for name in selected]
    if data:
        _plot_points(data, f"The default method ({DEFAULT})", path.with_name(f"{path.stem}-data{path.suffix}"), families=False)


def _plot_points(points: Sequence[Point], title: str, path: Path, families: bool) -> None:
    sb3: Point = (1.0, 1.0, "SB3")
    with plt.rc_context(_STYLE):
        figure, axes = plt.subplots(figsize=(6.0, 4.5), layout="constrained")
        _prepare(axes, points, title)
        shown: set[str] = set()
        for x, y, name in points:
            colour, marker, family = _family(name) if families else (BLUE, "o", "")
            stressed = not families or name in (DEFAULT, DENSE)
            axes.plot(
                x, y, marker, ms=11 if stressed else 8, color=colour, mec="white", mew=1, ls="", zorder=4,
                label=None if family in shown else family,
            )  # fmt: skip
            shown.add(family)
        if families:
            axes.legend(
                facecolor="white", edgecolor="white", framealpha=1, fontsize=9, loc="upper right", labelcolor="#222222"
            )
        place_labels(axes, [sb3, *sorted(points)], bold=("SB3", DEFAULT, DENSE))
        axes.annotate("faster than SB3", (0.015, 0.965), xycoords="axes fraction", fontsize=9, color=BLUE, alpha=0.8)
        figure.savefig(path, dpi=200)
        plt.close(figure)


def plot_million(row: Mapping[str, Any], path: Path) -> None:
    """Plot the memory of the training process over a million transitions."""
    with plt.rc_context(_STYLE):
        figure, axes = plt.subplots(figsize=(7.5, 3.8), layout="constrained")
        count = [point["transitions"] / 1e3 for point in row["series"]]
        process = [point["rss"] / 1e6 for point in row["series"]]
        axes.axhline(1000, color=RED, lw=1.2, ls=(0, (4, 3)))
        axes.annotate("1 GB", (count[-1], 1000), xytext=(0, 4), textcoords="offset points", color=RED, ha="right", fontsize=9)
        axes.plot(count, process, color=BLUE, lw=2)
        above = max(process[-len(process) // 5 :])  # of all that the label stands over
        axes.annotate("whole process", (count[-1], above), xytext=(0, 6), textcoords="offset points", ha="right",
                      color=BLUE, fontsize=9)  # fmt: skip
        stored = [point["stored"] / 1e6 for point in row["series"]]
        axes.plot(count, stored, color=ORANGE, lw=2)
        axes.annotate("observations in the buffer", (count[-1], stored[-1]), xytext=(0, 6), textcoords="offset points",
                      ha="right", color="#B47B00", fontsize=9)  # fmt: skip
        axes.set(title="DQN on MsPacman, replay buffer of a million", xlabel="thousand transitions", ylabel="MB")
        axes.set_ylim(0, max(1080, *process) * 1.05)
        axes.set_xlim(0, max(count) * 1.01)
        axes.grid(color="#E4E4E4", lw=0.8)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=160)
        plt.close(figure)


def plot_learning(row: Mapping[str, Any], path: Path) -> None:
    """Plot two learning curves, and random play beside them."""
    with plt.rc_context(_STYLE):
        figure, axes = plt.subplots(figsize=(7.5, 4.2), layout="constrained")
        # SB3's broad and pale, ours thin upon it: both can be seen where they are the same.
        looks = {"sb3": (ORANGE, 7, 0.55, "SB3's buffer"), "ours": (BLUE, 2, 1.0, "compressed buffer")}
        for side, (colour, width, alpha, name) in looks.items():
            run = row["runs"][side]
            steps = np.array(run["steps"]) / 1e3
            means = np.array([np.mean(rewards) for rewards in run["rewards"]])
            if side == "ours":
                low, high = np.quantile(np.array(run["rewards"]), (0.25, 0.75), axis=1)
                axes.fill_between(steps, low, high, color=BLUE, alpha=0.12, lw=0, label="half of the episodes")
            axes.plot(steps, means, color=colour, lw=width, alpha=alpha, label=name, solid_capstyle="round",
                      marker="o" if side == "ours" else None, ms=4)  # fmt: skip
        axes.axhline(np.mean(row["random"]), color=GREY, lw=1.2, ls=(0, (4, 3)), label="random play")
        axes.set(title="PPO on Doom, defend the center, from masks", xlabel="thousand steps", ylabel="reward of an episode")
        axes.set_xlim(0, None)
        axes.grid(color="#E4E4E4", lw=0.8)
        handles, labels = axes.get_legend_handles_labels()
        order = [labels.index(name) for name in ("SB3's buffer", "compressed buffer", "half of the episodes", "random play")]
        axes.legend([handles[i] for i in order], [labels[i] for i in order], frameon=False, fontsize=9, loc="upper left")
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=160)
        plt.close(figure)


def _running_mean(episodes: Sequence[Sequence[float]], window: int, grid: Any) -> Any:
    """Mean score of the last ``window`` episodes at each step of ``grid``; NaN before the first."""
    steps, scores = np.array([line[0] for line in episodes]), np.array([line[1] for line in episodes], float)
    sums = np.concatenate([[0.0], np.cumsum(scores)])
    until = np.searchsorted(steps, grid, side="right")
    since = np.maximum(until - window, 0)
    with np.errstate(invalid="ignore"):
        return (sums[until] - sums[since]) / (until - since)


def plot_long_runs(runs: Mapping[str, Mapping[str, Any]], folder: Path) -> None:
    """Plot the long training runs: Doom, Pong and MsPacman, each into a file of its own."""
    plots = {"long_run_doom": _plot_doom, "long_run_pong": _plot_pong, "long_run_mspacman": _plot_mspacman}
    with plt.rc_context(_STYLE):
        for name, plot in plots.items():
            chosen = {run: row for run, row in runs.items() if run.startswith(name.rpartition("_")[2])}
            if any(row["episodes"] for row in chosen.values()):
                figure = plot(chosen)
                figure.savefig(folder / f"{name}.png", dpi=160)
                plt.close(figure)


def _plot_doom(runs: Mapping[str, Mapping[str, Any]]) -> Any:
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 4), layout="constrained", width_ratios=(2, 1))
    names = {"mask": "masks", "rgb": "RGB", "both": "both"}
    sizes = []
    for (view, name), colour in zip(names.items(), (BLUE, ORANGE, RED), strict=True):
        seeds = [row for run, row in runs.items() if run.startswith(f"doom-{view}-") and row["episodes"]]
        if not seeds:
            continue
        end = min(row["steps"] for row in seeds)
        grid = np.linspace(0, end, 200)[10:]
        curves = np.array([_running_mean(row["episodes"], 50, grid) for row in seeds])
        left.plot(grid / 1e3, curves.mean(axis=0), color=colour, lw=2, label=f"{name}, {len(seeds)} seeds")
        left.fill_between(grid / 1e3, curves.min(axis=0), curves.max(axis=0), color=colour, alpha=0.15, lw=0)
        full = [line for row in seeds for line in row["memory"]]
        sizes.append((name, np.median([line[2] for line in full]) / 1e6, np.median([line[3] for line in full]) / 1e6))
    left.set(title="PPO on Doom, defend the center", xlabel="thousand steps", ylabel="score, mean of 50 episodes")
    left.legend(frameon=False, fontsize=9, loc="lower right")
    left.set_xlim(0, None)
    left.grid(color="#E4E4E4", lw=0.8)
    places = np.arange(len(sizes))
    for shift, column, colour, name in ((-0.2, 1, GREY, "SB3"), (0.2, 2, BLUE, "ours")):
        bars = right.bar(places + shift, [size[column] for size in sizes], 0.38, color=colour, label=name)
        right.bar_label(bars, fmt="%.2g", fontsize=8)
    right.set(yscale="log", title="rollout buffer, 1,024 steps", ylabel="MB")
    right.set_xticks(places, [size[0] for size in sizes])
    right.legend(frameon=False, fontsize=9)
    right.margins(y=0.15)
    return figure


def _plot_pong(runs: Mapping[str, Mapping[str, Any]]) -> Any:
    figure, axes = plt.subplots(figsize=(7.5, 4.2), layout="constrained")
    looks = {"pong-sb3": (ORANGE, 7, 0.55, "SB3's buffer"), "pong": (BLUE, 2, 1.0, "compressed buffer")}
    for run, (colour, width, alpha, name) in looks.items():
        if run in runs:
            grid = np.linspace(0, runs[run]["steps"], 400)
            axes.plot(
                grid / 1e6, _running_mean(runs[run]["episodes"], 50, grid), color=colour, lw=width, alpha=alpha, label=name
            )
    points = runs["pong"]["evaluations"] if "pong" in runs else []
    if points:
        means = [np.mean(scores) for _, scores in points]
        axes.plot([step / 1e6 for step, _ in points], means, "o", color=RED, ms=5, label="evaluation, 20 episodes")
    axes.set(title="PPO on Pong, published settings", xlabel="million steps", ylabel="score, mean of 50 episodes")
    axes.set_xlim(0, None)
    axes.grid(color="#E4E4E4", lw=0.8)
    axes.legend(frameon=False, fontsize=9, loc="upper left")
    return figure


def _plot_mspacman(runs: Mapping[str, Mapping[str, Any]]) -> Any:
    figure, (score, memory) = plt.subplots(2, 1, figsize=(7.5, 5.4), layout="constrained", sharex=True)
    row = runs["mspacman"]
    grid = np.linspace(0, row["steps"], 400)
    score.plot(grid / 1e3, _running_mean(row["episodes"], 50, grid), color=BLUE, lw=2, label="training, mean of 50 episodes")
    points = row["evaluations"]
    if points:
        score.plot(
            [s / 1e3 for s, _ in points],
            [np.mean(v) for _, v in points],
            "o",
            color=RED,
            ms=5,
            label="evaluation, 20 episodes",
        )
    score.set(title="DQN on MsPacman, replay buffer of 1,000,000", ylabel="score")
    score.legend(frameon=False, fontsize=9, loc="upper left")
    steps = [line[0] / 1e3 for line in row["memory"]]
    memory.plot(steps, [line[1] / 1e6 for line in row["memory"]], color=BLUE, lw=2, label="whole process")
    memory.plot(steps, [line[3] / 1e6 for line in row["memory"]], color=ORANGE, lw=2, label="observations in the buffer")
    memory.set(xlabel="thousand steps", ylabel="MB")
    memory.set_ylim(0, None)
    memory.legend(frameon=False, fontsize=9, loc="upper left")
    for axes in (score, memory):
        axes.set_xlim(0, None)
        axes.grid(color="#E4E4E4", lw=0.8)
    return figure
