"""The codec contract, and what all codecs have in common: views of bytes, a checksum, levels."""

from __future__ import annotations

import operator
import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from sb3_extra_buffers.codecs.errors import CodecError

ByteArray: TypeAlias = npt.NDArray[np.uint8]
Blob: TypeAlias = "bytes | bytearray | memoryview | npt.NDArray[Any]"

CHECKSUM_BYTES = 4


def byte_view(array: npt.NDArray[Any]) -> ByteArray:
    """View an array as flat bytes in C order; copies only what is not contiguous."""
    if array.dtype.hasobject:
        raise CodecError(f"an array of Python objects (dtype {array.dtype}) has no bytes to encode")
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _writable_byte_view(out: npt.NDArray[Any]) -> ByteArray:
    if not isinstance(out, np.ndarray) or not out.flags.c_contiguous or not out.flags.writeable:
        raise CodecError("`out` must be a writable C-contiguous ndarray")
    return byte_view(out)


def _blob_view(blob: Blob) -> ByteArray:
    if isinstance(blob, (np.ndarray, memoryview)):
        return byte_view(np.asarray(blob))
    return np.frombuffer(blob, dtype=np.uint8)


def _rebuild(cls: type[Codec], config: dict[str, Any]) -> Codec:
    return cls.from_config(config)


@dataclass(frozen=True)
class Codec(ABC):
    """
    Lossless coder of frames: a frozen value, safe to share between threads, to pickle and to use as a key.

    A blob is the payload of the codec followed by a CRC-32 of it. The checksum covers the *encoded* bytes: that is
    cheap because they are few, it catches every flipped bit (gzip, zstd and lz4 all have bits that their own checksum
    does not see), and no decoder ever runs on damaged data. It starts from ``wire_format``, so a blob of another
    format is refused as well.

    A subclass defines ``name``, ``wire_format``, ``_encode_payload`` and ``_decode_payload``; its dataclass fields
    are its options.
    """

    name: ClassVar[str]

    @property
    @abstractmethod
    def wire_format(self) -> str:
        """Name of the payload's format; codecs with the same one read each other's blobs."""

    @abstractmethod
    def _encode_payload(self, data: ByteArray) -> bytes | memoryview:
        """Encode flat bytes."""

    @abstractmethod
    def _decode_payload(self, payload: ByteArray, out: ByteArray) -> None:
        """
        Decode into ``out``, or raise ``CodecError`` and leave ``out`` alone.

        The checksum holds, yet the payload is not to be trusted: it may be forged or belong to another size.
        """

    @classmethod
    def is_available(cls) -> bool:
        """Tell whether the library behind this codec is installed."""
        return True

    @classmethod
    def create(cls, **options: Any) -> Codec:
        """Make the codec, or the one that stands in for it when its library is missing."""
        return cls(**options)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Codec:
        """Make the codec that ``get_config`` described."""
        return cls.create(**{key: value for key, value in config.items() if key != "name"})

    def get_config(self) -> dict[str, Any]:
        """Describe this codec in plain values, fit for JSON."""
        config: dict[str, Any] = {"name": self.name}
        for field in fields(self):
            value = getattr(self, field.name)
            config[field.name] = value.str if isinstance(value, np.dtype) else value
        return config

    def encode(self, frame: npt.NDArray[Any]) -> bytes:
        """Encode the bytes of an array, taken in C order."""
        payload = self._encode_payload(byte_view(np.asarray(frame)))
        checksum = zlib.crc32(payload, self._checksum_seed)
        return b"".join((payload, checksum.to_bytes(CHECKSUM_BYTES, "little")))

    def decode(self, blob: Blob, out: npt.NDArray[Any]) -> None:
        """Decode a blob into an array; when this raises, the array is as it was."""
        target = _writable_byte_view(out)
        data = _blob_view(blob)
        end = data.size - CHECKSUM_BYTES
        if end < 0:
            raise CodecError(f"{self.name}: the blob is truncated ({data.size} bytes)")
        payload = data[:end]
        if zlib.crc32(payload.data, self._checksum_seed) != int.from_bytes(data[end:].tobytes(), "little"):
            raise CodecError(f"{self.name}: the blob is damaged, truncated or of another format (checksum mismatch)")
        self._decode_payload(payload, target)

    @cached_property
    def _checksum_seed(self) -> int:
        return zlib.crc32(self.wire_format.encode())

    def __reduce__(self) -> tuple[Any, ...]:
        # By config, not by state: on a machine without the library this gives the stand-in or the error with the extra.
        return _rebuild, (type(self), self.get_config())


@dataclass(frozen=True)
class LevelCodec(Codec):
    """
    Codec over a compression library with levels.

    :param compresslevel: Compression level, one of ``levels``
    """

    levels: ClassVar[tuple[range, ...]]

    compresslevel: int = 0

    def __post_init__(self) -> None:
        try:
            level = operator.index(self.compresslevel)
        except TypeError:
            raise ValueError(f"{self.name}: compresslevel must be an integer, not {self.compresslevel!r}") from None
        if not any(level in allowed for allowed in self.levels):
            ranges = " or ".join(f"{allowed[0]} to {allowed[-1]}" for allowed in self.levels)
            raise ValueError(f"{self.name}: compresslevel {level} is out of range, allowed is {ranges}")
        object.__setattr__(self, "compresslevel", level)

    @abstractmethod
    def _decompress(self, payload: ByteArray, size: int) -> bytes:
        """Decompress one whole stream, allocating no more than about ``size`` bytes, whatever its header claims."""

    def _decode_payload(self, payload: ByteArray, out: ByteArray) -> None:
        data = self._decompress(payload, out.size)
        if len(data) != out.size:
            raise CodecError(f"{self.name}: the blob does not hold the {out.size} bytes asked for")
        out[:] = np.frombuffer(data, dtype=np.uint8)
