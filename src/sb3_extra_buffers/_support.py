"""Small helpers that several packages need. The lowest layer: it imports nothing of this package."""

from __future__ import annotations

import re

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def parse_bytes(text: str) -> int:
    """
    Read an amount of memory: ``"2GB"`` is 2 * 10^9 bytes, ``"2GiB"`` is 2 * 2^30. Also ``"500 MB"``, ``"1.5G"`` or ``"100"``.

    Raises ``ValueError`` for anything else.
    """
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([kmgt]i?)?b?\s*", text.lower())
    if match is None:
        raise ValueError(f"{text!r} is not an amount of memory; write something like 500MB, 4GB or 1.5GiB")
    return int(float(match[1]) * _UNITS[match[2] or ""])
