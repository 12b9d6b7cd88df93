"""Streams as zlib makes them: made faster where isal is installed, and read everywhere."""

from __future__ import annotations

import zlib
from typing import Any

from sb3_extra_buffers.codecs._optional import has_igzip

_LEVEL, _LEVEL_OF_ISAL = 1, 2  # about as small as each other


def deflate(data: Any) -> bytes:
    """
    Compress bytes.

    :param data: They
    :return: A stream of zlib's
    """
    if has_igzip():
        from isal import isal_zlib

        return bytes(isal_zlib.compress(data, _LEVEL_OF_ISAL))
    return zlib.compress(data, _LEVEL)


def inflate(data: Any, most: int) -> bytes:
    """
    Decompress a stream, and never more of it than may be there.

    :param data: The stream
    :param most: Bytes that it may hold
    :return: What it holds; ``ValueError`` where that is more, or no stream
    """
    stream = zlib.decompressobj()
    try:
        found = stream.decompress(data, most + 1)
    except zlib.error as error:
        raise ValueError(f"it cannot be inflated: {error}") from error
    if len(found) > most:
        raise ValueError(f"it has more than {most:,} bytes")
    if not stream.eof or stream.unused_data:
        raise ValueError("it does not end where it should")
    return found
