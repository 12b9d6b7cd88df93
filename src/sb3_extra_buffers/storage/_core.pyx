# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=True
"""
The frame log for Python: types, shapes, contiguity and bounds are checked here, the GIL is released, codes become exceptions.

All that is known of frames, groups, segments and indexes is in C (``_native/framelog.h``). A codec is the only thing that C calls
back, and only in between two steps, when a store can be read and saved by whatever Python does meanwhile.

Beside it, what else is worth compiling: sums for prioritized replay, and rows of plain arrays.
"""

cimport numpy as cnp
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.float cimport FLT_MAX
from libc.math cimport fabs, isfinite
from libc.stdint cimport SIZE_MAX, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memmove

import os

import numpy as np

from sb3_extra_buffers.codecs import CodecError
from sb3_extra_buffers.storage.errors import StorageError

cnp.import_array()

cdef extern from "framelog.h":
    enum: FL_OK, FL_DAMAGED, FL_NO_MEMORY, FL_OUTSIDE, FL_CODEC, FL_NO_NUMBERS, FL_INVALID
    enum: FL_READ_AHEAD, FL_WRITE_AHEAD
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
    ctypedef struct fl_index:
        size_t cells
    ctypedef struct fl_log:
        size_t segment_bytes, count, in_use
    ctypedef struct fl_work:
        uint64_t rebuilds, reclaims, segments_looked_at
    ctypedef struct fl_limits:
        size_t first_room, block_rows, min_segment, first_check, narrow_patterns
        uint64_t frame_numbers
    fl_limits fl_limits_in_use
    ctypedef struct fl_store:
        fl_layout layout
        fl_method method
        size_t n_streams, frame_bytes, obs_bytes, n_indexes
        fl_index **indexes
        fl_log log
        uint64_t patience
        fl_work work
    ctypedef struct fl_write_part:
        fl_index *index
        const uint8_t *obs
        bint turned
    ctypedef struct fl_read_part:
        const fl_index *index
        uint8_t *out
    ctypedef struct fl_kernels:
        const char *name
        size_t (*encode)(const uint8_t *, const uint8_t *, size_t, size_t, const uint8_t *, uint32_t *, uint8_t *, size_t,
                         size_t) noexcept
        bint (*apply)(const uint8_t *, size_t, uint8_t *, size_t, size_t) noexcept
    const fl_kernels *fl_active
    const fl_kernels *fl_best_kernels()
    const fl_kernels *fl_kernels_named(const char *)
    fl_store *fl_store_new(const fl_layout *, const fl_method *, size_t, int *)
    void fl_store_free(fl_store *)
    int fl_new_index(fl_store *, size_t)
    int fl_clear(fl_store *)
    int fl_rebuild(fl_store *, const fl_layout *, const fl_codecs *)
    bint fl_last_observation(const fl_store *, size_t, uint8_t *)
    bint fl_layout_in_doubt(const fl_store *)
    uint64_t fl_written_cells(const fl_store *)
    size_t fl_stored_frames(const fl_store *)
    size_t fl_stored_bytes(const fl_store *)
    size_t fl_index_bytes(const fl_store *)
    size_t fl_held_bytes(const fl_store *)
    size_t fl_image_bytes(const fl_store *, int64_t)
    void fl_image_save(const fl_store *, int64_t, uint8_t *)
    fl_store *fl_image_load(const uint8_t *, size_t, int *, const char **)
    int fl_write(fl_store *, const fl_write_part *, size_t, int64_t, const int64_t *, size_t, const fl_codecs *)
    int fl_read(const fl_store *, const fl_read_part *, size_t, const int64_t *, const int64_t *, size_t, int,
                const fl_codecs *) nogil
    void fl_tree_set(double *, size_t, const int64_t *, const double *, size_t) nogil
    void fl_tree_find(const double *, size_t, const double *, int64_t *, size_t) nogil
    bint fl_shares(const fl_store *, size_t)
    void fl_call_helper()
    bint fl_watch_forks()
    size_t fl_refused_bytes()
    int64_t fl_refuse_allocation(int64_t)
    size_t fl_patch_length(const uint8_t *, size_t)

cdef enum:
    MOST_AXES = 32


fl_active = fl_best_kernels()
fl_watch_forks()  # if it cannot, nobody helps


# -- codecs ------------------------------------------------------------------------------------------------------------------------

# A codec gets arrays that own their memory: it may keep them, and so does the traceback of an error that it raises, for longer than
# C keeps what they were made of.

