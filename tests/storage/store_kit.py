"""Stores of small frames for the tests of what goes on inside."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from observation_streams import Stream

from sb3_extra_buffers.storage import FrameIndex, FrameStore, make_spec, runs_type_for, stacks


def make_store(
    stream: Stream, method: str | None = None, rows: int = 64, arrays: int = 2
) -> tuple[FrameStore, list[FrameIndex]]:
    """
    Make a store that fits a stream.

    :param stream: The stream
    :param method: Method string; None for the default
    :param rows: Rows of each array
    :param arrays: How many arrays
    :return: The store and its arrays
    """
    spec = make_spec(method, stream.dtype, runs_type_for(stream.obs_shape))
    store = FrameStore(stream.obs_shape, stream.dtype, stream.n_envs, spec)
    return store, [store.new_index(rows * stream.n_envs) for _ in range(arrays)]


def never_give_up_stacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Let a layout of frames stay, even if observations do not follow each other.

    :param monkeypatch: Undoes it
    """
    monkeypatch.setattr(stacks, "_PATIENCE", 1 << 60)


class Ring:
    """
    Two arrays of a store, obs and next_obs, written round and round, beside what NumPy holds.

    :param stream: The stream
    :param method: Method string
    :param rows: Rows
    """

    def __init__(self, stream: Stream, method: str | None = None, rows: int = 64) -> None:
        self.stream = stream
        self.rows = rows
        self.store, self.indexes = make_store(stream, method, rows)
        self.twins = np.zeros((2, rows, stream.n_envs, *stream.obs_shape), stream.dtype)
        self.row = 0

    def add(self, count: int = 1) -> None:
        for _ in range(count):
            obs, next_obs, _, _ = self.stream.step()
            parts = list(zip(self.indexes, (obs, next_obs), strict=True))
            if self.row % 3:  # together, as a buffer does
                self.store.write_row(self.row, parts)
            else:
                for part in parts:
                    self.store.write_row(self.row, [part])
            self.twins[:, self.row] = obs, next_obs
            self.row = (self.row + 1) % self.rows

    def read(self, which: int) -> np.ndarray:
        out = np.empty((self.rows * self.stream.n_envs, *self.stream.obs_shape), self.stream.dtype)
        self.store.read(np.arange(len(out)), [(self.indexes[which], out)])
        return out.reshape(self.twins[which].shape)

    def check(self) -> None:
        for which in (0, 1):
            got = self.read(which)
            assert got.tobytes() == self.twins[which].tobytes(), np.argwhere(got != self.twins[which])[:5]
        cells = np.random.default_rng(0).integers(0, self.rows * self.stream.n_envs, 50)
        outs = [np.empty((50, *self.stream.obs_shape), self.stream.dtype) for _ in (0, 1)]
        self.store.read(cells, list(zip(self.indexes, outs, strict=True)))
        for out, twin in zip(outs, self.twins, strict=True):
            assert out.tobytes() == twin.reshape(-1, *self.stream.obs_shape)[cells].tobytes()

    @property
    def held_bytes(self) -> int:
        held: int = self.store.coder.log.held_bytes
        return held

    def copy(self) -> Ring:
        """
        Copy all but the stream.

        :return: A ring to be read and spoiled, not to be added to
        """
        twin = object.__new__(Ring)
        twin.__dict__.update(self.__dict__)
        twin.store, twin.indexes = copy.deepcopy((self.store, self.indexes))
        return twin
