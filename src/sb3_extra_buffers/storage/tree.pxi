# Sums for prioritized replay.

cdef size_t _leaves_of(double[::1] sums) except 0:
    cdef size_t first = <size_t>sums.shape[0] >> 1
    if first < 1 or first & (first - 1) or <size_t>sums.shape[0] != 2 * first:
        raise ValueError(f"a tree of sums has twice a power of two numbers, not {sums.shape[0]}")
    return first


def set_leaves(double[::1] sums, int64_t[::1] leaves, const double[::1] values):
    """Change leaves of a tree and the sums above them."""
    cdef size_t first = _leaves_of(sums)
    cdef Py_ssize_t i
    if leaves.shape[0] != values.shape[0]:
        raise ValueError(f"{leaves.shape[0]} leaves cannot have {values.shape[0]} values")
    for i in range(leaves.shape[0]):
        if not 0 <= leaves[i] < <int64_t>first:
            raise IndexError(f"there is no leaf {leaves[i]}")
    if leaves.shape[0]:
        with nogil:
            ft_tree_set_leaves(&sums[0], first, &leaves[0], &values[0], <size_t>leaves.shape[0])


def find_leaves(double[::1] sums, const double[::1] targets, int64_t[::1] leaves):
    """Find the leaves in which prefix sums fall."""
    cdef size_t first = _leaves_of(sums)
    if leaves.shape[0] != targets.shape[0]:
        raise ValueError(f"{targets.shape[0]} targets do not fit {leaves.shape[0]} leaves")
    if leaves.shape[0]:
        with nogil:
            ft_tree_find_leaves(&sums[0], first, &targets[0], &leaves[0], <size_t>leaves.shape[0])
