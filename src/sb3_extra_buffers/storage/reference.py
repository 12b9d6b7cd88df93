"""Frames coded against earlier frames: the compiled coder behind the methods ``delta`` and ``delta-zstd``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sb3_extra_buffers.codecs import Codec, CodecError, has_numba
from sb3_extra_buffers.storage.coder import FrameCoder, IndexTable, StreamState
from sb3_extra_buffers.storage.errors import StorageError
from sb3_extra_buffers.storage.layout import ByteArray, FrameLayout
from sb3_extra_buffers.storage.matching import pixels_are_words
from sb3_extra_buffers.storage.parallel import in_halves
from sb3_extra_buffers.storage.records import (
    CODED,
    HEADER_BYTES,
    KEY_ALIGNMENT,
    KEY_OFFSET_BYTES,
    KEYED,
    OPEN_BIT,
    PACKED,
    get_header,
    get_u32,
    padded,
    padded_rows,
    put_header,
    put_u32,
)
from sb3_extra_buffers.storage.segments import OFFSET_BITS, READ_AHEAD

_BODY = HEADER_BYTES + KEY_OFFSET_BYTES
_U32 = 4
_EMPTY_LOCATIONS: npt.NDArray[np.uint64] = np.empty(0, dtype=np.uint64)
_EMPTY_EXPANSIONS: npt.NDArray[np.uint64] = np.empty((0, 3), dtype=np.uint64)
_NOWHERE = np.uint64(0)
_NO_WORDS: npt.NDArray[np.uint32] = np.empty((0, 0), dtype=np.uint32)


def _address(array: ByteArray) -> np.uint64:
    return np.uint64(array.__array_interface__["data"][0])


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

    def __init__(self, layout: FrameLayout, n_streams: int, codec: Codec, packer: Codec | None = None, shift: int = 4) -> None:
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
        self.coded_records = 0
        self.favour: npt.NDArray[np.int64] = np.zeros(n_streams, dtype=np.int64)
        self._bind()

    def _bind(self) -> None:
        """Views and compiled code, which are not part of the state."""
        if not has_numba():
            raise ImportError('frames coded by "delta" need numba: pip install "sb3-extra-buffers[numba]"')
        from sb3_extra_buffers.storage.kernels import patch, put, read

        self._encode: Any = patch.encode_patch
        self._put: Any = put.put_batch
        self._frame_groups: Any = read.groups_of
        self._read_rows: Any = read.read_rows
        self._flat_cells: Any = read.flat_cells
        layout = self.layout
        size, item, row = layout.frame_bytes, layout.itemsize, layout.row_bytes
        flat = (layout.depth, layout.outer, layout.depth * layout.part_bytes, layout.part_bytes, item, 0, size, row)
        pixels = layout.plane_bytes // item
        turned = (layout.depth, pixels, layout.length * item, layout.group * item, item, 1, size, row)
        self._memory_geometry = np.array([flat, turned], dtype=np.int64)
        self._out_geometry = np.array([layout.outer, layout.part_bytes, size, layout.depth, row], dtype=np.int64)
        self._shifted = padded_rows(1, size)[0]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if not name.startswith("_")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._bind()

    @property
    def room(self) -> int:
        return int(self.staging.shape[1]) + padded(self.layout.frame_bytes) + KEY_ALIGNMENT

    @property
    def open_bytes(self) -> int:
        return int(self.staged[self.counts > 0].sum())

    @property
    def stored_frames(self) -> int:
        return super().stored_frames + int(self.counts.sum())

    def match(
        self,
        new: ByteArray,
        last: ByteArray,
        known: npt.NDArray[np.bool_],
        streams: npt.NDArray[np.int64],
        turned: bool,
        state: StreamState,
        frames: ByteArray,
        status: npt.NDArray[np.int64],
    ) -> bool:
        geometry = self._memory_geometry[int(turned)]
        words = pixels_are_words(self.layout, turned)
        changed = self._put(
            new,
            new.view(np.uint32) if words else _NO_WORDS,
            last,
            last.view(np.uint32) if words else _NO_WORDS,
            known,
            streams,
            geometry,
            self.tail,
            state.tail_is_newest,
            frames,
            self.staging,
            self.staged,
            self.counts,
            self.heads,
            state.slots,
            state.runs,
            state.entry_newest,
            state.entry_pattern,
            self.group_frames,
            self.limit,
            self.staging.shape[1] - READ_AHEAD,
            self._shifted,
            self.favour,
            status,
        )
        return bool(changed)

    def cells_of(
        self, rows: npt.NDArray[np.int64], columns: npt.NDArray[np.int64], n_rows: int
    ) -> npt.NDArray[np.int64] | None:
        cells = np.empty(len(rows), dtype=np.int64)
        return cells if self._flat_cells(rows, columns, n_rows, self.n_streams, cells) else None

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
        staging = self.staging[stream]
        return int(
            self._encode(
                _address(reference),
                _address(frame),
                self.layout.frame_bytes,
                self.layout.row_bytes,
                _address(self._shifted),
                self.favour,
                stream,
                staging,
                start,
                min(start + limit, staging.size - READ_AHEAD),
            )
        )

    def _close(self, stream: int) -> None:
        """Move a stream's open group to the log."""
        frames = int(self.counts[stream])
        if frames == 0:
            return
        record = self.staging[stream, : int(self.staged[stream])]
        _, kind, _ = get_header(record)
        record = self._packed(record) if kind == KEYED and self.packer is not None else record
        put_header(record, record.size - HEADER_BYTES, get_header(record)[1], frames)
        slot, group = int(self.open_slots[stream]), int(self.groups[stream])
        segment = self.log.slots[slot]
        segment.reserved -= self.staging.shape[1]
        offset, target = self.log.allot(slot, record.size)
        target[:] = record
        segment.last_group[stream] = group
        segment.frames += frames
        self.directory.put(stream, group, slot << OFFSET_BITS | offset)
        self.counts[stream] = 0
        self.pays[stream] = frames >= self.group_frames // 2

    def _packed(self, record: ByteArray) -> ByteArray:
        assert self.packer is not None
        body = record[HEADER_BYTES:]
        blob = self.packer.encode(body)
        if len(blob) + _U32 >= body.size:
            return record
        packed = np.empty(HEADER_BYTES + _U32 + len(blob), dtype=np.uint8)
        put_header(packed, 0, PACKED, 0)
        put_u32(packed, HEADER_BYTES, body.size)
        packed[HEADER_BYTES + _U32 :] = np.frombuffer(blob, dtype=np.uint8)
        return packed

    def _open(self, stream: int, frame: ByteArray, reclaim: Callable[[], None]) -> None:
        """Begin a group with a frame."""
        slot = self._slot_with_room(stream, int(self.groups[stream]) + 1, reclaim)
        segment = self.log.slots[slot]
        segment.reserved += self.staging.shape[1]
        self.open_slots[stream] = slot
        self.groups[stream] += 1
        self.directory.put(stream, int(self.groups[stream]), OPEN_BIT | stream)
        self.counts[stream] = 1
        if self._open_on_key(stream, slot, frame):
            return
        if not self.pays[stream] and self._open_coded(stream, frame):
            return
        key = self._store_key(stream, slot, frame)
        self.staged[stream] = self._patch(key, frame, stream, _BODY, self.limit)

    def _open_on_key(self, stream: int, slot: int, frame: ByteArray) -> bool:
        size = self.layout.frame_bytes
        segment = self.log.slots[slot]
        own = self.key_slots[stream] == slot
        offset = int(self.key_offsets[stream]) if own else segment.newest_key
        if offset < 0:
            return False
        if not own:  # another stream's: most games look alike, so it may do for a while
            self.key_costs[stream] = 0
        key = segment.memory[offset : offset + frame.size]
        end = self._patch(key, frame, stream, _BODY, size // 2 if self.pays[stream] else self.limit)
        cost = int(self.key_costs[stream]) + end - _BODY
        if end < 0 or cost > size:
            return False
        self.key_slots[stream], self.key_offsets[stream], self.key_costs[stream] = slot, offset, cost
        self._begin_record(stream, KEYED, offset)
        self.staged[stream] = end
        return True

    def _open_coded(self, stream: int, frame: ByteArray) -> bool:
        blob = self.encode_frame(self.codec, frame[: self.layout.frame_bytes])
        if len(blob) >= self.layout.frame_bytes:
            return False
        self._begin_record(stream, CODED, len(blob))
        self.staging[stream, _BODY : _BODY + len(blob)] = np.frombuffer(blob, dtype=np.uint8)
        self.staged[stream] = _BODY + len(blob)
        self.coded_records += 1
        return True

    def _store_key(self, stream: int, slot: int, frame: ByteArray) -> ByteArray:
        offset, key = self.log.allot(slot, frame.size, KEY_ALIGNMENT)
        key[:] = frame
        self.log.slots[slot].newest_key = offset
        self.key_slots[stream], self.key_offsets[stream], self.key_costs[stream] = slot, offset, 0
        self._begin_record(stream, KEYED, offset)
        return key

    def _begin_record(self, stream: int, kind: int, number: int) -> None:
        put_header(self.staging[stream], 0, kind, 0)
        put_u32(self.staging[stream], HEADER_BYTES, number)

    def read(
        self,
        cells: npt.NDArray[np.int64],
        tables: Sequence[IndexTable],
        offsets: npt.NDArray[np.int64],
        outs: Sequence[ByteArray],
    ) -> None:
        expanded, expansions, keep = _EMPTY_LOCATIONS, _EMPTY_EXPANSIONS, None
        if self.packer is not None or self.coded_records:
            expanded, expansions, keep = self._expand(*self._located(cells, tables, offsets))
        arguments = (
            cells,
            self.heads,
            *tables[0],
            *tables[-1],
            offsets,
            _address(outs[0]),
            _address(outs[1]) if len(outs) > 1 else _NOWHERE,
            self._out_geometry,
            self.directory.locations,
            self.shift,
            self.log.pointers,
            self.log.segment_bytes,
            self.staging,
            self.staged,
            self.open_slots,
            expanded,
            expansions,
            np.empty((2, padded(self.layout.frame_bytes)), dtype=np.uint8),
        )
        nbytes = len(outs) * outs[0].size
        result = in_halves(lambda first, last: self._read_rows(first, last, *arguments), len(cells), nbytes)
        del keep  # what the expansions point into
        if result < 0:
            raise StorageError("a stored group of frames is damaged; what was asked for cannot be decoded")

    def _expand(
        self, streams: npt.NDArray[np.int64], wanted: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64], list[ByteArray]]:
        """Decode with codecs what the compiled walk cannot; each record once."""
        locations = np.empty(wanted.size, dtype=np.uint64)
        count = self._frame_groups(self.directory.locations, self.shift, streams, wanted, locations)
        expanded: list[int] = []
        rows: list[tuple[int, int, int]] = []
        keep: list[ByteArray] = []
        for location in np.unique(locations[:count]).tolist():
            kind, _, body = self._record_at(location)
            if kind == KEYED:
                continue
            size = get_u32(body, 0) if body.size >= _U32 else -1
            try:
                if kind == CODED and size <= body.size - _U32:
                    frame = padded_rows(1, self.layout.frame_bytes)[0]
                    self.decode_frame(self.codec, body[_U32 : _U32 + size], frame[: self.layout.frame_bytes])
                    rest = body[_U32 + size :]
                    rows.append((frame.ctypes.data, rest.ctypes.data, rest.size))
                elif kind == PACKED and self.packer is not None and size <= self.staging.shape[1]:
                    frame = np.empty(size + READ_AHEAD, dtype=np.uint8)[:size]
                    self.packer.decode(body[_U32:], frame)
                    rows.append((0, frame.ctypes.data, frame.size))
                else:
                    raise StorageError(f"a stored group of frames is damaged: record of kind {kind}")
            except CodecError as error:
                raise StorageError(f"a stored group of frames is damaged: {error}") from error
            expanded.append(location)
            keep.append(frame)
        return (
            np.array(expanded, dtype=np.uint64),
            np.array(rows, dtype=np.uint64).reshape(-1, 3),
            keep,
        )

    def _record_at(self, location: int) -> tuple[int, int, ByteArray]:
        if not location & OPEN_BIT:
            return super()._record_at(location)
        stream = location ^ OPEN_BIT
        record = self.staging[stream, : int(self.staged[stream])]
        return get_header(record)[1], int(self.counts[stream]), record[HEADER_BYTES:]
