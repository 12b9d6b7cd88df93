"""What turns frames into records of the log, and back; and the form of it that codes each frame by itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from sb3_extra_buffers.codecs import Codec, CodecError
from sb3_extra_buffers.storage.directory import GroupDirectory
from sb3_extra_buffers.storage.errors import StorageError
from sb3_extra_buffers.storage.frame_index import FrameIndex
from sb3_extra_buffers.storage.layout import ByteArray, FrameLayout
from sb3_extra_buffers.storage.matching import match_batch
from sb3_extra_buffers.storage.patterns import ROUND, ZERO, PatternTable
from sb3_extra_buffers.storage.records import (
    CODED,
    HEADER_BYTES,
    KEY_ALIGNMENT,
    RAW,
    get_header,
    padded_rows,
    put_header,
)
from sb3_extra_buffers.storage.segments import FRAMES, OFFSET_BITS, OFFSET_MASK, READ_AHEAD, SegmentLog, book_bytes
from sb3_extra_buffers.storage.streams import StreamState, all_cells

_MIN_SEGMENT = 1 << 17
_MAX_SEGMENT = 1 << 28


def segment_bytes_for(n_streams: int, frame_bytes: int, shared: bool) -> int:
    """
    Choose the size of a segment: small against a buffer, as whole segments are recycled, but large against what is
    stored once a segment.

    :param n_streams: Number of streams
    :param frame_bytes: Bytes a frame
    :param shared: Whether a segment holds a key frame for each stream
    :return: Bytes; with what lies before and behind them whole pages
    """
    several_frames = _power_of_two(8 * (frame_bytes + 64))
    frames_of_all = _power_of_two(8 * n_streams * (frame_bytes + 64)) if shared else 0
    return max(_MIN_SEGMENT, several_frames, min(frames_of_all, _MAX_SEGMENT)) - READ_AHEAD - book_bytes(n_streams)


def _power_of_two(size: int) -> int:
    return 1 << (size - 1).bit_length()


Write = tuple[FrameIndex, ByteArray]
"""An array, and the bytes of observations for it in memory order, one after the other."""


class FrameCoder(ABC):
    """
    Owner of the log, and of all that is known of the last frame of each stream.

    Frames of a stream are numbered upwards, not always without gaps; ``number >> shift`` is the group.

    :param layout: How observations split into frames
    :param n_streams: Number of streams (environments)
    :param shift: Two to this power is the most frames in a group
    """

    def __init__(self, layout: FrameLayout, n_streams: int, shift: int) -> None:
        self.layout = layout
        self.n_streams = n_streams
        self.shift = shift
        self.log = SegmentLog(segment_bytes_for(n_streams, layout.frame_bytes, shared=shift > 0), n_streams)
        self.directory = GroupDirectory(n_streams, shift)
        # Number of the last stored frame of each stream, and its bytes.
        self.heads: npt.NDArray[np.int64] = np.full(n_streams, -1, dtype=np.int64)
        self.tail = padded_rows(n_streams, layout.frame_bytes)
        self.state = StreamState(n_streams, layout)
        self.patterns = PatternTable(layout.depth)

    @property
    def last(self) -> ByteArray:
        """The last observation of each stream in memory order, ``(n_streams, obs_bytes)``."""
        return self.state.last

    @abstractmethod
    def put(self, writes: Sequence[Write], first_part: int, base: int, cells: npt.NDArray[np.int64]) -> int:
        """
        Write observations to the same cells of one array, or of two one after the other.

        :param writes: What to write
        :param first_part: Which of ``writes`` to begin with
        :param base: First cell of a row
        :param cells: Any cells of distinct streams instead; empty for the row
        :return: Which part needs help: the frames and entries that its statuses ask for. The number of parts when
            everything is written
        """

    @abstractmethod
    def append(self, stream: int, frame: ByteArray, reclaim: Callable[[], None], fresh: bool = True) -> int:
        """
        Store a frame.

        :param stream: The stream
        :param frame: ``(stride,)``
        :param reclaim: Calls ``release``, if that gives some space; asked before more is taken
        :param fresh: False when ``put`` has tried already to code it after the last one
        :return: Its number
        """

    def _located(
        self, cells: npt.NDArray[np.int64], indexes: Sequence[FrameIndex]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """
        Work out which frames observations are made of.

        :param cells: ``(m,)``
        :param indexes: The arrays
        :return: ``(m,)``, streams, and ``(m, len(indexes) * depth)``, frame numbers, ``ZERO`` for zeros
        """
        streams = cells % self.n_streams
        heads = self.heads[streams]
        wanted = []
        for index in indexes:
            numbers = heads - ((heads - index.newest[cells]) & ROUND)
            patterns = index.pattern[cells]
            if (patterns >= len(self.patterns)).any():
                raise StorageError(f"the index names pattern {patterns.max()}, but there are only {len(self.patterns)}")
            distances = self.patterns.offsets[patterns]
            if ((distances >= 0) & (numbers[:, None] < distances)).any():
                raise StorageError("the index names a frame from before the first one")
            wanted.append(np.where(distances < 0, ZERO, numbers[:, None] - distances))
        return streams, np.concatenate(wanted, axis=1)

    @abstractmethod
    def read(self, cells: npt.NDArray[np.int64], indexes: Sequence[FrameIndex], outs: Sequence[ByteArray]) -> None:
        """
        Decode observations of one array, or of two at the same cells.

        :param cells: ``(m,)``
        :param indexes: The arrays
        :param outs: For each array the bytes of ``m`` observations, filled in C order
        """

    def read_pairs(
        self,
        rows: npt.NDArray[np.int64],
        columns: npt.NDArray[np.int64],
        n_rows: int,
        indexes: Sequence[FrameIndex],
        outs: Sequence[ByteArray],
    ) -> bool:
        """
        Decode observations at rows and columns.

        :param rows: ``(m,)``
        :param columns: ``(m,)``
        :param n_rows: Number of rows
        :param indexes: The arrays, one or two
        :param outs: As for ``read``
        :return: False, and nothing decoded, where an index is negative or out of bounds
        """
        if (rows.view(np.uint64) >= n_rows).any() or (columns.view(np.uint64) >= self.n_streams).any():
            return False
        self.read(rows * self.n_streams + columns, indexes, outs)
        return True

    @property
    @abstractmethod
    def room(self) -> int:
        """Bytes that must be free in a segment for a group to begin there."""

    @property
    def open_bytes(self) -> int:
        """Bytes of groups that are not in the log yet."""
        return 0

    @property
    def stored_frames(self) -> int:
        """Frames that are kept, whether in use or not."""
        return sum(int(self.log.slots[slot].book[FRAMES]) for slot in self.log.order)

    def release(self, oldest_frame: npt.NDArray[np.int64]) -> None:
        """
        Recycle what lies before the frames still in use.

        :param oldest_frame: For each stream
        """
        oldest_group = oldest_frame >> self.shift
        self.log.release(oldest_group)
        self.directory.oldest[:] = oldest_group

    def check_loaded(self) -> None:
        """Check what only this kind of coder has, after loading."""
        return

    def forget_last(self) -> None:
        """Take nothing for known, after a write that was cut short: it may be neither what was before nor what came after."""
        self.state.known[:] = False
        self.state.tail_is_newest[:] = False

    def encode_frame(self, codec: Codec, frame: ByteArray) -> bytes:
        """
        Code a frame by itself.

        :param codec: By what
        :param frame: ``(frame_bytes,)``
        :return: The blob
        """
        if self._planes is not None:  # red, green and blue of a pixel have more to do with each other than neighbours have
            pixels = np.empty(frame.size, dtype=np.uint8)
            depth, count, item = self._planes
            self._transpose(frame, pixels, depth, count, item)
            frame = pixels
        return codec.encode(frame)

    def decode_frame(self, codec: Codec, blob: ByteArray, out: ByteArray) -> None:
        """
        Decode what ``encode_frame`` gave.

        :param codec: By what
        :param blob: The blob
        :param out: ``(frame_bytes,)``, filled
        """
        if self._planes is None:
            codec.decode(blob, out)
            return
        pixels = np.empty(out.size, dtype=np.uint8)
        codec.decode(blob, pixels)
        depth, count, item = self._planes
        self._transpose(pixels, out, count, depth, item)

    def _transpose(self, source: ByteArray, target: ByteArray, rows: int, columns: int, item: int) -> None:
        """Turn rows of values into columns."""
        target.reshape(columns, rows, item)[...] = source.reshape(rows, columns, item).swapaxes(0, 1)

    @property
    def _planes(self) -> tuple[int, int, int] | None:
        layout = self.layout
        if layout.outer > 1 or not 2 <= layout.group <= 4 or len(layout.obs_shape) < 3:
            return None
        return layout.group, layout.plane_bytes // layout.itemsize, layout.itemsize

    def _slot_with_room(self, stream: int, group: int, reclaim: Callable[[], None]) -> int:
        """
        Find the segment for a group.

        :param stream: Its stream
        :param group: Its number
        :param reclaim: See ``append``
        :return: The slot
        """
        if not self.log.has_room(self.room):
            if self.log.may_have_much_to_release():
                reclaim()
            self.log.open_segment()
        if not self.directory.has_room(stream, group):
            reclaim()
            self.directory.make_room(stream, group)  # else the same would be asked again soon
        return self.log.current

    def _record_at(self, location: int) -> tuple[int, int, ByteArray]:
        """
        Find a record of the log.

        :param location: Where
        :return: Kind, number of frames, body
        """
        slot, offset = location >> OFFSET_BITS, location & OFFSET_MASK
        if slot >= len(self.log.slots) or offset + HEADER_BYTES > self.log.segment_bytes:
            raise StorageError(f"the directory points outside the log (segment {slot}, offset {offset})")
        record = self.log.slots[slot].memory[offset:]
        body_bytes, kind, frames = get_header(record)
        if HEADER_BYTES + body_bytes > len(record):
            raise StorageError(f"a record is longer than its segment (segment {slot}, offset {offset})")
        return kind, frames, record[HEADER_BYTES : HEADER_BYTES + body_bytes]


class PlainCoder(FrameCoder):
    """
    Each frame by itself, by any codec, or raw where that is smaller.

    :param layout: How observations split into frames
    :param n_streams: Number of streams
    :param codec: The codec
    """

    def __init__(self, layout: FrameLayout, n_streams: int, codec: Codec) -> None:
        super().__init__(layout, n_streams, shift=0)
        self.codec = codec

    @property
    def room(self) -> int:
        return HEADER_BYTES + self.layout.frame_bytes + KEY_ALIGNMENT

    def put(self, writes: Sequence[Write], first_part: int, base: int, cells: npt.NDArray[np.int64]) -> int:
        state, layout = self.state, self.layout
        cells = all_cells(base, cells, self.n_streams)
        streams = cells % self.n_streams
        for part in range(first_part, len(writes)):
            index, memory = writes[part]
            match_batch(memory.reshape(len(cells), -1), streams, layout, self.tail, state)
            if state.status[: len(cells)].any():
                return part
            index.enter(cells, state.entry_newest[streams], state.entry_pattern[streams])
        return len(writes)

    def append(self, stream: int, frame: ByteArray, reclaim: Callable[[], None], fresh: bool = True) -> int:
        data = frame[: self.layout.frame_bytes]
        blob: ByteArray = np.frombuffer(self.encode_frame(self.codec, data), dtype=np.uint8)
        kind = CODED
        if blob.size >= data.size:
            blob, kind = data, RAW
        number = int(self.heads[stream]) + 1
        slot = self._slot_with_room(stream, number, reclaim)
        offset, record = self.log.allot(slot, HEADER_BYTES + blob.size)
        put_header(record, blob.size, kind, 1)
        record[HEADER_BYTES:] = blob
        self.heads[stream] = number
        self.directory.put(stream, number, slot << OFFSET_BITS | offset)
        segment = self.log.slots[slot]
        segment.last_group[stream] = number
        segment.book[FRAMES] += 1
        self.tail[stream] = frame
        return number

    def read(self, cells: npt.NDArray[np.int64], indexes: Sequence[FrameIndex], outs: Sequence[ByteArray]) -> None:
        size, m = self.layout.frame_bytes, len(cells)
        streams, wanted = self._located(cells, indexes)
        keys = np.where(wanted < 0, -1, wanted * self.n_streams + streams[:, None])
        distinct, place = np.unique(keys, return_inverse=True)
        frames = np.empty((len(distinct), size), dtype=np.uint8)
        for row, key in enumerate(distinct.tolist()):
            if key < 0:
                frames[row] = 0
            else:
                self._decode(key % self.n_streams, key // self.n_streams, frames[row])
        place = place.reshape(len(wanted), len(outs), self.layout.depth)
        for which, out in enumerate(outs):
            if self.layout.outer == 1:
                np.take(frames, place[:, which], axis=0, out=out.reshape(m, self.layout.depth, size), mode="clip")
            else:
                self.layout.join(frames[place[:, which]], out.reshape(m, -1))

    def _decode(self, stream: int, number: int, out: ByteArray) -> None:
        kind, _, body = self._record_at(int(self.directory.locations[stream, number % self.directory.capacity]))
        if kind == CODED:
            try:
                self.decode_frame(self.codec, body, out)
            except CodecError as error:
                raise StorageError(f"frame {number} of environment {stream} is damaged: {error}") from error
        elif kind == RAW and body.size == out.size:
            out[:] = body
        else:
            raise StorageError(f"frame {number} of environment {stream} is damaged: record of kind {kind}")
