"""Stores of small frames for the tests of what goes on inside."""

from __future__ import annotations

import copy
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from observation_streams import Stream
from reference_decoder import HEAD, MAGIC, Image

from sb3_extra_buffers.codecs import Codec
from sb3_extra_buffers.storage import CompressedArray, FrameStore, make_spec, runs_type_for
from sb3_extra_buffers.storage._core import set_limits, use_kernels
from sb3_extra_buffers.storage.layout import FrameLayout
from sb3_extra_buffers.storage.methods import CoderSpec


def make_store(stream: Stream, method: str | None = None, rows: int = 64, arrays: int = 2) -> tuple[FrameStore, list[int]]:
    """
    Make a store that fits a stream.

    :param stream: The stream
    :param method: Method string; None for the default
    :param rows: Rows of each array
    :param arrays: How many arrays
    :return: The store and the numbers of its arrays
    """
    spec = make_spec(method, stream.dtype, runs_type_for(stream.obs_shape))
    store = FrameStore(stream.obs_shape, stream.dtype, stream.n_envs, spec)
    return store, [store.new_index(rows * stream.n_envs) for _ in range(arrays)]


def store_by(store: FrameStore, layout: FrameLayout) -> None:
    """
    Give a store a layout for good.

    :param store: The store
    :param layout: The layout
    """
    store.core.rebuild(layout)
    store.next_look = 0


def never_give_up_stack(store: FrameStore) -> None:
    """
    Let a layout of frames stay, even if observations do not follow each other.

    :param store: The store
    """
    store.core.patience = 1 << 60


@contextmanager
def limits(**sizes: int) -> Iterator[None]:
    """
    Make sizes of the core small.

    :param sizes: See ``set_limits``
    """
    before = set_limits(**sizes)
    try:
        yield
    finally:
        set_limits(**before)


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


def image_of(store: FrameStore) -> Image:
    """
    Take a store apart.

    :param store: The store
    :return: What it holds, by the reference decoder
    """
    return Image(store.core.image(), *store.spec.codecs())


def head_of(store: FrameStore) -> dict[str, int]:
    """
    Tell the numbers that an image begins with.

    :param store: The store
    :return: The numbers by name
    """
    return dict(zip(HEAD, struct.unpack_from(f"<{len(HEAD)}q", store.core.image(), len(MAGIC)), strict=True))


def load_image(store: FrameStore, image: bytes) -> None:
    """
    Have a store hold what an image says.

    :param store: The store
    :param image: The image
    """
    store.core = store._make_core(store.layout, image)


def begin_at(store: FrameStore, number: int) -> None:
    """
    Let the frames of an empty store be numbered from somewhere else.

    :param store: The store
    :param number: From where, about
    """
    parts = image_of(store)
    assert all(stream["head"] == -1 for stream in parts.streams)
    image = bytearray(parts.image)
    group = number >> parts.shift
    for stream, groups in zip(parts.streams, parts.directory, strict=True):
        struct.pack_into("<qq", image, stream.at, (group << parts.shift) - 1, group - 1 if parts.references else -1)
        struct.pack_into("<q", image, groups.at, group)
    load_image(store, bytes(image))


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
    Have the codecs of all stores that are made from now on say when they are called.

    :param monkeypatch: Undoes it
    :param call: See ``Watched``
    """
    codecs = CoderSpec.codecs

    def watched(self: CoderSpec) -> tuple[Any, Any]:
        frame, group = codecs(self)
        return Watched(frame, call), None if group is None else Watched(group, call)

    monkeypatch.setattr(CoderSpec, "codecs", watched)


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
            if self.row % 3:  # together, as a buffer does
                self.store.write_row(self.row, self.indexes[0], obs, self.indexes[1], next_obs)
            else:
                for index, part in zip(self.indexes, (obs, next_obs), strict=True):
                    self.store.write_row(self.row, index, part)
            self.twins[:, self.row] = obs, next_obs
            self.row = (self.row + 1) % self.rows

    def write(self, pair: tuple[np.ndarray, np.ndarray]) -> None:
        """
        Write both parts of the next row, at once, but do not go on to the row after it.

        :param pair: Obs and next_obs
        """
        self.store.write_row(self.row, self.indexes[0], pair[0], self.indexes[1], pair[1])

    def went_on(self, pair: tuple[np.ndarray, np.ndarray]) -> None:
        """
        Take note that a pair was written.

        :param pair: Obs and next_obs
        """
        self.twins[:, self.row] = pair
        self.row = (self.row + 1) % self.rows

    def read(self, which: int) -> np.ndarray:
        return read_index(self.store, self.indexes[which], self.rows).reshape(self.twins[which].shape)

    def check(self) -> None:
        for which in (0, 1):
            got = self.read(which)
            assert got.tobytes() == self.twins[which].tobytes(), np.argwhere(got != self.twins[which])[:5]
        cells = np.random.default_rng(0).integers(0, self.rows * self.stream.n_envs, 50)
        outs = [np.empty((50, *self.stream.obs_shape), self.stream.dtype) for _ in (0, 1)]
        assert self.store.read(cells, None, self.indexes[0], outs[0], self.indexes[1], outs[1])
        for out, twin in zip(outs, self.twins, strict=True):
            assert out.tobytes() == twin.reshape(-1, *self.stream.obs_shape)[cells].tobytes()

    @property
    def held_bytes(self) -> int:
        return held_bytes(self.store)

    def copy(self) -> Ring:
        """
        Copy all but the stream.

        :return: A ring to be read and spoiled, not to be added to
        """
        twin = object.__new__(Ring)
        twin.__dict__.update(self.__dict__)
        twin.store, twin.twins = copy.deepcopy(self.store), self.twins.copy()
        return twin


def read_index(store: FrameStore, index: int, rows: int) -> np.ndarray:
    """
    Read all of an array.

    :param store: The store
    :param index: The array
    :param rows: Its rows
    :return: All observations, a row each
    """
    out = np.empty((rows * store.n_streams, *store.obs_shape), store.dtype)
    assert store.read(np.arange(len(out)), None, index, out)
    return out


def held_bytes(store: FrameStore) -> int:
    """
    Tell what all segments take.

    :param store: The store
    :return: Bytes
    """
    return store.core.usage()[4]


def store_of(array: CompressedArray) -> FrameStore:
    """
    Look inside an array.

    :param array: The array
    :return: Its store
    """
    return array._store
