"""Tables: rows of all columns written and read at once, with NumPy arrays as the oracle."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from frames_kit import QUICK_METHODS, make_column, refuse_each, watch_codecs
from hypothesis import given
from hypothesis import strategies as st
from observation_streams import PRESENTATIONS, Stack, Stream, assert_same_bits, present, scribble

from sb3_extra_buffers.codecs import CodecError
from sb3_extra_buffers.storage import StorageError, StoreLock
from sb3_extra_buffers.storage._core import PlainColumn, Table

Values = tuple[Any, ...]


class TableKit:
    """
    A table of two columns of frames, one with both views, and four plain ones, beside what NumPy holds.

    :param method: Method string
    :param rows: Rows
    :param n_envs: Environments
    :param chunk_rows: Rows of a chunk
    :param wraps: Whether it is a ring
    :param seed: Of what is in it
    """

    def __init__(
        self, method: str | None, rows: int = 40, n_envs: int = 2, chunk_rows: int = 16, wraps: bool = True, seed: int = 0
    ) -> None:
        self.rows, self.n_envs = rows, n_envs
        self.rng = np.random.default_rng(seed)
        self.picture = Stream(seed, n_envs, (1, 9, 8), np.uint8, "mixed", Stack(3, 0), done_rate=0.1)
        self.vector = Stream(seed + 1, n_envs, (12,), np.float32, "mixed")
        self.lock = StoreLock()
        options: Any = {"n_envs": n_envs, "method": method, "rows": rows, "chunk_rows": chunk_rows, "lock": self.lock}
        self.frames = make_column((3, 9, 8), **options), make_column((12,), np.float32, views=1, **options)
        self.plain = [
            PlainColumn(np.zeros((rows, n_envs, 3), np.float32), reshapes=True),
            PlainColumn(np.zeros((rows, n_envs), np.float32)),
            PlainColumn(np.zeros((rows, n_envs), np.int64)),
            PlainColumn(np.zeros((rows, n_envs, 2, 2), np.float16)),
        ]
        columns = [self.plain[0], self.frames[0], self.plain[1], self.frames[1], *self.plain[2:]]
        self.names = ["actions", None, "rewards", None, None, None]
        self.table = Table(columns, rows, n_envs, self.lock, wraps, self.names)
        self.twins = [
            np.zeros((rows, n_envs, *shape), dtype)
            for shape, dtype in [
                *(((3,), np.float32), ((3, 9, 8), np.uint8), ((3, 9, 8), np.uint8), ((), np.float32), ((12,), np.float32)),
                *(((), np.int64), ((2, 2), np.float16)),
            ]
        ]
        self.state = self.table.attributes
        self.pos = 0

    def row(self, how: str = "plain") -> Values:
        """
        Make values of a row.

        :param how: How observations lie in memory
        """
        obs, next_obs = self.picture.step()[:2]
        n = self.n_envs
        return (
            self.rng.standard_normal((n, 3)).astype(np.float32),
            present(obs, how),
            present(next_obs, how),
            self.rng.standard_normal(n).astype(np.float32),
            present(self.vector.step()[0], how),
            self.rng.integers(-(2**63), 2**63 - 1, n),
            self.rng.standard_normal((n, 2, 2)).astype(np.float16),
        )

    def note(self, values: Values) -> None:
        """
        Take note that a row was written.

        :param values: What was in it
        """
        for twin, value in zip(self.twins, values, strict=True):
            twin[self.pos] = np.reshape(value, twin[self.pos].shape)
        self.pos = (self.pos + 1) % self.rows

    def add(self, count: int = 1) -> None:
        """
        Write rows.

        :param count: How many
        """
        for _ in range(count):
            values = self.row()
            self.table.append(values)
            self.note(values)

    def check(self, seed: int = 0) -> None:
        """Compare everything, and then some cells and some values."""
        rows, envs = np.divmod(np.arange(self.rows * self.n_envs), self.n_envs)
        rng = np.random.default_rng(seed)
        some = rng.integers(0, self.rows, 20), rng.integers(0, self.n_envs, 20)
        for places, wanted in (((rows, envs), None), (some, (1, 3)), (some, (2, 0, 4)), (some, ())):
            got = self.table.begin_read(*places, wanted).finish()
            expected = tuple(self.twins[value][places] for value in (range(7) if wanted is None else wanted))
            assert_same_bits(got, expected)


@pytest.mark.parametrize("method", [None, *QUICK_METHODS])
@given(
    rows=st.integers(1, 50),
    n_envs=st.integers(1, 3),
    chunk_rows=st.sampled_from([1, 16, 32]),
    seed=st.integers(0, 999),
    counts=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    how=st.sampled_from(sorted(PRESENTATIONS)),
)
def test_rows_are_what_was_appended(
    method: str | None, rows: int, n_envs: int, chunk_rows: int, seed: int, counts: list[int], how: str
) -> None:
    kit = TableKit(method, rows, n_envs, chunk_rows, seed=seed)
    written = 0
    for count in counts:
        for _ in range(count):
            values = kit.row(how)
            kit.table.append(values)
            kit.note(values)
            for value in values:
                scribble(value)  # the caller may use them again
            written += 1
            assert (kit.state["pos"], kit.state["full"]) == (written % rows, written >= rows)
        kit.check(seed)
    kit.table.clear()
    assert (kit.state["pos"], kit.state["full"]) == (0, False)
    for twin in kit.twins:
        twin[:] = 0
    kit.pos = 0
    kit.check()
    kit.add(3)
    kit.check()


def test_without_wrapping_a_full_table_is_full() -> None:
    kit = TableKit("delta", rows=5, wraps=False)
    kit.add(5)
    assert kit.state["full"] and kit.state["pos"] == 5
    with pytest.raises(IndexError, match="no row 5"):
        kit.table.append(kit.row())
    kit.check()
    kit.table.clear()
    kit.table.append(kit.row())
    assert kit.state["pos"] == 1 and not kit.state["full"]


def test_a_position_that_somebody_has_set() -> None:
    """SB3 counts on by itself, in classes that were not written for this."""
    kit = TableKit("delta", rows=20)
    kit.add(7)
    kit.state["pos"] = kit.pos = 3
    kit.add(2)
    kit.state["pos"], kit.pos = 20, 0
    kit.add(1)
    assert kit.state["pos"] == 1 and kit.state["full"]
    kit.check()
    kit.state["pos"] = -1
    with pytest.raises(IndexError):
        kit.table.append(kit.row())
    kit.check()


GIVEN: dict[str, tuple[int, Any, Any]] = {
    "flags": (3, [False, False], [0.0, 0.0]),
    "some flags": (3, [False, True], [0.0, 1.0]),
    "bools": (3, np.array([True, False]), [1.0, 0.0]),
    "doubles": (3, np.array([0.1, -1e300 / 1e290]), np.array([0.1, -1e10], np.float32)),
    "specials": (3, np.array([np.nan, -np.inf]), [np.nan, -np.inf]),
    "subnormal": (3, np.array([1e-46, -0.0]), np.array([1e-46, -0.0], np.float32)),
    "integers": (3, np.array([3, 4]), [3.0, 4.0]),
    "a number": (3, 7, [7.0, 7.0]),
    "one row": (0, np.arange(6, dtype=np.float32), [[0, 1, 2], [3, 4, 5]]),
    "another shape": (0, np.arange(6).reshape(3, 1, 2), [[0, 1, 2], [3, 4, 5]]),
    "steps": (0, np.arange(12, dtype=np.float32)[::2].reshape(2, 3), [[0, 2, 4], [6, 8, 10]]),
    "big endian": (5, np.array([5, -6], ">i8"), [5, -6]),
    "small integers": (5, np.array([200, 3], np.uint8), [200, 3]),
    "halves": (6, np.float64(0.5), np.full((2, 2, 2), 0.5)),
}


@pytest.mark.parametrize("what", GIVEN)
def test_what_plain_columns_take(what: str) -> None:
    """What NumPy takes in an assignment to a row, and with the same result."""
    place, value, expected = GIVEN[what]
    kit = TableKit("none", rows=6)
    kit.add(2)
    values = list(kit.row())
    values[place] = value
    kit.table.append(tuple(values))
    values[place] = np.array(expected, kit.twins[place].dtype)
    kit.note(tuple(values))
    kit.check()


def test_what_does_not_fit_is_warned_of_as_numpy_does() -> None:
    kit = TableKit("none", rows=6)
    values = list(kit.row())
    values[3] = np.array([1e300, 1.0])
    with pytest.warns(RuntimeWarning, match="overflow"):
        kit.table.append(tuple(values))
    assert np.isinf(kit.plain[1].array[0, 0])
    with warnings.catch_warnings(), pytest.raises(RuntimeWarning):
        warnings.simplefilter("error")
        kit.table.append(tuple(values))
    assert kit.state["pos"] == 1


WRONG: dict[str, tuple[int, Any]] = {
    "too many actions": (0, np.zeros((2, 4), np.float32)),
    "no number": (3, "a reward"),
    "three rewards": (3, np.zeros(3, np.float32)),
    "three flags": (3, [False] * 3),
    "a picture of another size": (1, np.zeros((2, 3, 9, 9), np.uint8)),
    "a following picture of another type": (2, np.zeros((2, 3, 9, 8), np.float32)),
    "no vector": (4, None),
    "vectors of three": (4, np.zeros((3, 12), np.float32)),
    "actions of words": (0, np.array([["a"] * 3] * 2)),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_does_not_fit_changes_nothing(what: str) -> None:
    kit = TableKit("delta", rows=20)
    kit.add(25)
    place, value = WRONG[what]
    for _ in range(2):
        values = list(kit.row())
        values[place] = value
        with pytest.raises((ValueError, TypeError)):
            kit.table.append(tuple(values))
        assert kit.state["pos"] == kit.pos
        kit.check()
        kit.add()
    for wrong in ((), kit.row()[:-1], (*kit.row(), 0)):
        with pytest.raises(ValueError, match="7 values"):
            kit.table.append(wrong)
    kit.check()


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, MemoryError, CodecError])
@pytest.mark.parametrize("method", QUICK_METHODS)
def test_a_codec_that_fails_for_any_column(method: str, error: type[BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for the second column of frames, when the first has been coded already."""
    left = [-1]

    def call(_: str) -> None:
        left[0] -= 1
        if left[0] == -1:
            raise error("from a codec")

    watch_codecs(monkeypatch, call)
    kit = TableKit(method, rows=20)
    failed = 0
    for step in range(60):
        values = kit.row()
        for after in range(200):  # the whole open chunk may be coded again, by another layout
            left[0] = after
            try:
                kit.table.append(values)
            except (error, StorageError):
                failed += 1
                left[0] = -1
                assert kit.state["pos"] == kit.pos
                if step % 7 == 0:
                    kit.check()
                continue
            break
        else:
            pytest.fail("it never succeeds")
        left[0] = -1
        kit.note(values)
    kit.check()
    assert failed > 20


