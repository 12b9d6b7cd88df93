# Sealed chunks.

cdef void _let_go(void *context, const uint8_t *memory, size_t size) noexcept with gil:
    """Called by C when nobody needs the bytes of a chunk any more."""
    Py_DECREF(<object>context)


cdef class Chunk:
    """A sealed chunk: its bytes never change, and can be looked at, written to a file or sent as they are."""

    cdef ft_chunk *_chunk

    def __cinit__(self, data=None):
        cdef const char *what = NULL
        cdef int result
        cdef Py_buffer *memory
        if data is None:
            return  # for a column, which has one to put in
        view = memoryview(data)
        if not (view.readonly and view.c_contiguous):
            raise ValueError("a chunk must be in one piece of memory that cannot be written to, such as bytes")
        memory = PyMemoryView_GET_BUFFER(view)
        result = ft_chunk_open(<const uint8_t *>memory.buf, <size_t>memory.len, _let_go, <void *>view, &self._chunk, &what)
        if result != FT_OK:
            if result == FT_NO_MEMORY:
                raise MemoryError("out of memory: a chunk of compressed observations cannot be opened")
            raise StorageError(f"the saved observations are damaged: {what.decode()}; load another copy of the file")
        Py_INCREF(view)  # until C lets go of it

    def __dealloc__(self):
        ft_chunk_drop(self._chunk)

    cdef ft_chunk *_held(self) except NULL:
        """What Python code has made by itself holds nothing."""
        if self._chunk is NULL:
            raise ValueError("this chunk is empty: make one of its bytes, or take one of a column")
        return self._chunk

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        cdef ft_chunk_info of = ft_chunk_get_info(self._held())
        PyBuffer_FillInfo(buffer, self, <void *>of.bytes, <Py_ssize_t>of.size, 1, flags)

    def __len__(self):
        return <Py_ssize_t>ft_chunk_get_info(self._held()).size

    @property
    def first_row(self):
        """The row that it began with in the ring in which it was written."""
        return ft_chunk_get_info(self._held()).first_row

    @property
    def rows(self):
        """Number of its rows."""
        return ft_chunk_get_info(self._held()).rows


cdef Chunk _wrap_chunk(ft_chunk *chunk):
    """Take over a chunk that the caller owns."""
    cdef Chunk wrapped
    try:
        wrapped = Chunk.__new__(Chunk)
    except BaseException:
        ft_chunk_drop(chunk)
        raise
    wrapped._chunk = chunk
    return wrapped
