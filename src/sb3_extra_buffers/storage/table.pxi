# Rows of all columns, written and read together.

cdef bint _same_type(cnp.dtype a, cnp.dtype b):
    """Whether two types are the same. What comes from a pickle, or from another process, has types that are other objects."""
    if a.type_num == b.type_num and a.type_num < cnp.NPY_OBJECT:  # nearly always
        return a.byteorder == b.byteorder
    return cnp.PyArray_EquivTypes(a, b)


cdef enum:
    AS_IT_IS
    BOOLS
    DOUBLES
    FLAGS


cdef class PlainColumn:
    """A column of numbers that is kept as it is: an ndarray whose first axis is rows."""

    cdef readonly cnp.ndarray array
    cdef readonly bint reshapes
    cdef readonly object accept
    cdef Py_ssize_t _row_bytes, _elements
    # A value that has been looked at, and is about to be stored.
    cdef object _value
    cdef int _kind

    def __cinit__(self, cnp.ndarray array not None, bint reshapes=False, accept=None):
        self.reshapes, self.accept = reshapes, accept
        self.set_array(array)

    def set_array(self, cnp.ndarray array not None):
        """Use another array."""
        if array.ndim < 2 or array.dtype.hasobject or not cnp.PyArray_ISCARRAY(array):
            raise ValueError(
                "a column must be a writable C-contiguous array of numbers with an axis of rows and one of environments, "
                f"not one of shape {np.shape(array)} and type {array.dtype}"
            )
        if self.array is not None and np.shape(self.array) != np.shape(array):
            raise ValueError(f"a column of shape {np.shape(self.array)} cannot be replaced by one of shape {np.shape(array)}")
        self._row_bytes = cnp.PyArray_STRIDE(array, 0)
        self._elements = cnp.PyArray_SIZE(array) // max(cnp.PyArray_DIM(array, 0), 1)
        self.array = array

    cdef bint _fits(self, object value):
        """Whether a value has as many numbers as a row, one after the other in memory."""
        cdef int axis
        if type(value) is not cnp.ndarray or not cnp.PyArray_ISCARRAY_RO(value):
            return False
        if self.reshapes:
            return cnp.PyArray_SIZE(value) == self._elements
        if cnp.PyArray_NDIM(value) != cnp.PyArray_NDIM(self.array) - 1:
            return False
        for axis in range(cnp.PyArray_NDIM(value)):
            if cnp.PyArray_DIM(value, axis) != cnp.PyArray_DIM(self.array, axis + 1):
                return False
        return True

    cdef int _kind_of(self, object value):
        """How a value is copied; environments hand out the type that is stored, or bools or doubles for floats. -1: by NumPy."""
        cdef int given = cnp.PyArray_TYPE(value), stored = cnp.PyArray_TYPE(self.array)
        cdef const double *doubles = <const double *>cnp.PyArray_DATA(value)
        cdef Py_ssize_t i
        if given == stored or cnp.PyArray_EquivTypenums(given, stored):  # C has several integers of 64 bits
            return AS_IT_IS if given < cnp.NPY_OBJECT or given == cnp.NPY_FLOAT16 else -1  # neither is swapped, or it would not be a C array
        if stored == cnp.NPY_FLOAT32 and given == cnp.NPY_BOOL:
            return BOOLS
        if stored == cnp.NPY_FLOAT32 and given == cnp.NPY_FLOAT64:
            for i in range(self._elements):
                if isfinite(doubles[i]) and fabs(doubles[i]) > FLT_MAX:
                    return -1  # NumPy has a warning for that
            return DOUBLES
        return -1

    cdef int _prepare(self, object value) except -1:
        """Look at a value, and raise now what storing it would raise."""
        self._kind = -1
        if type(value) is list and cnp.PyArray_TYPE(self.array) == cnp.NPY_FLOAT32 and len(<list>value) == self._elements and (
            cnp.PyArray_NDIM(self.array) == 2
        ):
            for flag in <list>value:
                if flag is not False:
                    break
            else:
                self._kind = FLAGS
                return 0
        if type(value) is list and self.accept is None and not self.reshapes:
            value = np.array(value)  # of one type, as by SB3, before it is stored
        if self.accept is not None and not (self._fits(value) and self._kind_of(value) == AS_IT_IS):
            value = self.accept(value)
        if self._fits(value):
            self._kind = self._kind_of(value)
        if self._kind < 0:
            row = np.empty(np.shape(self.array)[1:], dtype=self.array.dtype)
            row[...] = value.reshape(np.shape(row)) if self.reshapes else value
            value, self._kind = row, AS_IT_IS
        self._value = value
        return 0

    cdef int _put(self, Py_ssize_t row) noexcept:
        """Store what was prepared; that cannot fail."""
        cdef uint8_t *to = <uint8_t *>cnp.PyArray_DATA(self.array) + row * self._row_bytes
        cdef float *floats = <float *>to
        cdef const void *given
        cdef Py_ssize_t i
        if self._kind == FLAGS:
            memset(to, 0, <size_t>self._row_bytes)
            return 0
        given = cnp.PyArray_DATA(self._value)
        if self._kind == AS_IT_IS:
            memmove(to, given, <size_t>self._row_bytes)
        elif self._kind == BOOLS:
            for i in range(self._elements):
                floats[i] = (<const uint8_t *>given)[i]
        else:
            for i in range(self._elements):
                floats[i] = <float>(<const double *>given)[i]
        return 0

    cdef object _gather(self, Reading reading, Py_ssize_t n_envs):
        cdef cnp.npy_intp shape[MOST_AXES]
        cdef int axis, axes = cnp.PyArray_NDIM(self.array) - 1
        if cnp.PyArray_DIM(self.array, 1) != n_envs:
            raise ValueError(f"a column of shape {np.shape(self.array)} has no axis of environments to read from")
        shape[0] = <cnp.npy_intp>reading._count
        for axis in range(1, axes):
            shape[axis] = cnp.PyArray_DIM(self.array, axis + 1)
        if cnp.PyArray_TYPE(self.array) < cnp.NPY_OBJECT and cnp.PyArray_ISNOTSWAPPED(self.array):
            out = cnp.PyArray_SimpleNew(axes, shape, cnp.PyArray_TYPE(self.array))
        else:
            out = np.empty([shape[axis] for axis in range(axes)], dtype=self.array.dtype)
        ft_gather_cells(<const uint8_t *>cnp.PyArray_DATA(self.array), <size_t>cnp.PyArray_STRIDE(self.array, 1),
                  <size_t>cnp.PyArray_DIM(self.array, 1), reading._rows, reading._envs, reading._count,
                  <uint8_t *>cnp.PyArray_DATA(out))
        return out


