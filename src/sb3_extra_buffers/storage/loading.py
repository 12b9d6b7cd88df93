"""
What is checked when a store comes out of a file: compiled code works with addresses, and takes sizes and places on trust.

Contents are not checked here: a flipped bit in a frame is noticed when it is read, or is another frame.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sb3_extra_buffers.storage.errors import StorageError
from sb3_extra_buffers.storage.locks import StoreLock
from sb3_extra_buffers.storage.segments import NEWEST_KEY, READ_AHEAD, RESERVED, USED, Segment, SegmentLog

if TYPE_CHECKING:
    from sb3_extra_buffers.storage.array import CompressedArray
    from sb3_extra_buffers.storage.coder import FrameCoder
    from sb3_extra_buffers.storage.frame_index import FrameIndex
    from sb3_extra_buffers.storage.store import FrameStore


def _demand(condition: Any, what: str) -> None:
    if not condition:
        raise StorageError(f"the saved observations are damaged: {what}; load another copy of the file")


def _demand_array(value: Any, shape: tuple[int, ...], dtype: npt.DTypeLike, what: str) -> None:
    alike = isinstance(value, np.ndarray) and value.shape == shape and value.dtype == dtype and value.flags.c_contiguous
    _demand(alike, f"{what} has another form")


def _demand_within(values: npt.NDArray[Any], lowest: int, highest: int, what: str) -> None:
    _demand(values.size == 0 or (lowest <= values.min() and values.max() <= highest), f"{what} is out of range")


def _demand_alike(loaded: Any, fresh: Any, varying: frozenset[str] = frozenset()) -> None:
    """Every plain number must be that of a new object of its kind, every array have the shape and type of its array."""
    _demand(type(loaded) is type(fresh), f"a {type(loaded).__name__} instead of a {type(fresh).__name__}")
    for name, expected in vars(fresh).items():
        if name.startswith("_") or name in varying:
            continue
        value = vars(loaded).get(name)
        if isinstance(expected, np.ndarray):
            _demand_array(value, expected.shape, expected.dtype, name)
        elif isinstance(expected, (bool, int)) or name in ("layout", "codec", "packer"):
            _demand(type(value) is type(expected) and value == expected, f"{name} is {value!r}")
        else:
            _demand(type(value) is type(expected), f"{name} is a {type(value).__name__}")


def check_store(store: FrameStore) -> None:
    """
    Check a store that was loaded.

    :param store: The store
    """
    layout = store.layout
    sizes = (layout.obs_shape, layout.itemsize)
    _demand(sizes == (store.obs_shape, store.dtype.itemsize), "the shape of observations is not that of the store")
    _demand(layout.depth >= 1 and layout.depth * layout.group == layout.length, "observations do not split into frames")
    _demand(store.n_streams >= 1, "it has no environments")
    _demand(type(store.lock) is StoreLock, "it has no lock")
    for index in store.indexes:
        _check_index(index, store.n_streams)
    if store._coder is not None:
        _check_coder(store._coder, store.make_coder(layout, store.n_streams))


def _check_index(index: FrameIndex, n_streams: int) -> None:
    cells = len(index.newest)
    fresh = type(index)(0, n_streams)
    _demand(index.block_cells == fresh.block_cells, "the index has other blocks")
    blocks = -(-cells // index.block_cells)
    wide = index.pattern.dtype == np.uint32
    _demand_array(index.newest, (cells,), np.uint32, "the index")
    _demand_array(index.pattern, (cells,), np.uint32 if wide else np.uint16, "the index")
    _demand_array(index.written, (blocks,), np.bool_, "the index")
    _demand_array(index.oldest, (blocks, n_streams), np.int64, "the index")
    _demand_array(index.book, fresh.book.shape, np.int64, "the index")


def _check_coder(coder: FrameCoder, fresh: FrameCoder) -> None:
    _demand_alike(coder, fresh)
    _demand_alike(coder.state, fresh.state, frozenset({"turned"}))
    _demand(isinstance(coder.state.turned, bool), "the memory order is not known")
    _demand_alike(coder.patterns, fresh.patterns, frozenset({"offsets"}))
    _check_log(coder.log, fresh.log, coder.layout.frame_bytes)
    directory, n_streams = coder.directory, coder.n_streams
    _demand(directory.locations.size > 0, "the directory is empty")
    _demand_array(directory.locations, (n_streams, directory.locations.shape[-1]), np.uint64, "the directory")
    _demand_array(directory.oldest, (n_streams,), np.int64, "the directory")
    _demand_within(directory.oldest, 0, 1 << 56, "a number of the directory")
    _demand_within(coder.heads, -1, 1 << 56, "a frame's number")
    coder.check_loaded()


def _check_log(log: SegmentLog, fresh: SegmentLog, frame_bytes: int) -> None:
    _demand_alike(log, fresh, frozenset({"opened", "pointers", "books"}))
    count = len(log.slots)
    places = [*log.order, *log.free]
    _demand(all(type(place) is int and 0 <= place < count for place in places), "the log names a segment that is not there")
    _demand(len(set(places)) == len(places), "the log names a segment twice")
    _demand(log.head[0] == log.current, "the log does not end with its last segment")
    for segment in log.slots:
        _demand(isinstance(segment, Segment) and segment.memory.size == log.segment_bytes, "a segment has another size")
        _demand(len(segment.last_group) == log.n_streams, "a segment is of another number of environments")
        used, reserved, newest_key = (int(segment.book[word]) for word in (USED, RESERVED, NEWEST_KEY))
        _demand(used >= 0 and reserved >= 0 and used + reserved <= log.segment_bytes, "a segment is overfull")
        _demand(-1 <= newest_key <= log.segment_bytes - frame_bytes, "a segment's key frame lies outside")


def check_open_groups(coder: Any) -> None:
    """
    Check what a ``ReferenceCoder`` knows of the groups that are not in the log yet.

    :param coder: The coder
    """
    count, room = len(coder.log.slots), coder.staging.shape[1] - READ_AHEAD
    is_open = coder.counts > 0
    _demand_within(coder.counts, 0, coder.group_frames, "the length of an open group")
    _demand_within(coder.staged[is_open], 0, room, "the size of an open group")
    _demand_within(coder.open_slots[is_open], 0, count - 1, "the segment of an open group")
    _demand_within(coder.groups, -1, 1 << 56, "a group's number")
    _demand_within(coder.key_slots, -1, count - 1, "the segment of a key frame")
    known = coder.key_slots >= 0
    _demand_within(coder.key_offsets[known], 0, coder.log.segment_bytes - coder.layout.frame_bytes, "a key frame's place")
    promised = np.bincount(coder.open_slots[is_open], minlength=count) * coder.staging.shape[1]
    reserved = np.array([segment.book[RESERVED] for segment in coder.log.slots], dtype=np.int64)
    _demand((promised <= reserved).all(), "an open group has no room in its segment")


def check_array(array: CompressedArray) -> None:
    """
    Check an array that was loaded.

    :param array: The array
    """
    store, cells, length = array._store, array._cells, len(array._index.newest)
    _demand(array._store_shape == store.obs_shape, "the shape of observations is not that of the store")
    _demand(any(index is array._index for index in store.indexes), "the array's index is not one of its store")
    if cells is None:
        _demand(int(np.prod(array._lead, dtype=object)) == length, "the index has another length than the array")
        _demand(array._row_shape == (*array._lead[1:], *array.obs_shape), "a row has another shape")
        columns = int(np.prod(array._lead[1:], dtype=object))
        _demand(max(columns, 1) == store.n_streams, "the array is of another number of environments")
    else:
        _demand(cells.dtype == np.int64 and cells.shape == array._lead, "a view has another shape")
        _demand_within(cells, 0, length - 1, "a cell of a view")
    _demand(array._stores_as_is == (store.dtype == array.dtype), "the type of the elements is not that of the store")
