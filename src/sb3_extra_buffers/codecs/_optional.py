"""Which optional libraries are here, and what to say when one is not.

Nothing is cached: a test (or a user) may block an import at any time.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys

from sb3_extra_buffers._support import install_hint as install_hint

ZSTD_MODULES = ("zstandard", "compression.zstd", "backports.zstd")
"""Libraries that can serve ``zstd``, best first: zstandard reuses its contexts."""


def importable(*modules: str) -> bool:
    """
    Try to import modules, parents before children.

    :param modules: Full module names
    :return: Whether all of them can be imported
    """
    try:
        for module in modules:
            importlib.import_module(module)
    except ImportError:
        return False
    return True


def has_numba() -> bool:
    """
    Tell whether numba is installed, without importing it (that takes a second).

    :return: Whether ``rle-jit`` runs compiled
    """
    if "numba" in sys.modules:
        return sys.modules["numba"] is not None
    try:
        return importlib.util.find_spec("numba") is not None
    except (ImportError, ValueError):
        return False


def has_igzip() -> bool:
    """
    Tell whether isal is installed.

    :return: Whether ``igzip`` is there
    """
    return importable("isal", "isal.igzip_lib")


def has_zstd() -> bool:
    """
    Tell whether one of the zstd libraries is installed.

    :return: Whether ``zstd`` is there
    """
    return any(importable(module) for module in ZSTD_MODULES)


def has_lz4() -> bool:
    """
    Tell whether lz4 is installed.

    :return: Whether ``lz4-frame`` and ``lz4-block`` are there
    """
    return importable("lz4", "lz4.block", "lz4.frame")
