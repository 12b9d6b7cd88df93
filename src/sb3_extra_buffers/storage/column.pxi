# Columns of frames, their chunks, and reading from several of them at once.

cdef enum:
    MOST_AXES = 32


cdef class _Codecs:
    """
    The codecs of a column as C calls them, and what they have raised.

    Each read has one of its own, since several threads may read at once.
    """

    cdef object frame_codec, group_codec, blob
    cdef list errors
    cdef fl_codecs calls

    def __cinit__(self, frame_codec, group_codec):
        self.frame_codec, self.group_codec = frame_codec, group_codec
        self.errors = []
        self.calls.context, self.calls.encode, self.calls.decode = <void *>self, _encode, _decode

    cdef int check(self, int result) except -1:
        """Raise what a code of C says."""
        if result >= 0:
            if self.errors:
                self.errors = []  # of a codec, but what it was asked for could wait
            return 0
        errors, self.errors = self.errors, []
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
        if result == FL_INVALID:
            raise ValueError("observations of these sizes cannot be stored")
        if errors:
            raise StorageError(f"a stored group of frames is damaged: {errors[0]}") from errors[0]
        raise StorageError("a stored group of frames is damaged; what was asked for cannot be decoded")


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
    return FL_OK


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
        return FL_DAMAGED if isinstance(error, CodecError) else _code_of(error)
    return FL_OK


# -- chunks ------------------------------------------------------------------------------------------------------------------------

cdef void _let_go(void *context, const uint8_t *memory, size_t size) noexcept with gil:
    Py_DECREF(<object>context)


cdef class Chunk:
    """
    A sealed chunk: its bytes never change, and can be looked at, written to a file or sent as they are.

    :param data: ``bytes`` that hold a chunk; everything in them is checked
    """

    cdef ft_chunk *_chunk

    def __cinit__(self, bytes data=None):
        cdef const char *what = NULL
        cdef int result = FL_OK
        if data is None:
            return  # made by a column
        self._chunk = ft_chunk_open(<const uint8_t *>PyBytes_AS_STRING(data), <size_t>len(data), _let_go, <void *>data,
                                    &result, &what)
        if self._chunk is NULL:
            if what is NULL:
                raise MemoryError("out of memory: a chunk of compressed observations cannot be opened")
            raise StorageError(f"the saved observations are damaged: {what.decode()}; load another copy of the file")
        Py_INCREF(data)  # until C lets go of it

    def __dealloc__(self):
        ft_chunk_drop(self._chunk)

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        cdef size_t size
        cdef const uint8_t *memory = ft_chunk_bytes(self._chunk, &size)
        PyBuffer_FillInfo(buffer, self, <void *>memory, <Py_ssize_t>size, 1, flags)

    def __len__(self):
        cdef size_t size
        ft_chunk_bytes(self._chunk, &size)
        return <Py_ssize_t>size

    @property
    def first_row(self):
        """The row of the ring that it begins with."""
        return ft_chunk_first_row(self._chunk)

    @property
    def rows(self):
        """Number of its rows."""
        return ft_chunk_rows(self._chunk)

    @property
    def lap(self):
        """In which lap of the ring it was written."""
        return ft_chunk_lap(self._chunk)


cdef Chunk _wrap_chunk(ft_chunk *chunk):
    """Take over a chunk that the caller owns."""
    cdef Chunk wrapped = Chunk.__new__(Chunk)
    wrapped._chunk = chunk
    return wrapped


# -- columns -----------------------------------------------------------------------------------------------------------------------

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


