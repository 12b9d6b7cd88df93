"""Errors of the storage layer."""

from __future__ import annotations


class StorageError(RuntimeError):
    """Stored bytes are damaged: what was asked for cannot be given back."""


# What compiled reading reports.
DAMAGED = -1
EXPAND = -2
"""A record should have been decoded beforehand."""
OUTSIDE = -3
"""There is no such cell."""