cdef object _copied(const uint8_t *data, size_t size):
    cdef cnp.npy_intp length = <cnp.npy_intp>size
    array = cnp.PyArray_SimpleNew(1, &length, cnp.NPY_UINT8)
    memcpy(cnp.PyArray_DATA(array), data, size)
    return array


cdef object _zeros(size_t size):
    cdef cnp.npy_intp length = <cnp.npy_intp>size
    return cnp.PyArray_ZEROS(1, &length, cnp.NPY_UINT8, 0)


cdef int _code_of(object error) except *:
    """Without memory, what can wait is put off; anything else ends what C is doing."""
    return FL_NO_MEMORY if isinstance(error, MemoryError) else FL_CODEC


cdef int _encode(void *context, int which, const uint8_t *data, size_t size, const uint8_t **blob,
                 size_t *blob_size) noexcept with gil:
    cdef Store store = <Store>context
    cdef bytes coded
    try:
        codec = store._group_codec if which else store._frame_codec
        coded = codec.encode(_copied(data, size))
    except BaseException as error:
        store._errors.append(error)
        return _code_of(error)
    store._blob = coded  # until the next one
    blob[0] = <const uint8_t *>PyBytes_AS_STRING(coded)
    blob_size[0] = <size_t>len(coded)
    return FL_OK


cdef int _decode(void *context, int which, const uint8_t *blob, size_t blob_size, uint8_t *data,
                 size_t size) noexcept with gil:
    cdef Store store = <Store>context
    try:
        codec = store._group_codec if which else store._frame_codec
        out = _zeros(size)
        codec.decode(_copied(blob, blob_size), out)
        if <size_t>cnp.PyArray_NBYTES(out) != size:
            raise ValueError(f"a codec must fill its output, not change the size of it from {size} to {out.nbytes} bytes")
        memcpy(data, cnp.PyArray_DATA(out), size)
    except BaseException as error:
        store._errors.append(error)
        return FL_DAMAGED if isinstance(error, CodecError) else _code_of(error)
    return FL_OK


# -- the store ---------------------------------------------------------------------------------------------------------------------

cdef fl_layout _layout_of(object layout) except *:
    """The sizes of a layout; from here on it knows all of them without computing."""
    cdef fl_layout result
    if len(layout.obs_shape) >= MOST_AXES:
        raise ValueError(f"observations have {len(layout.obs_shape)} axes; at most {MOST_AXES - 1} are possible")
    result.item = layout.itemsize
    result.outer = layout.outer
    result.depth = layout.depth
    result.part = layout.part_bytes
    result.planes = layout.group
    result.row = layout.row_bytes
    result.can_turn = layout.turned_strides is not None
    result.interleave = layout.interleaves
    return result


cdef bint _same_layout(const fl_layout *a, const fl_layout *b):
    return (a.item == b.item and a.outer == b.outer and a.depth == b.depth and a.part == b.part and a.planes == b.planes
            and a.row == b.row and a.can_turn == b.can_turn and a.interleave == b.interleave)


cdef bint _same_method(const fl_method *a, const fl_method *b):
    return a.references == b.references and a.packs == b.packs and a.shift == b.shift


