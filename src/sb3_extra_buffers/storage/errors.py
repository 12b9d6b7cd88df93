"""Errors of the storage layer."""

from __future__ import annotations


class StorageError(RuntimeError):
    """Stored bytes are damaged: what is wanted cannot be given back."""
