"""Which cells a shard draws."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from sb3_extra_buffers.distributed.schema import Array
from sb3_extra_buffers.storage.sum_tree import SumTree

# Between these no stored transition becomes unreachable and no sum of the tree overflows.
SMALLEST_SHARE, LARGEST_SHARE = 1e-300, 1e280


class Drawer(ABC):
    """
    Draws cells of a ring.

    :param rng: What random numbers come from
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    @abstractmethod
    def add(self, first: int, count: int) -> None:
        """
        Note that cells have been written.

        :param first: The first one
        :param count: How many
        """

    @abstractmethod
    def draw(self, batch_size: int, batches: int, size: int) -> tuple[Array, Array]:
        """
        Draw cells.

        :param batch_size: Cells of a batch
        :param batches: How many batches
        :param size: Cells that are written
        :return: Cells, batch after batch, and the share of each in ``total``
        """

    @abstractmethod
    def total(self, size: int) -> float:
        """
        Tell the sum of all shares.

        :param size: Cells that are written
        :return: The sum
        """

    def update(self, cells: Array, priorities: Array) -> None:
        """
        Set priorities, where there are any.

        :param cells: Whose
        :param priorities: One each
        """
        raise ValueError("this run draws uniformly and has no priorities; use ShardedPrioritizedReplayBuffer")


class UniformDrawer(Drawer):
    """Every cell has the same share, which is 1."""

    def add(self, first: int, count: int) -> None:
        """Nothing has to be noted."""

    def draw(self, batch_size: int, batches: int, size: int) -> tuple[Array, Array]:
        """As in ``Drawer``."""
        cells = self.rng.integers(0, size, batch_size * batches)
        return cells, np.ones(len(cells))

    def total(self, size: int) -> float:
        """As in ``Drawer``."""
        return float(size)


class PriorityDrawer(Drawer):
    """
    Shares are priorities to the power of ``alpha``; new cells get the highest so far.

    :param rng: What random numbers come from
    :param capacity: Number of cells
    :param alpha: How much priorities matter
    :param eps: Added to each priority
    """

    def __init__(self, rng: np.random.Generator, capacity: int, alpha: float, eps: float) -> None:
        super().__init__(rng)
        self.tree, self.highest = SumTree(capacity), 1.0
        self.alpha, self.eps = alpha, eps

    def add(self, first: int, count: int) -> None:
        """As in ``Drawer``."""
        self.tree.set(np.arange(first, first + count), self.highest)

    def draw(self, batch_size: int, batches: int, size: int) -> tuple[Array, Array]:
        """As in ``Drawer``; one cell from each of ``batch_size`` ranges of equal probability."""
        places = (np.arange(batch_size) + self.rng.random((batches, batch_size))) * (self.tree.total / batch_size)
        cells = self.tree.find(places.ravel())
        return cells, self.tree.leaves[cells].copy()

    def total(self, size: int) -> float:
        """As in ``Drawer``."""
        return self.tree.total

    def update(self, cells: Array, priorities: Array) -> None:
        """As in ``Drawer``."""
        if not len(cells):
            return
        values = np.asarray(priorities, np.float64)
        if not (values.min() >= 0 and values.max() < np.inf):  # also false for NaN
            raise ValueError("priorities must be finite and not negative; did the loss diverge?")
        with np.errstate(over="ignore", under="ignore"):
            shares = np.clip((values + self.eps) ** self.alpha, SMALLEST_SHARE, LARGEST_SHARE)
        self.tree.set(cells, shares)
        self.highest = max(self.highest, float(shares.max()))
