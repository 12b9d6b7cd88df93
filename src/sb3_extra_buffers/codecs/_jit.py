"""The one place where numba is configured."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

# Where kernels, and the constants that are compiled into them, live.
_COMPILED_LAYERS = ("codecs",)

Kernel = TypeVar("Kernel", bound=Callable[..., Any])


def jit_kernel(function: Kernel) -> Kernel:
    """
    Compile a function with numba: without the GIL, and cached on disk where that is possible.

    This imports numba, so a module that decorates with it must itself be imported late, at first use.
    Kernels check their own bounds and report errors as return values.
    """
    from numba import njit

    compiled: Any
    try:
        compiled = njit(nogil=True, cache=True)(function)
        # Numba looks only at the kernel's own file to tell whether what it finds on disk is up to date; kernels of other
        # files, and constants, are compiled into it, too. If numba changes inside, `make clean` still helps.
        with contextlib.suppress(AttributeError):
            compiled._cache._cache_file._source_stamp = _stamp_of_sources()
    except RuntimeError:  # no writable cache directory: compile in each process instead
        compiled = njit(nogil=True)(function)
    return cast(Kernel, compiled)


@cache
def _stamp_of_sources() -> tuple[tuple[str, int, int], ...]:
    """What tells one state of the source that kernels are compiled from from another."""
    root = Path(__file__).parents[1]
    paths = [path for layer in _COMPILED_LAYERS for path in (root / layer).rglob("*.py")]
    files = [(path, path.stat()) for path in sorted(paths)]
    return tuple((str(path.relative_to(root)), stat.st_mtime_ns, stat.st_size) for path, stat in files)
