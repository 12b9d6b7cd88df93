"""Columns of small frames, rings and tables beside what NumPy holds, for the tests of what goes on inside."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from observation_streams import METHODS, Stream
from reference_decoder import ChunkDecoder

import sb3_extra_buffers
from sb3_extra_buffers.codecs import Codec
from sb3_extra_buffers.storage import CompressedArray, Frames, StoreLock, make_spec, runs_type_for
from sb3_extra_buffers.storage._core import refuse_allocation, use_kernels
from sb3_extra_buffers.storage.frames import frames_of
from sb3_extra_buffers.storage.layout import FrameLayout
from sb3_extra_buffers.storage.methods import CoderSpec

QUICK_METHODS: list[Any] = [method for method in METHODS if method in ("delta", "delta-zstd", "zstd-3", "none")]
"""One method for each way in which frames are kept."""
REFERENCE: list[Any] = [method for method in METHODS if str(method).startswith("delta")]
"""Those that code frames against earlier ones."""


def make_column(
    obs_shape: tuple[int, ...],
    dtype: Any = np.uint8,
    n_envs: int = 1,
    method: str | None = None,
    rows: int = 64,
    views: int = 2,
    chunk_rows: int = 16,
    lock: StoreLock | None = None,
) -> Frames:
    """
    Make a column in chunks of a certain size.

    :param obs_shape: Shape of an observation
    :param dtype: Type of its elements
    :param n_envs: Number of environments
    :param method: Method string; None for the default
    :param rows: Number of rows
    :param views: 1 or 2
    :param chunk_rows: Rows of a chunk
    :param lock: The lock; a new one by default
    :return: The column
    """
    dtype = np.dtype(dtype)
    spec = make_spec(method, dtype, runs_type_for(obs_shape))
    layout = FrameLayout.whole(obs_shape, dtype.itemsize)
    return frames_of(rows, n_envs, views, chunk_rows, layout, dtype, spec, lock or StoreLock())


def column_for(stream: Stream, method: str | None = None, rows: int = 64, **options: Any) -> Frames:
    """
    Make a column that fits a stream.

    :param stream: The stream
    :param method: Method string
    :param rows: Number of rows
    :param options: See ``make_column``
    :return: The column
    """
    return make_column(stream.obs_shape, stream.dtype, stream.n_envs, method, rows, **options)


def split_by(frames: Frames, layout: FrameLayout) -> None:
    """
    Give a column a layout for good, even if observations do not follow each other.

    :param frames: The column
    :param layout: The layout
    """
    frames.set_layout(layout)
    frames.next_look = 0
    frames.set_patience(1 << 60)


def read_column(frames: Frames, view: int = 0) -> np.ndarray:
    """
    Read all of a view.

    :param frames: The column
    :param view: The view
    :return: ``(rows, n_envs, *obs_shape)``
    """
    rows, envs = np.divmod(np.arange(frames.rows * frames.n_envs), frames.n_envs)
    out = np.empty((frames.rows, frames.n_envs, *frames.obs_shape), frames.dtype)
    frames.read(rows, envs, out, view)
    return out


def contents_of(frames: Frames) -> np.ndarray:
    """
    Read all views.

    :param frames: The column
    :return: ``(views, rows, n_envs, *obs_shape)``
    """
    views = np.empty((frames.views, frames.rows, frames.n_envs, *frames.obs_shape), frames.dtype)
    for view in range(frames.views):
        views[view] = read_column(frames, view)
    return views


def held_bytes(frames: Frames) -> int:
    """
    Tell what all chunks take.

    :param frames: The column
    :return: Bytes
    """
    return frames.usage()[4]


def frames_of_array(array: CompressedArray) -> Frames:
    """
    Look inside an array.

    :param array: The array
    :return: Its column
    """
    return array._frames


def kernel_sets() -> list[str]:
    """
    List the sets of instructions that this processor has.

    :return: Their names
    """
    names = []
    for name in ("baseline", "avx2", "neon"):
        try:
            best = use_kernels(name)
        except ValueError:
            continue
        use_kernels(best)
        names.append(name)
    return names


class Watched:
    """
    A codec that says when it is called.

    :param codec: What does the work
    :param call: Called with "encode" or "decode" before, and with "encoded" or "decoded" after that
    """

    def __init__(self, codec: Codec, call: Callable[[str], None]) -> None:
        self.codec, self.call = codec, call

    def encode(self, data: Any) -> bytes:
        self.call("encode")
        blob = self.codec.encode(data)
        self.call("encoded")
        return blob

    def decode(self, blob: Any, out: Any) -> None:
        self.call("decode")
        self.codec.decode(blob, out)
        self.call("decoded")


def watch_codecs(monkeypatch: pytest.MonkeyPatch, call: Callable[[str], None]) -> None:
    """
    Have the codecs of all columns that are made from now on say when they are called.

    :param monkeypatch: Undoes it
    :param call: See ``Watched``
    """
    codecs = CoderSpec.codecs

    def watched(self: CoderSpec) -> tuple[Any, Any]:
        frame, group = codecs(self)
        return Watched(frame, call), None if group is None else Watched(group, call)

    monkeypatch.setattr(CoderSpec, "codecs", watched)


class CodecCalls:
    """Does something at a certain call of a codec."""

    def __init__(self) -> None:
        self.left = -1
        self.action: Callable[[], None] = lambda: None
        self.calls = 0

    def __call__(self, _: str) -> None:
        self.calls += 1
        self.left -= 1
        if self.left == -1:
            self.action()

    def arm(self, after: int, action: Callable[[], None]) -> None:
        """
        Have something done.

        :param after: After so many calls
        :param action: What to do
        """
        self.left, self.action = after, action

    def disarm(self) -> bool:
        """
        Have nothing done from now on.

        :return: Whether it has been done
        """
        done, self.left = self.left < 0, -1
        return done


class Ring:
    """
    Obs and next_obs in a column, written round and round, beside what NumPy holds.

    :param stream: The stream
    :param method: Method string
    :param rows: Rows
    :param options: See ``make_column``
    """

    def __init__(self, stream: Stream, method: str | None = None, rows: int = 64, **options: Any) -> None:
        self.stream = stream
        self.rows = rows
        self.frames = column_for(stream, method, rows, **options)
        self.twins = np.zeros((2, rows, stream.n_envs, *stream.obs_shape), stream.dtype)
        self.row = 0

    def add(self, count: int = 1) -> None:
        """
        Write rows.

        :param count: How many
        """
        for _ in range(count):
            pair = self.stream.step()[:2]
            if self.row % 3:  # together, as a buffer does
                self.write(pair)
            else:
                for view, part in enumerate(pair):
                    self.frames.write(self.row, part, view)
            self.went_on(pair)

    def write(self, pair: Any) -> None:
        """
        Write both parts of the next row, at once, but do not go on to the row after it.

        :param pair: Obs and next_obs
        """
        self.frames.write(self.row, pair[0], 0, pair[1])

    def went_on(self, pair: Any) -> None:
        """
        Take note that a pair was written.

        :param pair: Obs and next_obs
        """
        self.twins[:, self.row] = pair
        self.row = (self.row + 1) % self.rows

    def check(self) -> None:
        """Compare everything, view by view and both at once."""
        for view in (0, 1):
            got = read_column(self.frames, view)
            assert got.tobytes() == self.twins[view].tobytes(), (view, np.argwhere(got != self.twins[view])[:5])
        rng = np.random.default_rng(0)
        rows, envs = rng.integers(0, self.rows, 50), rng.integers(0, self.stream.n_envs, 50)
        outs = [np.empty((50, *self.stream.obs_shape), self.stream.dtype) for _ in (0, 1)]
        self.frames.read(rows, envs, outs[0], 0, outs[1])
        for out, twin in zip(outs, self.twins, strict=True):
            assert out.tobytes() == twin[rows, envs].tobytes()

    def copy(self) -> Ring:
        """
        Copy all but the stream.

        :return: A ring to be read and spoiled, not to be added to
        """
        twin = object.__new__(Ring)
        twin.__dict__.update(self.__dict__)
        twin.frames, twin.twins = copy.deepcopy(self.frames), self.twins.copy()
        return twin


def refuse_each(action: Callable[[], None], unchanged: Callable[[], None], most: int = 10_000) -> tuple[int, int]:
    """
    Do something again and again, with one allocation more each time before one is refused, until none is.

    :param action: What to do; it is done for good once
    :param unchanged: Called each time that it has failed: all must be as before
    :param most: How often to try
    :return: How often it failed, and how often it did without what was refused
    """
    failed = without = 0
    for after in range(most):
        refuse_allocation(after)
        try:
            action()
        except MemoryError:
            refuse_allocation(-1)
            failed += 1
            unchanged()
            continue
        finally:
            left = refuse_allocation(-1)
        if left >= 0:
            return failed, without
        without += 1
    raise AssertionError("it never ends")


def run_program(program: str, *arguments: str) -> str:
    """
    Run a program that may take the interpreter with it.

    :param program: Its source
    :param arguments: Its arguments
    :return: What it has printed, and what it has complained of
    """
    here = Path(__file__).parent
    folders = [str(Path(sb3_extra_buffers.__file__).parents[1]), str(here), str(here.parent)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([*folders, os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, env=env)
    return done.stdout.strip() + done.stderr


def game(seed: int, rows: int, n_envs: int, shape: tuple[int, int], things: int = 4) -> np.ndarray:
    """
    Play a game: small pictures that move over a pattern by a step at a time, also over each other and at the edges.

    :param seed: Of what happens
    :param rows: Steps
    :param n_envs: How many are played
    :param shape: Of a frame
    :param things: How many small pictures there are
    :return: ``(rows, n_envs, *shape)``
    """
    rng = np.random.default_rng(seed)
    ground = (np.indices(shape).sum(axis=0) * 7 % 11).astype(np.uint8)
    sprites = rng.integers(100, 256, (things, 4, 5), dtype=np.uint8)
    frames = np.repeat(ground[None], rows * n_envs, axis=0).reshape(rows, n_envs, *shape)
    places = rng.integers(0, (shape[0] - 3, shape[1] - 4), (n_envs, things, 2))
    for row in range(rows):
        moves = rng.integers(-1, 2, places.shape) * (rng.random((n_envs, things, 1)) < 0.5)
        places = np.clip(places + moves, 0, (shape[0] - 4, shape[1] - 5))
        if rng.random() < 0.02:  # another level
            places = rng.integers(0, (shape[0] - 3, shape[1] - 4), places.shape)
        for env in range(n_envs):
            for (y, x), sprite in zip(places[env], sprites, strict=True):
                frames[row, env, y : y + 4, x : x + 5] = sprite
    return frames


def chunks_of(column: object) -> list[ChunkDecoder]:
    """
    Look at all chunks of a column, by the reference decoder.

    :param column: The column
    :return: Those that are sealed, and the open one
    """
    sealed, last = column.chunks()  # type: ignore[attr-defined]
    return [ChunkDecoder(bytes(chunk)) for chunk in (*sealed, last) if chunk is not None]
