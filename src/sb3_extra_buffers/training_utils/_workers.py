"""Environments in processes of their own, started from any script."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType


@contextmanager
def main_hidden() -> Iterator[None]:
    """
    Start processes that do not run the user's script again.

    A process that is spawned, or comes from a fork server, first imports the main script, which in a script without
    ``if __name__ == "__main__":`` starts processes in turn. These workers need nothing from it: what it defines, and is
    passed to them, is pickled by value.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
