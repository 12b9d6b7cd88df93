"""Damage is an error when something is loaded: never other pixels, and never a crash."""

from __future__ import annotations

import pickle
import random
import struct
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from frames_kit import QUICK_METHODS, Ring, contents_of, make_column, run_program
from hypothesis import given
from hypothesis import strategies as st
from observation_streams import Stack, Stream
from reference_decoder import HEADER, HEADER_BYTES, ChunkDecoder, checksum

from sb3_extra_buffers.storage import CompressedArray, Frames, StorageError, StoreLock
from sb3_extra_buffers.storage._core import Chunk
from sb3_extra_buffers.storage.frames import restore_frames
from sb3_extra_buffers.storage.methods import CoderSpec

_made: dict[tuple[str, str], tuple[Ring, list[bytes]]] = {}


def filled(method: str, content: str = "mixed") -> tuple[Ring, list[bytes]]:
    """A ring that has gone round, and its chunks, the open one last."""
    if (method, content) not in _made:
        ring = Ring(Stream(0, 2, (1, 9, 8), np.uint8, content, Stack(3, 0)), method, rows=40)
        ring.add(70)
        ring.check()
        sealed, last = ring.frames.chunks()
        _made[method, content] = ring, [bytes(chunk) for chunk in (*sealed, last)]
    return _made[method, content]


def empty_twin(ring: Ring) -> Frames:
    frames = ring.frames
    return make_column(frames.obs_shape, frames.dtype, 2, frames.spec.method, ring.rows)


def refused_everywhere(ring: Ring, data: bytes) -> None:
    """Nobody takes it, and a column that was offered it has not changed."""
    column = empty_twin(ring)
    for take in (Chunk, column.adopt):
        with pytest.raises(StorageError, match="damaged"):
            take(data)
    assert not contents_of(column).any() and column.chunks() == ([], None)


@pytest.mark.parametrize("method", QUICK_METHODS)
def test_every_flipped_bit_is_noticed(method: str) -> None:
    ring, chunks = filled(method)
    chunk = min(chunks, key=len)
    for place in range(len(chunk)):
        for bit in range(8):
            spoiled = bytearray(chunk)
            spoiled[place] ^= 1 << bit
            with pytest.raises(StorageError, match="damaged"):
                Chunk(bytes(spoiled))
    for place in random.Random(0).sample(range(len(chunk)), 30):
        spoiled = bytearray(chunk)
        spoiled[place] ^= 16
        refused_everywhere(ring, bytes(spoiled))


@pytest.mark.parametrize("method", QUICK_METHODS)
def test_what_was_cut_off_or_added_to_is_noticed(method: str) -> None:
    ring, chunks = filled(method)
    chunk = chunks[-1]
    for length in range(len(chunk)):
        with pytest.raises(StorageError, match="damaged"):
            Chunk(chunk[:length])
    for wrong in (b"", b"\0", chunk + b"\0", chunk + chunk, b"\0" + chunk, bytes(len(chunk)), chunk[:8] + b"\xff" * 400):
        refused_everywhere(ring, wrong)
    for other in (None, 3, bytearray(chunk), memoryview(bytearray(chunk)), "SB3XCHNK"):  # others might change meanwhile
        column = empty_twin(ring)
        with pytest.raises((TypeError, ValueError)):
            column.adopt(other)  # type: ignore[arg-type]


def repaired(chunk: bytearray) -> bytes:
    """With checksums that are right again: what somebody makes on purpose, or a bug."""
    size = struct.unpack_from("<Q", chunk, 120)[0]
    index = min(HEADER_BYTES + size + 8, len(chunk))
    for at, part in ((128, chunk[HEADER_BYTES:index]), (132, chunk[index:])):
        struct.pack_into("<I", chunk, at, checksum(bytes(part)))
    struct.pack_into("<I", chunk, 148, checksum(bytes(chunk[:148])))
    return bytes(chunk)