cdef class Store:
    """
    Observations of parallel environments, in any number of arrays that share frames.

    Cell ``c`` of an array belongs to environment ``c % n_streams``. Every call holds the lock; the thread that holds it may read
    while it writes, as a signal handler does that comes while a codec is at work, but not write.

    :param layout: How observations split into frames
    :param n_streams: Number of environments
    :param frame_codec: Codec for frames that no reference helps, or for all of them
    :param group_codec: Codec behind the references, over whole groups; None for none
    :param references: Whether frames are coded against earlier ones
    :param shift: Two to this power is the number of frames in a group
    :param lock: A ``StoreLock``
    :param image: What ``image`` of another store gave; None for an empty store
    """

    cdef fl_store *_store
    cdef fl_codecs _codecs
    cdef object _frame_codec, _group_codec, _acquire, _release, _blob
    cdef list _errors
    cdef readonly object layout
    cdef int _axes
    cdef cnp.npy_intp _shape[MOST_AXES]
    cdef cnp.npy_intp _turned_strides[MOST_AXES]
    cdef bint _writing
    cdef int _reading
    cdef object _lock
    cdef int _abandoned

    def __cinit__(self, layout, n_streams, frame_codec, group_codec, references, shift, lock, image=None):
        cdef fl_layout sizes = _layout_of(layout)
        cdef fl_method method
        cdef const char *what = NULL
        cdef int result = FL_OK
        cdef bytes data
        method.references, method.packs, method.shift = references, group_codec is not None, shift
        self._frame_codec, self._group_codec = frame_codec, group_codec
        self._acquire, self._release = lock.acquire, lock.release
        self._lock, self._abandoned = lock, lock.abandoned
        self._errors = []
        self._codecs.context, self._codecs.encode, self._codecs.decode = <void *>self, _encode, _decode
        if image is None:
            self._store = fl_store_new(&sizes, &method, n_streams, &result)
        else:
            data = image
            self._store = fl_image_load(<const uint8_t *>PyBytes_AS_STRING(data), <size_t>len(data), &result, &what)
            if self._store is not NULL and not (
                _same_layout(&sizes, &self._store.layout) and self._store.n_streams == <size_t>n_streams
            ):
                result, what = FL_DAMAGED, "observations are of another form"
            elif self._store is not NULL and not _same_method(&method, &self._store.method):
                result, what = FL_DAMAGED, "observations are coded by another method"
        if what is not NULL:
            raise StorageError(f"the saved observations are damaged: {what.decode()}; load another copy of the file")
        self._check(result)
        self._take_shape(layout)

    def __dealloc__(self):
        fl_store_free(self._store)

    cdef int _take_shape(self, object layout) except -1:
        """Remember the layout. Nothing here can be interrupted: what Python computes has been computed by then."""
        cdef int axis
        cdef tuple shape = layout.obs_shape
        cdef object strides = layout.turned_strides
        for axis in range(len(shape)):
            self._shape[axis + 1] = shape[axis]
        if strides is not None:
            for axis in range(len(shape) + 1):
                self._turned_strides[axis] = strides[axis]
        self._axes = 1 + <int>len(shape)
        self.layout = layout
        return 0

    cdef int _check(self, int result) except -1:
        """Raise what a code of C says."""
        if result >= 0:
            if self._errors and self._reading + self._writing <= 1:
                self._errors = []  # of a codec, but what it was asked for could wait
            return 0
        errors, self._errors = self._errors, []
        if result == FL_CODEC or (result == FL_NO_MEMORY and errors):
            # Undoing what has failed may have been interrupted by something that must not be lost.
            raise next((error for error in errors if not isinstance(error, Exception)), errors[0])
        if result == FL_NO_MEMORY:
            refused = fl_refused_bytes()
            size = "more bytes than can be addressed" if refused == FL_MORE_THAN_ALL else f"{refused:,} bytes"
            raise MemoryError(
                f"out of memory: {size} for compressed observations were refused by the system; "
                "what is stored so far is unharmed"
            )
        if result == FL_OUTSIDE:
            raise IndexError("there is no such cell")
        if result == FL_NO_NUMBERS:
            raise StorageError(
                "an environment has no frame numbers left: more groups of frames are in use than an index can tell apart. "
                "Nothing that is stored is lost. Use a smaller buffer, one with more environments, "
                'or the method "delta", whose groups take fewer numbers than those of "delta-zstd"'
            )
        if result == FL_INVALID:
            raise ValueError("observations of these sizes cannot be stored")
        if errors:
            raise StorageError(f"a stored group of frames is damaged: {errors[0]}") from errors[0]
        raise StorageError("a stored group of frames is damaged; what was asked for cannot be decoded")

    cdef int _begin_change(self) except -1:
        """Take the lock, to change something."""
        self._acquire()
        self._notice_fork()
        if self._writing or self._reading:
            self._release()
            raise RuntimeError(
                "the buffer is in use by this very thread: a signal handler, or a codec, may read it or save it, "
                "but must not change it before it has returned"
            )
        self._writing = True
        return 0

    cdef int _notice_fork(self) except -1:
        """In a child, forget what another thread was doing when it was forked: nobody does that here."""
        cdef int abandoned = self._lock.abandoned
        if self._abandoned != abandoned:
            self._abandoned, self._writing, self._reading = abandoned, False, 0
        return 0

    cdef int _end_change(self) except -1:
        self._writing = False
        self._blob = None
        self._release()
        return 0

    cdef fl_index *_index(self, Py_ssize_t index) except NULL:
        if not 0 <= index < <Py_ssize_t>self._store.n_indexes:
            raise IndexError(f"there is no array {index}")
        return self._store.indexes[index]

    def new_index(self, cells):
        """
        Make an array of unwritten cells.

        :param cells: How many
        :return: Its number
        """
        cdef size_t count = cells
        self._begin_change()
        try:
            result = fl_new_index(self._store, count)
            self._check(result)
            return result
        finally:
            self._end_change()

    cdef object _as_it_lies(self, cnp.ndarray obs, Py_ssize_t count, fl_write_part *part):
        """Bring observations into one of the two memory orders that C walks; what is returned keeps them alive."""
        cdef int axis
        cdef bint turned = False
        if obs is None:  # which Cython lets pass for an array
            raise TypeError("observations are wanted, not None")
        if obs.ndim != self._axes or cnp.PyArray_DIM(obs, 0) != count or (
            <size_t>cnp.PyArray_ITEMSIZE(obs) != self._store.layout.item
        ):
            raise ValueError(f"{count} observations are wanted, not an array of shape {np.shape(obs)}")
        for axis in range(1, self._axes):
            if cnp.PyArray_DIM(obs, axis) != self._shape[axis]:
                raise ValueError(f"observations of another shape are wanted, not an array of shape {np.shape(obs)}")
        if not cnp.PyArray_IS_C_CONTIGUOUS(obs):
            # Channels first to look at, but last in memory: what VecTransposeImage hands out.
            turned = self._store.layout.can_turn
            for axis in range(self._axes):
                if cnp.PyArray_STRIDE(obs, axis) != self._turned_strides[axis] and (axis > 0 or count > 1):
                    turned = False
                    break
            if not turned:
                obs = np.ascontiguousarray(obs)
        part.obs = <const uint8_t *>cnp.PyArray_DATA(obs)
        part.turned = turned
        return obs

    def write(self, int64_t row, int index, obs, int other=-1, other_obs=None):
        """
        Write one observation of each environment to a row of an array, and to the same row of another. Both or neither.

        :param row: The row
        :param index: The array
        :param obs: ``(n_streams, *obs_shape)``, in any memory order
        :param other: Another array; -1 for none
        :param other_obs: What follows ``obs``, for that array
        :return: Whether the layout no longer pays
        """
        cdef fl_write_part parts[2]
        cdef size_t count = self._store.n_streams
        cdef size_t n_parts = 1
        if row < 0 or row > (1 << 62) // <int64_t>count:
            raise IndexError(f"there is no row {row}")
        self._begin_change()
        try:
            parts[0].index = self._index(index)
            obs = self._as_it_lies(obs, <Py_ssize_t>count, &parts[0])
            if other >= 0:
                n_parts = 2
                parts[1].index = self._index(other)
                other_obs = self._as_it_lies(other_obs, <Py_ssize_t>count, &parts[1])
            self._check(fl_write(self._store, parts, n_parts, row * <int64_t>count, NULL, count, &self._codecs))
            return fl_layout_in_doubt(self._store)
        finally:
            self._end_change()

    def write_cells(self, int index, cnp.ndarray cells not None, obs):
        """
        Write observations to any cells of an array, of as many environments.

        :param index: The array
        :param cells: ``(m,)``, integers
        :param obs: ``(m, *obs_shape)``
        :return: Whether the layout no longer pays
        """
        cdef fl_write_part part
        cells = np.ascontiguousarray(cells, dtype=np.int64)
        if cells.ndim != 1 or len(set((cells % self.n_streams).tolist())) != len(cells):
            raise ValueError("cells of distinct environments are wanted")
        self._begin_change()
        try:
            part.index = self._index(index)
            obs = self._as_it_lies(obs, cnp.PyArray_DIM(cells, 0), &part)
            self._check(
                fl_write(self._store, &part, 1, 0, <const int64_t *>cnp.PyArray_DATA(cells),
                         <size_t>cnp.PyArray_DIM(cells, 0), &self._codecs)
            )
            return fl_layout_in_doubt(self._store)
        finally:
            self._end_change()

    cdef int _take_output(self, object out, size_t count, fl_read_part *part) except -1:
        if not isinstance(out, cnp.ndarray) or not cnp.PyArray_CHKFLAGS(out, cnp.NPY_ARRAY_CARRAY) or (
            <size_t>cnp.PyArray_NBYTES(out) != count * self._store.obs_bytes
        ):
            raise ValueError(f"the output must be a writable C-contiguous array of {count} observations")
        part.out = <uint8_t *>cnp.PyArray_DATA(out)
        return 0

    def announce_read(self, size_t count):
        """
        Say that so many observations are going to be read: if two cores share that, the second one is ready by then.

        :param count: How many, of all arrays together
        """
        cdef size_t each = self._store.obs_bytes
        self._acquire()
        try:
            if fl_shares(self._store, count * each if count <= SIZE_MAX // each else SIZE_MAX) and _cores() > 1:
                fl_call_helper()
        finally:
            self._release()

    def read(self, cnp.ndarray rows not None, columns, int index, out, int other=-1, other_out=None):
        """
        Read observations of an array, and of another at the same places; what they share is decoded once.

        :param rows: ``(m,)`` of int64: rows, or cells where there are no columns
        :param columns: ``(m,)`` of int64: environments; None for none
        :param index: The array
        :param out: C-contiguous memory for ``m`` observations, filled
        :param other: Another array; -1 for none
        :param other_out: Its output
        :return: False where there is no such cell; then the outputs hold anything
        """
        cdef fl_read_part parts[2]
        cdef size_t count = <size_t>cnp.PyArray_DIM(rows, 0) if rows.ndim == 1 else 0
        cdef size_t n_parts = 1 if other < 0 else 2
        cdef const int64_t *rows_at
        cdef const int64_t *columns_at = NULL
        cdef int result, threads = 1
        if rows.ndim != 1 or cnp.PyArray_TYPE(rows) != cnp.NPY_INT64 or not cnp.PyArray_ISCARRAY_RO(rows):
            raise ValueError("rows must be a C-contiguous array of int64 with one axis")
        rows_at = <const int64_t *>cnp.PyArray_DATA(rows)
        if columns is not None:
            if not isinstance(columns, cnp.ndarray) or cnp.PyArray_NDIM(columns) != 1 or (
                cnp.PyArray_TYPE(columns) != cnp.NPY_INT64 or not cnp.PyArray_ISCARRAY_RO(columns)
                or <size_t>cnp.PyArray_DIM(columns, 0) != count
            ):
                raise ValueError("columns must be a C-contiguous array of int64, as long as rows")
            columns_at = <const int64_t *>cnp.PyArray_DATA(columns)
        self._acquire()
        self._notice_fork()
        self._reading += 1
        try:
            if fl_shares(self._store, count * n_parts * self._store.obs_bytes) and _cores() > 1:
                threads = 2
            parts[0].index = self._index(index)
            self._take_output(out, count, &parts[0])
            if n_parts == 2:
                parts[1].index = self._index(other)
                self._take_output(other_out, count, &parts[1])
            with nogil:
                result = fl_read(self._store, parts, n_parts, rows_at, columns_at, count, threads, &self._codecs)
            if result == FL_OUTSIDE:
                return False
            self._check(result)
            return True
        finally:
            self._reading -= 1
            self._release()

    def rebuild(self, layout):
        """
        Store everything again, by another layout, or by the same to be rid of what is not in use. Whole or not at all.

        :param layout: The layout
        """
        cdef fl_layout sizes = _layout_of(layout)
        self._begin_change()
        try:
            self._check(fl_rebuild(self._store, &sizes, &self._codecs))
            self._take_shape(layout)
        finally:
            self._end_change()

    def clear(self):
        """Forget all observations; layout and memory stay."""
        self._begin_change()
        try:
            self._check(fl_clear(self._store))
        finally:
            self._end_change()

    def cells(self, int index):
        """
        Tell how large an array is.

        :param index: The array
        :return: Its number of cells
        """
        return self._index(index).cells

    def last_observation(self, Py_ssize_t stream):
        """
        Tell what was last written for an environment.

        :param stream: The environment
        :return: Its bytes in C order; None where that is not known
        """
        if not 0 <= stream < <Py_ssize_t>self._store.n_streams:
            raise IndexError(f"there is no environment {stream}")
        out = np.empty(self._store.obs_bytes, dtype=np.uint8)
        self._acquire()
        known = fl_last_observation(self._store, <size_t>stream, <uint8_t *>cnp.PyArray_DATA(out))
        self._release()
        return out if known else None

    def image(self, int64_t only_index=-1):
        """
        Tell all that the store holds, at one moment.

        :param only_index: The only array to include; -1 for all
        :return: Bytes from which an equal store can be made
        """
        cdef bytes data
        self._acquire()
        try:
            if only_index >= <int64_t>self._store.n_indexes:
                raise IndexError(f"there is no array {only_index}")
            data = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>fl_image_bytes(self._store, only_index))
            fl_image_save(self._store, only_index, <uint8_t *>PyBytes_AS_STRING(data))
            return data
        finally:
            self._release()

    def usage(self):
        """
        Tell what is stored.

        :return: Written cells of all arrays, frames, bytes of frames, bytes that it takes to find them, bytes of all segments
        """
        self._acquire()
        try:
            return (fl_written_cells(self._store), fl_stored_frames(self._store), fl_stored_bytes(self._store),
                    fl_index_bytes(self._store), fl_held_bytes(self._store))
        finally:
            self._release()

    @property
    def n_streams(self):
        """Number of environments."""
        return self._store.n_streams

    @property
    def segments(self):
        """Number of segments in use."""
        return self._store.log.in_use

    @property
    def segment_bytes(self):
        """Bytes of a segment."""
        return self._store.log.segment_bytes

    @property
    def work(self):
        """How often all has been stored again, how often it was asked what can be taken back, and of how many segments."""
        return self._store.work.rebuilds, self._store.work.reclaims, self._store.work.segments_looked_at

    @property
    def patience(self):
        """How many observations that do not follow from the last one are nothing yet."""
        return self._store.patience

    @patience.setter
    def patience(self, uint64_t observations):
        self._store.patience = observations


