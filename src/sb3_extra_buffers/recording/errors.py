"""Errors of recordings."""

from __future__ import annotations


class RecordingError(RuntimeError):
    """A file is no recording, or is damaged: what it holds cannot be given back."""
