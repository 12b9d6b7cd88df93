# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=True
"""
The core for Python: types, shapes, contiguity and bounds are checked here, the GIL is released, codes become exceptions.

All that is known of frames, records and chunks is in C (``_native/frametable.h``). A codec is the only thing that C calls back, and
only in between two steps, when a column can be read and saved by whatever Python does meanwhile.
"""

cimport numpy as cnp
from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_AS_STRING
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.float cimport FLT_MAX
from libc.math cimport fabs, isfinite
from libc.stdint cimport SIZE_MAX, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memmove, memset

import os

import numpy as np

from sb3_extra_buffers.codecs import CodecError
from sb3_extra_buffers.storage.errors import StorageError
from sb3_extra_buffers.storage.pool import output_pool

cnp.import_array()

cdef extern from "frametable.h":
    enum: FL_OK, FL_DAMAGED, FL_NO_MEMORY, FL_OUTSIDE, FL_CODEC, FL_INVALID
    enum: FL_READ_AHEAD, FL_WRITE_AHEAD
    enum: FT_MAX_VIEWS, FT_BLOCK_ROWS
    size_t FL_NO_PATCH, FL_MORE_THAN_ALL
    ctypedef struct fl_layout:
        size_t item, outer, depth, part, planes, row
        bint can_turn, interleave
    ctypedef struct fl_method:
        bint references, packs
        uint32_t shift
    ctypedef struct fl_codecs:
        void *context
        int (*encode)(void *, int, const uint8_t *, size_t, const uint8_t **, size_t *) noexcept
        int (*decode)(void *, int, const uint8_t *, size_t, uint8_t *, size_t) noexcept
    ctypedef struct ft_schema:
        fl_layout layout
        fl_method method
        size_t n_streams, views
    ctypedef struct ft_part:
        size_t view
        const uint8_t *obs
        bint turned
        const size_t *streams
        size_t count
    ctypedef struct ft_usage:
        uint64_t frames, frame_bytes, index_bytes, held_bytes, cells
    ctypedef struct ft_column:
        pass
    ctypedef struct ft_chunk:
        pass
    ctypedef struct ft_read:
        pass
    ctypedef struct fl_kernels:
        const char *name
        size_t (*encode)(const uint8_t *, const uint8_t *, size_t, size_t, const uint8_t *, uint32_t *, uint8_t *, size_t,
                         size_t) noexcept
        bint (*apply)(const uint8_t *, size_t, uint8_t *, size_t, size_t) noexcept
    const fl_kernels *fl_active
    const fl_kernels *fl_best_kernels()
    const fl_kernels *fl_kernels_named(const char *)
    void ft_checksum_init()
    uint32_t ft_checksum(const uint8_t *, size_t) nogil
    ft_chunk *ft_chunk_open(const uint8_t *, size_t, void (*)(void *, const uint8_t *, size_t) noexcept, void *, int *, const char **)
    void ft_chunk_keep(ft_chunk *)
    void ft_chunk_drop(ft_chunk *)
    const uint8_t *ft_chunk_bytes(const ft_chunk *, size_t *)
    size_t ft_chunk_rows(const ft_chunk *)
    uint64_t ft_chunk_first_row(const ft_chunk *)
    uint64_t ft_chunk_lap(const ft_chunk *)
    ft_column *ft_column_new(const ft_schema *, size_t, size_t, int *)
    void ft_column_free(ft_column *)
    void ft_column_clear(ft_column *)
    int ft_column_stage(ft_column *, uint64_t, const ft_part *, size_t, const fl_codecs *)
    void ft_column_commit(ft_column *)
    void ft_column_abort(ft_column *)
    int ft_column_set_layout(ft_column *, const fl_layout *, const fl_codecs *)
    bint ft_column_layout_in_doubt(const ft_column *)
    void ft_column_set_patience(ft_column *, uint64_t)
    bint ft_column_last(const ft_column *, size_t, uint8_t *)
    bint ft_column_shares(const ft_column *, size_t)
    ft_chunk *ft_column_chunk(const ft_column *, uint64_t)
    ft_chunk *ft_column_snapshot(const ft_column *, int *)
    int ft_column_adopt(ft_column *, ft_chunk *, uint64_t)
    int ft_column_resume(ft_column *, const ft_chunk *, uint64_t, uint64_t, const fl_codecs *)
    ft_usage ft_column_usage(const ft_column *)
    ft_read *ft_read_begin(const ft_column *, const int64_t *, const int64_t *, size_t, uint8_t *const *, const fl_codecs *, int *)
    int ft_read_run(ft_read *, int, const fl_codecs *) nogil
    void ft_read_end(ft_read *)
    void ft_gather(const uint8_t *, size_t, size_t, const int64_t *, const int64_t *, size_t, uint8_t *)
    void fl_tree_set(double *, size_t, const int64_t *, const double *, size_t) nogil
    void fl_tree_find(const double *, size_t, const double *, int64_t *, size_t) nogil
    void fl_call_helper()
    bint fl_watch_forks()
    size_t fl_refused_bytes()
    int64_t fl_refuse_allocation(int64_t)
    size_t fl_patch_length(const uint8_t *, size_t)

fl_active = fl_best_kernels()
fl_watch_forks()  # if it cannot, nobody helps
ft_checksum_init()

BLOCK_ROWS = FT_BLOCK_ROWS


def checksum(const uint8_t[::1] data):
    """
    Compute CRC-32C.

    :param data: Bytes
    :return: Their checksum
    """
    return ft_checksum(&data[0] if data.shape[0] else NULL, <size_t>data.shape[0])


include "codecs.pxi"
include "chunks.pxi"
include "reading.pxi"
include "column.pxi"
include "table.pxi"
include "tree.pxi"
include "testing.pxi"
