# Plain columns that lie in pieces of memory, such as files that are mapped.

cdef class Pieces:
    """
    Columns of plain numbers, cut into pieces of some rows each. A piece holds its rows of the first column, then of the second, ….
    """

    cdef object _starts  # addresses, of all pieces of the first column, then of the second, …
    cdef const uint8_t **_addresses
    cdef list _held
    cdef tuple _cells
    cdef Py_ssize_t _rows, _piece_rows, _n_envs
    cdef readonly Py_ssize_t n_pieces
    """How many there are."""

    def __cinit__(self, Py_ssize_t rows, Py_ssize_t piece_rows, Py_ssize_t n_envs, cell_bytes):
        self._cells = tuple(map(int, cell_bytes))
        if rows < 0 or piece_rows < 1 or n_envs < 1 or not self._cells or min(self._cells) < 1:
            raise ValueError(f"{rows} rows of {n_envs} environments in pieces of {piece_rows}, with cells of {self._cells} bytes")
        self._rows, self._piece_rows, self._n_envs = rows, piece_rows, n_envs
        self.n_pieces = -(-rows // piece_rows)
        self._starts = np.zeros(self.n_pieces * len(self._cells), np.uintp)
        self._addresses = <const uint8_t **>cnp.PyArray_DATA(self._starts)
        self._held = [None] * self.n_pieces

    def put(self, Py_ssize_t piece, data not None):
        """Say where a piece is."""
        cdef Py_ssize_t column, rows, at = 0
        if not 0 <= piece < self.n_pieces:
            raise IndexError(f"there is no piece {piece} of {self.n_pieces}")
        view = memoryview(data)
        rows = min(self._piece_rows, self._rows - piece * self._piece_rows)
        if not (view.readonly and view.c_contiguous) or view.nbytes != rows * self._n_envs * sum(self._cells):
            raise ValueError(f"{view.nbytes} bytes are not {rows} rows of {self._n_envs} environments with {self._cells} bytes")
        self._held[piece] = view
        for column in range(len(self._cells)):
            self._addresses[column * self.n_pieces + piece] = <const uint8_t *>PyMemoryView_GET_BUFFER(view).buf + at
            at += rows * self._n_envs * <Py_ssize_t>self._cells[column]

    def gather(self, Py_ssize_t column, rows, envs, out not None):
        """Read cells of a column."""
        cdef Reading reading = Reading.__new__(Reading)
        cdef Py_ssize_t count = _take_cells(reading, rows, envs), k, cell
        if not 0 <= column < len(self._cells):
            raise IndexError(f"there is no column {column} of {len(self._cells)}")
        cell = <Py_ssize_t>self._cells[column]
        if type(out) is not cnp.ndarray or not cnp.PyArray_ISCARRAY(out) or cnp.PyArray_NBYTES(out) != count * cell:
            raise ValueError(f"{count} cells of {cell} bytes need a contiguous array of so many bytes")
        _check_cells(reading, self._rows, self._n_envs)
        for k in range(count):
            if self._addresses[column * self.n_pieces + <Py_ssize_t>reading._rows[k] // self._piece_rows] is NULL:
                raise ValueError(f"the piece of row {reading._rows[k]} has not been put")
        if count:
            ft_gather_pieces(self._addresses + column * self.n_pieces, <size_t>self._piece_rows, <size_t>cell,
                             <size_t>self._n_envs, reading._rows, reading._envs, <size_t>count,
                             <uint8_t *>cnp.PyArray_DATA(out))
