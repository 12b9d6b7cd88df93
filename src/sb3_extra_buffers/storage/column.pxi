# Columns of frames.

cdef enum:
    MOST_AXES = 64  # what NumPy allows


cdef cnp.ndarray _streams_of(object envs, Py_ssize_t n_envs):
    """Numbers of distinct environments, as C wants them."""
    numbers = np.asarray(envs)
    if numbers.ndim != 1 or (numbers.dtype.kind not in "iu" and numbers.size):
        raise ValueError(f"environments are a list of integers, not {numbers.dtype} of shape {numbers.shape}")
    listed = numbers.tolist()
    for env in listed:
        if not 0 <= env < n_envs:
            raise IndexError(f"there is no environment {env}")
    if len(set(listed)) != len(listed):
        raise ValueError("observations of distinct environments are wanted")
    return np.array(listed, dtype=np.uintp)


cdef ft_layout _layout_of(object layout) except *:
    """The sizes of a layout. From here on it knows them all without running Python, which may be interrupted."""
    cdef ft_layout result
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
    result.pixel = layout.pixel_bytes
    layout.obs_bytes
    return result


cdef class FrameColumn:
    """
    Observations of parallel environments, in one view or two that share frames.

    Every call holds the lock, but a read only while it looks for what it is going to decode. The thread that holds the lock may
    read while it writes, as a signal handler does that comes while a codec is at work, but not write.
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
    # Set by the thread that holds the lock: whether something is being changed, and how far that has got; how many reads this
    # thread has begun; and how often the lock had been taken from a thread that is not there when these were set.
    cdef bint _writing, _revising
    cdef int _reading, _abandoned
    # The search for a frame stack, which is made in Python: how many observations were written, at which one to look, and
    # whether the layout has turned out wrong.
    cdef public Py_ssize_t writes, next_look
    cdef public bint layout_fails
    cdef public object accept
    """What brings observations that are not an array of the right type and shape into that form, from them and the view."""

    def __cinit__(self, rows, n_envs, views, chunk_rows, layout, dtype, frame_codec, group_codec, references, shift, lock,
                  *args, **kwargs):
        cdef ft_schema schema
        schema.layout = _layout_of(layout)
        schema.method.references, schema.method.packs, schema.method.shift = references, group_codec is not None, shift
        schema.n_streams, schema.views = n_envs, views
        self.rows, self.n_envs, self.views, self.dtype = rows, n_envs, views, dtype
        self.lock, self._abandoned = lock, lock.abandoned
        self._codecs = _Codecs(frame_codec, group_codec)
        self._codecs.check(ft_column_new(&schema, rows, chunk_rows, &self._column))
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
            self._abort()
            self._abandoned, self._writing, self._revising, self._reading = abandoned, False, False, 0
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

    cdef int _count_writes(self, object envs, tuple obs) except -1:
        """Before something is written: have Python look for a frame stack, where it is time to."""
        if self.layout_fails or (self.next_look and self.writes + <Py_ssize_t>len(obs) >= self.next_look):
            self._revising = True  # it may change the layout, and nothing else
            try:
                self.revise_layout(envs, obs)
            finally:
                self._revising = False
        elif self.next_look:
            self.writes += len(obs)
        return 0

    def revise_layout(self, envs, obs):
        """Look for a frame stack, or give one up that does not pay; called before observations are written."""

    cdef int _stage(self, int64_t row, ft_part *parts, size_t n_parts) except -1:
        """Code a row. ``_commit`` or ``_abort`` must follow."""
        return self._codecs.check(ft_column_stage(self._column, <uint64_t>row, parts, n_parts, &self._codecs.calls))

    cdef int _commit(self) noexcept:
        ft_column_commit(self._column)
        self.layout_fails = ft_column_doubts_layout(self._column)
        return 0

    cdef int _abort(self) noexcept:
        """Take back what was staged and is not committed, or what a fork has cut off; else this does nothing."""
        ft_column_abort(self._column)
        return 0

    def write(self, Py_ssize_t row, obs, Py_ssize_t view=0, other=None, envs=None):
        """Write observations to a row, wholly or not at all. Rows in the order of the ring are fast, others right."""
        cdef ft_part parts[2]
        cdef size_t n_parts = 1 if other is None else 2
        cdef Py_ssize_t count = self.n_envs
        cdef cnp.ndarray streams = None
        if not 0 <= row < self.rows:
            raise IndexError(f"there is no row {row}")
        if not 0 <= view < self.views or (n_parts == 2 and self.views < 2):
            raise IndexError(f"there is no view {view}")
        if envs is not None:
            streams = _streams_of(envs, self.n_envs)
            count = cnp.PyArray_SIZE(streams)
        self._begin_change()
        try:
            obs = self._accepted(obs, view, count)
            if n_parts == 2:
                other = self._accepted(other, 1 - view, count)
            if self.next_look or self.layout_fails:
                self._count_writes(range(self.n_envs) if streams is None else streams.tolist(),
                                   (obs,) if n_parts == 1 else (obs, other))
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
        """Split observations into frames in another way from now on; rows that are sealed stay as they are."""
        cdef ft_layout sizes = _layout_of(layout)
        cdef bint revising = self.lock.is_mine() and self._revising
        if revising:  # by the thread that is writing: that is the one change which is expected now
            self._revising = False
        else:
            self._begin_change()
        try:
            self._codecs.check(ft_column_set_layout(self._column, &sizes, &self._codecs.calls))
            self._take_shape(layout)
        finally:
            if revising:
                self._revising = True
            else:
                self._end_change()

    def set_patience(self, uint64_t observations):
        """Say how many observations may not follow from the last one before the layout is given up."""
        ft_column_set_patience(self._column, observations)

    def clear(self):
        """Forget all observations; the layout stays."""
        self._begin_change()
        try:
            ft_column_clear(self._column)
        finally:
            self._end_change()

    def last_observation(self, Py_ssize_t env):
        """Look up what was last written for an environment."""
        if not 0 <= env < self.n_envs:
            raise IndexError(f"there is no environment {env}")
        out = np.empty(self.obs_bytes, dtype=np.uint8)
        self.lock.acquire()
        known = ft_column_get_last(self._column, <size_t>env, <uint8_t *>cnp.PyArray_DATA(out))
        self.lock.release()
        return out if known else None

    # -- reading --------------------------------------------------------------------------------------------------------------

    def read(self, rows, envs, out, Py_ssize_t view=0, other_out=None):
        """Read observations of a view, and of the other one at the same places; what they share is decoded once."""
        cdef Reading reading = Reading.__new__(Reading)
        cdef uint8_t *outputs[FT_MAX_VIEWS]
        cdef Py_ssize_t count = _take_cells(reading, rows, envs)
        if not 0 <= view < self.views or (other_out is not None and self.views < 2):
            raise IndexError(f"there is no view {view}")
        outputs[view] = self._output(out, count)
        outputs[1 - view] = NULL if other_out is None else self._output(other_out, count)
        self._begin_read(reading, outputs)
        reading.finish()  # the caller has the arrays

    cdef uint8_t *_output(self, object out, Py_ssize_t count) except NULL:
        if not isinstance(out, cnp.ndarray) or not cnp.PyArray_CHKFLAGS(out, cnp.NPY_ARRAY_CARRAY) or (
            cnp.PyArray_NBYTES(out) != count * self.obs_bytes
        ):
            raise ValueError(f"the output must be a writable C-contiguous array of {count} observations")
        return <uint8_t *>cnp.PyArray_DATA(out)

    cdef int _begin_read(self, Reading reading, uint8_t **outputs) except -1:
        """Find what is to be decoded, under the lock; what is still being written is decoded at once."""
        cdef _ColumnRead part = _ColumnRead.__new__(_ColumnRead)
        part._codecs = _Codecs(self._codecs.frame_codec, self._codecs.group_codec)
        self.lock.acquire()
        self._notice_fork()
        self._reading += 1
        try:
            part._codecs.check(ft_read_begin(self._column, reading._rows, reading._envs, reading._count, outputs,
                                             &part._codecs.calls, &part._read))
        finally:
            self._reading -= 1
            self.lock.release()
        reading._pending.append(part)
        return 0

    cdef bint _shares(self, size_t observations):
        """Whether so many observations are decoded by two cores, where there are two."""
        cdef size_t each = <size_t>self.obs_bytes
        return ft_column_can_share(self._column, observations * each if observations <= SIZE_MAX // each else SIZE_MAX)

    # -- chunks ---------------------------------------------------------------------------------------------------------------

    def spans(self):
        """
        List all that is stored, at one moment: each span as its chunk, a row of that, the row of the ring that this is, and how many
        rows there are.
        """
        cdef size_t count, k
        cdef ft_chunk *chunk
        cdef const ft_span *spans
        cdef list found = []
        cdef dict wrapped = {}
        self.lock.acquire()
        try:
            spans = ft_column_get_spans(self._column, &count)
            for k in range(count):
                chunk = spans[k].chunk
                if <size_t>chunk not in wrapped:
                    ft_chunk_keep(chunk)
                    wrapped[<size_t>chunk] = _wrap_chunk(chunk)
                found.append((wrapped[<size_t>chunk], spans[k].chunk_row, spans[k].first_row, spans[k].rows))
            self._codecs.check(ft_column_snapshot(self._column, &chunk))
            if chunk is NULL:
                return found, None
            last = _wrap_chunk(chunk)
            return found, (last, 0, last.first_row, last.rows)
        finally:
            self.lock.release()

    @property
    def sealed_bytes(self):
        """Bytes of all chunks that have ever been sealed here."""
        return ft_column_count_sealed_bytes(self._column)

    def adopt(self, data not None, Py_ssize_t first_row=-1, Py_ssize_t chunk_row=0, Py_ssize_t rows=-1):
        """Put rows of a chunk in a place of the ring, without decoding them."""
        cdef Chunk chunk = data if isinstance(data, Chunk) else Chunk(data)
        cdef ft_chunk *held = chunk._held()
        cdef uint64_t first = chunk.first_row if first_row < 0 else <uint64_t>first_row
        cdef int result
        rows = chunk.rows - chunk_row if rows < 0 else rows
        self._begin_change()
        try:
            result = ft_column_adopt(self._column, held, <uint64_t>chunk_row, first, <uint64_t>rows)
            if result == FT_INVALID:
                raise StorageError(
                    f"{rows} rows of a chunk do not fit here from row {first} on: its observations are of another form, or "
                    "these rows are being written"
                )
            self._codecs.check(result)
        finally:
            self._end_change()

    def adopt_row(self, Chunk chunk not None, Py_ssize_t row, Py_ssize_t chunk_row):
        """Write the cells of one row of a chunk, whose other cells stay as they are, and go on behind it."""
        cdef ft_chunk *held = chunk._held()
        cdef int result
        self._begin_change()
        try:
            result = ft_column_adopt_row(self._column, held, <uint64_t>chunk_row, <uint64_t>row, &self._codecs.calls)
            if result == FT_INVALID:
                raise StorageError(f"a row of a chunk does not fit here as row {row}: its observations are of another form")
            self._codecs.check(result)
        finally:
            self._end_change()

    def exchange(self, Chunk chunk not None, Chunk copy not None):
        """
        Put a copy of a sealed chunk in its place, such as one that is mapped from a file; what the ring has left stays so.
        """
        self._begin_change()
        try:
            if ft_column_exchange(self._column, chunk._held(), copy._held()) != FT_OK:
                raise StorageError("a chunk can be exchanged for a copy of itself only")
        finally:
            self._end_change()

    def arrange(self, Chunk chunk not None):
        """Arrange a sealed chunk for a disk: a cell of it takes fewer pages to read then."""
        cdef const ft_chunk *given = chunk._held()
        cdef ft_chunk *made = NULL
        cdef int result
        with nogil:  # nobody waits for it: chunks never change
            result = ft_chunk_arrange(given, &made)
        if result != FT_OK:
            return chunk  # also where there is no memory for it
        arranged = _wrap_chunk(made)
        self._begin_change()
        try:
            ft_column_put_arranged(self._column, given, made)
        finally:
            self._end_change()
        return arranged

    def usage(self):
        """Count what is stored."""
        cdef ft_usage of
        self.lock.acquire()
        of = ft_column_get_usage(self._column)
        self.lock.release()
        return of.cells, of.frames, of.frame_bytes, of.index_bytes, of.held_bytes

    def coded_frames(self):
        """Count frames by what they were coded by."""
        cdef ft_usage of
        self.lock.acquire()
        of = ft_column_get_usage(self._column)
        self.lock.release()
        return [of.coded[coder] for coder in range(FT_MOST_CODERS)]
