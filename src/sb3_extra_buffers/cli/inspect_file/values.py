"""What a pickle holds, as far as that can be known without loading it."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable
from typing import Any, BinaryIO


class PickleError(Exception):
    """A file is no pickle, or is damaged."""


class Name:
    """
    A function or a class that the file names.

    :param module: Module it would be imported from
    :param name: Its name there
    """

    __slots__ = ("module", "name")

    def __init__(self, module: str, name: str) -> None:
        self.module = module
        self.name = name

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


class Skipped:
    """
    Data that was not read.

    :param size: Its bytes in the file
    :param start: Where it begins; -1 if it is not in the file
    :param encoding: How its text is coded; None if it is no text
    """

    __slots__ = ("encoding", "size", "start")

    def __init__(self, size: int, start: int = -1, encoding: str | None = None) -> None:
        self.size = size
        self.start = start
        self.encoding = encoding


_CHUNK = 1 << 14
_LONGEST_LINE = 1 << 28
# No object has more attributes.
_MOST_ATTRIBUTES = 10_000


class Items:
    """
    A dict.

    Its pairs stay in a list: a file could choose keys that all have the same hash, and a dict of them takes hours.
    """

    __slots__ = ("are_attributes", "pairs")

    def __init__(self) -> None:
        self.pairs: list[tuple[Any, Any]] = []
        self.are_attributes = True  # names of attributes, none of which Python itself would call

    def extend(self, pairs: Iterable[tuple[Any, Any]]) -> None:
        """
        Put items into it.

        :param pairs: Keys and values
        """
        for key, value in pairs:
            self.pairs.append((key, value))
            if not isinstance(key, str) or key.startswith("__"):
                self.are_attributes = False

    def by_name(self) -> dict[str, Any]:
        """
        Give what can be looked up.

        :return: The values whose keys are strings
        """
        return {key: value for key, value in self.pairs[:_MOST_ATTRIBUTES] if isinstance(key, str)}


class Elements(list[Any]):
    """A set, likewise."""

    __slots__ = ()


class Made:
    """
    What loading the file would have made.

    :param maker: The class, or the function that would have been called; None if the file computes it
    :param args: With what
    :param is_known: Whether it is used as saved buffers and models use it
    """

    __slots__ = ("args", "elements", "is_known", "items", "maker", "state")

    def __init__(self, maker: Name | None, args: tuple[Any, ...] = (), is_known: bool = True) -> None:
        self.maker = maker
        self.args = args
        self.is_known = is_known
        self.state: Any = None
        self.items = Items()
        self.elements: list[Any] = []

    @property
    def attributes(self) -> dict[str, Any]:
        """Attributes it would have had."""
        parts = self.state if isinstance(self.state, tuple) and len(self.state) == 2 else (self.state,)
        found: dict[str, Any] = {}
        for part in parts:
            found |= part.by_name() if isinstance(part, Items) else {}
        return found


class Source:
    """
    A file, of which nothing is read that is not there.

    :param file: The file
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.end = file.seek(0, os.SEEK_END)
        self._chunk = b""
        self._start = 0  # of the chunk
        self._next = 0  # within the chunk

    @property
    def position(self) -> int:
        """How much is read or skipped."""
        return self._start + self._next

    def _move(self, position: int, size: int) -> None:
        """Go on elsewhere."""
        if position + size > self.end:
            raise PickleError("the file ends too early")
        self._start, self._next = position, 0
        self._file.seek(position)
        self._chunk = self._file.read(max(size, _CHUNK))

    def read(self, size: int) -> bytes:
        """
        Read bytes.

        :param size: How many
        :return: The bytes
        """
        end = self._next + size
        if end > len(self._chunk):
            self._move(self.position, size)
            end = size
        data = self._chunk[self._next : end]
        self._next = end
        return data

    def line(self) -> bytes:
        """
        Read a line. If the file ends within it, its last byte is lost, as it is for Python's own reader.

        :return: The line without its end
        """
        end = self._chunk.find(b"\n", self._next) + 1
        if end > 0:
            line = self._chunk[self._next : end]
            self._next = end
        else:
            start = self.position
            self._file.seek(start)
            line = self._file.readline(_LONGEST_LINE)
            if not line:
                raise PickleError("the file ends too early")
            if len(line) == _LONGEST_LINE:
                raise PickleError("there is too much in it to check")
            self._move(start + len(line), 0)
        return line[:-1]

    def skip(self, size: int, encoding: str | None = None) -> Skipped:
        """
        Leave out bytes.

        :param size: How many
        :param encoding: How the text is coded that they are; None if they are no text
        :return: The place
        """
        skipped = Skipped(size, self.position, encoding)
        self._move(self.position + size, 0)
        return skipped

    def beginning(self, skipped: Skipped, size: int) -> bytes:
        """
        Read the beginning of what was left out.

        :param skipped: The place
        :param size: How many bytes, at most
        :return: The bytes
        """
        if skipped.start < 0:
            return b""
        self._file.seek(skipped.start)
        return self._file.read(min(size, skipped.size))


def source_of(data: bytes) -> Source:
    """
    Read from memory.

    :param data: What is in the file
    :return: The source
    """
    return Source(io.BytesIO(data))