def use(ring: Ring, data: bytes) -> None:
    """Whatever the bytes are: they are refused, or can be read and written on without harm."""
    for taken in (None, 7, 1):
        column = empty_twin(ring)
        try:
            if taken is None:
                column.adopt(data)
            else:
                column.adopt_row(Chunk(data), 17, taken)
        except StorageError:
            continue
        rows, envs = np.divmod(np.arange(80), 2)
        for row in (None, 0, 17, 39):
            if row is not None:
                try:
                    column.write(row, ring.twins[0][3], 0, ring.twins[1][3])
                except StorageError:
                    continue
            memory = [np.full(80 * 216 + 512, 0x5C, np.uint8) for _ in range(2)]
            outs = [part[256:-256].reshape(80, 3, 9, 8) for part in memory]
            with suppress(StorageError):
                column.read(rows, envs, outs[0], 0, outs[1])
            for part in memory:
                assert (part[:256] == 0x5C).all() and (part[-256:] == 0x5C).all(), "written out of bounds"
        column.usage()
        with suppress(StorageError):
            pickle.loads(pickle.dumps(column))
        column.clear()
        column.write(0, ring.twins[0][3])
        assert contents_of(column)[0, 0].tobytes() == ring.twins[0][3].tobytes(), "as good as new"


@pytest.mark.parametrize("method", QUICK_METHODS)
@given(data=st.data())
def test_any_bytes_with_the_right_checksums_do_no_harm(method: str, data: st.DataObject) -> None:
    ring, chunks = filled(method, data.draw(st.sampled_from(["mixed", "game"])))
    chunk = bytearray(data.draw(st.sampled_from(chunks)))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    taken_apart = ChunkDecoder(bytes(chunk))
    parts = {"data": (HEADER_BYTES, taken_apart.index_at - 8), "index": (taken_apart.index_at, len(chunk) - 16)}
    first, stop = parts[data.draw(st.sampled_from(sorted(parts)))]
    how = data.draw(st.sampled_from(["flip", "noise", "zeros", "ones", "records"]))
    for _ in range(data.draw(st.integers(1, 12))):
        at = int(rng.integers(first, stop))
        size = min(int(rng.integers(1, 30)), stop - at)
        if how == "flip":
            chunk[at] ^= 1 << int(rng.integers(8))
        elif how == "records":
            lane = taken_apart.lanes[rng.integers(2)]
            record = HEADER_BYTES + lane.groups[rng.integers(len(lane.groups))][0]
            chunk[record + int(rng.integers(12))] = int(rng.choice([0, 1, 2, 3, 4, 5, 127, 128, 254, 255]))
        else:
            chunk[at : at + size] = rng.bytes(size) if how == "noise" else (b"\0" if how == "zeros" else b"\xff") * size
    use(ring, repaired(chunk))


@pytest.mark.parametrize("method", QUICK_METHODS)
def test_every_number_of_the_header_may_be_any_other(method: str) -> None:
    ring, chunks = filled(method)
    rng = random.Random(0)
    for name, at, kind in HEADER[:-3]:
        size = struct.calcsize(kind)
        (before,) = struct.unpack_from("<" + kind, chunks[-1], at)
        edges = [0, 1, 2, 16, 63, 64, 65, 2**16, 2**31, 2**32 - 1, 2**32, 2**56, 2**63, 2**64 - 1, before + 1, before - 1]
        values = {value % 2 ** (8 * size) for value in edges} | {before ^ 1 << bit for bit in range(8 * size)}
        for value in rng.sample(sorted(values - {before}), 8):
            chunk = bytearray(chunks[-1])
            struct.pack_into("<" + kind, chunk, at, value)
            struct.pack_into("<I", chunk, 148, checksum(bytes(chunk[:148])))
            try:
                use(ring, bytes(chunk))
            except MemoryError:
                continue
            except BaseException as error:
                raise AssertionError(f"{name}: {before} became {value}") from error


