"""The compression methods under their documented import path; the code is in ``sb3_extra_buffers.codecs``."""

from sb3_extra_buffers.codecs import COMPRESSION_METHOD_MAP, has_igzip, has_lz4, has_numba, has_zstd

__all__ = ["COMPRESSION_METHOD_MAP", "has_igzip", "has_lz4", "has_numba", "has_zstd"]