cdef int _cores() except -1:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# -- sums for prioritized replay -----------------------------------------------------------------------------------------------------

cdef size_t _leaves_of(double[::1] sums) except 0:
    cdef size_t first = <size_t>sums.shape[0] >> 1
    if first < 1 or first & (first - 1) or <size_t>sums.shape[0] != 2 * first:
        raise ValueError(f"a tree of sums has twice a power of two numbers, not {sums.shape[0]}")
    return first


def set_leaves(double[::1] sums, int64_t[::1] leaves, const double[::1] values):
    """
    Change leaves of a tree and the sums above them.

    :param sums: The tree, its root at 1
    :param leaves: Numbers of the leaves; of one that is named twice, the last value counts
    :param values: Their new values
    """
    cdef size_t first = _leaves_of(sums)
    cdef Py_ssize_t i
    if leaves.shape[0] != values.shape[0]:
        raise ValueError(f"{leaves.shape[0]} leaves cannot have {values.shape[0]} values")
    for i in range(leaves.shape[0]):
        if not 0 <= leaves[i] < <int64_t>first:
            raise IndexError(f"there is no leaf {leaves[i]}")
    if leaves.shape[0]:
        with nogil:
            fl_tree_set(&sums[0], first, &leaves[0], &values[0], <size_t>leaves.shape[0])


