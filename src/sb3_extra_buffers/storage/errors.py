"""Errors of the storage layer."""

from __future__ import annotations


class StorageError(RuntimeError):
    """Stored bytes are damaged: what was asked for cannot be given back."""
