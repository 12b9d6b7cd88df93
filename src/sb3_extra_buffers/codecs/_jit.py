"""The one place where numba is configured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

Kernel = TypeVar("Kernel", bound=Callable[..., Any])


def jit_kernel(function: Kernel) -> Kernel:
    """
    Compile a function with numba: without the GIL, and cached on disk where that is possible.

    This imports numba, so a module that decorates with it must itself be imported late, at first use.
    Kernels check their own bounds and report errors as return values.

    :param function: Plain function over arrays and scalars
    :return: The compiled function
    """
    from numba import njit

    compiled: Any
    try:
        compiled = njit(nogil=True, cache=True)(function)
    except RuntimeError:  # no writable cache directory: compile in each process instead
        compiled = njit(nogil=True)(function)
    return cast(Kernel, compiled)
