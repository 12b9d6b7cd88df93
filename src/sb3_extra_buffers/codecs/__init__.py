"""Bytes in, bytes out: lossless codecs of frames. Knows nothing of buffers, and imports no optional library by itself."""

from sb3_extra_buffers.codecs._optional import has_igzip, has_lz4, has_numba, has_zstd
from sb3_extra_buffers.codecs.base import Codec
from sb3_extra_buffers.codecs.errors import CodecError
from sb3_extra_buffers.codecs.registry import (
    COMPRESSION_METHOD_MAP,
    MethodSpec,
    available_methods,
    codec_from_config,
    make_codec,
    parse_method,
    register_codec,
)
from sb3_extra_buffers.codecs.rle_jit import init_jit

__all__ = [
    "COMPRESSION_METHOD_MAP",
    "Codec",
    "CodecError",
    "MethodSpec",
    "available_methods",
    "codec_from_config",
    "has_igzip",
    "has_lz4",
    "has_numba",
    "has_zstd",
    "init_jit",
    "make_codec",
    "parse_method",
    "register_codec",
]