def test_a_chunk_of_other_observations_is_refused() -> None:
    _, chunks = filled("delta")
    others: list[Any] = [
        make_column((3, 9, 9), n_envs=2, method="delta", rows=40),
        make_column((3, 9, 8), n_envs=3, method="delta", rows=40),
        make_column((3, 9, 8), n_envs=2, method="delta", rows=40, views=1),
        make_column((3, 9, 4), np.uint16, n_envs=2, method="delta", rows=40),
        make_column((3, 9, 8), n_envs=2, method="none", rows=40),
        make_column((3, 9, 8), n_envs=2, method="delta", rows=10),
    ]
    for column in others:
        with pytest.raises(StorageError):
            column.adopt(chunks[0])
        assert not contents_of(column).any()


def test_where_a_chunk_may_be_put() -> None:
    ring, chunks = filled("delta")
    whole, first = next((chunk, first) for chunk, _, first, rows in ring.frames.spans()[0] if rows == 16)
    assert len(chunks) > 2
    column = empty_twin(ring)
    for row in (25, 32, 40, 2**40, 2**63 - 1):
        with pytest.raises(StorageError, match="do not fit"):
            column.adopt(whole, row)
    for chunk_row, rows in ((1, 16), (16, 1), (16, 0), (0, 17), (2**40, 1), (0, 2**62)):
        with pytest.raises(StorageError, match="do not fit"):
            column.adopt(whole, 0, chunk_row, rows)
    for row in (3, 24):
        column.adopt(whole, row)
    column.adopt(whole, 20, 5, 9)  # over the end of one and the beginning of another
    expected = np.zeros_like(ring.twins)
    written = ring.twins[:, first : first + 16]
    expected[:, 3:19], expected[:, 24:40], expected[:, 20:29] = written, written, written[:, 5:14]
    assert contents_of(column).tobytes() == expected.tobytes()
    column.adopt_row(whole, 10, 2)
    expected[:, 10] = written[:, 2]
    assert contents_of(column).tobytes() == expected.tobytes()
    with pytest.raises(StorageError, match="does not fit"):
        column.adopt_row(whole, 12, 2)  # there is an open row
    with pytest.raises(StorageError, match="being written"):
        column.adopt(whole, 9)
    column.adopt(whole, 11, 0, 2)
    expected[:, 11:13] = written[:, :2]
    assert contents_of(column).tobytes() == expected.tobytes()


def test_empty_chunks_do_nothing() -> None:
    for chunk in (Chunk.__new__(Chunk), Chunk(None)):  # type: ignore[arg-type]
        for look in (len, bytes, memoryview, lambda c: c.rows, lambda c: c.first_row):
            with pytest.raises((ValueError, TypeError)):
                look(chunk)  # type: ignore[operator]


# -- what is pickled around chunks -----------------------------------------------------------------


