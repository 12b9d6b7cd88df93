# Codecs: the only Python that C calls back.

cdef class _Codecs:
    """
    The codecs of a column as C calls them, and what they have raised.

    Each read has one of its own, since several threads may read at once.
    """

    cdef object frame_codec, group_codec, blob
    cdef list errors
    cdef ft_codecs calls

    def __cinit__(self, frame_codec, group_codec):
        self.frame_codec, self.group_codec = frame_codec, group_codec
        self.errors = []
        self.calls.context, self.calls.encode, self.calls.decode = <void *>self, _encode, _decode

    cdef int check(self, int result) except -1:
        """Raise what a code of C says."""
        if result >= 0:
            if self.errors:
                self.errors = []  # of a codec, but what it was called for could wait
            return 0
        errors, self.errors = self.errors, []
        if result == FT_CODEC or (result == FT_NO_MEMORY and errors):
            # Undoing what has failed may have been interrupted by something that must not be lost.
            raise next((error for error in errors if not isinstance(error, Exception)), errors[0])
        if result == FT_NO_MEMORY:
            refused = ft_get_refused_bytes()
            size = "more bytes than can be addressed" if refused == FT_MORE_THAN_ALL else f"{refused:,} bytes"
            raise MemoryError(
                f"out of memory: {size} for compressed observations were refused by the system; "
                "what is stored so far is unharmed"
            )
        if result == FT_OUTSIDE:
            raise IndexError("there is no such cell")
        if result == FT_INVALID:
            raise ValueError("observations of these sizes cannot be stored")
        if errors:
            raise StorageError(f"a stored group of frames is damaged: {errors[0]}") from errors[0]
        raise StorageError("a stored group of frames is damaged; what is wanted cannot be decoded")


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
    return FT_NO_MEMORY if isinstance(error, MemoryError) else FT_CODEC


cdef int _encode(void *context, int which, const uint8_t *data, size_t size, const uint8_t **blob,
                 size_t *blob_size) noexcept with gil:
    cdef _Codecs codecs = <_Codecs>context
    cdef bytes coded
    try:
        codec = codecs.group_codec if which else codecs.frame_codec
        coded = codec.encode(_copied(data, size))
    except BaseException as error:
        codecs.errors.append(error)
        return _code_of(error)
    codecs.blob = coded  # until the next one
    blob[0] = <const uint8_t *>PyBytes_AS_STRING(coded)
    blob_size[0] = <size_t>len(coded)
    return FT_OK


cdef int _decode(void *context, int which, const uint8_t *blob, size_t blob_size, uint8_t *data,
                 size_t size) noexcept with gil:
    cdef _Codecs codecs = <_Codecs>context
    try:
        codec = codecs.group_codec if which else codecs.frame_codec
        out = _zeros(size)
        codec.decode(_copied(blob, blob_size), out)
        if <size_t>cnp.PyArray_NBYTES(out) != size:
            raise ValueError(f"a codec must fill its output, not change the size of it from {size} to {out.nbytes} bytes")
        memcpy(data, cnp.PyArray_DATA(out), size)
    except BaseException as error:
        codecs.errors.append(error)
        return FT_DAMAGED if isinstance(error, CodecError) else _code_of(error)
    return FT_OK
