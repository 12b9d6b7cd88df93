"""
Figures in sentences: ``<!-- figure: FILE ROWS PATHS FORMAT -->0.46 %<!-- / -->``.

FILE is a result file without its ending. ROWS are the names of rows with commas between them; ``*`` stands for anything, a
``!`` in front leaves rows out, and a single ``.`` is the whole file. PATHS lead to values in each row, such as
``ratios.memory,ratios.add_full``; a list counts as all of its values. Of several values, the smallest and the largest are
shown, unless ``mean``, ``median``, ``min`` or ``max`` follows the format. FORMAT is one of ``FORMATS``, with the number of
digits after a colon where the usual one does not suit: ``number:1``.

A marker must not begin a line: Markdown would take that whole line for HTML.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from kit.results import read_results
from kit.show import megabytes, milliseconds, percent

MARKED = re.compile(r"(<!-- figure:\s([^<>]*?)-->)(.*?)(<!-- / -->)", re.DOTALL)
_BEGINS_A_LINE = re.compile(r"^[ \t>*+-]*(?:\d+[.)] +)?<!-- (?:figure: [^<>]*|/ )-->", re.MULTILINE)
_FRACTIONS = ("half", "a third", "a quarter", "a fifth", "a sixth", "a seventh", "an eighth", "a ninth", "a tenth")


class NotMeasured(LookupError):
    """The result files do not have a figure."""


def fraction(share: float, digits: int | None = None) -> str:
    """
    Put a share into words, roughly.

    :param share: 1 for all of it
    :param digits: Means nothing here
    :return: ``a ninth``, ``a 70th``; percent above two thirds
    """
    if share > 2 / 3:
        return percent(share, 0)
    parts = 1 / share
    if round(parts) <= len(_FRACTIONS) + 1:
        return _FRACTIONS[round(parts) - 2]
    step = 1 if parts < 20 else 5 if parts < 100 else 50
    whole = round(parts / step) * step
    return f"{'an' if str(whole).startswith('8') or whole in (11, 18) else 'a'} {whole}th"


# Each takes a value and a number of digits, which is None where the marker gives none.
FORMATS: dict[str, Callable[[float, int | None], str]] = {
    "number": lambda value, digits: f"{value:,.{2 if digits is None else digits}f}",
    "percent": lambda value, digits: percent(value, 2 if digits is None else digits),
    "fraction": fraction,
    "MB": lambda value, digits: megabytes(value),
    "GB": lambda value, digits: f"{value / 1e9:.{1 if digits is None else digits}f} GB",
    "time": lambda value, digits: milliseconds(value),
    "seconds": lambda value, digits: f"{value:.{0 if digits is None else digits}f} s",
    "millions": lambda value, digits: f"{value / 1e6:,.{1 if digits is None else digits}f} million",
}
_ONE_OF: dict[str, Callable[[Sequence[float]], float]] = {
    "mean": statistics.fmean,
    "median": statistics.median,
    "min": min,
    "max": max,
}


def _rows(rows: Mapping[str, Any], names: str, file: str) -> dict[str, Any]:
    """Pick rows by their names."""
    picked: dict[str, Any] = {}
    unwanted = [name[1:] for name in names.split(",") if name.startswith("!")]
    for pattern in (name for name in names.split(",") if not name.startswith("!")):
        found = {name: row for name, row in rows.items() if fnmatchcase(name, pattern)}
        if not found:
            raise NotMeasured(f"{file}.json has no row {pattern!r}; it has {', '.join(rows)}")
        picked |= found
    picked = {name: row for name, row in picked.items() if not any(fnmatchcase(name, pattern) for pattern in unwanted)}
    if not picked:
        raise NotMeasured(f"{file}.json has no row for {names!r}")
    return picked


def _at(content: Any, path: str, where: str) -> list[float]:
    """Follow a path to a number, or to a list of them."""
    for step in path.split("."):
        try:
            content = content[int(step) if isinstance(content, list) else step]
        except (KeyError, IndexError, TypeError, ValueError):
            has = ", ".join(content) if isinstance(content, Mapping) else f"{type(content).__name__} there"
            raise NotMeasured(f"{where}: no {step!r} of {path}; it has {has}") from None
    values = content if isinstance(content, list) else [content]
    if not values or not all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        raise NotMeasured(f"{where}: {path} is not a number: {str(content)[:60]!r}")
    return values


def look_up(file: str, names: str, paths: str, folder: Path) -> list[float]:
    """
    Find values in a result file.

    :param file: Its name, without ending
    :param names: Names of rows
    :param paths: Paths to values in each of them
    :param folder: Folder of the results
    :return: All values; never none
    """
    results = read_results(file, folder)
    if results is None:
        there = ", ".join(sorted(path.stem for path in folder.glob("*.json")))
        raise NotMeasured(f"there is no {file}.json; there are {there or 'no results'}")
    rows = {".": results} if names == "." else _rows(results["rows"], names, file)
    return [
        value for name, row in rows.items() for path in paths.split(",") for value in _at(row, path, f"{file}.json, {name}")
    ]


def _span(low: str, high: str) -> str:
    """Write a range; a unit that both ends share is written once."""
    if low == high:
        return low
    number, _, unit = low.rpartition(" ")
    shared = number and high.endswith(f" {unit}") and number[-1].isdigit()
    return f"{number if shared else low} to {high}"


def make_figure(marker: str, folder: Path) -> str:
    """
    Make what goes between two markers.

    :param marker: What follows ``figure:``
    :param folder: Folder of the results
    :return: The figure
    :raises NotMeasured: If the results do not have it
    """
    words = marker.split()
    if len(words) not in (4, 5):
        raise ValueError(f"figure {' '.join(words)!r}: give a file, rows, paths, a format, and at most one word more")
    file, names, paths, style = words[:4]
    name, _, digits = style.partition(":")
    if name not in FORMATS or not (digits.isdecimal() or style == name):
        raise ValueError(f"figure {' '.join(words)!r}: no format {style!r}; there are {', '.join(FORMATS)}, and number:1")
    one_of = words[4] if len(words) == 5 else None
    if one_of not in (None, *_ONE_OF):
        raise ValueError(f"figure {' '.join(words)!r}: no {one_of!r}; there are {', '.join(_ONE_OF)}")
    values = look_up(file, names, paths, folder)
    ends = [_ONE_OF[one_of](values)] * 2 if one_of else [min(values), max(values)]
    low, high = (FORMATS[name](value, int(digits) if digits else None) for value in ends)
    return _span(low, high)


def update_figures(text: str, folder: Path, missing: list[str]) -> str:
    """
    Renew all figures in a text. One that was not measured stays as it is.

    :param text: Markdown with markers
    :param folder: Folder of the results
    :param missing: Gets a line for each that was not measured
    :return: The same with figures
    """
    if found := _BEGINS_A_LINE.search(text):
        raise ValueError(
            f"{found[0].strip()!r} begins a line, so Markdown takes all of that line for HTML: move a word before it"
        )

    def renew(found: re.Match[str]) -> str:
        opening, marker, before, closing = found.groups()
        try:
            figure = make_figure(marker, folder)
        except NotMeasured as reason:
            missing.append(str(reason))
            return found[0]
        # A line may end within it.
        return found[0] if before.split() == figure.split() else opening + figure + closing

    text = MARKED.sub(renew, text)
    if left := re.search(r"<!-- (?:figure\b[^\n]*|/ -->)", MARKED.sub("", text)):
        raise ValueError(f"{left[0]!r}: a figure is written <!-- figure: FILE ROWS PATHS FORMAT -->…<!-- / -->")
    return text
