"""
What a record in the log looks like.

A record is one group: consecutive frames of one stream, the first coded by itself or against a key frame, the others
as patches on their predecessor. It begins with ``u32 length of the body, u8 kind, u8 number of frames``. Bodies:

=========  ==============================================================================
KEYED      u32 offset of the key frame in this segment, patch on it, further patches
CODED      u32 length, blob of a codec (the first frame), further patches
PACKED     u32 length of what follows once decoded, blob of a codec: the body of a KEYED
RAW        the bytes of one frame, when no codec makes them fewer
=========  ==============================================================================

A key frame is raw bytes, at a multiple of eight, without a header.
"""

from __future__ import annotations

import struct

import numpy as np

from sb3_extra_buffers.storage.layout import ByteArray

KEYED = 0
CODED = 1
PACKED = 2
RAW = 3

HEADER_BYTES = 6
KEY_OFFSET_BYTES = 4
KEY_ALIGNMENT = 8
WRITE_AHEAD = 32
"""Bytes after a frame that is being decoded which compiled code may write."""
OPEN_BIT = 1 << 63
"""Set in the location of an open group; the other bits are the stream."""

_HEADER = struct.Struct("<IBB")
_U32 = struct.Struct("<I")


def put_header(out: ByteArray, body_bytes: int, kind: int, frames: int) -> None:
    """
    Write a record's header.

    :param out: The record
    :param body_bytes: Bytes after the header
    :param kind: KEYED, CODED, PACKED or RAW
    :param frames: Number of frames
    """
    _HEADER.pack_into(out.data, 0, body_bytes, kind, frames)


def get_header(record: ByteArray) -> tuple[int, int, int]:
    """
    Read a record's header.

    :param record: The record, or more
    :return: Bytes after the header, kind, number of frames
    """
    body_bytes, kind, frames = _HEADER.unpack_from(record.data, 0)
    return body_bytes, kind, frames


def put_u32(out: ByteArray, offset: int, value: int) -> None:
    """
    Write a number.

    :param out: Where to
    :param offset: At which byte
    :param value: The number
    """
    _U32.pack_into(out.data, offset, value)


def get_u32(data: ByteArray, offset: int) -> int:
    """
    Read a number.

    :param data: Where from
    :param offset: At which byte
    :return: The number
    """
    return int(_U32.unpack_from(data.data, offset)[0])


def padded(size: int) -> int:
    """
    Round up to whole words and one more, so that frames can be read eight bytes at a time from any byte on.

    :param size: Bytes
    :return: Bytes, a multiple of eight
    """
    return -(-size // 8) * 8 + 8


def padded_rows(rows: int, size: int) -> ByteArray:
    """
    Allocate zeroed frames of whole words.

    :param rows: Number of frames
    :param size: Bytes a frame
    :return: ``(rows, padded(size))``
    """
    return np.zeros((rows, padded(size)), dtype=np.uint8)
