# Reads that are under way.

cdef class _ColumnRead:
    """What is still to be decoded of one column: C knows where it is, and keeps the chunks that it is in."""

    cdef ft_read *_read
    cdef _Codecs _codecs

    def __dealloc__(self):
        if self._read is not NULL:
            ft_read_end(self._read)

    cdef int _run(self, int threads) except -1:
        """Decode it; once."""
        cdef int result
        if ft_read_is_small(self._read):
            # Two threads with small batches would spend more time on handing the GIL to each other than on decoding.
            result = ft_read_run(self._read, 1, &self._codecs.calls)
        else:
            with nogil:
                result = ft_read_run(self._read, threads, &self._codecs.calls)
        return self._codecs.check(result)


cdef class Reading:
    """
    Observations that have been found, and are still to be decoded: ``finish`` does that, without a lock.

    What is written meanwhile changes nothing of it.
    """

    cdef list _pending  # of _ColumnRead
    cdef object _cells
    cdef const int64_t *_rows
    cdef const int64_t *_envs
    cdef size_t _count
    cdef tuple _arrays

    def __cinit__(self):
        self._pending, self._arrays = [], ()

    def finish(self):
        """Decode. One thread does it, once."""
        cdef int threads
        # The thread that takes the list has it alone: nothing is decoded twice, or by two threads.
        pending, self._pending = self._pending, None
        arrays, self._arrays = self._arrays, ()
        if pending is None:
            raise RuntimeError("this was read already: what finish returns is returned once")
        if pending:
            threads = 2 if _cores() > 1 else 1
            for part in <list>pending:
                (<_ColumnRead>part)._run(threads)
        return arrays


cdef Py_ssize_t _take_cells(Reading reading, object rows, object envs) except -1:
    """Remember which cells are meant; bounds are not checked."""
    if not (_is_numbers(rows) and _is_numbers(envs)):
        rows, envs = np.ascontiguousarray(rows, dtype=np.int64), np.ascontiguousarray(envs, dtype=np.int64)
    if cnp.PyArray_NDIM(rows) != 1 or cnp.PyArray_NDIM(envs) != 1 or cnp.PyArray_DIM(rows, 0) != cnp.PyArray_DIM(envs, 0):
        raise ValueError(f"as many rows as environments are wanted, not {np.shape(rows)} and {np.shape(envs)}")
    reading._cells = rows, envs
    reading._rows, reading._envs = <const int64_t *>cnp.PyArray_DATA(rows), <const int64_t *>cnp.PyArray_DATA(envs)
    reading._count = <size_t>cnp.PyArray_DIM(rows, 0)
    return cnp.PyArray_DIM(rows, 0)


cdef bint _is_numbers(object array):
    return type(array) is cnp.ndarray and cnp.PyArray_TYPE(array) == cnp.NPY_INT64 and cnp.PyArray_ISCARRAY_RO(array)


cdef int _check_cells(Reading reading, Py_ssize_t rows, Py_ssize_t n_envs) except -1:
    cdef size_t k
    for k in range(reading._count):
        if not (0 <= reading._rows[k] < rows and 0 <= reading._envs[k] < n_envs):
            raise IndexError(f"there is no cell ({reading._rows[k]}, {reading._envs[k]}) in {rows} rows of {n_envs} environments")
    return 0


cdef int _cores() except -1:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
