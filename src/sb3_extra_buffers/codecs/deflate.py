"""``gzip`` (stdlib) and ``igzip`` (isal): the same raw DEFLATE stream, so each reads the other's blobs.

The gzip container is left off: its 18 bytes are a tenth of a small frame, and the checksum of the blob does what its
CRC would.
"""

from __future__ import annotations

import warnings
import zlib
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

from sb3_extra_buffers.codecs._optional import has_igzip, install_hint
from sb3_extra_buffers.codecs.base import ByteArray, Codec, LevelCodec
from sb3_extra_buffers.codecs.errors import CodecError

_RAW_WBITS = -15


def _inflate(decompressor: Any, payload: ByteArray, size: int, errors: type[Exception]) -> bytes:
    try:
        # One byte of room to spare: a longer stream then shows as too long, and a whole one reaches its end mark.
        data: bytes = decompressor.decompress(payload, size + 1)
    except errors as error:
        raise CodecError(f"gzip: not a DEFLATE stream: {error}") from error
    if not decompressor.eof or decompressor.unused_data:
        raise CodecError(f"gzip: the blob does not hold the {size} bytes asked for")
    return data


@dataclass(frozen=True)
class GzipCodec(LevelCodec):
    """
    DEFLATE by the standard library.

    :param compresslevel: 0 (stored) to 9 (smallest)
    """

    name: ClassVar[str] = "gzip"
    levels: ClassVar[tuple[range, ...]] = (range(0, 10),)

    compresslevel: int = 6

    @property
    def wire_format(self) -> str:
        return "deflate"

    def _encode_payload(self, data: ByteArray) -> bytes:
        compressor = zlib.compressobj(self.compresslevel, zlib.DEFLATED, _RAW_WBITS)
        return compressor.compress(data.data) + compressor.flush()

    def _decompress(self, payload: ByteArray, size: int) -> bytes:
        return _inflate(zlib.decompressobj(_RAW_WBITS), payload, size, zlib.error)


@cache
def _igzip_lib() -> Any:
    from isal import igzip_lib  # not isal_zlib: its decompressor overlooks a few bytes after the end

    return igzip_lib


@dataclass(frozen=True)
class IgzipCodec(LevelCodec):
    """
    DEFLATE by Intel's ISA-L.

    :param compresslevel: 0 (fastest) to 3 (smallest)
    """

    name: ClassVar[str] = "igzip"
    levels: ClassVar[tuple[range, ...]] = (range(0, 4),)

    compresslevel: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.is_available():
            raise ImportError(f"igzip needs isal: {install_hint('isal')}")

    @classmethod
    def is_available(cls) -> bool:
        return has_igzip()

    @classmethod
    def create(cls, **options: Any) -> Codec:
        try:
            return cls(**options)
        except ImportError:
            warnings.warn(f"isal is missing, igzip falls back to gzip: {install_hint('isal')}", stacklevel=3)
        # igzip's 0 is its fastest compression while gzip's 0 does not compress at all.
        return GzipCodec(max(1, options.get("compresslevel", cls.compresslevel)))

    @property
    def wire_format(self) -> str:
        return "deflate"

    def _encode_payload(self, data: ByteArray) -> bytes:
        library = _igzip_lib()
        payload: bytes = library.compress(data, self.compresslevel, library.COMP_DEFLATE)
        return payload

    def _decompress(self, payload: ByteArray, size: int) -> bytes:
        library = _igzip_lib()
        return _inflate(library.IgzipDecompressor(library.DECOMP_DEFLATE), payload, size, library.IsalError)
