"""What a file says, made fit to be shown: it may have been written to deceive."""

from __future__ import annotations

import json
import math
import sys
from typing import Any

_LONGEST = 200
_MOST_PARTS = 10_000
_DEEPEST = 20


def printable(text: str, longest: int = _LONGEST) -> str:
    """
    Make text fit for a terminal: nothing in it moves the cursor, colours, hides or reverses what is shown.

    :param text: Text from a file, or its name
    :param longest: How many characters are shown
    :return: The same with other characters as escapes
    """
    text = text if len(text) <= longest else f"{text[: longest - 1]}…"
    text = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
    encoding = sys.stdout.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def number(value: int) -> str:
    """
    Write a number, which may have more digits than Python writes.

    :param value: The number
    :return: Its digits, or how many bits it has
    """
    return f"{value:,}" if value.bit_length() <= 64 else f"a number of {value.bit_length():,} bits"


def for_json(value: Any) -> Any:
    """
    Make facts fit for JSON.

    :param value: What a file says
    :return: The same without what JSON or who reads it cannot take: NaN, huge numbers, endless nesting
    """
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


def as_json(facts: dict[str, Any], indent: int | None = 2) -> str:
    """
    Write facts as JSON.

    :param facts: The facts
    :param indent: Spaces before each level
    :return: ASCII without control characters, which JSON escapes, but for one
    """
    return json.dumps(for_json(facts), indent=indent, allow_nan=False).replace("\x7f", "\\u007f")