def find_leaves(double[::1] sums, const double[::1] targets, int64_t[::1] leaves):
    """
    Find the leaves in which prefix sums fall.

    :param sums: The tree
    :param targets: Prefix sums
    :param leaves: As many numbers, filled
    """
    cdef size_t first = _leaves_of(sums)
    if leaves.shape[0] != targets.shape[0]:
        raise ValueError(f"{targets.shape[0]} targets do not fit {leaves.shape[0]} leaves")
    if leaves.shape[0]:
        with nogil:
            fl_tree_find(&sums[0], first, &targets[0], &leaves[0], <size_t>leaves.shape[0])


# -- rows of plain arrays ------------------------------------------------------------------------------------------------------------
#
# What NumPy finds out about two arrays that fit as they are takes longer than to copy a few numbers.

cdef bint _same_type(cnp.dtype a, cnp.dtype b):
    """Whether two types are the same. What comes from a pickle, or from another process, has types that are other objects."""
    if a.type_num == b.type_num and a.type_num < cnp.NPY_OBJECT:  # nearly always
        return a.byteorder == b.byteorder
    return cnp.PyArray_EquivTypes(a, b)


def is_plain(value, dtype, tuple shape):
    """
    Tell whether something is an array of exactly this kind.

    :param value: Anything
    :param dtype: Type of its elements; None for none that would do
    :param shape: Its shape
    :return: Whether it is
    """
    cdef int axis
    if type(value) is not cnp.ndarray or dtype is None or cnp.PyArray_NDIM(value) != len(shape) or (
        not _same_type((<cnp.ndarray>value).descr, dtype)
    ):
        return False
    for axis in range(cnp.PyArray_NDIM(value)):
        if cnp.PyArray_DIM(value, axis) != <cnp.npy_intp>shape[axis]:
            return False
    return True


