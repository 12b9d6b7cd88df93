"""The sum tree, compiled. Import this only at first use: it imports numba.

``_sum_tree_numpy`` does the same sums in the same order, so both give the same tree and the same leaves, bit for bit.
Indices are unsigned: numba's wrap-around of negative ones costs a test at every step.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sb3_extra_buffers.codecs._jit import jit_kernel

ONE = np.uint64(1)


@jit_kernel
def set_leaves(sums: Any, leaves: Any, values: Any) -> None:
    """
    Change leaves and the sums above them.

    :param sums: The tree
    :param leaves: Numbers of the leaves, checked by the caller; of one that is named twice, the last value counts
    :param values: Their new values
    """
    first = np.uint64(sums.size >> 1)
    for i in range(leaves.size):
        node = first + np.uint64(leaves[i])
        sums[node] = values[i]
        node >>= ONE
        while node > 0:
            # Added up anew, never by a difference: rounding errors do not pile up over millions of updates.
            sums[node] = sums[node << ONE] + sums[(node << ONE) + ONE]
            node >>= ONE


@jit_kernel
def find_leaves(sums: Any, targets: Any, leaves: Any) -> None:
    """
    Find the leaves in which prefix sums fall; see the fallback for why an empty leaf is never found.

    :param sums: The tree, its total above zero
    :param targets: Prefix sums
    :param leaves: Receives the numbers of the leaves
    """
    first = np.uint64(sums.size >> 1)
    for i in range(targets.size):
        target = targets[i]
        node = ONE
        while node < first:
            node <<= ONE
            if target >= sums[node] and sums[node + ONE] > 0.0:
                target -= sums[node]
                node += ONE
        leaves[i] = node - first
