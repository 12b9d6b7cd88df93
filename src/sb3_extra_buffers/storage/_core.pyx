# cython: language_level=3, boundscheck=False, wraparound=False
"""
The core for Python: types, shapes, contiguity and bounds are checked here, the GIL is released, codes are raised as exceptions.

All that is known of frames, records and chunks is in C (``_native/frametable.h``). A codec is the only thing that C calls back, and
only in between two steps, when a column can be read and saved by whatever Python does meanwhile.
"""

cimport numpy as cnp
from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_AS_STRING
from cpython.memoryview cimport PyMemoryView_GET_BUFFER
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
    enum: FT_OK, FT_DAMAGED, FT_NO_MEMORY, FT_OUTSIDE, FT_CODEC, FT_INVALID
    enum: FT_MAX_VIEWS, FT_BLOCK_ROWS, FT_MOST_CODERS
    size_t FT_MORE_THAN_ALL
    ctypedef struct ft_layout:
        size_t item, outer, depth, part, planes, row
        bint can_turn, interleave
        uint32_t pixel
    ctypedef struct ft_method:
        bint references, packs
        uint32_t shift
    ctypedef struct ft_codecs:
        void *context
        int (*encode)(void *, int, const uint8_t *, size_t, const uint8_t **, size_t *) noexcept
        int (*decode)(void *, int, const uint8_t *, size_t, uint8_t *, size_t) noexcept
    ctypedef struct ft_schema:
        ft_layout layout
        ft_method method
        size_t n_streams, views
    ctypedef struct ft_part:
        size_t view
        const uint8_t *obs
        bint turned
        const size_t *streams
        size_t count
    ctypedef struct ft_chunk:
        pass
    ctypedef struct ft_chunk_info:
        const uint8_t *bytes
        size_t size, rows
        uint64_t first_row
    ctypedef struct ft_span:
        uint64_t first_row, rows
        ft_chunk *chunk
        uint64_t chunk_row
    ctypedef struct ft_usage:
        uint64_t frames, frame_bytes, index_bytes, held_bytes, cells
        uint64_t *coded
    ctypedef struct ft_column:
        pass
    ctypedef struct ft_read:
        pass
    void ft_init()
    size_t ft_get_refused_bytes()
    uint32_t ft_compute_checksum(const uint8_t *, size_t) nogil
    int ft_chunk_open(const uint8_t *, size_t, void (*)(void *, const uint8_t *, size_t) noexcept, void *, ft_chunk **,
                      const char **)
    void ft_chunk_keep(ft_chunk *)
    void ft_chunk_drop(ft_chunk *)
    ft_chunk_info ft_chunk_get_info(const ft_chunk *)
    int ft_column_new(const ft_schema *, size_t, size_t, ft_column **)
    void ft_column_free(ft_column *)
    void ft_column_clear(ft_column *)
    int ft_column_stage(ft_column *, uint64_t, const ft_part *, size_t, const ft_codecs *)
    void ft_column_commit(ft_column *)
    void ft_column_abort(ft_column *)
    int ft_column_set_layout(ft_column *, const ft_layout *, const ft_codecs *)
    bint ft_column_get_last(const ft_column *, size_t, uint8_t *)
    bint ft_column_doubts_layout(const ft_column *)
    void ft_column_set_patience(ft_column *, uint64_t)
    uint64_t ft_column_count_sealed_bytes(const ft_column *) nogil
    const ft_span *ft_column_get_spans(const ft_column *, size_t *)
    int ft_column_snapshot(const ft_column *, ft_chunk **)
    int ft_column_adopt(ft_column *, ft_chunk *, uint64_t, uint64_t, uint64_t)
    int ft_column_adopt_row(ft_column *, const ft_chunk *, uint64_t, uint64_t, const ft_codecs *)
    int ft_chunk_arrange(const ft_chunk *, ft_chunk **) nogil
    int ft_column_exchange(ft_column *, const ft_chunk *, ft_chunk *)
    void ft_column_put_arranged(ft_column *, const ft_chunk *, ft_chunk *)
    ft_usage ft_column_get_usage(const ft_column *)
    int ft_read_begin(const ft_column *, const int64_t *, const int64_t *, size_t, uint8_t *const *, const ft_codecs *, ft_read **)
    bint ft_read_is_small(const ft_read *)
    int ft_read_run(ft_read *, int, const ft_codecs *) nogil
    void ft_read_end(ft_read *)
    bint ft_column_can_share(const ft_column *, size_t)
    void ft_wake_helper()
    void ft_gather_cells(const uint8_t *, size_t, size_t, const int64_t *, const int64_t *, size_t, uint8_t *)
    void ft_gather_pieces(const uint8_t *const *, size_t, size_t, size_t, const int64_t *, const int64_t *, size_t, uint8_t *)
    void ft_tree_set_leaves(double *, size_t, const int64_t *, const double *, size_t) nogil
    void ft_tree_find_leaves(const double *, size_t, const double *, int64_t *, size_t) nogil

ft_init()

BLOCK_ROWS = FT_BLOCK_ROWS


def checksum(const uint8_t[::1] data):
    """Compute CRC-32C."""
    return ft_compute_checksum(&data[0] if data.shape[0] else NULL, <size_t>data.shape[0])


include "codecs.pxi"
include "mapping.pxi"
include "chunks.pxi"
include "reading.pxi"
include "pieces.pxi"
include "column.pxi"
include "table.pxi"
include "tree.pxi"
include "testing.pxi"
