"""How figures are written, in tables and in sentences alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

Results = dict[str, Any]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """
    Make a Markdown table, numbers to the right.

    :param head: Titles of the columns; the first one is text
    :param rows: Cells
    :return: The table
    """
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def percent(share: float, digits: int = 2) -> str:
    """
    Show a share.

    :param share: 1 for all of it
    :param digits: Digits after the point
    :return: In percent
    """
    return f"{share * 100:.{digits}f} %"


def ratio(row: Results, metric: str) -> str:
    """Show a ratio of a row of ``buffers.json``: the median of its rounds, whose values are in the file."""
    value = row["ratios"].get(metric)
    if value is None:
        return ""
    return percent(value) if metric == "memory" else f"{value:.2f}x"


def between(ratios: Sequence[float]) -> str:
    """
    Show how far rounds differ.

    :param ratios: What each of them gave
    :return: The smallest and the largest; of a single round nothing
    """
    return f"{min(ratios):.3f}x to {max(ratios):.3f}x" if len(ratios) > 1 else "one round"


def megabytes(size: float) -> str:
    """
    Show a size.

    :param size: Bytes
    :return: In MB
    """
    return f"{size / 1e6:,.1f} MB" if size < 1e8 else f"{size / 1e6:,.0f} MB"


def milliseconds(microseconds: float) -> str:
    """
    Show a short time.

    :param microseconds: The time
    :return: In µs or ms
    """
    return f"{microseconds:.0f} µs" if microseconds < 1000 else f"{microseconds / 1000:.2f} ms"