cdef bint _fits(cnp.ndarray target, Py_ssize_t row, object value, bint reshapes):
    """Whether a row and a value are as many numbers, one after the other in memory."""
    cdef int axis
    if type(value) is not cnp.ndarray or not (cnp.PyArray_ISCARRAY(target) and cnp.PyArray_ISCARRAY_RO(value)):
        return False
    if target.ndim < 1 or not 0 <= row < cnp.PyArray_DIM(target, 0):
        return False
    if reshapes:
        return cnp.PyArray_SIZE(value) * cnp.PyArray_DIM(target, 0) == cnp.PyArray_SIZE(target)
    if cnp.PyArray_NDIM(value) != target.ndim - 1:
        return False
    for axis in range(1, target.ndim):
        if cnp.PyArray_DIM(value, axis - 1) != cnp.PyArray_DIM(target, axis):
            return False
    return True


cdef bint _copy_numbers(cnp.ndarray target, Py_ssize_t row, cnp.ndarray value):
    """Copy what environments hand out, which is of the type that it is stored as, or bools or doubles for floats."""
    cdef uint8_t *to = <uint8_t *>cnp.PyArray_DATA(target) + row * cnp.PyArray_STRIDE(target, 0)
    cdef const void *given = cnp.PyArray_DATA(value)
    cdef float *floats = <float *>to
    cdef Py_ssize_t i, count = cnp.PyArray_SIZE(value)
    cdef int kind = cnp.PyArray_TYPE(value)
    if kind == cnp.PyArray_TYPE(target) and kind < cnp.NPY_OBJECT:  # neither is swapped
        memmove(to, given, <size_t>cnp.PyArray_NBYTES(value))
    elif cnp.PyArray_TYPE(target) == cnp.NPY_FLOAT32 and kind == cnp.NPY_BOOL:
        for i in range(count):
            floats[i] = (<const uint8_t *>given)[i]
    elif cnp.PyArray_TYPE(target) == cnp.NPY_FLOAT32 and kind == cnp.NPY_FLOAT64:
        for i in range(count):
            if isfinite((<const double *>given)[i]) and fabs((<const double *>given)[i]) > FLT_MAX:
                return False  # NumPy has a warning for that
        for i in range(count):
            floats[i] = <float>(<const double *>given)[i]
    else:
        return False
    return True


