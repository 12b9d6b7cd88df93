"""The sum tree without numba, a level at a time; the same functions as in ``_sum_tree_kernels``."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


def set_leaves(sums: Floats, leaves: Integers, values: Floats) -> None:
    """
    Change leaves and the sums above them.

    :param sums: The tree
    :param leaves: Numbers of the leaves, checked by the caller; of one that is named twice, the last value counts
    :param values: Their new values
    """
    nodes = leaves + (sums.size >> 1)
    sums[nodes] = values
    for _ in range((sums.size >> 1).bit_length() - 1):
        nodes = np.unique(nodes >> 1)
        sums[nodes] = sums[2 * nodes] + sums[2 * nodes + 1]


def find_leaves(sums: Floats, targets: Floats, leaves: Integers) -> None:
    """
    Find the leaves in which prefix sums fall.

    Rounding can carry a target past the end of its subtree. The way therefore never turns into an empty one: from a sum
    above zero it always leads to a leaf above zero.

    :param sums: The tree, its total above zero
    :param targets: Prefix sums
    :param leaves: Receives the numbers of the leaves
    """
    first = sums.size >> 1
    nodes = np.ones(targets.size, dtype=np.int64)
    for _ in range(first.bit_length() - 1):
        nodes = 2 * nodes
        left = sums[nodes]
        right = (targets >= left) & (sums[nodes + 1] > 0)
        targets = np.where(right, targets - left, targets)
        nodes += right
    leaves[:] = nodes - first
