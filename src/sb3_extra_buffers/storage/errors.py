"""Errors of the storage layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class StorageError(RuntimeError):
    """Stored bytes are damaged: what is wanted cannot be given back."""


class OtherFormatError(StorageError):
    """Another version of this package has written it, and can read it: it is not damaged."""


def refuse_earlier(*names: str) -> Callable[[str], Any]:
    """Make the ``__getattr__`` of a module that earlier versions have named in their pickles."""

    def find(name: str) -> Any:
        if name in names:
            raise StorageError(
                "this was saved by an earlier version of sb3-extra-buffers, whose format this one does not read; "
                "load it with the version that saved it"
            )
        raise AttributeError(f"no attribute {name!r}")

    return find
