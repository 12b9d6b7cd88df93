"""Libraries that only some of the exports need."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from sb3_extra_buffers.codecs._optional import install_hint

T = TypeVar("T")


def need(module: str, extra: str, purpose: str) -> Any:
    """
    Import a library, or say what to install.

    :param module: Its name
    :param extra: The extra of this package that brings it
    :param purpose: What needs it
    :return: The module
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"{purpose} needs {module.partition('.')[0]}: {install_hint(extra)}") from error


def with_progress(steps: Iterable[T], total: int, title: str, unit: str, show: bool) -> Iterator[T]:
    """
    Show progress on standard error, if it is a terminal and tqdm is installed: a bar is a comfort, not a need.

    :param steps: What to go through
    :param total: How many there are
    :param title: What is done
    :param unit: What is counted
    :param show: Whether to show anything
    :return: The steps
    """
    if show and sys.stderr.isatty():
        try:
            from tqdm import tqdm
        except ImportError:
            pass
        else:
            steps = tqdm(steps, total=total, desc=title, unit=unit)
    return iter(steps)
