"""What demo, bench and recommend print and write alike."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sb3_extra_buffers._support import atomic_write


def new_table(title: str, columns: Sequence[str], left: Sequence[str] = ()) -> Table:
    """A table whose first column and those in `left` are aligned to the left."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=title, title_style="bold", title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 or column in left else "right", no_wrap=number == 0)
    return table


def verdict(identical: bool) -> Text:
    return Text("identical", "bold green") if identical else Text("DIFFERENT", "bold red")


def format_ratio(ratio: float) -> str:
    digits = 3 if ratio < 0.0995 else 2 if ratio < 9.995 else 1 if ratio < 99.95 else 0
    return f"{ratio:,.{digits}f}x"


def format_time(microseconds: float) -> str:
    return f"{microseconds:.0f} µs" if microseconds < 9_999.5 else f"{microseconds / 1000:.1f} ms"


def share(ours: float, theirs: float) -> str:
    """A share of SB3's memory."""
    percent = 100 * ours / theirs
    return f"{percent:.2f} %" if percent < 10 else f"{percent:.0f} %"


def say(console: Console, text: str, style: str = "", wrap: bool = True) -> None:
    """Print a sentence as it is."""
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=not wrap)


def write_json(path: Path, content: Any) -> None:
    with atomic_write(path) as beside:
        beside.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
