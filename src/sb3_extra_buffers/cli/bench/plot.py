"""The outcome of the benchmark as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from sb3_extra_buffers.cli.bench.compare import Results
from sb3_extra_buffers.cli.bench.report import format_time, share
from sb3_extra_buffers.cli.demo.plot import GRID, OUR_COLOUR, QUIET, SB3_COLOUR, tidy
from sb3_extra_buffers.cli.formatting import format_bytes
from sb3_extra_buffers.cli.measuring import BATCH_SIZE
from sb3_extra_buffers.recording.atomic import written_beside


def _bars(axes: Any, title: str, names: Sequence[str], ratios: Sequence[float], labels: Sequence[str], log: bool) -> None:
    tidy(axes, title)
    positions = range(len(ratios))
    axes.set_xscale("log" if log else "linear")
    largest, smallest = max(1.0, *ratios), min(1.0, *ratios)
    left = smallest / 3 if log else 0.0
    right = largest * (largest / left) ** 0.45 if log else 1.6 * largest
    axes.barh(positions, [ratio - left for ratio in ratios], left=left, height=0.6, color=OUR_COLOUR)
    axes.axvline(1, color=SB3_COLOUR, linewidth=2.2)
    for position, ratio, label in zip(positions, ratios, labels, strict=True):
        axes.annotate(
            label,
            (ratio, position),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize=9.5,
            color="black",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1, "alpha": 0.85},
        )
    axes.annotate(
        "SB3", (1, -0.72), xytext=(5, 0), textcoords="offset points", color=SB3_COLOUR, fontweight="bold", va="center"
    )
    axes.set_yticks(positions, names)
    axes.tick_params(axis="y", labelcolor="black", labelsize=10.5)
    axes.tick_params(axis="x", which="both", labelbottom=False, length=0)
    axes.set_xlim(left, right)
    axes.set_ylim(len(ratios) - 0.4, -1.05)
    axes.grid(axis="x", color=GRID)


def draw(results: Results, path: Path) -> None:
    """
    Draw memory and times of every method, beside those of SB3's buffer.

    :param results: The figures
    :param path: PNG to write
    """
    sb3, ours = results.sb3, results.ours
    names = [str(measured.method) for measured in ours]
    height = 1.9 + 0.42 * len(ours)
    figure = Figure(figsize=(13, height), layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1))
    figure.suptitle(
        f"{results.source.title}, {results.transitions:,} transitions", x=0.014, ha="left", fontsize=15, fontweight="bold"
    )
    finding = "all samples identical to SB3's" if results.all_identical else "NOT all samples identical to SB3's"
    figure.supxlabel(
        f"Shorter is better; {finding}. Memory: what the process grew by, on a logarithmic scale. Times: medians.",
        x=0.014,
        ha="left",
        fontsize=9.5,
        color=QUIET,
    )
    memory, add, sample = figure.subplots(1, 3, sharey=True, width_ratios=(1.15, 1, 1))
    ratios = [measured.memory_bytes / sb3.memory_bytes for measured in ours]
    labels = [f"{format_bytes(m.memory_bytes)}  {share(m.memory_bytes, sb3.memory_bytes)}" for m in ours]
    _bars(memory, f"Memory, SB3 {format_bytes(sb3.memory_bytes)}", names, ratios, labels, log=True)
    for axes, title, name in ((add, "add", "add_full_us"), (sample, f"sample({BATCH_SIZE})", "sample_us")):
        theirs = getattr(sb3, name)
        times = [getattr(measured, name) for measured in ours]
        labels = [format_time(time, theirs) for time in times]
        _bars(axes, f"{title}, SB3 {theirs:,.0f} µs", names, [time / theirs for time in times], labels, log=False)
    with written_beside(path) as beside:
        figure.savefig(beside, dpi=150)
