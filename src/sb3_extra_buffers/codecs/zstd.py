"""``zstd``: Zstandard frames by ``zstandard``, the standard library (3.14) or ``backports.zstd``."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from sb3_extra_buffers.codecs._optional import ZSTD_MODULES, has_zstd, importable, install_hint
from sb3_extra_buffers.codecs.base import ByteArray, LevelCodec
from sb3_extra_buffers.codecs.errors import CodecError

Compress = Callable[[ByteArray], bytes]


class _ZstandardBackend:
    """Contexts of ``zstandard``; one object serves one thread."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._decompressor = module.ZstdDecompressor()
        self.error: type[Exception] = module.ZstdError

    def compressor(self, level: int) -> Compress:
        compress: Compress = self._module.ZstdCompressor(level=level, write_checksum=False).compress
        return compress

    def content_size(self, payload: ByteArray) -> int | None:
        size: int = self._module.frame_content_size(payload)
        return size

    def decompress(self, payload: ByteArray, size: int) -> bytes:
        data: bytes = self._decompressor.decompress(payload, max_output_size=size, allow_extra_data=False)
        return data


class _StdlibBackend:
    """Contexts of ``compression.zstd`` and its backport; one object serves one thread."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self.error: type[Exception] = module.ZstdError

    def compressor(self, level: int) -> Compress:
        context = self._module.ZstdCompressor(level=level)

        def compress(data: ByteArray) -> bytes:
            frame: bytes = context.compress(data, context.FLUSH_FRAME)
            return frame

        return compress

    def content_size(self, payload: ByteArray) -> int | None:
        size: int | None = self._module.get_frame_info(payload).decompressed_size
        return size

    def decompress(self, payload: ByteArray, size: int) -> bytes:
        decompressor = self._module.ZstdDecompressor()
        data: bytes = decompressor.decompress(payload, size + 1)
        if not decompressor.eof or decompressor.unused_data:
            raise CodecError("zstd: the blob is truncated or has bytes after its end")
        return data


def _make_backend() -> _ZstandardBackend | _StdlibBackend:
    name = next(module for module in ZSTD_MODULES if importable(module))
    module = importlib.import_module(name)
    return _ZstandardBackend(module) if name == "zstandard" else _StdlibBackend(module)


class _Contexts(threading.local):
    """Contexts of the current thread: they are expensive to make and not safe to share."""

    def __init__(self) -> None:
        self.backend = _make_backend()
        self._compressors: dict[int, Compress] = {}

    def compressor(self, level: int) -> Compress:
        if level not in self._compressors:
            self._compressors[level] = self.backend.compressor(level)
        return self._compressors[level]


_contexts: _Contexts | None = None


def _thread_contexts() -> _Contexts:
    global _contexts
    if _contexts is None:
        _contexts = _Contexts()
    return _contexts


@dataclass(frozen=True)
class ZstdCodec(LevelCodec):
    """
    Zstandard, one frame with its content size.

    :param compresslevel: -100 (fastest) to -1, or 1 to 22 (smallest)
    """

    name: ClassVar[str] = "zstd"
    levels: ClassVar[tuple[range, ...]] = (range(-100, 0), range(1, 23))

    compresslevel: int = -3

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.is_available():
            raise ImportError(f"zstd needs zstandard: {install_hint('zstd')}")

    @classmethod
    def is_available(cls) -> bool:
        return has_zstd()

    @property
    def wire_format(self) -> str:
        return "zstd"

    def _encode_payload(self, data: ByteArray) -> bytes:
        return _thread_contexts().compressor(self.compresslevel)(data)

    def _decompress(self, payload: ByteArray, size: int) -> bytes:
        backend = _thread_contexts().backend
        try:
            # zstandard allocates what the header claims, so that has to be right before anything is decoded.
            if backend.content_size(payload) != size:
                raise CodecError(f"zstd: the blob does not hold the {size} bytes asked for")
            return backend.decompress(payload, size)
        except backend.error as error:
            raise CodecError(f"zstd: not a Zstandard frame: {error}") from error
