"""Drawing leaves in proportion to their values, in logarithmic time."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sb3_extra_buffers.storage._core import find_leaves, set_leaves

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


class SumTree:
    """
    Non-negative numbers whose prefix sums can be searched: a full binary tree in one array, the root at 1.

    Every inner node is the sum of its two children as they are now, so the tree depends on its leaves alone, however
    often they changed.
    """

    def __init__(self, n_leaves: int) -> None:
        if n_leaves < 1:
            raise ValueError(f"n_leaves is {n_leaves}; a tree needs at least one leaf")
        self.n_leaves = n_leaves
        self._first = 1 << (n_leaves - 1).bit_length()
        self._sums: Floats = np.zeros(2 * self._first)

    @property
    def total(self) -> float:
        """The sum of all leaves."""
        return float(self._sums[1])

    @property
    def nbytes(self) -> int:
        """Bytes that the tree takes."""
        return self._sums.nbytes

    @property
    def leaves(self) -> Floats:
        """The values of all leaves, as a view that cannot be written to."""
        view = self._sums[self._first : self._first + self.n_leaves]
        view.flags.writeable = False
        return view

    def set(self, leaves: npt.ArrayLike, values: npt.ArrayLike) -> None:
        """Change leaves."""
        numbers: Integers = np.ascontiguousarray(leaves, dtype=np.int64).ravel()
        amounts: Floats = np.asarray(values, dtype=np.float64).ravel()
        if amounts.size != numbers.size:
            amounts = np.broadcast_to(amounts, numbers.shape)
        if numbers.size == 0:
            return
        if numbers.min() < 0 or numbers.max() >= self.n_leaves:
            raise IndexError(f"leaves must be within 0 and {self.n_leaves - 1}, not {numbers.min()} to {numbers.max()}")
        if not (amounts.min() >= 0 and amounts.max() < np.inf):  # also false for NaN
            raise ValueError("the values of leaves must be finite and not negative")
        set_leaves(self._sums, numbers, np.ascontiguousarray(amounts))

    def find(self, targets: npt.ArrayLike) -> Integers:
        """Find the leaves in which prefix sums fall."""
        if self.total <= 0:
            raise ValueError("all leaves are 0: there is nothing to find")
        wanted: Floats = np.ascontiguousarray(targets, dtype=np.float64).ravel()
        found: Integers = np.empty(wanted.size, dtype=np.int64)
        find_leaves(self._sums, wanted, found)
        return found

    def sample(self, size: int) -> Integers:
        """Draw leaves in proportion to their values with NumPy's global generator, one from each of ``size`` equal ranges."""
        return self.find((np.arange(size) + np.random.random_sample(size)) * (self.total / size))

    def __getstate__(self) -> dict[str, Any]:
        return {"leaves": np.array(self.leaves)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        leaves = state["leaves"]
        SumTree.__init__(self, len(leaves))
        self._sums[self._first : self._first + len(leaves)] = leaves
        level = self._first
        while level > 1:
            self._sums[level // 2 : level] = self._sums[level : 2 * level : 2] + self._sums[level + 1 : 2 * level : 2]
            level //= 2
