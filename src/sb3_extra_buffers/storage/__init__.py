"""Rows in, rows out: tables whose frames are compressed, and ``CompressedArray`` over them."""

from sb3_extra_buffers.storage.array import CompressedArray
from sb3_extra_buffers.storage.casting import cast_exactly
from sb3_extra_buffers.storage.dtypes import check_dtypes, find_buffer_dtypes, find_smallest_dtype, runs_type_for
from sb3_extra_buffers.storage.errors import StorageError
from sb3_extra_buffers.storage.frames import Frames, make_frames
from sb3_extra_buffers.storage.locks import StoreLock
from sb3_extra_buffers.storage.methods import CoderSpec, default_method, known_methods, make_spec
from sb3_extra_buffers.storage.usage import MemoryUsage

__all__ = [
    "CoderSpec",
    "CompressedArray",
    "Frames",
    "MemoryUsage",
    "StorageError",
    "StoreLock",
    "cast_exactly",
    "check_dtypes",
    "default_method",
    "find_buffer_dtypes",
    "find_smallest_dtype",
    "known_methods",
    "make_frames",
    "make_spec",
    "runs_type_for",
]