cdef int _set_row(object target, Py_ssize_t row, object value, bint reshapes) except -1:
    """Do ``target[row] = value``; or, to reshape, with a value of another shape, but as many numbers."""
    if not (isinstance(target, cnp.ndarray) and _fits(target, row, value, reshapes) and _copy_numbers(target, row, value)):
        target[row] = value.reshape(target.shape[1:]) if reshapes else value
    return 0


cdef object _said(object info, str key):
    return (<dict>info).get(key, False) if type(info) is dict else info.get(key, False)


cdef int _set_flags(object target, Py_ssize_t row, object infos, str key) except -1:
    """Do ``target[row] = np.array([info.get(key, False) for info in infos])``."""
    cdef Py_ssize_t i
    cdef float *to
    if isinstance(target, cnp.ndarray) and cnp.PyArray_NDIM(target) == 2 and cnp.PyArray_TYPE(target) == cnp.NPY_FLOAT32 and (
        cnp.PyArray_ISCARRAY(target) and 0 <= row < cnp.PyArray_DIM(target, 0)
    ) and type(infos) is list and len(<list>infos) == cnp.PyArray_DIM(target, 1):
        for info in <list>infos:
            if _said(info, key) is not False:
                break
        else:
            to = <float *>(<uint8_t *>cnp.PyArray_DATA(target) + row * cnp.PyArray_STRIDE(target, 0))
            for i in range(len(<list>infos)):
                to[i] = 0
            return 0
    target[row] = np.array([_said(info, key) for info in infos])
    return 0


def set_step(Py_ssize_t row, actions, action, rewards, reward, dones, done, timeouts, infos):
    """
    Put all of a step but its observations into a row of arrays.

    :param row: Number of the row
    :param actions: An array
    :param action: Its row; in another shape, if need be
    :param rewards: An array
    :param reward: Its row
    :param dones: An array
    :param done: Its row
    :param timeouts: An array; None where none is kept
    :param infos: Dicts that tell its row
    """
    _set_row(actions, row, action, True)
    _set_row(rewards, row, reward, False)
    _set_row(dones, row, done, False)
    if timeouts is not None:
        _set_flags(timeouts, row, infos, "TimeLimit.truncated")