def test_hostile_arguments_are_refused() -> None:
    ring, _ = filled("delta")
    _, usual = ring.frames.__reduce_ex__(4)
    assert contents_of(restore_frames(*usual)).tobytes() == ring.twins.tobytes()
    names = ["version", "shape", "obs_shape", "dtype", "spec", "split", "looks", "places", "head_sum", "lock", "chunks"]
    spec = usual[4]
    wrong: dict[str, list[Any]] = {
        "version": [0, 1, 3, None, "2"],
        "shape": [
            None,
            (),
            (0, 2, 2, 16),
            (-1, 2, 2, 16),
            (2**62, 2, 2, 16),
            (40, 0, 2, 16),
            (40, 2, 3, 16),
            (40, 2, 2, -1),
            5,
        ],
        "obs_shape": [None, (), (0,), (-3, 9, 8), (3, 9), (2**40, 2**40), ("a",), (3, 9, 8) * 20],
        "dtype": [None, "O", "V0", np.dtype("u2"), object(), "U"],
        "spec": [
            None,
            3,
            CoderSpec("nothing", spec.elem_type, spec.runs_type),
            CoderSpec("none", spec.elem_type, spec.runs_type),
        ],
        "split": [None, (0, 0), (9, 1), (0, -1), (0, 2), (0, 2**70), ()],
        "looks": [None, (), (1,), (2**70, 0), ("a", "b")],
        "places": [
            *(None, (), 5, (1,), ((0, 0, 0),), ((0, 0, 0, 0),), ((0, -1, 0, 1),), ((99, 0, 0, 1),), ((-1, 0, 0, 1),)),
            *(((0, 0, 0, 41),), ((0, 0, 39, 2),), ((0, 16, 0, 1),), ((0, 0, 0, 2**70),), (("a", 0, 0, 1),)),
            *(((0, 0, 4, 2), (0, 0, 0, 2)), ((0, 0, 0, 9), (0, 0, 4, 9)), ((0, 0, 0, 1),) * 3),
        ],
        "head_sum": [None, 0, "x"],
        "lock": [None, 5, object()],
        "chunks": [
            (),
            None,
            5,
            (None, None),
            (b"", None),
            (5, None),
            (2**50, None),
            (usual[-1][0],) * 3,
            ("text",),
            usual[-1][:-1],
        ],
    }
    from sb3_extra_buffers.storage.frames import _sum_of_head

    for name, values in wrong.items():
        for value in values:
            for mends in (False, True):
                arguments = list(usual)
                arguments[names.index(name)] = value
                if mends:  # as somebody would who means harm
                    try:
                        arguments[8] = _sum_of_head(tuple(arguments[1:8]), len(arguments[-1]))
                    except (TypeError, AttributeError, ValueError):
                        continue
                try:
                    frames = restore_frames(*arguments)
                except (StorageError, TypeError, ValueError, MemoryError):
                    continue
                assert (name, mends) in (("head_sum", True), ("looks", True), ("chunks", True), ("places", True)), (
                    name,
                    value,
                )
                contents_of(frames)


FLIPS = """
import pickle, resource, sys
import numpy as np
from sb3_extra_buffers.storage import CompressedArray

resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
method, protocol = sys.argv[1], int(sys.argv[2])
rng = np.random.default_rng(0)
array = CompressedArray((20, 1), sys.argv[3], (4, 6), compression_method=method)
other = CompressedArray((20, 1), sys.argv[3], (4, 6), share_with=array)
for row in range(18):
    array[row] = rng.integers(0, 3, (1, 4, 6))
    other[row] = rng.integers(0, 3, (1, 4, 6))
saved = pickle.dumps((array, other), protocol=protocol)
expected = [(a.dtype, a.shape, np.asarray(a).tobytes()) for a in (array, other)]
errors = same = 0
for place in range(len(saved)):
    for bit in range(8):
        spoiled = bytearray(saved)
        spoiled[place] ^= 1 << bit
        try:
            loaded = pickle.loads(bytes(spoiled))
            got = [(a.dtype, a.shape, np.asarray(a).tobytes()) for a in loaded]
        except BaseException as error:
            if isinstance(error, (KeyboardInterrupt, SystemExit)):
                raise
            errors += 1
            continue
        assert got == expected, (place, bit, saved[max(place - 30, 0):place + 10])
        same += 1
assert errors > 7 * len(saved)
print("never other pixels")
"""


@pytest.mark.parametrize("dtype", ["u1", "<u2"])
@pytest.mark.parametrize(("method", "protocol"), [("delta", 5), ("gzip1", 4)])
def test_a_saved_array_with_any_bit_flipped(method: str, protocol: int, dtype: str) -> None:
    """Each bit in turn: there is an error, or the very same contents."""
    pytest.importorskip("resource")
    # CPython complains of its own on the way, where a length in the pickle is wrong.
    assert run_program(FLIPS, method, str(protocol), dtype).startswith("never other pixels")


@pytest.mark.parametrize("lock", [None, StoreLock()])
def test_error_says_what_is_wrong(lock: StoreLock | None) -> None:
    array = CompressedArray((20, 1), np.uint8, (4, 6), lock=lock)
    array[3] = 7
    saved = bytearray(pickle.dumps(array))
    saved[saved.index(b"SB3XCEND") - 30] ^= 4
    with pytest.raises(StorageError, match="the saved observations are damaged: its index is damaged; load another copy"):
        pickle.loads(bytes(saved))
    assert issubclass(StorageError, RuntimeError)
