"""A column beside a NumPy array: whatever is written, saved, loaded, adopted or laid out anew, both hold the same."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from frames_kit import QUICK_METHODS, chunks_of, contents_of, make_column
from hypothesis import given
from hypothesis import strategies as st
from observation_streams import Stack, Stream

from sb3_extra_buffers.storage import StorageError
from sb3_extra_buffers.storage.directory import Replacement, SavedDirectory
from sb3_extra_buffers.storage.frame_files import load_frames, save_frames
from sb3_extra_buffers.storage.frames import Frames, FrozenFrames
from sb3_extra_buffers.storage.layout import FrameLayout

SHAPE, DEPTH, ENVS = (3, 4, 5), 3, 2

actions = st.lists(
    st.one_of(
        st.tuples(st.just("rows"), st.integers(1, 40)),
        st.tuples(st.just("view"), st.integers(0, 1)),
        st.tuples(st.just("alone"), st.integers(1, 20)),
        st.tuples(st.just("cell"), st.integers(0, 999)),
        st.tuples(st.just("again"), st.integers(1, 12)),
        st.tuples(st.just("back"), st.integers(1, 20)),
        st.tuples(st.just("jump"), st.integers(0, 199)),
        st.tuples(st.just("reset"), st.none()),
        st.tuples(st.just("clear"), st.none()),
        st.tuples(st.just("layout"), st.booleans()),
        st.tuples(st.just("values"), st.sampled_from(["game", "noise", "static", "mixed"])),
        st.tuples(st.just("save"), st.sampled_from(["pickle", "deepcopy", "directory"])),
        st.tuples(st.just("adopt"), st.integers(0, 199)),
        st.tuples(st.just("check"), st.none()),
    ),
    min_size=3,
    max_size=30,
)


class Model:
    """
    A column of two views, and the array that it has to be equal to.

    :param method: Method string
    :param rows: Rows of the ring
    :param chunk_rows: Rows of a chunk
    :param dtype: Type of the elements; values of wider ones may need a table
    :param seed: Of what is written
    :param folder: Where it is saved
    """

    def __init__(self, method: str, rows: int, chunk_rows: int, dtype: str, seed: int, folder: Path) -> None:
        self.options: dict[str, Any] = {"n_envs": ENVS, "method": method, "rows": rows, "chunk_rows": chunk_rows}
        self.dtype, self.rows, self.seed, self.folder = np.dtype(dtype), rows, seed, folder
        self.frames = self.make()
        self.twins = np.zeros((2, rows, ENVS, *SHAPE), self.dtype)
        self.row = 0
        self.values("game")

    def make(self) -> Frames:
        """Make an empty column of the same form."""
        return make_column(SHAPE, self.dtype, **self.options)

    def write(self, row: int, *views: int, env: int | None = None) -> None:
        """Write new observations to some views of a row, of one environment or of all."""
        pair = self.stream.step()[:2]
        envs = slice(None) if env is None else slice(env, env + 1)
        parts = [pair[view][envs] for view in views]
        numbers = None if env is None else [env]
        self.frames.write(row, parts[0], views[0], *parts[1:], envs=numbers)
        for view, part in zip(views, parts, strict=True):
            self.twins[view, row, envs] = part

    def check(self) -> None:
        """Compare all cells."""
        got = contents_of(self.frames)
        assert got.tobytes() == self.twins.tobytes(), np.argwhere(got != self.twins)[:5]

    # -- what may happen ----------------------------------------------------------------------------------------------

    def forward(self, *views: int) -> None:
        """Write the next row."""
        self.write(self.row, *views)
        self.row = (self.row + 1) % self.rows

    def act(self, what: str, argument: Any) -> None:
        """Do one of ``actions``."""
        if what == "rows":
            for _ in range(argument):
                self.forward(0, 1)
        elif what == "view":  # the other view comes later, or never
            self.write(self.row, argument)
        elif what == "alone":
            for _ in range(argument):
                self.forward(argument % 2)
        elif what == "cell":
            self.write(argument * 7 % self.rows, argument % 2, env=argument // 2 % ENVS)
        elif what == "again":  # the last row over and over
            for number in range(argument):
                self.write((self.row - 1) % self.rows, *((0, 1) if number % 3 else (0,)))
        elif what == "back":  # as HER does with an episode that was cut short
            self.row = (self.row - argument) % self.rows
        elif what == "jump":
            self.row = argument % self.rows
        elif what == "reset":  # all rows stay readable until they are written over
            self.row = 0
        elif what == "clear":
            self.frames.clear()
            self.twins[:] = 0
            self.row = 0
        elif what == "layout":
            axis = 0 if argument else 1
            layout = (
                FrameLayout(SHAPE, self.dtype.itemsize, axis, 1) if argument else FrameLayout.whole(SHAPE, self.dtype.itemsize)
            )
            self.frames.set_layout(layout)
        else:
            getattr(self, what)(argument)

    def values(self, content: str) -> None:
        """Have other contents from now on: noise has more values than a table has room for."""
        self.seed += 1
        self.stream = Stream(self.seed, ENVS, (1, *SHAPE[1:]), self.dtype, content, Stack(DEPTH, 0), 0.1)

    def save(self, how: str) -> None:
        """Go on with a copy. What is written to it does not change the original."""
        original, before = self.frames, self.twins.copy()
        if how == "directory":
            files = Replacement(self.folder / "state")
            with files:
                said = save_frames("frames", FrozenFrames(self.frames), self.rows, files)
                files.commit({"frames": [said]})
            saved = SavedDirectory(self.folder / "state")
            self.frames = load_frames(saved.body["frames"][0], self.make(), saved, None)
        else:
            self.frames = copy.deepcopy(original) if how == "deepcopy" else pickle.loads(pickle.dumps(original))
        self.check()
        self.write(self.row, 0)
        assert contents_of(original).tobytes() == before.tobytes()

    def adopt(self, first: int) -> None:
        """Put the chunks of another column somewhere, one after the other; what does not fit changes nothing."""
        other = Model(self.options["method"], 48, 16, self.dtype.str, self.seed, self.folder)
        other.act("rows", 20 + first % 20)
        row = first % self.rows
        for decoder in chunks_of(other.frames):
            try:
                self.frames.adopt(decoder.chunk, row)
            except StorageError:  # it ends behind the ring, or these rows are being written
                open_rows = self.frames.spans()[1]
                assert row + decoder.rows > self.rows or open_rows is not None
                break
            start = int(decoder.head["first_row"])
            self.twins[:, row : row + decoder.rows] = other.twins[:, start : start + decoder.rows]
            row += decoder.rows


@pytest.mark.parametrize("method", QUICK_METHODS)
@given(
    steps=actions,
    rows=st.sampled_from([1, 2, 15, 16, 40, 70, 150]),
    chunk_rows=st.sampled_from([1, 16, 48, 100]),
    dtype=st.sampled_from(["|u1", "<u2"]),
    seed=st.integers(0, 2**16),
)
def test_a_column_is_the_array_that_was_written(
    method: str, steps: Any, rows: int, chunk_rows: int, dtype: str, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    model = Model(method, rows, chunk_rows, dtype, seed, tmp_path_factory.mktemp("model"))
    for what, argument in steps:
        if what == "check":
            model.check()
        else:
            model.act(what, argument)
    model.check()