@pytest.mark.parametrize("method", QUICK_METHODS)
def test_memory_that_is_refused_for_any_column(method: str) -> None:
    kit = TableKit(method, rows=20)
    failed = 0
    for _ in range(45):
        values = kit.row()
        done: list[int] = []

        def append(values: Values = values, done: list[int] = done) -> None:
            kit.state["pos"] = kit.pos  # it may have been able to do without
            kit.table.append(values)
            done.append(1)

        def unchanged(done: list[int] = done) -> None:
            assert kit.state["pos"] == kit.pos
            if not done:
                kit.check()

        failed += refuse_each(append, unchanged)[0]
        kit.note(values)
        kit.check()
    assert failed > 8


# -- arrays of somebody else -----------------------------------------------------------------------


def test_arrays_may_be_replaced() -> None:
    kit = TableKit("delta", rows=10)
    attributes: dict[str, Any] = {
        "pos": 0,
        "full": False,
        "actions": kit.plain[0].array,
        "rewards": kit.plain[1].array,
        "other": 3,
    }
    values = kit.row()
    kit.table.append(values, attributes)
    kit.note(values)
    attributes["rewards"] = kit.plain[1].array.astype(np.float64)
    values = kit.row()
    kit.table.append(values, attributes)
    kit.note(values)
    np.testing.assert_array_equal(attributes["rewards"][:2], kit.twins[3][:2])
    attributes["rewards"] = np.arange(20, dtype=np.float32).reshape(10, 2)
    (rewards,) = kit.table.begin_read(np.array([4]), np.array([1]), (3,), attributes).finish()
    assert rewards.tolist() == [9.0]
    for wrong in (np.zeros((11, 2)), np.zeros((10, 4))[:, ::2], np.zeros(20), np.zeros((10, 2), object), [0], "ab"):
        attributes["rewards"] = wrong
        with pytest.raises((ValueError, TypeError)):
            kit.table.append(kit.row(), attributes)
        with pytest.raises((ValueError, TypeError)):
            kit.table.begin_read(np.array([4]), np.array([1]), (3,), attributes)
    attributes["rewards"] = None
    kit.table.append(kit.row(), attributes)
    assert attributes["pos"] == 3 and kit.state["pos"] == 0, "each dict says where whoever has it goes on"
    for missing in ("pos", "full"):
        with pytest.raises(KeyError):
            kit.table.append(kit.row(), {name: value for name, value in attributes.items() if name != missing})


