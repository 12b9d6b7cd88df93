"""Frames in, frames out: the packed frame log, the reference coder, and ``CompressedArray``."""

from sb3_extra_buffers.storage.errors import StorageError
from sb3_extra_buffers.storage.methods import CoderSpec, default_method, known_methods, make_spec
from sb3_extra_buffers.storage.store import FrameIndex, FrameStore

__all__ = [
    "CoderSpec",
    "FrameIndex",
    "FrameStore",
    "StorageError",
    "default_method",
    "known_methods",
    "make_spec",
]
