# Files that are mapped to memory.

cdef extern from "mapping.h":
    const uint8_t *ft_map_file(int, size_t) nogil
    void ft_unmap_file(const uint8_t *, size_t) nogil
    void ft_will_need(const uint8_t *, size_t) nogil
    void ft_leave_pages(const uint8_t *, size_t) nogil


cdef class Mapping:
    """
    The bytes of a file, which the system reads when they are needed; mapped until nobody refers to it.

    Unlike ``mmap.mmap``, it keeps no handle: a buffer may consist of thousands of files.
    """

    cdef const uint8_t *_bytes
    cdef size_t _size
    cdef object __weakref__

    def __cinit__(self, int file, Py_ssize_t size):
        if size <= 0:
            raise ValueError(f"{size} bytes cannot be mapped")
        self._bytes = ft_map_file(file, <size_t>size)
        if self._bytes is NULL:
            raise OSError(f"{size} bytes of a file cannot be mapped to memory")
        self._size = <size_t>size

    def __dealloc__(self):
        if self._bytes is not NULL:
            ft_unmap_file(self._bytes, self._size)

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        PyBuffer_FillInfo(buffer, self, <void *>self._bytes, <Py_ssize_t>self._size, 1, flags)

    def __len__(self):
        return <Py_ssize_t>self._size

    def will_need(self, Py_ssize_t first, Py_ssize_t size):
        """Have some of it read from disk, without waiting for it."""
        if first < 0 or size < 0 or first > <Py_ssize_t>self._size or size > <Py_ssize_t>self._size - first:
            raise IndexError(f"there are no {size} bytes from {first} on in {self._size}")
        with nogil:
            ft_will_need(self._bytes + first, <size_t>size)

    def leave(self):
        """Have it count as memory of this process no longer, until it is read again; the system may keep it."""
        with nogil:
            ft_leave_pages(self._bytes, self._size)