def test_columns_that_do_not_fit_together() -> None:
    plain = PlainColumn(np.zeros((4, 2), np.float32))
    for columns, names in (
        ([plain, PlainColumn(np.zeros((5, 2), np.float32))], None),
        ([plain, make_column((9, 8), rows=4, n_envs=3)], None),
        ([plain], ["a", "b"]),
    ):
        with pytest.raises(ValueError):
            Table(columns, 4, 2, StoreLock(), names=names)
    for array in (np.zeros(4), np.zeros((4, 2), object), np.zeros((2, 4)).T, np.broadcast_to(0.0, (4, 2))):
        with pytest.raises(ValueError):
            PlainColumn(array)
    for call in (lambda: PlainColumn.__new__(PlainColumn), lambda: PlainColumn(None), lambda: Table.__new__(Table)):
        with pytest.raises(TypeError):
            call()


@pytest.mark.parametrize("cell", [(-1, 0), (40, 0), (0, 2), (0, -1), (2**62, 0), (0, -(2**63))])
def test_cells_that_there_are_not(cell: tuple[int, int]) -> None:
    kit = TableKit("none")
    kit.add(3)
    with pytest.raises(IndexError, match="no cell"):
        kit.table.begin_read(np.array([0, cell[0]]), np.array([0, cell[1]]))
    for wanted in ((7,), (-1,), (0, 0), (2**62,)):
        with pytest.raises(IndexError, match="values"):
            kit.table.begin_read(np.array([0]), np.array([0]), wanted)
    kit.check()


# -- reads that are finished later -----------------------------------------------------------------


@pytest.mark.parametrize("method", QUICK_METHODS)
def test_a_read_gives_what_was_there_when_it_began(method: str) -> None:
    """Whatever the ring does meanwhile."""
    kit = TableKit(method, rows=40)
    kit.add(50)
    rows, envs = np.divmod(np.arange(80), 2)
    for change in (lambda: kit.add(1), lambda: kit.add(45), lambda: kit.add(130), kit.table.clear):
        expected = tuple(twin[rows, envs] for twin in kit.twins)
        reading = kit.table.begin_read(rows, envs)
        rows[:] = 99  # nobody looks at them again
        change()
        assert_same_bits(reading.finish(), expected)
        with pytest.raises(RuntimeError, match="once"):
            reading.finish()
        rows, envs = np.divmod(np.arange(80), 2)


def test_reads_that_are_never_finished_let_go_of_chunks() -> None:
    kit = TableKit("none", rows=40)
    kit.add(60)
    held = kit.frames[0].usage()[4]
    rows, envs = np.divmod(np.arange(80), 2)
    for _ in range(300):
        kit.table.begin_read(rows, envs)
        kit.add(1)
    kit.check()
    assert kit.frames[0].usage()[4] < 1.5 * held