cdef class FrameColumn:
    """
    Observations of parallel environments, in one view or two that share frames.

    Every call holds the lock, but a read only while it looks for what it is going to decode. The thread that holds the lock may
    read while it writes, as a signal handler does that comes while a codec is at work, but not write.

    :param rows: Number of rows of the ring
    :param n_envs: Number of environments
    :param views: How many observations a cell has: 1, or 2 where what followed is kept, too
    :param chunk_rows: Rows of a chunk, at most
    :param layout: How observations split into frames
    :param dtype: Type of their elements
    :param frame_codec: Codec for frames that no reference helps, or for all of them
    :param group_codec: Codec behind the references, over whole groups; None for none
    :param references: Whether frames are coded against earlier ones
    :param shift: Two to this power is the most frames in a group
    :param lock: A ``StoreLock``
    """

    cdef ft_column *_column
    cdef _Codecs _codecs
    cdef readonly object layout, lock
    cdef readonly cnp.dtype dtype
    cdef readonly Py_ssize_t rows, n_envs, views, obs_bytes
    cdef int _axes
    cdef bint _can_turn
    cdef cnp.npy_intp _shape[MOST_AXES]
    cdef cnp.npy_intp _turned_strides[MOST_AXES]
    cdef bint _writing
    cdef int _reading, _abandoned
    # The search for a frame stack, which is made in Python: how many observations were written, at which one to look, and
    # whether the layout has turned out wrong.
    cdef public Py_ssize_t writes, next_look
    cdef public bint layout_fails
    cdef public object accept
    """What brings observations that are not an array of the right type and shape into that form: a function of those and the view."""

    def __cinit__(self, rows, n_envs, views, chunk_rows, layout, dtype, frame_codec, group_codec, references, shift, lock,
                  *args, **kwargs):
        cdef ft_schema schema
        cdef int result = FL_OK
        schema.layout = _layout_of(layout)
        schema.method.references, schema.method.packs, schema.method.shift = references, group_codec is not None, shift
        schema.n_streams, schema.views = n_envs, views
        self.rows, self.n_envs, self.views, self.dtype = rows, n_envs, views, dtype
        self.lock, self._abandoned = lock, lock.abandoned
        self._codecs = _Codecs(frame_codec, group_codec)
        self._column = ft_column_new(&schema, rows, chunk_rows, &result)
        self._codecs.check(result)
        self._take_shape(layout)

    def __dealloc__(self):
        ft_column_free(self._column)

    cdef int _take_shape(self, object layout) except -1:
        """Remember the layout. Nothing here can be interrupted: what Python computes has been computed by then."""
        cdef int axis
        cdef tuple shape = layout.obs_shape
        cdef object strides = layout.turned_strides
        cdef Py_ssize_t obs_bytes = layout.obs_bytes
        for axis in range(len(shape)):
            self._shape[axis + 1] = shape[axis]
        if strides is not None:
            for axis in range(len(shape) + 1):
                self._turned_strides[axis] = strides[axis]
        self._axes, self._can_turn = 1 + <int>len(shape), strides is not None
        self.obs_bytes = obs_bytes
        self.layout = layout
        return 0

    # -- taking turns ---------------------------------------------------------------------------------------------------------

    cdef int _begin_change(self) except -1:
        """Take the lock, to change something."""
        self.lock.acquire()
        self._notice_fork()
        if self._writing or self._reading:
            self.lock.release()
            raise RuntimeError(
                "the buffer is in use by this very thread: a signal handler, or a codec, may read it or save it, "
                "but must not change it before it has returned"
            )
        self._writing = True
        return 0

    cdef int _end_change(self) except -1:
        self._writing = False
        self._codecs.blob = None
        self.lock.release()
        return 0

    cdef int _notice_fork(self) except -1:
        """In a child, take back what another thread was doing when it was forked: nobody goes on with that here."""
        cdef int abandoned = self.lock.abandoned
        if self._abandoned != abandoned:
            if self._writing:
                ft_column_abort(self._column)
            self._abandoned, self._writing, self._reading = abandoned, False, 0
        return 0

    # -- writing --------------------------------------------------------------------------------------------------------------

    cdef bint _is_plain(self, object obs, Py_ssize_t count):
        """Whether something is an array of so many observations, as they are stored."""
        cdef int axis
        if type(obs) is not cnp.ndarray or cnp.PyArray_NDIM(obs) != self._axes or cnp.PyArray_DIM(obs, 0) != count or (
            not _same_type((<cnp.ndarray>obs).descr, self.dtype)
        ):
            return False
        for axis in range(1, self._axes):
            if cnp.PyArray_DIM(obs, axis) != self._shape[axis]:
                return False
        return True

    cdef object _accepted(self, object given, Py_ssize_t view, Py_ssize_t count):
        """Observations in the form in which they are stored, or an error."""
        obs = given
        if not self._is_plain(obs, count):
            if self.accept is not None:
                obs = self.accept(given, view)
            if not self._is_plain(obs, count):
                raise ValueError(
                    f"{count} observations of shape {tuple(self.layout.obs_shape)} and type {self.dtype} are wanted, "
                    f"not {type(given).__name__} of shape {np.shape(given)}"
                )
        return obs

    cdef object _set_part(self, object obs, Py_ssize_t view, Py_ssize_t count, ft_part *part):
        """Bring observations into one of the two memory orders that C walks; what is returned keeps them alive."""
        cdef int axis
        cdef bint turned = False
        if not cnp.PyArray_IS_C_CONTIGUOUS(obs):
            # Channels first to look at, but last in memory: what VecTransposeImage hands out.
            turned = self._can_turn
            for axis in range(self._axes):
                if cnp.PyArray_STRIDE(obs, axis) != self._turned_strides[axis] and (axis > 0 or count > 1):
                    turned = False
                    break
            if not turned:
                obs = np.ascontiguousarray(obs)
        part.view, part.obs, part.turned = <size_t>view, <const uint8_t *>cnp.PyArray_DATA(obs), turned
        part.streams, part.count = NULL, <size_t>count
        return obs

    cdef int _look(self, object envs, tuple obs) except -1:
        """Before something is written: have Python look for a frame stack, where it is time to."""
        if self.layout_fails or (self.next_look and self.writes + <Py_ssize_t>len(obs) >= self.next_look):
            self._writing = False  # it may change the layout
            try:
                self.revise_layout(envs, obs)
            finally:
                self._writing = True
        elif self.next_look:
            self.writes += len(obs)
        return 0

    def revise_layout(self, envs, obs):
        """
        Look for a frame stack, or give one up that does not pay; called before observations are written.

        :param envs: Whose observations these are
        :param obs: Arrays of observations, one for each view
        """

    cdef int _stage(self, int64_t row, ft_part *parts, size_t n_parts) except -1:
        return self._codecs.check(ft_column_stage(self._column, <uint64_t>row, parts, n_parts, &self._codecs.calls))

    cdef int _commit(self) except -1:
        ft_column_commit(self._column)
        self.layout_fails = ft_column_layout_in_doubt(self._column)
        return 0

    def write(self, Py_ssize_t row, obs, Py_ssize_t view=0, other=None, envs=None):
        """
        Write observations to a row, wholly or not at all. Rows in the order of the ring are fast, others right.

        :param row: The row
        :param obs: Observations, one for each environment
        :param view: Their view
        :param other: Observations of the other view; None for none
        :param envs: Whose they are, distinct int64; None for all environments, in order
        """
        cdef ft_part parts[2]
        cdef size_t n_parts = 1 if other is None else 2
        cdef Py_ssize_t count = self.n_envs
        cdef cnp.ndarray streams = None
        if not 0 <= row < self.rows:
            raise IndexError(f"there is no row {row}")
        if not 0 <= view < self.views or (n_parts == 2 and self.views < 2):
            raise IndexError(f"there is no view {view}")
        if envs is not None:
            streams = np.ascontiguousarray(envs, dtype=np.uintp)
            count = cnp.PyArray_SIZE(streams)
            if len(set(streams.tolist())) != count:
                raise ValueError("observations of distinct environments are wanted")
        self._begin_change()
        try:
            obs = self._accepted(obs, view, count)
            if n_parts == 2:
                other = self._accepted(other, 1 - view, count)
            if self.next_look or self.layout_fails:
                self._look(range(self.n_envs) if envs is None else streams.tolist(), (obs,) if n_parts == 1 else (obs, other))
            obs = self._set_part(obs, view, count, &parts[0])
            if n_parts == 2:
                other = self._set_part(other, 1 - view, count, &parts[1])
            if streams is not None:
                parts[0].streams = parts[1].streams = <const size_t *>cnp.PyArray_DATA(streams)
            self._stage(row, parts, n_parts)
            self._commit()
        finally:
            self._end_change()

    def set_layout(self, layout):
        """
        Split observations into frames in another way from now on; rows that are sealed stay as they are.

        :param layout: The layout
        """
        cdef fl_layout sizes = _layout_of(layout)
        self._begin_change()
        try:
            self._codecs.check(ft_column_set_layout(self._column, &sizes, &self._codecs.calls))
            self._take_shape(layout)
        finally:
            self._end_change()

    def set_patience(self, uint64_t observations):
        """
        Say how many observations may not follow from the last one before the layout is given up.

        :param observations: How many
        """
        ft_column_set_patience(self._column, observations)

    def clear(self):
        """Forget all observations; the layout stays."""
        self._begin_change()
        try:
            ft_column_clear(self._column)
        finally:
            self._end_change()

    def last_observation(self, Py_ssize_t env):
        """
        Tell what was last written for an environment.

        :param env: The environment
        :return: Its bytes in C order; None where that is not known
        """
        if not 0 <= env < self.n_envs:
            raise IndexError(f"there is no environment {env}")
        out = np.empty(self.obs_bytes, dtype=np.uint8)
        self.lock.acquire()
        known = ft_column_last(self._column, <size_t>env, <uint8_t *>cnp.PyArray_DATA(out))
        self.lock.release()
        return out if known else None

    # -- reading --------------------------------------------------------------------------------------------------------------

    def read(self, rows, envs, out, Py_ssize_t view=0, other_out=None):
        """
        Read observations of a view, and of the other one at the same places; what they share is decoded once.

        :param rows: ``(m,)`` of int64
        :param envs: ``(m,)`` of int64
        :param out: C-contiguous memory for ``m`` observations, filled
        :param view: The view
        :param other_out: Memory for observations of the other view; None for none
        """
        cdef Reading reading = Reading.__new__(Reading)
        cdef uint8_t *outputs[FT_MAX_VIEWS]
        cdef Py_ssize_t count = _take_cells(reading, rows, envs)
        if not 0 <= view < self.views or (other_out is not None and self.views < 2):
            raise IndexError(f"there is no view {view}")
        outputs[view] = self._output(out, count)
        outputs[1 - view] = NULL if other_out is None else self._output(other_out, count)
        self._begin_read(reading, outputs)
        reading.finish()

    cdef uint8_t *_output(self, object out, Py_ssize_t count) except NULL:
        if not isinstance(out, cnp.ndarray) or not cnp.PyArray_CHKFLAGS(out, cnp.NPY_ARRAY_CARRAY) or (
            cnp.PyArray_NBYTES(out) != count * self.obs_bytes
        ):
            raise ValueError(f"the output must be a writable C-contiguous array of {count} observations")
        return <uint8_t *>cnp.PyArray_DATA(out)

    cdef int _begin_read(self, Reading reading, uint8_t **outputs) except -1:
        """Find what is to be decoded, under the lock; what is still being written is decoded at once."""
        cdef _Codecs codecs = _Codecs(self._codecs.frame_codec, self._codecs.group_codec)
        cdef int result = FL_OK
        cdef ft_read *begun
        self.lock.acquire()
        self._notice_fork()
        self._reading += 1
        try:
            begun = ft_read_begin(self._column, reading._rows, reading._envs, reading._count, outputs, &codecs.calls, &result)
            codecs.check(result)
        finally:
            self._reading -= 1
            self.lock.release()
        reading._hold(begun, codecs)
        return 0

    cdef bint _shares(self, size_t observations):
        """Whether so many observations are decoded by two cores, where there are two."""
        cdef size_t each = <size_t>self.obs_bytes
        return ft_column_shares(self._column, observations * each if observations <= SIZE_MAX // each else SIZE_MAX)

    # -- chunks ---------------------------------------------------------------------------------------------------------------

    def chunks(self):
        """
        List all that is stored, at one moment.

        :return: Sealed chunks in the order in which they were written, then a sealed copy of the open one, if it has any rows
        """
        cdef list found = []
        cdef Chunk wrapped
        cdef ft_chunk *chunk
        cdef ft_chunk *before = NULL
        cdef uint64_t row
        cdef int result = FL_OK
        self.lock.acquire()
        try:
            for row in range(0, <uint64_t>self.rows, FT_BLOCK_ROWS):
                chunk = ft_column_chunk(self._column, row)
                if chunk is not NULL and chunk is not before:
                    ft_chunk_keep(chunk)
                    found.append(_wrap_chunk(chunk))
                before = chunk
            chunk = ft_column_snapshot(self._column, &result)
            self._codecs.check(result)
            found.sort(key=lambda one: (one.lap, one.first_row))
            return found, None if chunk is NULL else _wrap_chunk(chunk)
        finally:
            self.lock.release()

    def adopt(self, bytes data, Py_ssize_t first_row=-1):
        """
        Put a chunk where its rows belong, without decoding it.

        :param data: The chunk; it is checked first
        :param first_row: The row that it begins with here; -1 for the one that it says
        """
        cdef Chunk chunk = Chunk(data)
        cdef uint64_t first = chunk.first_row if first_row < 0 else <uint64_t>first_row
        self._begin_change()
        try:
            if ft_column_adopt(self._column, chunk._chunk, first) != FL_OK:
                raise StorageError(
                    f"a chunk of {chunk.rows} rows from row {first} on does not fit here: its observations are of another form, "
                    f"or it is not cut at multiples of {FT_BLOCK_ROWS} rows"
                )
            chunk._chunk = NULL  # the column owns it
        finally:
            self._end_change()

    def resume(self, bytes data):
        """
        Go on with the rows of a chunk that was open when it was saved.

        :param data: The chunk; it is checked first
        """
        cdef Chunk chunk = Chunk(data)
        cdef int result
        self._begin_change()
        try:
            result = ft_column_resume(self._column, chunk._chunk, chunk.first_row, chunk.lap, &self._codecs.calls)
            if result == FL_INVALID:
                raise StorageError("the saved observations are damaged: the last chunk is of another form; load another copy")
            self._codecs.check(result)
        finally:
            self._end_change()

    def usage(self):
        """
        Tell what is stored.

        :return: Written cells of all views, frames, bytes of frames, bytes that it takes to find them, bytes of all chunks
        """
        cdef ft_usage of
        self.lock.acquire()
        of = ft_column_usage(self._column)
        self.lock.release()
        return of.cells, of.frames, of.frame_bytes, of.index_bytes, of.held_bytes


# -- a read that is under way --------------------------------------------------------------------------------------------------------

cdef enum:
    MOST_COLUMNS = 256


cdef class Reading:
    """
    Observations that have been found, and are still to be decoded: ``finish`` does that, without a lock.

    What is written meanwhile changes nothing of it.
    """

    cdef ft_read *_reads[MOST_COLUMNS]
    cdef list _codecs
    cdef Py_ssize_t _n_reads
    cdef object _kept
    cdef const int64_t *_rows
    cdef const int64_t *_envs
    cdef size_t _count
    cdef tuple _arrays
    cdef bint _two_cores

    def __cinit__(self):
        self._codecs = []

    def __dealloc__(self):
        cdef Py_ssize_t k
        for k in range(self._n_reads):
            ft_read_end(self._reads[k])

    cdef int _hold(self, ft_read *begun, _Codecs codecs) except -1:
        self._reads[self._n_reads] = begun
        self._n_reads += 1
        self._codecs.append(codecs)
        return 0

    def finish(self):
        """
        Decode.

        :return: What was asked for, in that order
        """
        cdef Py_ssize_t k
        cdef int result, threads = 2 if _cores() > 1 else 1
        cdef _Codecs codecs
        for k in range(self._n_reads):
            codecs = self._codecs[k]
            with nogil:
                result = ft_read_run(self._reads[k], threads, &codecs.calls)
            codecs.check(result)
        return self._arrays


cdef Py_ssize_t _take_cells(Reading reading, object rows, object envs) except -1:
    """Remember which cells are meant; bounds are checked by C."""
    if not (_is_numbers(rows) and _is_numbers(envs)):
        rows, envs = np.ascontiguousarray(rows, dtype=np.int64), np.ascontiguousarray(envs, dtype=np.int64)
    if cnp.PyArray_NDIM(rows) != 1 or cnp.PyArray_NDIM(envs) != 1 or cnp.PyArray_DIM(rows, 0) != cnp.PyArray_DIM(envs, 0):
        raise ValueError(f"as many rows as environments are wanted, not {np.shape(rows)} and {np.shape(envs)}")
    reading._kept = rows, envs
    reading._rows, reading._envs = <const int64_t *>cnp.PyArray_DATA(rows), <const int64_t *>cnp.PyArray_DATA(envs)
    reading._count = <size_t>cnp.PyArray_DIM(rows, 0)
    return cnp.PyArray_DIM(rows, 0)


cdef bint _is_numbers(object array):
    return type(array) is cnp.ndarray and cnp.PyArray_TYPE(array) == cnp.NPY_INT64 and cnp.PyArray_ISCARRAY_RO(array)


cdef int _cores() except -1:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
