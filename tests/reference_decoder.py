"""
A decoder for the image of a store in plain Python, written from ``docs/format.md`` alone.

It is slow and checks little: what it is for is to say what the bytes mean, and to disagree with the compiled core where that
does not do what the page says. The offsets that it keeps are for tests that damage an image at a certain place.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

MAGIC = b"SB3XBST2"
HEAD = (
    *("item", "outer", "depth", "part", "planes", "row", "flags", "shift", "n_streams", "n_segments", "n_groups"),
    *("n_patterns", "n_indexes", "writes", "frames_before_check", "pattern_limit", "strays", "strays_since", "patience"),
    "segment_bytes",
)
STREAM = (
    *("head", "group", "flags", "run", "row_above", "newest", "pattern", "key_segment", "key_offset", "key_cost"),
    *("frames", "segment", "staged"),
)
KEYED, CODED, PACKED, RAW, BLOB = range(5)
ZEROS = -1
OPEN = 1 << 63


@dataclass
class Part:
    """
    A part of an image.

    :param at: Where it begins
    :param numbers: Its numbers by name
    :param bytes_at: Where its bytes begin, if it has some
    :param data: Those bytes
    :param lists: Its lists by name
    """

    at: int
    numbers: dict[str, int] = field(default_factory=dict)
    bytes_at: int = 0
    data: bytes = b""
    lists: dict[str, list[int]] = field(default_factory=dict)

    def __getitem__(self, name: str) -> int:
        return self.numbers[name]


class Image:
    """
    An image, taken apart.

    :param image: The bytes
    :param frame_codec: Decodes single frames
    :param group_codec: Decodes whole groups; None for none
    """

    def __init__(self, image: bytes, frame_codec: Any = None, group_codec: Any = None) -> None:
        self.image, self.pos = image, 0
        self.frame_codec, self.group_codec = frame_codec, group_codec
        self._decoded_groups: dict[tuple[int, int], list[bytes]] = {}
        assert self._take(8) == MAGIC
        self.head = Part(self.pos, dict(zip(HEAD, self._list("q", len(HEAD)), strict=True)))
        head = self.head
        self.depth, self.shift, self.n_streams = head["depth"], head["shift"], head["n_streams"]
        self.frame_bytes = head["outer"] * head["part"]
        flags = head["flags"]
        self.interleave, self.references, self.turned = flags >> 1 & 1, flags >> 2 & 1, flags >> 4 & 1
        self.segments = [self._segment() for _ in range(head["n_segments"])]
        self.patterns = [[ZEROS] * self.depth]
        self.patterns += [self._list("q", self.depth) for _ in range(head["n_patterns"] - 1)]
        self.streams = [self._stream() for _ in range(self.n_streams)]
        self.directory = [self._groups(stream) for stream in self.streams]
        self.indexes = [self._index() for _ in range(head["n_indexes"])]
        assert self.pos == len(image), "there is more than belongs to it"

    # -- the parts, in their order ------------------------------------------------------------------------------------

    def _take(self, size: int) -> bytes:
        self.pos += size
        assert self.pos <= len(self.image), "it ends too early"
        return self.image[self.pos - size : self.pos]

    def _list(self, kind: str, count: int) -> list[int]:
        return list(struct.unpack(f"<{count}{kind}", self._take(count * struct.calcsize(f"<{kind}"))))

    def _segment(self) -> Part:
        part = Part(self.pos, dict(zip(("used", "frames", "newest_key"), self._list("q", 3), strict=True)))
        part.lists["last_group"] = self._list("q", self.n_streams)
        part.bytes_at, part.data = self.pos, self._take(part["used"])
        return part

    def _stream(self) -> Part:
        part = Part(self.pos, dict(zip(STREAM, self._list("q", len(STREAM)), strict=True)))
        part.lists["numbers"] = self._list("q", self.depth)
        self._take(self.frame_bytes)  # the last frame
        if self.depth > 1 or self.turned:
            self._take(self.depth * self.frame_bytes)  # the last observation
        part.bytes_at, part.data = self.pos, self._take(part["staged"])  # the open group
        return part

    def _groups(self, stream: Part) -> Part:
        part = Part(self.pos, {"oldest": self._list("q", 1)[0]})
        newest = stream["group"] if self.references else stream["head"]
        part.bytes_at = self.pos
        part.lists["locations"] = self._list("Q", newest + 1 - part["oldest"])
        return part

    def _index(self) -> Part:
        part = Part(self.pos, dict(zip(("cells", "wide", "overwritten"), self._list("q", 3), strict=True)))
        part.bytes_at = self.pos
        part.lists["newest"] = self._list("I", part["cells"])
        part.lists["pattern"] = self._list("I" if part["wide"] else "H", part["cells"])
        return part

    # -- from a cell to an observation -------------------------------------------------------------------------------------

    def frame_numbers(self, index: int, cell: int) -> list[int]:
        """
        Tell which frames an observation is made of.

        :param index: The array
        :param cell: The cell
        :return: Their numbers, oldest first; -1 for zeros
        """
        lists = self.indexes[index].lists
        head = self.streams[cell % self.n_streams]["head"]
        newest = head - (head - lists["newest"][cell]) % (1 << 32)
        return [ZEROS if distance < 0 else newest - distance for distance in self.patterns[lists["pattern"][cell]]]

    def observation(self, index: int, cell: int) -> bytes:
        """
        Decode an observation.

        :param index: The array
        :param cell: The cell
        :return: Its bytes in C order
        """
        numbers = self.frame_numbers(index, cell)
        frames = [bytes(self.frame_bytes) if n < 0 else self.frame(cell % self.n_streams, n) for n in numbers]
        part = self.head["part"]
        places = range(0, self.frame_bytes, part)
        return b"".join(frame[at : at + part] for at in places for frame in frames)

    def observations(self, index: int) -> list[bytes]:
        """
        Decode all of an array.

        :param index: The array
        :return: The bytes of each observation in C order, cell by cell
        """
        return [self.observation(index, cell) for cell in range(self.indexes[index]["cells"])]

    def frame(self, stream: int, number: int) -> bytes:
        """
        Decode a frame.

        :param stream: The environment
        :param number: Its number
        :return: Its bytes
        """
        group = number >> self.shift
        if (stream, group) not in self._decoded_groups:
            self._decoded_groups[stream, group] = self._group(stream, group)
        return self._decoded_groups[stream, group][number & ((1 << self.shift) - 1)]

    def _group(self, stream: int, group: int) -> list[bytes]:
        """All frames of a group."""
        location = self.directory[stream].lists["locations"][group - self.directory[stream]["oldest"]]
        if location & OPEN:
            part = self.streams[stream]
            assert location == OPEN | stream and part["group"] == group
            kind, body, segment, count = part.data[4], part.data[6:], part["segment"], part["frames"]
        else:
            segment, at = location >> 32, location & 0xFFFFFFFF
            length, kind, count = struct.unpack_from("<IBB", self.segments[segment].data, at)
            body = self.segments[segment].data[at + 6 : at + 6 + length]
        if kind in (RAW, BLOB):
            return [body if kind == RAW else self._decoded(body)]
        (first,) = struct.unpack_from("<I", body)
        if kind == CODED:
            frames, patches = [self._decoded(body[4 : 4 + first])], body[4 + first :]
            frame = frames[0]
        else:
            if kind == PACKED:
                body = decode(self.group_codec, body[4:], first)
                (first,) = struct.unpack_from("<I", body)
            assert first % 8 == 0, "a key frame lies elsewhere"
            frames, patches = [], body[4:]
            frame = self.segments[segment].data[first : first + self.frame_bytes]
        pos = 0
        while len(frames) < count:
            (length,) = struct.unpack_from("<H", patches, pos)
            frame = apply_patch(patches[pos + 2 : pos + 2 + length], frame, self.head["row"])
            frames.append(frame)
            pos += 2 + length
        assert pos == len(patches), "there are more patches than frames"
        return frames

    def _decoded(self, blob: bytes) -> bytes:
        """One frame from a blob; where planes are interleaved, apart again."""
        frame = decode(self.frame_codec, blob, self.frame_bytes)
        if not self.interleave:
            return frame
        item, planes = self.head["item"], self.head["planes"]
        values = [frame[at : at + item] for at in range(0, len(frame), item)]
        return b"".join(value for plane in range(planes) for value in values[plane::planes])


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


def apply_patch(tokens: bytes, reference: bytes, row: int) -> bytes:
    """
    Make a frame of another, or of itself, one row up.

    :param tokens: The patch without its length
    :param reference: The other frame
    :param row: Bytes of a row
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
        if skip == 255:
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
            value = frame[-1] if source == 1 else reference[len(frame) + count]
        frame += bytes([value]) * count
        recent = bytearray([value]) + recent.replace(bytes([value]), b"")[:2]
    frame += reference[len(frame) :]
    for at in range(row, len(frame) if up else 0):
        frame[at] ^= frame[at - row]
    return bytes(frame)
