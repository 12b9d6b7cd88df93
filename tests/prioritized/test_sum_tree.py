"""The sum tree against prefix sums and a search in them."""

from __future__ import annotations

import pickle

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sb3_extra_buffers.storage._core import find_leaves, set_leaves
from sb3_extra_buffers.storage.sum_tree import SumTree

Floats = npt.NDArray[np.float64]


class PlainTree:
    """
    The same in NumPy, level by level.

    :param n_leaves: Number of leaves, a power of two
    """

    def __init__(self, n_leaves: int) -> None:
        self.sums = np.zeros(2 * n_leaves)

    def set_leaves(self, leaves: npt.NDArray[np.int64], values: Floats) -> None:
        first = self.sums.size // 2
        for leaf, value in zip(leaves.tolist(), values.tolist(), strict=True):
            self.sums[first + leaf] = value
        while first > 1:
            below = self.sums[first : 2 * first]
            self.sums[first // 2 : first] = below[::2] + below[1::2]
            first //= 2

    def find_leaves(self, targets: Floats) -> npt.NDArray[np.int64]:
        nodes, left = np.ones(targets.size, np.int64), targets.copy()
        for _ in range((self.sums.size // 2).bit_length() - 1):
            nodes *= 2
            right = (left >= self.sums[nodes]) & (self.sums[nodes + 1] > 0)
            left[right] -= self.sums[nodes[right]]
            nodes += right
        return nodes - self.sums.size // 2


def search(leaves: Floats, targets: Floats) -> npt.NDArray[np.int64]:
    """The plain way: the first prefix sum above the target."""
    return np.searchsorted(np.cumsum(leaves), targets, side="right")


def nodes(tree: SumTree) -> Floats:
    return tree._sums


# Whole numbers add up without rounding, so the order of additions makes no difference.
whole = st.lists(st.integers(0, 1000).map(float), min_size=1, max_size=70).filter(any)


@given(values=whole, data=st.data())
@settings(max_examples=60, deadline=None)
def test_finds_what_a_search_in_prefix_sums_finds(values: list[float], data: st.DataObject) -> None:
    leaves = np.array(values)
    tree = SumTree(len(values))
    set_leaves(nodes(tree), np.arange(len(values)), leaves)
    assert tree.total == leaves.sum()
    targets = np.array(data.draw(st.lists(st.floats(0, tree.total, exclude_max=True), max_size=20)), dtype=np.float64)
    targets = np.concatenate([targets, np.cumsum(leaves)[:-1]])  # and just on the edges
    targets = targets[targets < tree.total]
    found = np.empty(targets.size, dtype=np.int64)
    find_leaves(nodes(tree), targets, found)
    np.testing.assert_array_equal(found, search(leaves, targets))


updates = st.lists(
    st.tuples(st.integers(0, 40), st.floats(0, 1e30, allow_subnormal=False)),
    min_size=1,
    max_size=40,
)


@given(batches=st.lists(updates, min_size=1, max_size=5), data=st.data())
@settings(max_examples=60, deadline=None)
def test_compiled_and_plain_agree_to_the_bit(batches: list[list[tuple[int, float]]], data: st.DataObject) -> None:
    tree, plain = SumTree(41), PlainTree(64)
    for batch in batches:
        leaves, values = np.array([b[0] for b in batch]), np.array([b[1] for b in batch])
        set_leaves(nodes(tree), leaves, values)
        plain.set_leaves(leaves, values)
        np.testing.assert_array_equal(nodes(tree), plain.sums)
    targets = np.array(data.draw(st.lists(st.floats(0, 1), min_size=1, max_size=20))) * tree.total
    if tree.total > 0:
        found = np.empty(targets.size, dtype=np.int64)
        find_leaves(nodes(tree), targets, found)
        np.testing.assert_array_equal(found, plain.find_leaves(targets))
        assert (tree.leaves[found] > 0).all(), "a leaf of 0 was found"


@settings(max_examples=60, deadline=None)
@given(values=st.lists(st.one_of(st.just(0.0), st.floats(1e-300, 1e280)), min_size=1, max_size=50).filter(any))
def test_rounding_never_leads_to_an_empty_leaf(values: list[float]) -> None:
    tree = SumTree(len(values))
    tree.set(np.arange(len(values)), values)
    past_the_end = np.nextafter(tree.total, np.inf)
    targets = np.concatenate([np.cumsum(values), np.nextafter(np.cumsum(values), 0), [0.0, tree.total, past_the_end]])
    assert (tree.leaves[tree.find(targets)] > 0).all()


def test_many_updates_leave_no_drift() -> None:
    rng = np.random.default_rng(0)
    tree = SumTree(100)
    for _ in range(3000):
        tree.set(rng.integers(0, 100, 16), 10.0 ** rng.uniform(-12, 12, 16))
    fresh = SumTree(100)
    fresh.set(np.arange(100), tree.leaves)
    np.testing.assert_array_equal(nodes(tree), nodes(fresh))
    tree.set(np.arange(100), 0.0)
    assert tree.total == 0.0


def test_the_last_value_of_a_leaf_named_twice_counts() -> None:
    tree = SumTree(5)
    tree.set([3, 1, 3, 3], [1.0, 2.0, 7.0, 4.0])
    np.testing.assert_array_equal(tree.leaves, [0, 2, 0, 4, 0])
    assert tree.total == 6.0


@pytest.mark.parametrize("n_leaves", [1, 2, 3, 8, 9, 1000])
def test_any_number_of_leaves(n_leaves: int) -> None:
    tree = SumTree(n_leaves)
    tree.set(n_leaves - 1, 2.5)
    assert tree.total == 2.5
    np.testing.assert_array_equal(tree.sample(7), np.full(7, n_leaves - 1))


def test_frequencies_are_proportional() -> None:
    values = np.random.default_rng(1).uniform(0, 5, 20)
    values[[0, 7, 19]] = 0
    tree = SumTree(20)
    tree.set(np.arange(20), values)
    np.random.seed(0)
    counts = np.bincount(np.concatenate([tree.sample(5) for _ in range(2000)]), minlength=20)
    expected = values / values.sum() * counts.sum()
    assert not counts[values == 0].any()
    chi_square = ((counts - expected)[values > 0] ** 2 / expected[values > 0]).sum()
    assert chi_square < 39.3  # 16 degrees of freedom, p = 0.001; the seed is fixed


def test_one_draw_from_each_range() -> None:
    tree = SumTree(64)
    tree.set(np.arange(64), 0.1)
    for seed in range(10):
        np.random.seed(seed)
        np.testing.assert_array_equal(tree.sample(32) // 2, np.arange(32))


def test_draws_from_the_global_generator() -> None:
    tree = SumTree(50)
    tree.set(np.arange(50), np.arange(50))
    np.random.seed(3)
    expected = search(tree.leaves, (np.arange(10) + np.random.random_sample(10)) * (tree.total / 10))
    after = np.random.random_sample()
    np.random.seed(3)
    np.testing.assert_array_equal(tree.sample(10), expected)
    assert np.random.random_sample() == after


def test_pickles_its_leaves_only() -> None:
    tree = SumTree(1000)
    tree.set(np.arange(1000), np.random.default_rng(0).random(1000))
    blob = pickle.dumps(tree)
    assert len(blob) < 8 * 1000 + 500
    loaded = pickle.loads(blob)
    np.testing.assert_array_equal(nodes(loaded), nodes(tree))
    assert loaded.n_leaves == 1000


def test_what_the_core_takes_for_granted_is_checked() -> None:
    """Before it works on memory without looking."""
    sums, leaves, values = np.zeros(8), np.array([1, 3]), np.ones(2)
    for wrong in (np.zeros(7), np.zeros(6), np.zeros(1), np.zeros(0)):
        with pytest.raises(ValueError, match="power of two"):
            set_leaves(wrong, leaves, values)
        with pytest.raises(ValueError, match="power of two"):
            find_leaves(wrong, values, leaves)
    for leaf in (-1, 4, 2**62, -(2**63)):
        with pytest.raises(IndexError, match="no leaf"):
            set_leaves(sums, np.array([1, leaf]), values)
    for other in (np.ones(1), np.ones(3)):
        with pytest.raises(ValueError):
            set_leaves(sums, leaves, other)
        with pytest.raises(ValueError):
            find_leaves(sums, other, leaves)
    frozen = np.zeros(8)
    frozen.flags.writeable = False
    with pytest.raises(ValueError):
        set_leaves(frozen, leaves, values)
    assert not sums.any() and not frozen.any()
    for target in (np.nan, np.inf, -np.inf, -1.0):  # anything but a leaf that there is not
        found = np.full(1, 99)
        find_leaves(np.array([0, 3, 1, 2, 1, 0, 1, 1.0]), np.array([target]), found)
        assert 0 <= found[0] < 4


def test_errors() -> None:
    with pytest.raises(ValueError, match="at least one leaf"):
        SumTree(0)
    tree = SumTree(3)
    with pytest.raises(ValueError, match="nothing to find"):
        tree.find([0.0])
    for leaf in (-1, 3):
        with pytest.raises(IndexError, match="within 0 and 2"):
            tree.set(leaf, 1.0)
    for value in (-1.0, np.nan, np.inf):
        with pytest.raises(ValueError, match="finite and not negative"):
            tree.set([0, 1], [1.0, value])
    assert tree.total == 0
    with pytest.raises(ValueError, match="read-only"):
        tree.leaves[0] = 1
    tree.set([], [])
