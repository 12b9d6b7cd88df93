"""``none``: the bytes themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sb3_extra_buffers.codecs.base import ByteArray, Codec
from sb3_extra_buffers.codecs.errors import CodecError


@dataclass(frozen=True)
class PlainCodec(Codec):
    """No compression, only the checksum."""

    name: ClassVar[str] = "none"

    @property
    def wire_format(self) -> str:
        return "none"

    def _encode_payload(self, data: ByteArray) -> memoryview:
        return data.data

    def _decode_payload(self, payload: ByteArray, out: ByteArray) -> None:
        if payload.size != out.size:
            raise CodecError(f"none: the blob holds {payload.size} bytes, not the {out.size} asked for")
        out[:] = payload
