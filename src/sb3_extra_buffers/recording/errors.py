"""Errors of recordings."""

from __future__ import annotations


class RecordingError(RuntimeError):
    """A file is not a recording, or is damaged and cannot be read."""


class NotARecordingError(RecordingError):
    """A file is something else, not a damaged recording."""
