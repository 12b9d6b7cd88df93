"""
A decoder for chunks in plain Python, written from ``docs/format.md`` alone.

It is slow and checks little beside the checksums: what it is for is to say what the bytes mean, and to disagree with the
compiled core where that does not do what the page says. The offsets that it keeps are for tests that damage a chunk at a
certain place.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

MAGIC, END = b"SB3XCHNK", b"SB3XCEND"
HEADER: tuple[tuple[str, int, str], ...] = (
    ("version", 8, "I"),
    ("header_bytes", 12, "I"),
    ("size", 16, "Q"),
    ("first_row", 24, "Q"),
    ("reserved", 32, "Q"),
    ("rows", 40, "I"),
    ("n_streams", 44, "I"),
    ("views", 48, "I"),
    ("flags", 52, "I"),
    ("shift", 56, "I"),
    ("item", 60, "I"),
    ("depth", 64, "I"),
    ("planes", 68, "I"),
    ("outer", 72, "Q"),
    ("part", 80, "Q"),
    ("row_bytes", 88, "Q"),
    ("transform", 96, "I"),
    ("tables", 100, "I"),
    ("n_groups", 104, "I"),
    ("n_exceptions", 108, "I"),
    ("n_classes", 112, "I"),
    ("data_bytes", 120, "Q"),
    ("data_sum", 128, "I"),
    ("index_sum", 132, "I"),
    ("header_sum", 148, "I"),
)
"""Name, place and type of each number in the header."""
CAN_TURN, INTERLEAVE, REFERENCES, PACKS = 1, 2, 4, 8
HEADER_BYTES, FOOTER_BYTES, READ_AHEAD, BLOCK_ROWS = 152, 16, 8, 16
KEYED, CODED, PACKED, RAW, BLOB, KEY, PALETTE, JOINT, BOOK = range(9)
OBJECTS, PLAIN, NO_BASE, PLAIN_PATCH, MANY, FAR = 9, 0xFFFF, 0xFFFFFF, 254, 255, 0x7FFF
CATALOGUE = 10
RECORD_HEADER = 8
NO_TRANSFORM, VALUES = range(2)
ZEROS, UNWRITTEN = -(1 << 15), -(1 << 15) + 1


def checksum(data: bytes) -> int:
    """
    Compute CRC-32C, bit by bit.

    :param data: Bytes
    :return: Their checksum
    """
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _CRC_TABLE[(crc ^ byte) & 255]
    return crc ^ 0xFFFFFFFF


def _crc_of_byte(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    return byte


_CRC_TABLE = [_crc_of_byte(byte) for byte in range(256)]


@dataclass
class Lane:
    """
    What the index says of one environment.

    :param groups: Offset of the record, and number of the first frame, of each group
    :param exceptions: Row, frames before it, and class, of each row that does not follow from the one before
    :param counts: Exceptions before each block of rows
    :param frames: How many frames there are
    """

    groups: list[tuple[int, int]]
    exceptions: list[tuple[int, int, int]]
    counts: list[int]
    frames: int


class ChunkDecoder:
    """
    A chunk, taken apart.

    :param chunk: The bytes
    :param frame_codec: Decodes single frames
    :param group_codec: Decodes whole groups; None for none
    """

    def __init__(self, chunk: bytes, frame_codec: Any = None, group_codec: Any = None) -> None:
        self.chunk = chunk = bytes(chunk)
        self.frame_codec, self.group_codec = frame_codec, group_codec
        self._decoded_groups: dict[tuple[int, int], list[bytes]] = {}
        assert chunk[:8] == MAGIC and chunk[-8:] == END
        self.head = {name: struct.unpack_from("<" + kind, chunk, at)[0] for name, at, kind in HEADER}
        head = self.head
        assert head["version"] in (1, 2) and head["size"] == len(chunk) == struct.unpack_from("<Q", chunk, len(chunk) - 16)[0]
        self.depth, self.views, self.rows = head["depth"], head["views"], head["rows"]
        assert head["transform"] in (NO_TRANSFORM, VALUES)
        self.by_values = head["transform"] == VALUES
        # Elements as they are coded, and frames made of them.
        self.item = 1 if self.by_values else head["item"]
        smaller = head["item"] // self.item
        self.row_bytes = head["row_bytes"] // smaller
        self.frame_bytes = head["outer"] * head["part"] // smaller
        self.data_at = head["header_bytes"]
        self.data = chunk[self.data_at : self.data_at + head["data_bytes"]]
        self.index_at = self.data_at + head["data_bytes"] + READ_AHEAD
        assert not any(chunk[self.index_at - READ_AHEAD : self.index_at])
        assert head["header_sum"] == checksum(chunk[: HEADER[-1][1]])
        assert head["data_sum"] == checksum(chunk[self.data_at : self.index_at])
        assert head["index_sum"] == checksum(chunk[self.index_at :])
        self._pos = self.index_at
        amounts = [self._take("III") for _ in range(head["n_streams"])]
        groups = [[self._take("IH") for _ in range(lane[0])] for lane in amounts]
        exceptions = [[self._take("HHI") for _ in range(lane[1])] for lane in amounts]
        blocks = -(-self.rows // BLOCK_ROWS)
        counts = [[self._take("H")[0] for _ in range(blocks)] for _ in amounts]
        self.classes = [(self._take("H")[0], self._take(f"{self.views * self.depth}h")) for _ in range(head["n_classes"])]
        self.values = [bytes(self._take(f"{head['item']}B")) for _ in range(head["tables"] // head["item"])]
        assert len(self.values) * head["item"] == head["tables"] and len(self.values) <= 256
        assert bool(self.values) == self.by_values
        assert self._pos == len(chunk) - FOOTER_BYTES, "there is more than belongs to it"
        self.lanes = [
            Lane(groups[i], exceptions[i], counts[i], amounts[i][2])
            for i in range(head["n_streams"])  # type: ignore[arg-type]
        ]
        assert sum(lane[0] for lane in amounts) == head["n_groups"]
        assert sum(lane[1] for lane in amounts) == head["n_exceptions"]
        for lane in self.lanes:
            rows = [row for row, _, _ in lane.exceptions]
            assert rows[0] == 0 and rows == sorted(set(rows))
            assert lane.counts == [sum(row < block * BLOCK_ROWS for row in rows) for block in range(blocks)]

    def _take(self, form: str) -> Any:
        numbers = struct.unpack_from("<" + form, self.chunk, self._pos)
        self._pos += struct.calcsize("<" + form)
        return numbers

    # -- from a cell to an observation -------------------------------------------------------------------------------------

    def frame_numbers(self, row: int, stream: int, view: int) -> list[int]:
        """
        Tell which frames an observation is made of.

        :param row: The row in the chunk
        :param stream: The environment
        :param view: The view
        :return: Their numbers, oldest first; ZEROS or UNWRITTEN for none
        """
        lane = self.lanes[stream]
        at, before, which = [entry for entry in lane.exceptions if entry[0] <= row][-1]
        added, relative = self.classes[which]

        def frames_of(number: int) -> list[int]:
            part = relative[number * self.depth : (number + 1) * self.depth]
            return [frame if frame <= UNWRITTEN else before + frame for frame in part]

        if row == at:
            return frames_of(view)
        # All rows since then follow: each shows what the last view of the row before did, and then one new frame.
        moves = row - at - (1 if view + 1 < self.views else 0)
        history = frames_of(self.views - 1) + [before + added + number for number in range(moves)]
        return history[-self.depth :]

    def observation(self, row: int, stream: int, view: int) -> bytes:
        """
        Decode an observation.

        :param row: The row in the chunk
        :param stream: The environment
        :param view: The view
        :return: Its bytes in C order
        """
        numbers, part, size = self.frame_numbers(row, stream, view), self.head["part"], self.head["outer"] * self.head["part"]
        frames = [bytes(size) if number < 0 else self.values_of(self.frame(stream, number)) for number in numbers]
        return b"".join(frame[at : at + part] for at in range(0, size, part) for frame in frames)

    def values_of(self, frame: bytes) -> bytes:
        """
        Undo the transform.

        :param frame: A frame as it is coded
        :return: As it is in an observation
        """
        return b"".join(self.values[place] for place in frame) if self.by_values else frame

    def frame(self, stream: int, number: int) -> bytes:
        """
        Decode a frame.

        :param stream: The environment
        :param number: Its number
        :return: Its bytes, as they are coded
        """
        groups = self.lanes[stream].groups
        which = max(k for k, (_, first) in enumerate(groups) if first <= number)
        if (stream, which) not in self._decoded_groups:
            self._decoded_groups[stream, which] = self._group(stream, which)
        return self._decoded_groups[stream, which][number - groups[which][1]]

    def record(self, stream: int, group: int) -> tuple[int, int, bytes]:
        """
        Find a record.

        :param stream: The environment
        :param group: Which of its groups
        :return: Coder, number of frames, body
        """
        offset = self.lanes[stream].groups[group][0]
        length, whose, coder, count = struct.unpack_from("<IHBB", self.data, offset)
        assert whose == stream & 0xFFFF
        return coder, count, self.data[offset + RECORD_HEADER : offset + RECORD_HEADER + length]

    def coders(self) -> set[int]:
        """
        List the coders of all records.

        :return: Their numbers
        """
        return {self.record(i, k)[0] for i, lane in enumerate(self.lanes) for k in range(len(lane.groups))}

    def _group(self, stream: int, group: int) -> list[bytes]:
        """All frames of a group."""
        coder, count, body = self.record(stream, group)
        groups = self.lanes[stream].groups
        stop = groups[group + 1][1] if group + 1 < len(groups) else self.lanes[stream].frames
        assert count == stop - groups[group][1]
        if coder in (RAW, BLOB):
            return [body if coder == RAW else self._decoded(body)]
        if coder == OBJECTS:
            return self._frames_of_objects(body, count, is_whole=True)
        (first,) = struct.unpack_from("<I", body)
        if coder == CODED:
            frames, patches = [self._decoded(body[4 : 4 + first])], body[4 + first :]
            frame = frames[0]
        elif coder in (PALETTE, JOINT):
            (size,) = struct.unpack_from("<I", body, 4)
            frame = self._book(first, coder).decode(body[8 : 8 + size])
            frames, patches = [frame], body[8 + size :]
        else:
            if coder == PACKED:
                body = decode(self.group_codec, body[4:], first)
                (first,) = struct.unpack_from("<I", body)
            frames, patches = [], body[4:]
            frame = self.data[first : first + self.frame_bytes]
        pos = 0
        while len(frames) < count:
            (length,) = struct.unpack_from("<H", patches, pos)
            frame = apply_patch(patches[pos + 2 : pos + 2 + length], frame, self.row_bytes)
            frames.append(frame)
            pos += 2 + length
        assert pos == len(patches), "there are more patches than frames"
        return frames

    def _book(self, offset: int, coder: int) -> Codebook:
        """The codebook whose bytes begin there."""
        length, _, kind, count = struct.unpack_from("<IHBB", self.data, offset - RECORD_HEADER)
        assert (kind, count) == (BOOK, 0)
        book = Codebook(self.data[offset : offset + length], self.frame_bytes)
        assert book.kind == coder
        return book

    def _frames_of_objects(self, body: bytes, count: int, is_whole: bool = False) -> list[bytes]:
        """The first frames of an OBJECTS group."""
        key, base, n_references = number(body[:3]), number(body[3:6]), number(body[6:8])
        frame = self.data[key : key + self.frame_bytes]
        if base != NO_BASE:
            length, _, coder, _ = struct.unpack_from("<IHBB", self.data, base)
            other = self.data[base + RECORD_HEADER : base + RECORD_HEADER + length]
            if coder == KEYED:
                frame = apply_patch(other[6 : 6 + number(other[4:6])], frame, self.head["row_bytes"])
            else:
                assert coder == OBJECTS and number(other[:3]) == key and number(other[3:6]) == NO_BASE
                (frame,) = self._frames_of_objects(other, 1)
        references, pos = [], 8
        if n_references != PLAIN:
            references = [number(body[8 + 3 * k : 11 + 3 * k]) for k in range(n_references)]
            pos += 3 * n_references
        frames: list[bytes] = []
        while len(frames) < count:
            n_objects = PLAIN_PATCH
            if n_references != PLAIN:
                n_objects, pos = body[pos], pos + 1
            if n_objects == PLAIN_PATCH:
                length = number(body[pos : pos + 2])
                frame = apply_patch(body[pos + 2 : pos + 2 + length], frame, self.head["row_bytes"])
                pos += 2 + length
            else:
                if n_objects == MANY:
                    n_objects, pos = number(body[pos : pos + 2]), pos + 2
                frame, pos = self._apply_objects(body, pos, n_objects, references, frame)
            frames.append(frame)
        assert not is_whole or (pos == len(body) and not references), "there are more patches than frames"
        return frames

    def objects(self, body: bytes, pos: int, count: int, references: list[int]) -> tuple[list[tuple[int, int, bytes]], int]:
        """
        Take the objects of a patch.

        :param body: The body of an OBJECTS record
        :param pos: Where the first of them begins
        :param count: How many there are
        :param references: Those of the record that are left; the ones that these objects need are taken away
        :return: For each, where in the frame it begins, its offset in the data (-1 if it lies here), and its tokens; and where
            they end
        """
        found = []
        begin = 0
        for _ in range(count):
            head, pos = number(body[pos : pos + 2]), pos + 2
            way = head >> 1
            if way == FAR:
                way, pos = number(body[pos : pos + 4]), pos + 4
            begin += way
            where, at = (self.data, references.pop(0)) if head & 1 else (body, pos)
            offset = at if head & 1 else -1
            length, at = where[at], at + 1
            if length == 0:
                length, at = number(where[at : at + 2]), at + 2
            found.append((begin, offset, where[at : at + length]))
            pos = pos if head & 1 else at + length
        return found, pos

    def _apply_objects(self, body: bytes, pos: int, count: int, references: list[int], frame: bytes) -> tuple[bytes, int]:
        """Make a frame by so many objects."""
        found, pos = self.objects(body, pos, count, references)
        for begin, _, tokens in found:
            frame = apply_object(begin, tokens, frame)
        return frame, pos

    def _decoded(self, blob: bytes) -> bytes:
        """One frame from a blob; where planes are interleaved, apart again."""
        frame = decode(self.frame_codec, blob, self.frame_bytes)
        if not self.head["flags"] & INTERLEAVE:
            return frame
        item, planes = self.item, self.head["planes"]
        values = [frame[at : at + item] for at in range(0, len(frame), item)]
        return b"".join(value for plane in range(planes) for value in values[plane::planes])


class Codebook:
    """
    What pictures are coded by.

    :param body: The body of its record
    :param frame_bytes: Bytes of a frame
    """

    def __init__(self, body: bytes, frame_bytes: int) -> None:
        self.kind, self.pixel, self.planar, self.predictor, self.width, n = struct.unpack_from("<BBBBIH", body)
        self.height, rest = divmod(frame_bytes, self.width * self.pixel)
        assert rest == 0 and self.height >= 16 and self.planar in (0, 1) and self.predictor in (0, 1, 2)
        pos = 10
        self.values = [body[pos + k * self.pixel : pos + (k + 1) * self.pixel] for k in range(n)]
        pos += n * self.pixel
        self.below: dict[int, bytes] = {}
        if self.kind == PALETTE:
            for colour in range(256) if self.pixel == 1 else (*range(n), 255):
                self.below[colour] = body[pos + 1 : pos + 1 + body[pos]]
                pos += 1 + body[pos]
        self.symbols = 256 if self.kind == PALETTE else n + 1
        assert len(body) == pos + (self.symbols + 1) // 2
        lengths = [body[pos + k // 2] >> k % 2 * 4 & 15 for k in range(self.symbols)]
        # Shorter codes come first, and of one length those of smaller symbols: each is the one before it, plus one.
        self.codes: dict[tuple[int, int], int] = {}
        code = before = 0
        for length, symbol in sorted((length, symbol) for symbol, length in enumerate(lengths)):
            code <<= length - before
            self.codes[length, code] = symbol
            code, before = code + 1, length
        assert code == 1 << before, "some patterns of bits are left over"

    def decode(self, picture: bytes) -> bytes:
        """
        Decode a picture.

        :param picture: Its bytes
        :return: The frame
        """
        lengths = struct.unpack_from("<4I", picture)
        pos = 16
        per_row = (self.width + 1) // 2 if self.kind == PALETTE else self.width
        rows: list[list[int]] = [[] for _ in range(self.height)]
        for stream, length in enumerate(lengths):
            bits = iter([byte >> bit & 1 for byte in picture[pos : pos + length] for bit in range(8)])
            for y in range(stream, self.height, 4):
                rows[y] = [self._symbol(bits) for _ in range(per_row)]
            assert len(list(bits)) < 8, "there are more bits than symbols"
            pos += length
        self._escapes = picture[pos:]
        pixels: list[bytes] = []
        for y, symbols in enumerate(rows):
            if self.kind == PALETTE:
                self._colours(symbols, y, pixels)
            else:
                self._deltas(symbols, y, pixels)
        assert not self._escapes, "there are more bytes than escapes"
        if self.planar:
            return b"".join(bytes(value[p] for value in pixels) for p in range(self.pixel))
        return b"".join(pixels)

    def _symbol(self, bits: Any) -> int:
        code = 0
        for length in range(1, 16):
            code = code << 1 | next(bits)
            if (length, code) in self.codes:
                return self.codes[length, code]
        raise AssertionError("there is no such code")

    def _take(self, count: int) -> bytes:
        taken, self._escapes = self._escapes[:count], self._escapes[count:]
        assert len(taken) == count
        return taken

    def _colours(self, symbols: list[int], y: int, pixels: list[bytes]) -> None:
        """A row of a picture with a palette."""
        if y == 0:
            self._above = [0 if self.pixel == 1 else 255] * self.width
        for x in range(self.width):
            rank = symbols[x // 2] >> x % 2 * 4 & 15
            listed = self.below[self._above[x]]
            if rank < 15 and rank >= len(listed):  # no coder writes it
                pixels.append(bytes(self.pixel))
                self._above[x] = 0 if self.pixel == 1 else 255
                continue
            colour = listed[rank] if rank < 15 else self._take(1)[0]
            if self.pixel == 1:
                pixels.append(bytes([colour]))
            else:
                pixels.append(self._take(self.pixel) if colour == 255 else self.values[colour])
            self._above[x] = colour

    def _deltas(self, symbols: list[int], y: int, pixels: list[bytes]) -> None:
        """A row of a picture of differences."""
        zeros = bytes(self.pixel)
        for x in range(self.width):
            above = pixels[-self.width] if y else zeros
            left = pixels[-1] if x else above
            corner = pixels[-self.width - 1] if x and y else above if not x else zeros
            delta = self.values[symbols[x]] if symbols[x] < len(self.values) else self._take(self.pixel)
            predicted = (left, above, [a + b - c for a, b, c in zip(left, above, corner, strict=True)])[self.predictor]
            pixels.append(bytes((d + value) & 255 for d, value in zip(delta, predicted, strict=True)))


def decode(codec: Any, blob: bytes, size: int) -> bytes:
    """
    Have a codec decode a blob.

    :param codec: The codec
    :param blob: The blob
    :param size: How many bytes there are to come
    :return: They
    """
    import numpy as np

    out = np.empty(size, np.uint8)
    codec.decode(np.frombuffer(blob, np.uint8), out)
    return out.tobytes()


def number(data: bytes) -> int:
    """
    Read a number.

    :param data: Its bytes
    :return: The number
    """
    return int.from_bytes(data, "little")


def apply_object(begin: int, tokens: bytes, frame: bytes) -> bytes:
    """
    Change a frame as an object says.

    :param begin: Where it begins
    :param tokens: Its tokens, the first of which has no skip
    :param frame: The frame
    :return: The frame afterwards
    """
    return frame[:begin] + apply_patch(b"\0" + tokens, frame[begin:], 0, frame[:begin])


def apply_patch(tokens: bytes, reference: bytes, row: int, before: bytes = b"") -> bytes:
    """
    Make a frame of another, or of itself, one row up.

    :param tokens: The patch without its length
    :param reference: The other frame
    :param row: Bytes of a row
    :param before: What comes before it, where this is only the rest of a frame
    :return: The frame
    """
    up = tokens[:1] == b"\xfd"
    if up:
        reference = bytes(len(reference))
    frame = bytearray()
    recent = bytearray()

    pos = int(up)
    while pos < len(tokens):
        skip, pos = tokens[pos], pos + 1
        if skip == 254:
            (skip,), pos = struct.unpack_from("<H", tokens, pos), pos + 2
        elif skip == 255:
            (skip,), pos = struct.unpack_from("<I", tokens, pos), pos + 4
        frame += reference[len(frame) : len(frame) + skip]
        change, pos = tokens[pos], pos + 1
        longer = 31 if change >= 128 else 127
        count = (change & longer) + 1
        if change >= 128 and change & 31 == 30:
            count, pos = tokens[pos] + 31, pos + 1
        elif change & longer == longer:
            (count,), pos = struct.unpack_from("<I", tokens, pos), pos + 4
        if change < 128:
            frame += tokens[pos : pos + count]
            pos += count
            continue
        source = change >> 5 & 3
        if source == 0:
            value, pos = tokens[pos], pos + 1
        elif up:
            value = recent[source - 1]
        else:
            value = (before + frame)[-1] if source == 1 else reference[len(frame) + count]
        frame += bytes([value]) * count
        recent = bytearray([value]) + recent.replace(bytes([value]), b"")[:2]
    frame += reference[len(frame) :]
    for at in range(row, len(frame) if up else 0):
        frame[at] ^= frame[at - row]
    return bytes(frame)
