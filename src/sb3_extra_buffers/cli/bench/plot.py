"""The outcome of the benchmark as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from sb3_extra_buffers._support import atomic_write
from sb3_extra_buffers.cli.bench.compare import Results
from sb3_extra_buffers.cli.demo.plot import GRID, OUR_COLOUR, QUIET, SB3_COLOUR, tidy
from sb3_extra_buffers.cli.measuring import BATCH_SIZE

_UNITS_OF_BYTES = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))
_UNITS_OF_MICROSECONDS = (("s", 1e6), ("ms", 1e3), ("µs", 1.0))
_MORE_COLOUR = "#8FB8D6"


def in_one_unit(values: Sequence[float], units: Sequence[tuple[str, float]]) -> list[str]:
    """
    Write values so that they can be compared at a glance: all in the unit that suits the middle one.

    :param values: The values
    :param units: Names and sizes of units, the largest first
    :return: The texts
    """
    middle = sorted(values)[len(values) // 2]
    name, size = next((unit for unit in units if middle >= unit[1]), units[-1])
    return [
        f"{value / size:,.{0 if value >= 99.95 * size else 1 if value >= 9.995 * size else 2}f} {name}" for value in values
    ]


def _times(ratio: float) -> str:
    return f"{ratio:.3f}x" if ratio < 0.0995 else f"{ratio:.2f}x" if ratio < 9.995 else f"{ratio:,.0f}x"


def _bars(axes: Any, title: str, names: Sequence[str], values: Sequence[float], units: Sequence[tuple[str, float]]) -> None:
    """Bars that begin at SB3's value, the first one; figures stand beside them, where no line can cross them."""
    texts = in_one_unit(values, units)
    tidy(axes, f"{title}  (SB3: {texts[0]})")
    ratios = [value / values[0] for value in values[1:]]
    positions = range(len(ratios))
    axes.set_xscale("log")
    colours = [OUR_COLOUR if ratio <= 1 else _MORE_COLOUR for ratio in ratios]
    axes.barh(positions, [ratio - 1 for ratio in ratios], left=1, height=0.6, color=colours)
    axes.axvline(1, color=SB3_COLOUR, linewidth=2.2)
    columns: dict[str, Any] = {"xycoords": axes.get_yaxis_transform(), "textcoords": "offset points", "va": "center"}
    for position, ratio, text in zip(positions, ratios, texts[1:], strict=True):
        axes.annotate(text, (1, position), xytext=(64, 0), fontsize=9.5, color=QUIET, ha="right", **columns)
        axes.annotate(_times(ratio), (1, position), xytext=(112, 0), fontsize=10, fontweight="bold", ha="right", **columns)
    axes.set_yticks(positions, names)
    axes.tick_params(axis="y", labelcolor="black", labelsize=10.5)
    axes.set_ylim(len(ratios) - 0.4, -0.6)
    left, right = min(0.5, *ratios) / 1.2, max(2.0, *ratios) * 1.2
    axes.set_xlim(left, right)
    steps = (1, 2, 5) if right / left < 60 else (1,)
    axes.xaxis.set_major_locator(FixedLocator([step * 10.0**power for power in range(-6, 7) for step in steps]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
    axes.grid(axis="x", color=GRID)


def make_figure(results: Results) -> Figure:
    """
    Draw memory and times of every method, beside those of SB3's buffer.

    :param results: The figures
    :return: The drawing
    """
    names = [str(measured.method) for measured in results.ours]
    figure = Figure(figsize=(14, 2.1 + 0.42 * len(names)), layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1))
    figure.suptitle(
        f"{results.source.title}, {results.transitions:,} transitions", x=0.014, ha="left", fontsize=15, fontweight="bold"
    )
    finding = "all samples identical to SB3's" if results.all_identical else "NOT all samples identical to SB3's"
    figure.supxlabel(
        f"Times SB3's own buffer, on a logarithmic scale: left of the line is better; {finding}. "
        "Memory: what the process grew by. Times: medians.",
        x=0.014,
        ha="left",
        fontsize=9.5,
        color=QUIET,
    )
    charts = (
        ("Memory", "memory_bytes", _UNITS_OF_BYTES),
        ("add", "add_full_us", _UNITS_OF_MICROSECONDS),
        (f"sample({BATCH_SIZE})", "sample_us", _UNITS_OF_MICROSECONDS),
    )
    for axes, (title, name, units) in zip(figure.subplots(1, 3, sharey=True), charts, strict=True):
        _bars(axes, title, names, [getattr(measured, name) for measured in (results.sb3, *results.ours)], units)
    return figure


def draw(results: Results, path: Path) -> None:
    """
    Draw the outcome into a file.

    :param results: The figures
    :param path: PNG to write
    """
    with atomic_write(path) as beside:
        make_figure(results).savefig(beside, dpi=150)
