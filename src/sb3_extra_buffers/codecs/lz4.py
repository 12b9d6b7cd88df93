"""``lz4-frame`` and ``lz4-block``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

from sb3_extra_buffers.codecs._optional import has_lz4, install_hint
from sb3_extra_buffers.codecs.base import ByteArray, LevelCodec
from sb3_extra_buffers.codecs.errors import CodecError

_FASTEST = -65537
"""The strongest acceleration of the LZ4 library (LZ4_ACCELERATION_MAX); it silently clamps what lies beyond."""


@cache
def _lz4_frame() -> Any:
    from lz4 import frame

    return frame


@cache
def _lz4_block() -> Any:
    from lz4 import block

    return block


@dataclass(frozen=True)
class _Lz4Codec(LevelCodec):
    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.is_available():
            raise ImportError(f"{self.name} needs lz4: {install_hint('lz4')}")

    @classmethod
    def is_available(cls) -> bool:
        return has_lz4()

    @property
    def wire_format(self) -> str:
        return self.name


@dataclass(frozen=True)
class Lz4FrameCodec(_Lz4Codec):
    """
    LZ4 frame format.

    :param compresslevel: 0 (default) to 16 (smallest); -1 to -65537 trade size for speed
    """

    name: ClassVar[str] = "lz4-frame"
    levels: ClassVar[tuple[range, ...]] = (range(_FASTEST, 17),)

    def _encode_payload(self, data: ByteArray) -> bytes:
        payload: bytes = _lz4_frame().compress(data, compression_level=self.compresslevel, store_size=False)
        return payload

    def _decompress(self, payload: ByteArray, size: int) -> bytes:
        decompressor = _lz4_frame().LZ4FrameDecompressor()
        try:
            data: bytes = decompressor.decompress(payload, max_length=size + 1)
        except RuntimeError as error:
            raise CodecError(f"lz4-frame: not an LZ4 frame: {error}") from error
        if not decompressor.eof or decompressor.unused_data:
            raise CodecError(f"lz4-frame: the blob does not hold the {size} bytes asked for")
        return data


@dataclass(frozen=True)
class Lz4BlockCodec(_Lz4Codec):
    """
    LZ4 block format, the smallest and fastest wrapping.

    :param compresslevel: 0 (default), 1 to 12 (high compression), -1 to -65537 (acceleration in fast mode)
    """

    name: ClassVar[str] = "lz4-block"
    levels: ClassVar[tuple[range, ...]] = (range(_FASTEST, 13),)

    def _encode_payload(self, data: ByteArray) -> bytes:
        level = self.compresslevel
        if level > 0:
            options: dict[str, Any] = {"mode": "high_compression", "compression": level}
        elif level < 0:
            options = {"mode": "fast", "acceleration": -level}
        else:
            options = {"mode": "default"}
        payload: bytes = _lz4_block().compress(data, store_size=False, **options)
        return payload

    def _decompress(self, payload: ByteArray, size: int) -> bytes:
        try:
            data: bytes = _lz4_block().decompress(payload, uncompressed_size=size)
        except _lz4_block().LZ4BlockError as error:
            raise CodecError(f"lz4-block: the blob does not hold the {size} bytes asked for: {error}") from error
        return data
