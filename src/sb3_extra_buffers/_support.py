"""Small helpers that several packages need. The lowest layer: it imports nothing of this package."""

from __future__ import annotations

import importlib
import os
import re
import sys
from typing import Any

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


def install_hint(extra: str) -> str:
    """
    How to install an extra of this package.

    From a clone, never by our name: the package that has it on PyPI is another one, and pip would fetch that.
    """
    return f'pip install ".[{extra}]" in a clone of the sb3-extra-buffers repository'


def need(module: str, extra: str, purpose: str) -> Any:
    """Import a library, or raise ``ImportError`` that says what to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"{purpose} needs {module.partition('.')[0]}: {install_hint(extra)}") from error


def resident_bytes() -> int:
    """Resident memory of this process, as ``top`` shows it; it takes microseconds on Linux, and elsewhere needs psutil."""
    if sys.platform == "linux":
        try:
            with open("/proc/self/statm", "rb") as statm:
                return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except OSError:  # a container without /proc
            pass
    import psutil

    return int(psutil.Process().memory_info().rss)


ALGORITHMS = {
    **dict.fromkeys(("A2C", "DDPG", "DQN", "PPO", "SAC", "TD3"), "stable_baselines3"),
    **dict.fromkeys(("CrossQ", "MaskablePPO", "QRDQN", "RecurrentPPO", "TQC", "TRPO"), "sb3_contrib"),
    **dict.fromkeys(("CompressedRecurrentPPO", "PrioritizedDQN"), "sb3_extra_buffers"),
}
"""Classes that collect rollouts, and the packages that they come from."""
