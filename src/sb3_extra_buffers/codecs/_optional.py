"""Which optional libraries are here, and what to say when one is not.

Nothing is cached: a test (or a user) may block an import at any time.
"""

from __future__ import annotations

import importlib.util
import sys

from sb3_extra_buffers._support import importable as importable
from sb3_extra_buffers._support import install_hint as install_hint

ZSTD_MODULES = ("zstandard", "compression.zstd", "backports.zstd")
"""Libraries that can serve ``zstd``, best first: zstandard reuses its contexts."""


def has_numba() -> bool:
    """Tell whether numba is installed, without importing it (that takes a second)."""
    return _is_found("numba")


def _is_found(module: str) -> bool:
    if module in sys.modules:
        return sys.modules[module] is not None
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def has_contrib() -> bool:
    """Tell whether SB3-Contrib is installed, without importing it (that takes a second)."""
    return _is_found("sb3_contrib")


def has_igzip() -> bool:
    """Tell whether isal is installed."""
    return importable("isal", "isal.igzip_lib")


def has_zstd() -> bool:
    """Tell whether one of the zstd libraries is installed."""
    return any(importable(module) for module in ZSTD_MODULES)


def has_lz4() -> bool:
    """Tell whether lz4 is installed."""
    return importable("lz4", "lz4.block", "lz4.frame")
