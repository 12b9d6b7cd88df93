"""Frames in, frames out: the packed frame log in C, and ``CompressedArray`` over it."""

from sb3_extra_buffers.storage.array import NOTHING_TO_STORE, CompressedArray
from sb3_extra_buffers.storage.casting import cast_exactly
from sb3_extra_buffers.storage.dtypes import check_dtypes, find_smallest_dtype, runs_type_for
from sb3_extra_buffers.storage.errors import StorageError
from sb3_extra_buffers.storage.locks import StoreLock
from sb3_extra_buffers.storage.methods import CoderSpec, default_method, known_methods, make_spec
from sb3_extra_buffers.storage.store import FrameStore
from sb3_extra_buffers.storage.usage import MemoryUsage

__all__ = [
    "NOTHING_TO_STORE",
    "CoderSpec",
    "CompressedArray",
    "FrameStore",
    "MemoryUsage",
    "StorageError",
    "StoreLock",
    "cast_exactly",
    "check_dtypes",
    "default_method",
    "find_smallest_dtype",
    "known_methods",
    "make_spec",
    "runs_type_for",
]
