"""Frames coded against earlier frames: the compiled coder behind the methods ``delta`` and ``delta-zstd``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sb3_extra_buffers.codecs import Codec, CodecError, has_numba
from sb3_extra_buffers.codecs._jit import announce_compilation
from sb3_extra_buffers.storage.coder import FrameCoder, Write
from sb3_extra_buffers.storage.control import Control
from sb3_extra_buffers.storage.control_of import control_of
from sb3_extra_buffers.storage.errors import DAMAGED, EXPAND, OUTSIDE, StorageError
from sb3_extra_buffers.storage.frame_index import FrameIndex
from sb3_extra_buffers.storage.layout import ByteArray, FrameLayout
from sb3_extra_buffers.storage.loading import check_open_groups
from sb3_extra_buffers.storage.matching import pixels_are_words
from sb3_extra_buffers.storage.parallel import in_halves, worth_halving
from sb3_extra_buffers.storage.records import (
    CODED,
    HEADER_BYTES,
    KEY_ALIGNMENT,
    KEY_OFFSET_BYTES,
    KEYED,
    OPEN_BIT,
    PACKED,
    WRITE_AHEAD,
    get_header,
    get_u32,
    padded,
    padded_rows,
    put_header,
    put_u32,
)
from sb3_extra_buffers.storage.segments import NEWEST_KEY, READ_AHEAD, RESERVED
from sb3_extra_buffers.storage.streams import NO_CELLS

_BODY = HEADER_BYTES + KEY_OFFSET_BYTES
_U32 = 4
_EMPTY_LOCATIONS: npt.NDArray[np.uint64] = np.empty(0, dtype=np.uint64)
_EMPTY_EXPANSIONS: npt.NDArray[np.uint64] = np.empty((0, 3), dtype=np.uint64)
_CACHED = 1 << 24  # a log of fewer bytes is in the processor's caches, about
_CODEC_EFFORT = 16  # how much longer a codec takes for a byte than copying it does
_NO_BYTES: ByteArray = np.empty(0, dtype=np.uint8)
_DAMAGED = "a stored group of frames is damaged; what was asked for cannot be decoded"


def _address(array: ByteArray) -> np.uint64:
    return np.uint64(array.__array_interface__["data"][0])


def _put_blob(record: ByteArray, kind: int, number: int, blob: bytes = b"") -> None:
    """Write the head of a record, and the blob that follows it."""
    put_header(record, 0, kind, 0)
    put_u32(record, HEADER_BYTES, number)
    record[_BODY : _BODY + len(blob)] = np.frombuffer(blob, dtype=np.uint8)


class ReferenceCoder(FrameCoder):
    """
    Groups of frames: the first as a patch on a key frame of the same segment, the others on their predecessor.

    A patch that takes more than an eighth of the frame does not pay: the group ends. A group then begins with a patch
    on the key frame, with a new key frame, or, in a stream whose frames have nothing to do with each other, with the
    blob of a codec. A new key frame is stored once the patches on the old one have cost as much as a key frame does,
    so that at most twice the best possible is spent.

    :param layout: How observations split into frames
    :param n_streams: Number of streams
    :param codec: For frames that no reference helps
    :param packer: Codec behind the references, over whole groups; None for none
    :param shift: Two to this power is the number of frames in a group
    """

    def __init__(self, layout: FrameLayout, n_streams: int, codec: Codec, packer: Codec | None = None, shift: int = 3) -> None:
        super().__init__(layout, n_streams, shift)
        size = layout.frame_bytes
        self.codec = codec
        self.packer = packer
        self.group_frames = 1 << shift
        self.limit = max(size // 8, 32)
        self.staging: ByteArray = np.zeros((n_streams, _BODY + 3 * size + 64), dtype=np.uint8)
        self.staged: npt.NDArray[np.int64] = np.zeros(n_streams, dtype=np.int64)
        self.counts: npt.NDArray[np.int64] = np.zeros(n_streams, dtype=np.int64)
        self.open_slots: npt.NDArray[np.int64] = np.zeros(n_streams, dtype=np.int64)
        self.groups: npt.NDArray[np.int64] = np.full(n_streams, -1, dtype=np.int64)
        # The stream's own key frame, and what patches on it have cost so far.
        self.key_slots: npt.NDArray[np.int64] = np.full(n_streams, -1, dtype=np.int64)
        self.key_offsets: npt.NDArray[np.int64] = np.zeros(n_streams, dtype=np.int64)
        self.key_costs: npt.NDArray[np.int64] = np.zeros(n_streams, dtype=np.int64)
        self.pays: npt.NDArray[np.bool_] = np.ones(n_streams, dtype=np.bool_)
        self.favour: npt.NDArray[np.int64] = np.zeros(n_streams, dtype=np.int64)
        self._bind()

    def _bind(self) -> None:
        """Compiled code and what it works on, which are not part of the state."""
        if not has_numba():
            raise ImportError('frames coded by "delta" need numba: pip install "sb3-extra-buffers[numba]"')
        from sb3_extra_buffers.storage.kernels import groups, planes, put, read

        self._put: Any = put.put
        announce_compilation(self._put)
        self._code_patch: Any = groups.code_patch
        self._close_group: Any = groups.close_group
        self._open_group: Any = groups.open_group
        self._turn_over: Any = planes.transpose
        self._frame_groups: Any = read.groups_of
        self._read_rows: Any = read.read_rows
        layout = self.layout
        item, part = layout.itemsize, layout.part_bytes
        flat = (layout.outer, layout.depth * part, part, item, pixels_are_words(layout, False))
        pixels = layout.plane_bytes // item
        turned = (pixels, layout.length * item, layout.group * item, item, pixels_are_words(layout, True))
        self._geometry = np.array([flat, turned], dtype=np.int64)
        self._zeros = padded_rows(1, layout.row_bytes)[0]
        self._bound: Control | None = None

    @property
    def _control(self) -> npt.NDArray[np.int64]:
        return self._binding().words

    def _binding(self) -> Control:
        """What compiled code works on, made again when one of the arrays that grow has been replaced."""
        bound = self._bound
        if (
            bound is None
            or bound.pointers is not self.log.pointers
            or bound.directory is not self.directory.locations
            or bound.patterns is not self.patterns.offsets
        ):
            self._bound = bound = control_of(self, self._geometry, self._zeros)
        return bound

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if not name.startswith("_")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._bind()

    def _transpose(self, source: ByteArray, target: ByteArray, rows: int, columns: int, item: int) -> None:
        self._turn_over(source, target, rows, columns, item)

    @property
    def room(self) -> int:
        return int(self.staging.shape[1]) + padded(self.layout.frame_bytes) + KEY_ALIGNMENT

    @property
    def open_bytes(self) -> int:
        return int(self.staged[self.counts > 0].sum())

    @property
    def stored_frames(self) -> int:
        return super().stored_frames + int(self.counts.sum())

    @property
    def last(self) -> ByteArray:
        # Compiled code keeps no other copy of a last observation that is a frame.
        whole = self.layout.depth == 1 and not self.state.turned
        return self.tail[:, : self.layout.frame_bytes] if whole else self.state.last

    def put(self, writes: Sequence[Write], first_part: int, base: int, cells: npt.NDArray[np.int64]) -> int:
        (index, new), (other, other_new) = writes[0], writes[-1]
        # Addresses where they are at hand: an array takes compiled code longer to accept.
        part: int = self._put(
            self._binding().address,
            index.book_address,
            other.book_address,
            new,
            other_new,
            len(writes),
            first_part,
            base,
            cells.ctypes.data if len(cells) else 0,
            len(cells),
            self.state.turned,
        )
        return part

    def release(self, oldest_frame: npt.NDArray[np.int64]) -> None:
        super().release(oldest_frame)
        # A segment that is used again holds none of the key frames that it held.
        self.key_slots[np.isin(self.key_slots, self.log.free)] = -1

    def check_loaded(self) -> None:
        check_open_groups(self)

    def forget_last(self) -> None:
        super().forget_last()
        self.key_slots[:] = -1  # a segment may have been released just then
        for stream in range(self.n_streams):  # the next frame then begins a group, and is no patch on the last one
            self._close_group(self._control, stream, _address(self.staging[stream]), int(self.staged[stream]))

    def append(self, stream: int, frame: ByteArray, reclaim: Callable[[], None], fresh: bool = True) -> int:
        if not (fresh and self._append_to_open(stream, frame)):
            self._close(stream)
            self._open(stream, frame, reclaim)
        self.tail[stream] = frame
        number = (int(self.groups[stream]) << self.shift) + int(self.counts[stream]) - 1
        self.heads[stream] = number
        return number

    def _append_to_open(self, stream: int, frame: ByteArray) -> bool:
        if not 0 < self.counts[stream] < self.group_frames:
            return False
        end = self._patch(self.tail[stream], frame, stream, int(self.staged[stream]), self.limit)
        if end < 0:
            return False
        self.staged[stream] = end
        self.counts[stream] += 1
        return True

    def _patch(self, reference: ByteArray, frame: ByteArray, stream: int, start: int, limit: int) -> int:
        return int(self._code_patch(self._control, _address(reference), _address(frame), stream, start, limit))

    def _close(self, stream: int) -> None:
        """Move a stream's open group to the log."""
        record = self.staging[stream, : int(self.staged[stream])]
        if self.packer is not None and self.counts[stream]:
            record = self._packed(self.packer, record)
        self._close_group(self._control, stream, _address(record), record.size)

    def _packed(self, packer: Codec, record: ByteArray) -> ByteArray:
        """Code a group by a codec, if that makes it smaller."""
        body = record[HEADER_BYTES:]
        if get_header(record)[1] != KEYED:
            return record
        blob = packer.encode(body)
        if len(blob) + _U32 >= body.size:
            return record
        packed: ByteArray = np.empty(_BODY + len(blob), dtype=np.uint8)
        _put_blob(packed, PACKED, body.size, blob)
        return packed

    def _open(self, stream: int, frame: ByteArray, reclaim: Callable[[], None]) -> None:
        """Begin a group with a frame."""
        group = int(self.groups[stream]) + 1
        slot = self._slot_with_room(stream, group, reclaim)
        self.directory.put(stream, group, OPEN_BIT | stream)
        if self._open_group(self._control, stream, _address(frame)):
            return
        if self.pays[stream] or not self._open_coded(stream, frame):
            key = self._store_key(stream, slot, frame)
            self.staged[stream] = self._patch(key, frame, stream, _BODY, self.limit)
        # The count last: up to there nothing has begun.
        self.log.slots[slot].book[RESERVED] += self.staging.shape[1]
        self.open_slots[stream] = slot
        self.groups[stream] = group
        self.counts[stream] = 1

    def _open_coded(self, stream: int, frame: ByteArray) -> bool:
        blob = self.encode_frame(self.codec, frame[: self.layout.frame_bytes])
        if len(blob) >= self.layout.frame_bytes:
            return False
        _put_blob(self.staging[stream], CODED, len(blob), blob)
        self.staged[stream] = _BODY + len(blob)
        return True

    def _store_key(self, stream: int, slot: int, frame: ByteArray) -> ByteArray:
        offset, key = self.log.allot(slot, frame.size, KEY_ALIGNMENT)
        key[:] = frame
        self.log.slots[slot].book[NEWEST_KEY] = offset
        self.key_slots[stream], self.key_offsets[stream], self.key_costs[stream] = slot, offset, 0
        _put_blob(self.staging[stream], KEYED, offset)
        return key

    def read(self, cells: npt.NDArray[np.int64], indexes: Sequence[FrameIndex], outs: Sequence[ByteArray]) -> None:
        keep = None
        result = EXPAND if self.packer is not None else self._read(cells, NO_CELLS, 0, indexes, outs)
        if result == EXPAND:  # something in it can only be decoded by a codec, which is rare
            expanded, expansions, keep = self._expand(*self._located(cells, indexes))
            result = self._read(cells, NO_CELLS, 0, indexes, outs, expanded, expansions)
        if result != 0:
            raise StorageError(_DAMAGED)
        del keep  # what the expansions point into

    def read_pairs(
        self,
        rows: npt.NDArray[np.int64],
        columns: npt.NDArray[np.int64],
        n_rows: int,
        indexes: Sequence[FrameIndex],
        outs: Sequence[ByteArray],
    ) -> bool:
        result = EXPAND if self.packer is not None else self._read(rows, columns, n_rows, indexes, outs)
        return super().read_pairs(rows, columns, n_rows, indexes, outs) if result == EXPAND else result != OUTSIDE

    def _read(
        self,
        rows: npt.NDArray[np.int64],
        columns: npt.NDArray[np.int64],
        n_rows: int,
        indexes: Sequence[FrameIndex],
        outs: Sequence[ByteArray],
        expanded: npt.NDArray[np.uint64] = _EMPTY_LOCATIONS,
        expansions: npt.NDArray[np.uint64] = _EMPTY_EXPANSIONS,
    ) -> int:
        """Decode; returns 0, OUTSIDE, or EXPAND where a record has to be decoded by a codec first."""
        count = len(rows)
        bound = self._binding()
        arguments = (
            bound.words,
            indexes[0].book,
            indexes[-1].book,
            rows,
            columns,
            n_rows,
            outs[0],
            outs[1] if len(outs) > 1 else _NO_BYTES,
            expanded,
            expansions,
            np.empty((2, self.tail.shape[1] + WRITE_AHEAD), dtype=np.uint8),
            len(self.log.order) * self.log.segment_bytes > _CACHED,
        )
        if worth_halving(count, len(outs) * outs[0].size):
            # Compiled code has addresses. What is there must live for as long as it works, even if a Ctrl-C ends the wait.
            alive = (self, bound, indexes)
            read_rows = self._read_rows
            result = in_halves(lambda first, last: read_rows(first, last, *arguments) if alive else 0, count)
        else:
            result = int(self._read_rows(0, count, *arguments))
        if result == DAMAGED:
            raise StorageError(_DAMAGED)
        return result

    def _expand(
        self, streams: npt.NDArray[np.int64], wanted: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64], list[ByteArray]]:
        """Decode with codecs what the compiled walk cannot; each record once."""
        locations = np.empty(wanted.size, dtype=np.uint64)
        count = self._frame_groups(self.directory.locations, self.shift, streams, wanted, locations)
        found = [(location, *self._record_at(location)) for location in np.unique(locations[:count]).tolist()]
        records = [(location, kind, body) for location, kind, _, body in found if kind != KEYED]
        rows = np.empty((len(records), 3), dtype=np.uint64)
        keep: list[ByteArray] = [_NO_BYTES] * len(records)

        def work(first: int, last: int) -> int:
            for place in range(first, last):
                _, kind, body = records[place]
                keep[place] = self._expand_record(kind, body, rows[place])
            return 0

        if worth_halving(len(records), _CODEC_EFFORT * len(records) * self.layout.frame_bytes):
            in_halves(work, len(records))
        else:
            work(0, len(records))
        return np.array([location for location, _, _ in records], dtype=np.uint64), rows, keep

    def _expand_record(self, kind: int, body: ByteArray, row: npt.NDArray[np.uint64]) -> ByteArray:
        """Decode one record; returns the memory that ``row`` then points into."""
        size = get_u32(body, 0) if body.size >= _U32 else -1
        try:
            if kind == CODED and size <= body.size - _U32:
                frame: ByteArray = padded_rows(1, self.layout.frame_bytes)[0]
                self.decode_frame(self.codec, body[_U32 : _U32 + size], frame[: self.layout.frame_bytes])
                rest = body[_U32 + size :]
                row[:] = frame.ctypes.data, rest.ctypes.data, rest.size
                return frame
            if kind == PACKED and self.packer is not None and size <= self.staging.shape[1]:
                patches: ByteArray = np.empty(size + READ_AHEAD, dtype=np.uint8)[:size]
                self.packer.decode(body[_U32:], patches)
                row[:] = 0, patches.ctypes.data, patches.size
                return patches
        except CodecError as error:
            raise StorageError(f"a stored group of frames is damaged: {error}") from error
        raise StorageError(f"a stored group of frames is damaged: record of kind {kind}")

    def _record_at(self, location: int) -> tuple[int, int, ByteArray]:
        if not location & OPEN_BIT:
            return super()._record_at(location)
        stream = location ^ OPEN_BIT
        if stream >= self.n_streams or not HEADER_BYTES <= self.staged[stream] <= self.staging.shape[1]:
            raise StorageError(f"the directory points to an open group of environment {stream}, which there is not")
        record = self.staging[stream, : int(self.staged[stream])]
        return get_header(record)[1], int(self.counts[stream]), record[HEADER_BYTES:]
