"""Errors of the codec layer."""


class CodecError(ValueError):
    """A frame cannot be encoded, or a blob is damaged, truncated or not of the size asked for."""
