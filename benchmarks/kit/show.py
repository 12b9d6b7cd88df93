"""How figures are written, in tables and in sentences alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

Results = dict[str, Any]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Make a Markdown table, numbers to the right."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def percent(share: float, digits: int = 2) -> str:
    """Show a share."""
    return f"{share * 100:.{digits}f} %"


def ratio(row: Results, metric: str) -> str:
    """Show a ratio of a row of ``buffers.json``: the median of its rounds, whose values are in the file."""
    value = row["ratios"].get(metric)
    if value is None:
        return ""
    return percent(value) if metric == "memory" else f"{value:.2f}x"


def between(ratios: Sequence[float]) -> str:
    """Show how far rounds differ."""
    return f"{min(ratios):.3f}x to {max(ratios):.3f}x" if len(ratios) > 1 else "one round"


def megabytes(size: float) -> str:
    """Show a size."""
    return f"{size / 1e6:,.1f} MB" if size < 1e8 else f"{size / 1e6:,.0f} MB"


def milliseconds(microseconds: float) -> str:
    """Show a short time."""
    return f"{microseconds:.0f} µs" if microseconds < 1000 else f"{microseconds / 1000:.2f} ms"