# -- for tests -----------------------------------------------------------------------------------------------------------------------

READ_AHEAD = FL_READ_AHEAD
WRITE_AHEAD = FL_WRITE_AHEAD


def use_kernels(str name):
    """
    Choose the instructions that the core uses, for the whole process.

    :param name: ``"baseline"`` or ``"avx2"``; ``""`` for the best that this processor has
    :return: The name of those in use before
    """
    global fl_active
    cdef bytes before = fl_active.name
    cdef const fl_kernels *chosen = fl_kernels_named(name.encode()) if name else fl_best_kernels()
    if chosen is NULL:
        raise ValueError(f"this processor has no kernels named {name!r}")
    fl_active = chosen
    return before.decode()


def refuse_allocation(int64_t after):
    """
    Have one allocation of this thread in C fail.

    :param after: After how many others; -1 for none
    :return: After how many others one was still to fail; -1 where none was
    """
    return fl_refuse_allocation(after)


# The most that each may be: offsets in a segment have 32 bits, narrow patterns 16. The least is 1, and a group of frame numbers.
_MOST = {
    "first_room": 1 << 32,
    "block_rows": 1 << 32,
    "min_segment": 1 << 28,
    "first_check": 1 << 62,
    "narrow_patterns": 1 << 16,
    "frame_numbers": 1 << 32,
}


def set_limits(**limits):
    """
    Change sizes that stores are made with, so that what is rare comes often. An image is only for stores of the same sizes.

    :param limits: Those to change: fields of ``fl_limits``
    :return: All of them, as they were
    """
    global fl_limits_in_use
    cdef fl_limits wanted = fl_limits_in_use
    cdef dict before = wanted
    for name, value in limits.items():
        if name not in _MOST:
            raise TypeError(f"there is no limit {name!r}; there are {', '.join(_MOST)}")
        least = 128 if name == "frame_numbers" else 1
        if not least <= value <= _MOST[name]:
            raise ValueError(f"{name} must be from {least} to {_MOST[name]}, not {value}")
    wanted = {**before, **limits}
    fl_limits_in_use = wanted
    return before


def encode_patch(const uint8_t[::1] before, const uint8_t[::1] now, size_t row, uint8_t[::1] out, size_t pos, size_t stop,
                 uint32_t row_above=0):
    """
    Write the patch that makes a frame of another.

    :param before: The reference
    :param now: The frame
    :param row: Bytes of a row; 0 for none
    :param out: Where to
    :param pos: From where in ``out``
    :param stop: Up to where
    :param row_above: Above 1, the row above is tried first; 1: it is tried, too; 0: it is, if the other patch is large
    :return: Where it ends, or -1 when it does not fit; and ``row_above`` after it
    """
    cdef size_t size = <size_t>now.shape[0]
    if before.shape[0] != now.shape[0] or size < 1 or stop > <size_t>out.shape[0] or pos > stop or row > size:
        raise ValueError("these sizes do not fit each other")
    cdef uint8_t[::1] zeros = np.zeros(row + 1, dtype=np.uint8)
    cdef size_t end = fl_active.encode(&before[0], &now[0], size, row, &zeros[0], &row_above, &out[0] if stop else NULL, pos, stop)
    return (-1 if end == FL_NO_PATCH else end), row_above


def apply_patch(const uint8_t[::1] patch, uint8_t[::1] frame, size_t size, size_t row):
    """
    Change a frame as a patch says.

    :param patch: The patch, and at least ``READ_AHEAD`` bytes after it
    :param frame: The frame, and at least ``WRITE_AHEAD`` bytes after it
    :param size: Bytes of the frame
    :param row: Bytes of a row; 0 for none
    :return: Bytes of the patch; -1 where it is damaged
    """
    if patch.shape[0] < FL_READ_AHEAD or frame.shape[0] < FL_WRITE_AHEAD or size > <size_t>frame.shape[0] - FL_WRITE_AHEAD:
        raise ValueError("there is not enough memory after the patch or the frame")
    cdef size_t length = fl_patch_length(&patch[0], <size_t>patch.shape[0] - FL_READ_AHEAD)
    if length == 0 or not fl_active.apply(&patch[0], length, &frame[0], size, row):
        return -1
    return length
