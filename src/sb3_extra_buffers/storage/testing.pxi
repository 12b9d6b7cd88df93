# For tests: what the core does inside.

cdef extern from "kernels.h":
    enum: FT_READ_AHEAD, FT_WRITE_AHEAD
    size_t FT_NO_PATCH
    ctypedef struct ft_kernels:
        const char *name
        size_t (*encode)(const uint8_t *, const uint8_t *, size_t, size_t, const uint8_t *, uint32_t *, uint8_t *, size_t,
                         size_t) noexcept
        bint (*apply)(const uint8_t *, size_t, uint8_t *, size_t, size_t) noexcept
    const ft_kernels *ft_active
    const ft_kernels *ft_find_best_kernels()
    const ft_kernels *ft_find_kernels(const char *)
    size_t ft_measure_patch(const uint8_t *, size_t)

cdef extern from "allocation.h":
    int64_t ft_refuse_allocation(int64_t)

READ_AHEAD = FT_READ_AHEAD
WRITE_AHEAD = FT_WRITE_AHEAD


def use_kernels(str name):
    """Choose the instructions that the core uses, for the whole process."""
    global ft_active
    cdef bytes before = ft_active.name
    cdef const ft_kernels *chosen = ft_find_kernels(name.encode()) if name else ft_find_best_kernels()
    if chosen is NULL:
        raise ValueError(f"this processor has no kernels named {name!r}")
    ft_active = chosen
    return before.decode()


def refuse_allocation(int64_t after):
    """Have one allocation of this thread in C fail."""
    return ft_refuse_allocation(after)


def encode_patch(const uint8_t[::1] before, const uint8_t[::1] now, size_t row, uint8_t[::1] out, size_t pos, size_t stop,
                 uint32_t row_above=0):
    """Write the patch that makes a frame of another."""
    cdef size_t size = <size_t>now.shape[0]
    if before.shape[0] != now.shape[0] or size < 1 or stop > <size_t>out.shape[0] or pos > stop or row > size:
        raise ValueError("these sizes do not fit each other")
    cdef uint8_t[::1] zeros = np.zeros(row + 1, dtype=np.uint8)
    cdef size_t end = ft_active.encode(&before[0], &now[0], size, row, &zeros[0], &row_above, &out[0] if stop else NULL, pos, stop)
    return (-1 if end == FT_NO_PATCH else end), row_above


def apply_patch(const uint8_t[::1] patch, uint8_t[::1] frame, size_t size, size_t row):
    """Change a frame as a patch says."""
    if patch.shape[0] < FT_READ_AHEAD or frame.shape[0] < FT_WRITE_AHEAD or size > <size_t>frame.shape[0] - FT_WRITE_AHEAD:
        raise ValueError("there is not enough memory after the patch or the frame")
    cdef size_t length = ft_measure_patch(&patch[0], <size_t>patch.shape[0] - FT_READ_AHEAD)
    if length == 0 or not ft_active.apply(&patch[0], length, &frame[0], size, row):
        return -1
    return length
