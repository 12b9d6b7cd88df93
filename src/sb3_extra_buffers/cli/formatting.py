"""Numbers as people read them."""

from __future__ import annotations


def format_bytes(count: float) -> str:
    """
    Write a number of bytes so that a person reads it.

    :param count: Bytes
    :return: Three significant digits and a decimal unit
    """
    units = ["B", "kB", "MB", "GB", "TB"]
    while abs(count) >= 999.5 and len(units) > 1:
        count /= 1000
        units.pop(0)
    digits = 0 if units[0] == "B" or abs(count) >= 99.95 else 1 if abs(count) >= 9.995 else 2
    return f"{count:.{digits}f} {units[0]}"


def counted(number: int, thing: str) -> str:
    """
    Write a number of things.

    :param number: How many
    :param thing: What, if it is one
    :return: For example ``"1 episode"`` or ``"2 episodes"``
    """
    return f"{number:,} {thing}{'' if number == 1 else 's'}"
