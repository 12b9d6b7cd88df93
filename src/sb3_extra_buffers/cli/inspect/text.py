"""What a file says, made fit to be shown: it may have been written to deceive."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

_LONGEST = 200
_MOST_PARTS = 10_000
_MOST_SPACES = 20  # in a space that are written out, however they are nested
_DEEPEST = 20


@dataclass(frozen=True)
class Description:
    """
    What a file says of itself: `lines` for people, pairs of a title and a text, and `facts` for programs.

    `foreign` is code that loading the file would run beyond what a buffer needs, `damage` what is damaged in a directory,
    `advice` what to do about that.
    """

    kind: str
    lines: list[tuple[str, str]]
    facts: dict[str, Any]
    foreign: list[str] = field(default_factory=list)
    damage: list[str] = field(default_factory=list)
    advice: str = ""


def printable(text: str, longest: int = _LONGEST) -> str:
    """Escape what moves the cursor, colours, hides or reverses what a terminal shows."""
    text = text if len(text) <= longest else f"{text[: longest - 1]}…"
    text = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
    encoding = sys.stdout.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def number(value: int) -> str:
    """A number, which may have more digits than Python writes."""
    return f"{value:,}" if value.bit_length() <= 64 else f"a number of {value.bit_length():,} bits"


def for_json(value: Any) -> Any:
    """Facts without what JSON or its reader cannot take: NaN, huge numbers, endless nesting."""
    left = _MOST_PARTS

    def convert(value: Any, depth: int) -> Any:
        nonlocal left
        left -= 1
        if left < 0 or depth > _DEEPEST:
            return "…"
        if isinstance(value, dict):
            return {str(key): convert(part, depth + 1) for key, part in value.items() if left > 0}
        if isinstance(value, list | tuple):
            return [convert(part, depth + 1) for part in value if left > 0]
        if isinstance(value, float) and not math.isfinite(value):
            return str(value)
        if isinstance(value, int) and value.bit_length() > 64:
            return number(value)
        return value if value is None or isinstance(value, bool | int | float | str) else str(value)

    return convert(value, 0)


def as_json(facts: dict[str, Any]) -> str:
    """Facts as JSON in ASCII, without control characters."""
    return json.dumps(for_json(facts), indent=2, allow_nan=False).replace("\x7f", "\\u007f")


def space_text(space: Any, part_of: Callable[[Any], tuple[str, Any]]) -> str:
    """
    Write out a space, for example as ``"Box (4, 84, 84) uint8"``.

    `part_of` takes a space as a file has it, and gives its kind and what follows: text, or the pairs of a `Dict`.
    """
    left = _MOST_SPACES

    def describe(space: Any, depth: int) -> str:
        nonlocal left
        left -= 1
        if left < 0 or depth > _MOST_SPACES:
            return "…"
        kind, rest = part_of(space)
        if not isinstance(rest, str):
            rest = ", ".join(f"{key}: {describe(part, depth + 1)}" for key, part in rest[: _MOST_SPACES + 1] if left > 0)
        return f"{kind} {rest}".rstrip()

    return describe(space, 0)
