"""Memory and times of buffers as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from sb3_extra_buffers._support import atomic_write
from sb3_extra_buffers.cli.measure import BATCH_SIZE, Results, busy_warning
from sb3_extra_buffers.cli.tables import format_ratio, share

# Okabe and Ito's palette: distinct with every kind of colour vision, and in print.
_SB3_COLOUR = "#D55E00"
_OUR_COLOUR = "#0072B2"
_QUIET = "#5F6670"
_BYTES = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))
_MICROSECONDS = (("s", 1e6), ("ms", 1e3), ("µs", 1.0))
_CHARTS = (
    ("Memory", "memory_bytes", _BYTES),
    ("add", "add_full_us", _MICROSECONDS),
    (f"sample({BATCH_SIZE})", "sample_us", _MICROSECONDS),
)


def in_one_unit(values: Sequence[float], units: Sequence[tuple[str, float]]) -> list[str]:
    """Write values in the unit that suits the middle one, so that they can be compared at a glance."""
    middle = sorted(values)[len(values) // 2]
    name, size = next((unit for unit in units if middle >= unit[1]), units[-1])
    return [
        f"{value / size:,.{0 if value >= 99.95 * size else 1 if value >= 9.995 * size else 2}f} {name}" for value in values
    ]


def _bars(axes: Any, title: str, values: Sequence[float], units: Sequence[tuple[str, float]]) -> None:
    """A bar for each value, SB3's first, with its number at its end."""
    axes.set_title(title, loc="left", fontsize=12, fontweight="bold")
    colours = [_SB3_COLOUR] + [_OUR_COLOUR] * (len(values) - 1)
    axes.barh(range(len(values)), values, height=0.6, color=colours)
    for place, (value, text, colour) in enumerate(zip(values, in_one_unit(values, units), colours, strict=True)):
        if place > 0:
            text += f"  ({share(value, values[0]) if title == 'Memory' else format_ratio(value / values[0])})"
        axes.annotate(
            text, (value, place), xytext=(6, 0), textcoords="offset points", va="center", color=colour, fontweight="bold"
        )  # fmt: skip
    axes.set_xlim(0, 1.75 * max(values))  # room for the number of the longest bar
    axes.set_ylim(len(values) - 0.5, -0.5)
    axes.set_xticks([])
    axes.tick_params(length=0, labelsize=10.5)
    for side in ("top", "right", "bottom"):
        axes.spines[side].set_visible(False)
    axes.spines["left"].set_color(_QUIET)


def make_figure(results: Results, note: str = "") -> Figure:
    """Draw memory and times of every buffer, SB3's own first. The note goes below them."""
    names = ["SB3's own", *(str(measured.method) for measured in results.ours)]
    figure = Figure(figsize=(13, 1.9 + 0.42 * len(names)), layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1))
    title = f"{results.source.title}, {results.transitions:,} transitions"
    if len(results.ours) == 1:
        title += f": {share(results.ours[0].memory_bytes, results.sb3.memory_bytes)} of the memory of SB3's buffer"
    figure.suptitle(title, x=0.012, ha="left", fontsize=15, fontweight="bold")
    identical = "All samples are identical to SB3's." if results.all_identical else "NOT all samples are identical to SB3's."
    lines = ["Shorter is better. Memory: what the process grew by. Times: medians, add in a full buffer."]
    lines.append(" ".join(filter(None, [identical, note])))
    if warning := busy_warning(results.other_cores):
        lines.append(warning)
    figure.supxlabel("\n".join(lines), x=0.012, ha="left", fontsize=9.5, color=_QUIET)
    for axes, (chart, name, units) in zip(figure.subplots(1, 3, sharey=True), _CHARTS, strict=True):
        _bars(axes, chart, [getattr(measured, name) for measured in (results.sb3, *results.ours)], units)
        axes.set_yticks(range(len(names)), names)
    return figure


def draw(results: Results, path: Path, note: str = "") -> None:
    """Draw into a PNG file."""
    with atomic_write(path) as beside:
        make_figure(results, note).savefig(beside, dpi=150)