cdef class Table:
    """
    A ring of rows x environments, in columns: frames, which are compressed, and plain numbers.

    A row is written wholly or not at all, and seen only then. Values come in the order of the columns; a column of frames with two
    views takes two. What a table says of itself is in a dict: ``pos``, the row that comes next, ``full``, whether all rows are
    written, and plain columns by name. A buffer hands over its own attributes for that, so what they are is what the table uses.
    """

    cdef readonly Py_ssize_t rows, n_envs, n_values
    cdef readonly bint wraps
    cdef readonly object lock
    cdef readonly tuple columns, names
    cdef readonly dict attributes
    """What the table says of itself where nobody hands over a dict."""
    cdef readonly uint64_t appended
    """How many rows have been written in all."""
    cdef readonly Py_ssize_t failed
    """Which value could not be stored when ``append`` last failed; -1 where none is to blame."""
    cdef tuple _frames
    cdef bint _writing
    cdef int _abandoned

    def __cinit__(self, columns, rows, n_envs, lock, wraps=True, names=None):
        self.columns, self.rows, self.n_envs, self.wraps, self.lock = tuple(columns), rows, n_envs, wraps, lock
        self.names = (None,) * len(self.columns) if names is None else tuple(names)
        self._frames = tuple([column for column in self.columns if isinstance(column, FrameColumn)])
        self._abandoned = lock.abandoned
        self.attributes, self.failed = {"pos": 0, "full": False}, -1
        if len(self.names) != len(self.columns):
            raise ValueError(f"{len(self.columns)} columns cannot have {len(self.names)} names")
        for column in self.columns:
            if isinstance(column, FrameColumn):
                fits, self.n_values = (column.rows, column.n_envs) == (rows, n_envs), self.n_values + column.views
            else:
                fits, self.n_values = len(column.array) == rows, self.n_values + 1
            if not fits:
                raise ValueError(f"a column does not fit a table of {rows} rows and {n_envs} environments")

    cdef int _use_arrays(self, dict attributes) except -1:
        """Use the arrays that somebody has put in place of ours."""
        cdef Py_ssize_t k
        for k in range(len(self.columns)):
            if self.names[k] is not None:
                array = attributes.get(self.names[k])
                if array is not None and array is not (<PlainColumn>self.columns[k]).array:
                    (<PlainColumn>self.columns[k]).set_array(array)
        return 0

    def append(self, tuple values, dict attributes=None):
        """Write a row and go on to the next one."""
        cdef Py_ssize_t at = 0, row
        cdef FrameColumn frames
        cdef ft_part parts[2]
        if len(values) != self.n_values:
            raise ValueError(f"a row has {self.n_values} values, not {len(values)}")
        self._begin_change()
        try:
            attributes = self.attributes if attributes is None else attributes
            row, self.failed = attributes["pos"], -1
            is_full = attributes["full"]
            if row >= self.rows and self.wraps:  # somebody has counted on, and was interrupted
                is_full, row = True, 0
            if not 0 <= row < self.rows:
                raise IndexError(f"there is no row {row}: the table has {self.rows}")
            self._use_arrays(attributes)
            for column in self.columns:
                if isinstance(column, PlainColumn):
                    self.failed = at
                    (<PlainColumn>column)._prepare(values[at])
                    at += 1
                else:
                    at += (<FrameColumn>column).views
            at, self.failed = 0, -1
            following = row + 1
            is_full = is_full or following == self.rows
            if following == self.rows and self.wraps:
                following = 0
            for column in self.columns:
                if isinstance(column, PlainColumn):
                    at += 1
                    continue
                frames = <FrameColumn>column
                obs = frames._accepted(values[at], 0, self.n_envs)
                other = frames._accepted(values[at + 1], 1, self.n_envs) if frames.views == 2 else None
                if frames.next_look or frames.layout_fails:
                    frames._count_writes(range(self.n_envs), (obs,) if other is None else (obs, other))
                obs = frames._set_part(obs, 0, self.n_envs, &parts[0])
                if other is not None:
                    other = frames._set_part(other, 1, self.n_envs, &parts[1])
                frames._stage(row, parts, <size_t>frames.views)
                at += frames.views
            # From here on nothing can fail, and no Python runs.
            for column in self.columns:
                if isinstance(column, PlainColumn):
                    (<PlainColumn>column)._put(row)
                else:
                    (<FrameColumn>column)._commit()
            self.appended += 1
            attributes["full"] = is_full
            attributes["pos"] = following
        finally:
            for column in self._frames:
                (<FrameColumn>column)._abort()  # what was staged, but is not committed
            self._end_change()

    cdef int _notice_fork(self) except -1:
        """In a child, nobody goes on with what another thread was writing; its columns take that back themselves."""
        cdef int abandoned = self.lock.abandoned
        if self._abandoned != abandoned:
            self._abandoned, self._writing = abandoned, False
        return 0

    cdef int _begin_change(self) except -1:
        """Take the lock, to change something in all columns."""
        cdef FrameColumn frames
        self.lock.acquire()
        self._notice_fork()
        busy = self._writing
        for column in self._frames:
            frames = <FrameColumn>column
            frames._notice_fork()
            busy = busy or frames._writing or frames._reading
        if busy:
            self.lock.release()
            raise RuntimeError(
                "the buffer is in use by this very thread: a signal handler, or a codec, may read it or save it, "
                "but must not change it before it has returned"
            )
        self._writing = True
        for column in self._frames:
            (<FrameColumn>column)._writing = True
        return 0

    cdef int _end_change(self) except -1:
        self._writing = False
        for column in self.columns:
            if isinstance(column, PlainColumn):
                (<PlainColumn>column)._value = None
            else:
                (<FrameColumn>column)._writing = False
                (<FrameColumn>column)._codecs.blob = None
        self.lock.release()
        return 0

    def begin_read(self, rows, envs, tuple wanted=None, dict attributes=None):
        """Find what is to be read. Plain columns are read at once, frames when ``finish`` of what is returned is called."""
        cdef Reading reading = Reading.__new__(Reading)
        cdef Py_ssize_t count = _take_cells(reading, rows, envs), at = 0, place = 0, view
        cdef uint8_t *outputs[FT_MAX_VIEWS]
        cdef list arrays = [None] * (self.n_values if wanted is None else len(wanted))
        cdef FrameColumn frames
        cdef bint any_view
        for column in self._frames:
            frames = <FrameColumn>column
            if frames._shares(2 * <size_t>count) and _cores() > 1:
                ft_wake_helper()  # a second core takes a moment to wake up
                break
        self.lock.acquire()
        try:
            self._notice_fork()
            if not self._writing:  # else values have been prepared for the arrays that are in use
                self._use_arrays(self.attributes if attributes is None else attributes)
            _check_cells(reading, self.rows, self.n_envs)
            # Plain columns first: nothing else runs meanwhile, so nobody can change what has just been checked.
            for column in self.columns:
                if isinstance(column, PlainColumn):
                    place = _place_of(at, wanted)
                    if place >= 0:
                        arrays[place] = (<PlainColumn>column)._gather(reading, self.n_envs)
                    at += 1
                else:
                    at += (<FrameColumn>column).views
            at = 0
            for column in self.columns:
                if isinstance(column, PlainColumn):
                    at += 1
                    continue
                frames = <FrameColumn>column
                any_view = False
                for view in range(FT_MAX_VIEWS):
                    outputs[view] = NULL
                    place = _place_of(at + view, wanted) if view < frames.views else -1
                    if place >= 0:
                        out = output_pool.take((count, *frames.layout.obs_shape), frames.dtype)
                        outputs[view] = <uint8_t *>cnp.PyArray_DATA(out)
                        arrays[place] = out
                        any_view = True
                if any_view and count:
                    frames._begin_read(reading, outputs)
                at += frames.views
        finally:
            self.lock.release()
        for out in arrays:
            if out is None:
                raise IndexError(f"a row has the values 0 to {self.n_values - 1}, each of which can be wanted once, not {wanted}")
        reading._arrays = tuple(arrays)
        return reading

    def clear(self, dict attributes=None, dict replaced=None):
        """Forget all rows, in one step."""
        self._begin_change()
        try:
            attributes = self.attributes if attributes is None else attributes
            if replaced is None:
                self._use_arrays(attributes)
            new = {"pos": 0, "full": False, **(replaced or {})}
            for name, column in zip(self.names, self.columns):
                if isinstance(column, PlainColumn):
                    if name is None or replaced is None:
                        (<PlainColumn>column).array[...] = 0
                else:
                    ft_column_clear((<FrameColumn>column)._column)
            attributes.update(new)
        finally:
            self._end_change()


cdef Py_ssize_t _place_of(Py_ssize_t value, tuple wanted) except -2:
    """Where a value comes among those that are wanted; -1 where it is not."""
    cdef Py_ssize_t place
    if wanted is None:
        return value
    for place in range(len(wanted)):
        if <Py_ssize_t>wanted[place] == value:
            return place
    return -1
